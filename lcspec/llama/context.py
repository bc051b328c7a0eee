"""A decoding context: the KV cache, `decode`, and the outputs as numpy views."""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import Any, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.config import BY_ROWS, ModelOptions
from lcspec.errors import DecodeError, ModelLoadError
from lcspec.llama import hugepages, states
from lcspec.llama.batch import Batch, StateBatch
from lcspec.llama.context_params import context_length, context_params
from lcspec.llama.lib import C, error_reason, last_errors, logits_address
from lcspec.llama.model import Branching, Model
from lcspec.llama.planes import Outputs, Planes
from lcspec.llama.row_by_row import cpu_backend, row_by_row
from lcspec.llama.views import as_bytes, rows, side_by_side
from lcspec.modelfiles.windows import window_cache
from lcspec.pulse import Pace

AS_IT_IS = contextlib.nullcontext()


class Context:
    """One llama_context over a model.

    Attributes:
        n_ctx: positions a slot may use; n_batch, n_ubatch: rows a decode may have, and those evaluated at a time.
        streams: every sequence has a cache of its own, so no cell belongs to two of them.
        branching: whether its memory takes trees, chains, or neither.
        redecodes: chains are verified from a saved state: after a refusal that is loaded, and accepted tokens are
            decoded again.
        max_chain: tokens that a step may verify, the pending one included.
        window: positions that layers with a sliding window see; 0 = every layer sees all. Cells outside it may be
            overwritten at any decode, whoever decodes.
        slack: these layers have a small cache (see WindowCache), and a text may keep so many positions beyond the
            window in it; 0 = they have as many cells as the others.
        max_rollback: positions that can be taken back at once (0 = none).
        decode_seconds, state_seconds: time spent so far in `decode`, and in `save_state` and `load_state`.
    """

    handle: Any  # llama_context*

    def __init__(
        self,
        model: Model,
        options: ModelOptions | None = None,
        *,
        spare: bool = True,
        mtp: bool = False,
        reads: int = 0,
        other: Context | None = None,
    ) -> None:
        """Create the context.

        Args:
            model: the loaded model.
            options: see ModelOptions.
            spare: with `options.streams` one more than there are slots, to pad and to measure with.
            mtp: run the model's layers for multi-token prediction instead of the model.
            reads: a head: every token comes with a state float32 [reads] (see StateBatch), and states for the next
                token are kept of the rows with logits (see `row_states`).
            other: the target's context, for heads that use its embeddings or its cells.

        Raises:
            ModelLoadError: the library could not allocate it; the message names the usual ways out.
        """
        options = options or model.options
        self.model = model
        self.options = options
        self.n_ctx = context_length(options, model.traits.n_ctx_train)
        attention_only = model.traits.attention_only or reads > 0  # heads have nothing but attention
        self.streams = options.streams
        windows = attention_only and not (self.streams or reads)
        own = window_cache(model.header, options, self.n_ctx) if windows else None
        params = context_params(options, model.traits.n_ctx_train, attention_only, spare=spare, windows=own)
        if mtp:
            params.ctx_type = C.LLAMA_CONTEXT_TYPE_MTP
        if other is not None:
            params.ctx_other = other.handle
        self.n_threads, self.n_seq = int(params.n_threads), int(params.n_seq_max)
        with error_reason("the library gave no reason") as reason:
            self.handle: Any = C.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise ModelLoadError(
                f"no context of {self.n_ctx} tokens for {model.options.path.name}: {reason[0]}; "
                "try a smaller --ctx, fewer --gpu-layers, or --kv-type q8_0"
            )
        if model.adapters is not None:
            model.adapters.put_on(self.handle)
        hugepages.ask()  # for the compute buffers, whose first use by a long prompt is one page fault after the other
        self.memory = C.llama_get_memory(self.handle)  # None: an encoder, which generates nothing
        self.n_batch, self.n_ubatch = int(params.n_batch), int(params.n_ubatch)
        self.max_rollback = self.n_ctx if attention_only else int(C.llama_n_rs_seq(self.handle))
        if attention_only:
            self.branching = Branching.TREE
        else:
            self.branching = Branching.CHAIN if options.rollback > 0 else Branching.NONE
        self.redecodes = self.branching is Branching.CHAIN and self.max_rollback == 0
        self.max_chain = options.rollback if self.redecodes else self.max_rollback
        self.window = model.traits.n_swa if attention_only else 0  # a hybrid's state is checked by `seq_remove` alone
        self.slack = own.slack if own is not None else 0
        self.batch = StateBatch(self.n_batch, self.n_seq, reads) if reads else Batch(self.n_batch, self.n_seq)
        self.decode_seconds = self.state_seconds = 0.0
        self._pace = Pace()
        self._wants_hidden = options.embeddings
        self._has_hidden = options.embeddings
        self._wants_states: frozenset[int] = frozenset()
        self._has_states: frozenset[int] = frozenset()
        if reads:
            states.set_nextn(self.handle, True, True)
        self._n_outputs = self._n_rows = 0
        self._logits: NDArray[np.float32] = np.zeros((0, 0), dtype=np.float32)
        self._logits_at = self._viewed_at = 0
        self._by_rows = options.attention in BY_ROWS
        self._backend = cpu_backend(self.handle) if options.attention == "fused_rows" else None
        self._planes = Planes(self.n_ubatch, self.streams)  # used where there are no trees
        self._joined: Outputs | None = None  # of a decode in pieces

    def decode(self, batch: Batch | None = None, *, many: bool = False) -> float:
        """Evaluate the batch; returns the seconds it took.

        `many`: with the kernels for many rows, where others are decoded row by row (`ModelOptions.attention`).

        Raises:
            DecodeError: the library failed. For recoverable failures its memory is as it was before, but for texts that
                were decoded in a piece of their own (see lcspec.llama.planes).
        """
        batch = batch or self.batch
        batch.struct.n_tokens = batch.n
        if self._wants_hidden or self._has_hidden:
            self._switch_hidden(self._wants_hidden and batch.n == batch.n_outputs)
        if self._wants_states != self._has_states:
            self._switch_states()
        self._pace.begin(batch.n)
        start = time.perf_counter()
        with row_by_row(not many, self._backend) if self._by_rows else AS_IT_IS:
            code = self._evaluate(batch)
            self._logits_at = logits_address(self.handle) or 0  # waits until the computation is done
        seconds = time.perf_counter() - start
        self._pace.end(batch.n, seconds)
        self.decode_seconds += seconds
        self._n_outputs, self._n_rows = batch.n_outputs, batch.n
        if self.model.workers is not None:
            self.model.workers.check()
        if code == 1:
            raise DecodeError("decoding failed: the KV cache is full; use a larger --ctx or fewer slots")
        if code != 0:
            raise DecodeError(f"decoding failed: {' '.join(last_errors()) or f'llama_decode returned {code}'}")
        return seconds

    def _evaluate(self, batch: Batch) -> int:
        """Have the library evaluate the batch, in pieces if drafts need that; returns its code."""
        self._joined = None
        if self.branching is Branching.TREE:
            return int(C.llama_decode(self.handle, batch.struct))
        # With hidden states on, the library takes one sequence after the other.
        pieces = self._planes.pieces(batch.runs(), apart=self._has_hidden or not self.max_rollback)
        found = []
        for piece in pieces:
            part = batch.struct if len(pieces) == 1 else batch.part(piece[0].start, piece[-1].stop)
            code = int(C.llama_decode(self.handle, part))
            self._planes.decoded(piece, apart=self._has_hidden)
            if code != 0:
                return code
            if len(pieces) > 1:
                self._n_rows, outputs = piece[-1].stop - piece[0].start, sum(run.outputs for run in piece)
                logits = rows(logits_address(self.handle) or 0, outputs, self.model.n_vocab).copy()
                found.append(Outputs(logits, {layer: self._states_of(layer).copy() for layer in self._has_states}))
        self._joined = Outputs.joined(found) if found else None
        return 0

    def logits(self) -> NDArray[np.float32]:
        """Logits of the last decode, float32 [n_outputs, n_vocab]; a view, valid until the next decode."""
        if self._joined is not None:
            return self._joined.logits
        # The library keeps one buffer as long as it is large enough, so the view over it is kept as well.
        if self._logits_at != self._viewed_at or self._n_outputs > len(self._logits):
            self._logits = rows(self._logits_at, max(1, self._n_outputs), self.model.n_vocab)
            self._viewed_at = self._logits_at
        return self._logits[: self._n_outputs]

    def want_hidden(self, on: bool = True) -> None:
        """Keep final hidden states from now on (see `hidden`), or no longer. They cost one copy of a row per token."""
        self._wants_hidden = on or self.options.embeddings

    def hidden(self) -> NDArray[np.float32]:
        """Final normed hidden states of the last decode, float32 [n_outputs, n_embd]; a view, as `logits`.

        Empty unless they were asked for (`want_hidden`, or `ModelOptions.embeddings`) and every token of the decode
        had an output row: with hidden states on, the library makes rows for *all* tokens, which a prompt chunk has no
        room for. So a decode that contains a prompt chunk has none.
        """
        address = ctypes.cast(C.llama_get_embeddings(self.handle), ctypes.c_void_p).value or 0
        return rows(address if self._has_hidden else 0, self._n_outputs, self.model.traits.n_embd_out)

    def want_states(self, layers: Iterable[int]) -> None:
        """Keep what goes into these layers, for every row of a decode, from now on (see `states`); none: no longer.

        Layer number `n_layer` is what comes out of the last one, before the final normalization.

        Raises:
            UnsupportedModel: this build of the library cannot (see lcspec.llama.states).
        """
        self._wants_states = frozenset(layers)
        if self._wants_states - {self.model.traits.n_layer}:
            states.require("an EAGLE-3 head", states.set_layer, states.get_layer)
        if self._wants_states:
            states.require("multi-token prediction", states.set_nextn, states.get_nextn)

    def states(self, layers: Sequence[int]) -> NDArray[np.float32]:
        """The states of `layers` of the last decode, side by side: float32 [n_tokens, len(layers) * n_embd].

        Every token of the batch has a row, in the batch's order. Empty where `want_states` did not ask for a layer.
        A view for a single layer, valid until the next decode.
        """
        if not self._has_states.issuperset(layers):
            return np.zeros((0, 0), dtype=np.float32)
        return side_by_side([self._states_of(layer) for layer in layers])

    def row_states(self) -> NDArray[np.float32]:
        """A head's own states for the token after each row of `logits`, float32 [n_outputs, reads]; a view."""
        return rows(states.get_nextn(self.handle) or 0, self._n_outputs, self.model.traits.n_embd_out)

    def select_head(self, index: int) -> None:
        """Run the layer number `index` of several for multi-token prediction from now on."""
        states.set_head(self.handle, index)

    def encode(self, features: NDArray[np.float32], seq: int) -> NDArray[np.float32]:
        """What a head makes of the target's states, float32 [n, k]: float32 [n, reads], to go with its tokens.

        `seq` is an id without cells, which gets none.

        Raises:
            DecodeError: the library failed.
        """
        out = []
        for start in range(0, len(features), self.n_seq):  # the library has room for so many outputs
            part = features[start : start + self.n_seq]
            batch = StateBatch(len(part), 1, part.shape[1], tokens=False)
            for i, row in enumerate(part):
                batch.add_state(0, i, (seq,), row, logits=True)
            batch.struct.n_tokens = batch.n
            code = C.llama_encode(self.handle, batch.struct)
            C.llama_synchronize(self.handle)
            if code != 0:
                raise DecodeError(f"encoding failed: {' '.join(last_errors()) or f'llama_encode returned {code}'}")
            width = self.model.traits.n_embd_out
            out.append(rows(states.get_nextn(self.handle) or 0, len(part), width).copy())
        return np.concatenate(out)

    def _states_of(self, layer: int) -> NDArray[np.float32]:
        if self._joined is not None:
            return self._joined.states[layer]
        traits = self.model.traits
        width = traits.n_embd_out if layer == traits.n_layer else traits.n_embd
        return rows(states.kept(self.handle, layer, traits.n_layer), self._n_rows, width)

    def _switch_states(self) -> None:
        for layer in self._wants_states ^ self._has_states:
            states.keep(self.handle, layer, self.model.traits.n_layer, layer in self._wants_states)
        self._has_states = self._wants_states

    def _switch_hidden(self, on: bool) -> None:
        """The library reads this flag anew at every decode; only its graph is built again."""
        if on != self._has_hidden:
            C.llama_set_embeddings(self.handle, on)
            self._has_hidden = on

    # Sequence bookkeeping. Positions are half open, [start, stop); stop < 0 means "to the end".

    def seq_copy(self, src: int, dst: int, start: int, stop: int) -> None:
        """Make the cells of `src` in [start, stop) belong to `dst` as well (no data moves)."""
        C.llama_memory_seq_cp(self.memory, src, dst, start, stop)
        self._planes.drop(src)  # a cell of two sequences can be taken back for neither
        self._planes.drop(dst)

    def stream_copy(self, src: int, dst: int) -> None:
        """Give `dst` a copy of all that `src` holds; each has a cache of its own.

        Raises:
            DecodeError: there is no memory for it.
        """
        if self.model.traits.attention_only:  # the library copies before the next decode
            self.seq_copy(src, dst, 0, -1)
        elif not self.set_state(dst, self.state(src)):
            raise DecodeError("no memory to copy a beginning that two prompts share: use fewer --slots")

    def seq_remove(self, seq: int, start: int, stop: int = -1) -> bool:
        """Take [start, stop) away from `seq`; False if this memory cannot forget a part."""
        # A recurrent state has planes of the latest decode's tokens only, but the library counts tokens: it would take
        # back more and leave a state that belongs to no text.
        if self.branching is Branching.TREE:
            return bool(C.llama_memory_seq_rm(self.memory, seq, start, stop))
        partly = 0 < start < self.seq_end(seq)
        if partly and not self._planes.reach(seq, start):
            return False
        done = bool(C.llama_memory_seq_rm(self.memory, seq, start, stop))
        if partly and done:
            self._planes.drop(seq)  # once only, until the next decode
        return done

    def seq_end(self, seq: int) -> int:
        """One past the largest position held by `seq`, 0 when it is empty."""
        return int(C.llama_memory_seq_pos_max(self.memory, seq)) + 1

    def seq_start(self, seq: int) -> int:
        """The smallest position of `seq` that all layers still hold, -1 when there is none."""
        return int(C.llama_memory_seq_pos_min(self.memory, seq))

    def holds(self, seq: int, length: int) -> bool:
        """Whether `seq` has every cell below `length` that a token at `length` sees.

        Layers with a sliding window lose the cells outside it, however many they have: the library gives them to the
        next token that needs one. It keeps the positions between the first one held and the last one without a gap.
        """
        if self.branching is not Branching.TREE:
            end = self.seq_end(seq)
            return length == end or (self._planes.reach(seq, length) and length >= end - self.max_rollback)
        if not self.window or length == 0:
            return True
        return 0 <= self.seq_start(seq) <= max(0, length - self.window + 1)

    def let_go(self, seq: int, start: int, end: int, spare: int) -> None:
        """Take the positions before `start` away from `seq` in layers with a sliding window, and in no others.

        Such cells are of use to nobody, but the library overwrites none that belongs to two sequences. `end`: one past
        the last position of `seq`; `spare`: an id without cells.
        """
        if not 0 <= self.seq_start(seq) < start:
            return
        # The library has no call for it. Loading a state drops what these layers have of a sequence, so a state of one
        # cell is loaded, and the cells that are wanted come back from `spare`.
        self.seq_copy(seq, spare, end - 1, end)
        last = self.save_state(spare)
        self.seq_copy(seq, spare, start, end - 1)
        self.load_state(seq, last)
        self.seq_remove(seq, start)
        self.seq_copy(spare, seq, start, end)
        self.seq_remove(spare, 0)

    def state_size(self, seq: int) -> int:
        """Bytes of what `save_state` returns."""
        return int(C.llama_state_seq_get_size_ext(self.handle, seq, C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY))

    def save_state(self, seq: int, into: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """What cannot be taken back to a length: recurrent states, and the cells within sliding windows; uint8 [size].

        In main memory: of states on a GPU the library keeps one for each id only, and these are many. `into` is written
        over if it is large enough: fresh memory costs about as much time as the copy.

        Raises:
            DecodeError: there is no memory for it.
        """
        start, size = time.perf_counter(), self.state_size(seq)
        try:
            data = into[:size] if into is not None and into.size >= size else np.empty(size, dtype=np.uint8)
        except MemoryError:
            raise DecodeError(f"no memory to copy a state of {size >> 20} MiB: use --speculate off") from None
        n = C.llama_state_seq_get_data_ext(
            self.handle, as_bytes(data), data.size, seq, C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        )
        self.state_seconds += time.perf_counter() - start
        return data[: int(n)]

    def load_state(self, seq: int, data: NDArray[np.uint8]) -> bool:
        """Put back what `save_state` gave; other cells of `seq` stay. False if the library could not."""
        start = time.perf_counter()
        n = C.llama_state_seq_set_data_ext(
            self.handle, as_bytes(data), data.size, seq, C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        )
        if self.branching is not Branching.TREE:
            self._planes.drop(seq)  # they are another text's
        self.state_seconds += time.perf_counter() - start
        return int(n) > 0

    def set_threads(self, n: int) -> None:
        """Decode with `n` threads from now on (`n_threads` keeps the number the context was made with)."""
        C.llama_set_n_threads(self.handle, n, n)

    def state(self, seq: int) -> bytearray:
        """The cells of `seq` in the library's own format, in cell order (see llama_state_seq_get_data)."""
        data = bytearray(int(C.llama_state_seq_get_size(self.handle, seq)))
        buffer = (ctypes.c_uint8 * len(data)).from_buffer(data)
        written = int(C.llama_state_seq_get_data(self.handle, buffer, len(data), seq))
        del buffer  # a bytearray cannot change its length while it is exported
        del data[written:]
        return data

    def set_state(self, seq: int, data: bytearray) -> bool:
        """Make `seq` hold what `state` returned, here or in a context with the same cache types.

        False if that failed, and `seq` is empty.
        """
        buffer = (ctypes.c_uint8 * len(data)).from_buffer(data)
        self._planes.drop(seq)
        return bool(C.llama_state_seq_set_data(self.handle, buffer, len(data), seq))

    def clear(self) -> None:
        """Forget everything."""
        C.llama_memory_clear(self.memory, False)
        self._planes.clear()

    def close(self) -> None:
        """Free the context. Idempotent."""
        if self.handle:
            C.llama_free(self.handle)
            self.handle = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
