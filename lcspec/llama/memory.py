"""What a context remembers of its sequences: cells, recurrent states, and how either is copied, cut and put back."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lcspec.config import ModelOptions
from lcspec.errors import DecodeError
from lcspec.llama.batch import Batch
from lcspec.llama.lib import C
from lcspec.llama.model import Branching, Traits
from lcspec.llama.planes import Planes
from lcspec.llama.views import as_bytes
from lcspec.modelfiles.windows import WindowCache


class Memory:
    """The memory of one context, by sequence ids.

    Positions are half open, [start, stop); stop < 0 means "to the end".

    Attributes:
        exists: False: an encoder, which remembers nothing and generates nothing.
        streams: every sequence has a cache of its own, so no cell belongs to two of them.
        branching: whether it takes trees, chains, or neither.
        redecodes: chains are verified from a saved state: after a refusal that is loaded, and accepted tokens are
            decoded again.
        max_chain: tokens that a step may verify, the pending one included.
        max_rollback: positions that can be taken back at once (0 = none).
        window: positions that layers with a sliding window see; 0 = every layer sees all. Cells outside it may be
            overwritten at any decode, whoever decodes.
        slack: these layers have a small cache (see WindowCache), and a text may keep so many positions beyond the
            window in it; 0 = they have as many cells as the others.
        planes: of recurrent layers; used where there are no trees.
        seconds: time spent so far in `save_state` and `load_state`.
    """

    def __init__(
        self,
        handle: Any,
        options: ModelOptions,
        traits: Traits,
        attention_only: bool,
        n_ctx: int,
        windows: WindowCache | None,
        planes: Planes,
        encoder: bool = False,
    ) -> None:
        """Describe what the library made.

        Args:
            handle: the llama_context*.
            options, traits: of the context and of its model.
            attention_only: it runs no recurrent layers (a head of a model that has some).
            n_ctx: positions a slot may use.
            windows: the cache of layers with a sliding window; None: they keep every position.
            planes: of its recurrent layers.
            encoder: nothing that it remembers is of use (see pairing.reads_whole).
        """
        self._context, self._handle = handle, C.llama_get_memory(handle)
        self.exists = bool(self._handle) and not encoder  # the library has cells for some encoders
        self.streams = options.streams
        self.max_rollback = n_ctx if attention_only else int(C.llama_n_rs_seq(handle))
        if attention_only:
            self.branching = Branching.TREE
        else:
            self.branching = Branching.CHAIN if options.rollback > 0 else Branching.NONE
        self.redecodes = self.branching is Branching.CHAIN and self.max_rollback == 0
        self.max_chain = options.rollback if self.redecodes else self.max_rollback
        self.window = traits.n_swa if attention_only else 0  # a hybrid's state is checked by `remove` alone
        self.slack = windows.slack if windows is not None else 0
        self.planes = planes
        self.seconds = 0.0

    def copy(self, src: int, dst: int, start: int, stop: int) -> None:
        """Make the cells of `src` in [start, stop) belong to `dst` as well (no data moves).

        Raises:
            DecodeError: each has a cache of its own, so only all of them could be copied.
        """
        if self.streams and src != dst and (start > 0 or stop >= 0):  # the library would end the process
            raise DecodeError("texts with a cache of their own cannot share a part of it")
        C.llama_memory_seq_cp(self._handle, src, dst, start, stop)
        self.planes.drop(src)  # a cell of two sequences can be taken back for neither
        self.planes.drop(dst)

    def copy_stream(self, src: int, dst: int) -> None:
        """Give `dst` a copy of all that `src` holds; each has a cache of its own.

        Raises:
            DecodeError: there is no memory for it, or the library failed.
        """
        # A state has of layers with a window only what the text's end sees. Otherwise it is the faster way: the library
        # copies the cells of all positions that there may be.
        if self.window:
            self.copy(src, dst, 0, -1)
            self._settle(dst)
        elif not self.set_state(dst, self.state(src)):
            raise DecodeError("no memory to copy a beginning that two prompts share: use fewer --slots")

    def _settle(self, seq: int) -> None:
        """Have the library copy now. It would before the next decode, but a state that is saved or loaded until then
        would be another one; so a token is decoded and taken back.

        Raises:
            DecodeError: the library failed.
        """
        end, batch = self.end(seq), Batch(1, 1)
        batch.add(0, end, (seq,), logits=False)
        batch.struct.n_tokens = batch.n
        code = C.llama_decode(self._context, batch.struct)
        self.remove(seq, end)
        if code != 0:
            raise DecodeError("a beginning that two prompts share could not be copied")

    def remove(self, seq: int, start: int, stop: int = -1) -> bool:
        """Take [start, stop) away from `seq`; False if this memory cannot forget a part."""
        # A recurrent state has planes of the latest decode's tokens only, but the library counts tokens: it would take
        # back more and leave a state that belongs to no text.
        if self.branching is Branching.TREE:
            return bool(C.llama_memory_seq_rm(self._handle, seq, start, stop))
        partly = 0 < start < self.end(seq)
        if partly and not self.planes.reach(seq, start):
            return False
        done = bool(C.llama_memory_seq_rm(self._handle, seq, start, stop))
        if partly and done:
            self.planes.drop(seq)  # once only, until the next decode
        return done

    def end(self, seq: int) -> int:
        """One past the largest position held by `seq`, 0 when it is empty."""
        return int(C.llama_memory_seq_pos_max(self._handle, seq)) + 1

    def start(self, seq: int) -> int:
        """The smallest position of `seq` that all layers still hold, -1 when there is none."""
        return int(C.llama_memory_seq_pos_min(self._handle, seq))

    def holds(self, seq: int, length: int) -> bool:
        """Whether `seq` has every cell below `length` that a token at `length` sees.

        Layers with a sliding window lose the cells outside it, however many they have: the library gives them to the
        next token that needs one. It keeps the positions between the first one held and the last one without a gap.
        """
        if self.branching is not Branching.TREE:
            end = self.end(seq)
            return length == end or (self.planes.reach(seq, length) and length >= end - self.max_rollback)
        if not self.window or length == 0:
            return True
        return 0 <= self.start(seq) <= max(0, length - self.window + 1)

    def let_go(self, seq: int, start: int, end: int, spare: int) -> None:
        """Take the positions before `start` away from `seq` in layers with a sliding window, and in no others.

        Such cells are of use to nobody, but the library overwrites none that belongs to two sequences. `end`: one past
        the last position of `seq`; `spare`: an id without cells.
        """
        if not 0 <= self.start(seq) < start:
            return
        # The library has no call for it. Loading a state drops what these layers have of a sequence, so a state of one
        # cell is loaded, and the cells that are wanted come back from `spare`.
        self.copy(seq, spare, end - 1, end)
        last = self.save_state(spare)
        self.copy(seq, spare, start, end - 1)
        self.load_state(seq, last)
        self.remove(seq, start)
        self.copy(spare, seq, start, end)
        self.remove(spare, 0)

    def clear(self) -> None:
        """Forget everything."""
        C.llama_memory_clear(self._handle, False)
        self.planes.clear()

    def state_size(self, seq: int) -> int:
        """Bytes of what `save_state` returns."""
        return int(C.llama_state_seq_get_size_ext(self._context, seq, C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY))

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
            self._context, as_bytes(data), data.size, seq, C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        )
        self.seconds += time.perf_counter() - start
        return data[: int(n)]

    def load_state(self, seq: int, data: NDArray[np.uint8]) -> bool:
        """Put back what `save_state` gave; other cells of `seq` stay. False if the library could not."""
        start = time.perf_counter()
        n = C.llama_state_seq_set_data_ext(
            self._context, as_bytes(data), data.size, seq, C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        )
        if self.branching is not Branching.TREE:
            self.planes.drop(seq)  # they are another text's
        self.seconds += time.perf_counter() - start
        return int(n) > 0

    def full_size(self, seq: int) -> int:
        """Bytes of what `state` returns."""
        return int(C.llama_state_seq_get_size(self._context, seq))

    def state(self, seq: int) -> bytearray:
        """The cells of `seq` in the library's own format, in cell order (see llama_state_seq_get_data).

        Raises:
            DecodeError: there is no memory for it.
        """
        size = self.full_size(seq)
        try:
            data = bytearray(size)
        except MemoryError:
            raise DecodeError(f"no memory to copy a text of {size >> 20} MiB: use fewer --slots") from None
        buffer = (ctypes.c_uint8 * len(data)).from_buffer(data)
        written = int(C.llama_state_seq_get_data(self._context, buffer, len(data), seq))
        del buffer  # a bytearray cannot change its length while it is exported
        del data[written:]
        return data

    def set_state(self, seq: int, data: bytearray) -> bool:
        """Make `seq` hold what `state` returned, here or in a context with the same cache types.

        False if that failed, and `seq` is empty.
        """
        buffer = (ctypes.c_uint8 * len(data)).from_buffer(data)
        self.planes.drop(seq)
        return bool(C.llama_state_seq_set_data(self._context, buffer, len(data), seq))
