"""Prompts read with kernels that are faster for many rows than those which decode exactly.

*In a context of their own*, whose cells are then handed over to the decoding context. The cache types that make
decoding exact (K in F16, V in BF16) keep the library from its fastest kernel for prompts, the tiled one: it wants equal
types. So a long prompt is read where both are F16, and its cells are copied with V rounded to BF16. The tiled kernel
takes rows from 64 on and gives a row the same bits in every piece, so a piece is never shorter: then the cells of a
prompt do not depend on the pieces it was read in.

*In place*, where decoding goes row by row: that is switched off for a prompt's pieces. What fills a piece up cannot be
taken back from a recurrent state, so there pieces are whole blocks of LEAST_ROWS, and what is left at a prompt's end is
decoded. Elsewhere pieces may be smaller: then the tiled kernel is not taken for any.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.config import ModelOptions
from lcspec.errors import DecodeError
from lcspec.kv_cache.reuse import common_prefix
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama.context import Context
from lcspec.llama.context_params import GGML_TYPES
from lcspec.llama.model import Model
from lcspec.modelfiles.windows import BLOCK_ROWS, EXACT_ROWS

# The tiled kernel's least rows (ggml-cpu, GGML_FA_TILE_Q).
LEAST_ROWS = EXACT_ROWS
# Tokens beyond which a prompt is usually read this way: shorter ones are read as fast where they are decoded.
LONG_PROMPT = 512
# Where answers cannot be read again in time, every prompt is read this way, and answers stay as they were decoded.
EVERY_PROMPT = 0
# Called with a position and a number of tokens.
Told = Callable[[int, int], None]
# The longest time in seconds that a new request may wait for a piece of LEAST_ROWS that is read ahead.
UNNOTICED = 0.5


class PromptReader:
    """One text for every slot, each in cells of its own."""

    def __init__(self, model: Model, options: ModelOptions, n_ctx: int) -> None:
        """Make the reading context for `options.slots` prompts of up to `n_ctx` tokens.

        Raises:
            ModelLoadError: there is no memory for it.
        """
        own = replace(
            options,
            ctx=n_ctx + LEAST_ROWS,
            kv_type_v=None,
            attention="fused",
            exact=False,
            batch=max(options.batch, LEAST_ROWS),
            streams=True,
        )
        self.context = Context(model, own, spare=False)
        self._kind = options.kv_type_v or options.kv_type  # of the values, where they are handed over to
        self._texts: list[list[int]] = [[] for _ in range(options.slots)]
        self._idle = list(range(options.slots))  # least recently used first

    def begin(self, prompt: Sequence[int], cache: SequenceCache | None = None) -> int:
        """Choose a place for `prompt`, that which holds most of it; returns its number. `cache` will get its cells."""
        shared = [common_prefix(self._texts[i], prompt) for i in self._idle]
        i = max(range(len(shared)), key=lambda j: (shared[j], -j))
        place = self._idle.pop(i)
        self._cut(place, min(shared[i], len(prompt)))
        return place

    def length(self, place: int) -> int:
        """Tokens that have been read there."""
        return len(self._texts[place])

    def read(self, place: int, tokens: Sequence[int], told: Told | None = None) -> float:
        """Read the next tokens, at most a batch of them; returns seconds. `told` is not called: see InPlaceReader.

        Raises:
            DecodeError: the library failed; the place is empty.
        """
        text = self._texts[place]
        try:
            seconds = _read_piece(self.context, tokens, len(text), place)
        except DecodeError:
            self._cut(place, 0)
            raise
        text += tokens
        return seconds

    def hand_over(self, place: int, cache: SequenceCache, pool: SequencePool) -> None:
        """Give `cache` every cell read at `place` that it does not hold yet.

        Raises:
            DecodeError: the decoding context has no room for them.
        """
        memory, end = cache.memory, self.length(place)
        seq = pool.take()
        try:
            data = converted(self.context.memory.state(place), cache.length, seq, self._kind)
            if not memory.set_state(seq, data):
                raise DecodeError("a prompt could not be handed over: the KV cache is full; use a larger --ctx")
            memory.copy(seq, cache.main, cache.length, end)
            cache.length = cache.handed = end
        finally:
            memory.remove(seq, 0)
            pool.give(seq)

    def copied(self, place: int) -> bytearray:
        """What `hand_over` would copy.

        Raises:
            ValueError: this library's format is not known.
        """
        return converted(self.context.memory.state(place), 0, 0, "bf16")

    def end(self, place: int) -> None:
        """The prompt is not read any further; its cells stay for one that begins alike."""
        if place not in self._idle:
            self._idle.append(place)

    def close(self) -> None:
        """Free the context."""
        self.context.close()

    def _cut(self, place: int, length: int) -> None:
        del self._texts[place][length:]
        self.context.memory.remove(place, length)


class InPlaceReader:
    """Reads prompts into the cells they are decoded in. A place is the number of a cache's main id."""

    def __init__(self, context: Context, least: int = LEAST_ROWS) -> None:
        """`least`: rows of the smallest piece; fewer are filled up."""
        self.context = context
        self.whole = not context.model.traits.attention_only  # pieces are whole blocks
        self._least = LEAST_ROWS if self.whole else least
        self._caches: dict[int, SequenceCache] = {}

    def begin(self, prompt: Sequence[int], cache: SequenceCache) -> int:
        """Read into `cache` from now on, which keeps what was read this way; returns the place."""
        cache.truncate(min(cache.handed, cache.length))
        self._caches[cache.main] = cache
        return cache.main

    def length(self, place: int) -> int:
        """Tokens that have been read."""
        return self._caches[place].length

    def read(self, place: int, tokens: Sequence[int], told: Told | None = None) -> float:
        """Read the next tokens, at most a batch of them; returns seconds.

        `told` is called after each decode with the position of its first token and how many it had.

        Raises:
            DecodeError: the library failed; what was read before is held, but of a recurrent state nothing is.
        """
        cache, context, seconds = self._caches[place], self.context, 0.0
        # As many rows as the library evaluates at a time: it would leave a last one alone, which other kernels take.
        block = LEAST_ROWS if self.whole else BLOCK_ROWS
        most = context.n_ubatch // block * block
        for at in range(0, len(tokens), most):
            start, piece = cache.length, tokens[at : at + most]
            try:
                seconds += _read_piece(context, piece, start, cache.main, self._least)
            except DecodeError:
                if self.whole or not context.memory.remove(cache.main, start):
                    cache.empty()
                raise
            cache.reached(start + len(piece))
            cache.handed = cache.length
            if told is not None:
                told(start, len(piece))
        return seconds

    def hand_over(self, place: int, cache: SequenceCache, pool: SequencePool) -> None:
        """Nothing is left to do."""

    def end(self, place: int) -> None:
        """The prompt is not read any further."""
        self._caches.pop(place, None)

    def close(self) -> None:
        """The context is its owner's."""


