"""A decoding context: the KV cache, `decode`, and the outputs as numpy views."""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import Any, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.config import BY_ROWS, QUANTIZED, ModelOptions
from lcspec.errors import DecodeError, ModelLoadError
from lcspec.llama import pages, states
from lcspec.llama.batch import Batch, StateBatch
from lcspec.llama.context_params import context_length, context_params
from lcspec.llama.lib import C, error_reason, last_errors, logits_address
from lcspec.llama.memory import Memory
from lcspec.llama.model import Branching, Model
from lcspec.llama.planes import MIXED_UP, Outputs, Planes
from lcspec.llama.row_by_row import cpu_backend, row_by_row
from lcspec.llama.views import rows, side_by_side
from lcspec.modelfiles.own_caches import check_exact, with_own_caches
from lcspec.modelfiles.pairing import reads_whole
from lcspec.modelfiles.windows import window_cache
from lcspec.pulse import Pace

AS_IT_IS = contextlib.nullcontext()


class Context:
    """One llama_context over a model.

    Attributes:
        n_ctx: positions a slot may use; n_batch, n_ubatch: rows a decode may have, and those evaluated at a time.
        memory: what it remembers of its sequences.
        decode_seconds: time spent so far in `decode`.
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
            ExactnessError: such a context of this model cannot be exact.
        """
        options = with_own_caches(model.header, options or model.options)
        check_exact(model.header, options)
        self.model = model
        self.options = options
        self.n_ctx = context_length(options, model.traits.n_ctx_train)
        attention_only = model.traits.attention_only or reads > 0  # heads have nothing but attention
        windows = attention_only and not (options.streams or reads)
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
            quantized = {options.kv_type, options.kv_type_v} & set(QUANTIZED)
            other_type = "f16" if quantized else "q8_0"  # blocks of a quantized type may not fit the heads
            raise ModelLoadError(
                f"no context of {self.n_ctx} tokens for {model.options.path.name}: {reason[0]}; "
                f"try a smaller --ctx, fewer --gpu-layers, or --kv-type {other_type}"
            )
        if model.adapters is not None:
            model.adapters.put_on(self.handle)
        pages.ask()  # for the compute buffers, whose first use by a long prompt is one page fault after the other
        self.n_batch, self.n_ubatch = int(params.n_batch), int(params.n_ubatch)
        planes = Planes(self.n_ubatch, options.streams, MIXED_UP.get(model.header.architecture))
        encoder = reads_whole(model.header.metadata)
        self.memory = Memory(self.handle, options, model.traits, attention_only, self.n_ctx, own, planes, encoder)
        self.batch = StateBatch(self.n_batch, self.n_seq, reads) if reads else Batch(self.n_batch, self.n_seq)
        self.decode_seconds = 0.0
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
        self._features: StateBatch | None = None  # of `encode`
        self._joined: Outputs | None = None  # of a decode in pieces

    def decode(self, batch: Batch | None = None, *, many: bool = False, tiles: bool = True) -> float:
        """Evaluate the batch; returns the seconds it took.

        `many`: with the kernels for many rows, where others are decoded row by row (`ModelOptions.attention`). Without
        `tiles` fused attention still goes row by row.

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
        backend = None if many and tiles else self._backend
        with row_by_row(not many, backend) if self._by_rows else AS_IT_IS:
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
        if self.memory.branching is Branching.TREE:
            return int(C.llama_decode(self.handle, batch.struct))
        # With hidden states on, the library takes one sequence after the other.
        planes = self.memory.planes
        pieces = planes.pieces(batch.runs(), apart=self._has_hidden or not self.memory.max_rollback)
        found = []
        for piece in pieces:
            part = batch.struct if len(pieces) == 1 else batch.part(piece[0].start, piece[-1].stop)
            code = int(C.llama_decode(self.handle, part))
            planes.decoded(piece, apart=self._has_hidden)
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
        out, batch = [], self._features
        if batch is None:
            batch = self._features = StateBatch(self.n_seq, 1, features.shape[1], tokens=False)
        for start in range(0, len(features), self.n_seq):  # the library has room for so many outputs
            part = features[start : start + self.n_seq]
            batch.clear()
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

    def set_threads(self, n: int) -> None:
        """Decode with `n` threads from now on (`n_threads` keeps the number the context was made with)."""
        C.llama_set_n_threads(self.handle, n, n)

    def close(self) -> None:
        """Free the context. Idempotent."""
        if self.handle:
            C.llama_free(self.handle)
            self.handle = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