def _read_piece(context: Context, tokens: Sequence[int], start: int, seq: int, least: int = LEAST_ROWS) -> float:
    """Evaluate `tokens` from position `start` on, in whole blocks of rows and at least `least`; returns seconds."""
    padding = max(least - len(tokens), -len(tokens) % BLOCK_ROWS)
    context.batch.clear()
    context.batch.add_run([*tokens, *([tokens[-1]] * padding)], start, seq)
    seconds = context.decode(many=True, tiles=least >= LEAST_ROWS)
    if padding:
        context.memory.remove(seq, start + len(tokens))
    return seconds


def converted(data: bytearray, start: int, seq: int, kind: str) -> bytearray:
    """A sequence's state from its cell number `start` on, for the id `seq`, with F16 values as `kind` (f16 or bf16).

    The library's format: a magic number, the id, streams; for each stream the cells, and if there are any: position,
    ids (1) and id of each cell; whether V is transposed (0), layers; then element type, bytes a cell and the cells of
    every layer's K, and of every V (none where values are part of the keys). A sequence has cells in one stream.

    Raises:
        ValueError: it is another format.
    """
    try:
        return _converted(data, start, seq, kind)
    except struct.error as error:
        raise ValueError(f"an unknown state format: {error}") from error


def _converted(data: bytearray, start: int, seq: int, kind: str) -> bytearray:
    magic, _, streams = struct.unpack_from("<IiI", data, 0)
    counts = np.frombuffer(data, dtype=np.uint32, count=streams, offset=12)
    empty = int((counts != 0).argmax())  # streams before its own; those behind it come last
    cells = int(counts[empty])
    at = 16 + 4 * empty
    meta = np.frombuffer(data, dtype=np.int32, count=3 * cells, offset=at).reshape(cells, 3)[start:].copy()
    if (meta[:, 1] != 1).any():
        raise ValueError("an unknown state format")
    meta[:, 2] = seq
    at += 12 * cells
    transposed, layers = struct.unpack_from("<II", data, at)
    at += 8
    out = bytearray(struct.pack("<IiII", magic, seq, 1, cells - start))
    out += meta.tobytes() + data[at - 8 : at]
    end = len(data) - 4 * (streams - empty - 1)
    for part in range(2 * layers):
        if part == layers and at == end:  # multi-head latent attention: values are part of the keys
            break
        code, row = struct.unpack_from("<iQ", data, at)
        at += 12
        rows = memoryview(data)[at + row * start : at + row * cells]
        at += row * cells
        if transposed or code != GGML_TYPES["f16"]:
            raise ValueError("an unknown state format")
        if part >= layers and kind == "bf16":
            out += struct.pack("<iQ", GGML_TYPES["bf16"], row) + _as_bf16(np.frombuffer(rows, np.float16)).tobytes()
        else:
            out += struct.pack("<iQ", code, row)
            out += rows
    if at != end:
        raise ValueError("an unknown state format")
    return out


def _as_bf16(values: NDArray[np.float16]) -> NDArray[np.uint16]:
    """float16 to the bits of bfloat16, rounded to the nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded
