"""Reads an engine's long prompts apart from its steps (see lcspec.kv_cache.prompt_reader)."""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

from lcspec.drafters.base import pass_states
from lcspec.engine.sequence import ActiveSequence
from lcspec.errors import LcspecError
from lcspec.kv_cache.prompt_reader import EVERY_PROMPT, LEAST_ROWS, UNNOTICED, InPlaceReader, PromptReader
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama import Context
from lcspec.modelfiles.windows import BLOCK_ROWS

# A piece is read ahead when nothing has run for so many times the seconds that it takes. So who comes back after a
# while waits at most this share of it longer, and who comes back at once does not wait at all.
PATIENCE = 10


class Piece(NamedTuple):
    """How many tokens of a prompt are read, how many were read just now, and how many seconds those took."""

    read: int
    tokens: int
    seconds: float


class PromptReading:
    """Which sequences' prompts are read apart, and how far they are.

    Attributes:
        beyond: prompts of more tokens are read apart; None: none are.
        keeps_answers: what continues a text goes on from its cells as they were decoded; elsewhere it is read again.
    """

    def __init__(self, context: Context, pool: SequencePool, beyond: int | None) -> None:
        """Read prompts of more than `beyond` tokens apart, which `context` will decode; None: no prompt."""
        self.beyond, self.keeps_answers = beyond, beyond == EVERY_PROMPT
        self.reader: PromptReader | InPlaceReader | None = None  # made for the first long prompt
        self._context = context
        self._pool = pool
        whole = context.options.texts_in_order and not context.model.traits.attention_only
        self._block = LEAST_ROWS if whole else 1  # what is read apart are multiples of it (see InPlaceReader)
        self._ahead = UNNOTICED  # seconds that a piece takes which is read ahead, as far as known

    def wants(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt is read apart."""
        return self.beyond is not None and len(prompt) > self.beyond

    def read(self, sequence: ActiveSequence, n: int) -> Piece:
        """Read up to `n` more tokens of a sequence's prompt; at the end hand over its cells (but not the last token's).

        Raises:
            LcspecError: there is no memory for the context, or the library failed.
        """
        reader, end = self._reader(), sequence.n_prompt - 1
        if sequence.prompt.place is None:
            sequence.prompt.place = reader.begin(sequence.tokens[:end], sequence.cache)
            sequence.prompt.reused = max(sequence.prompt.reused, reader.length(sequence.prompt.place))
        place, start = sequence.prompt.place, reader.length(sequence.prompt.place)
        end = start + self._whole(end - start)
        stop = sequence.cache.next_pause(min(end, start + self._whole(n)))

        def told(at: int, tokens: int) -> None:
            pass_states(sequence, sequence.drafters, self._context, sequence.cache, at, list(range(tokens)))

        seconds = reader.read(place, sequence.tokens[start:stop], told) if start < stop else 0.0
        if stop >= end:
            reader.hand_over(place, sequence.cache, self._pool)
            self.end(sequence)
        return Piece(max(start, stop), max(0, stop - start), seconds)

    def end(self, sequence: ActiveSequence) -> None:
        """Stop reading a sequence's prompt."""
        sequence.prompt.apart = False
        if sequence.prompt.place is not None and self.reader is not None:
            self.reader.end(sequence.prompt.place)
            sequence.prompt.place = None

    def stops(self, start: int, pauses: Sequence[int], end: int) -> list[int]:
        """Where reading a prompt from `start` up to `end` stops for checkpoints, which are wanted at `pauses`."""
        return sorted({start + self._whole(min(stop, end) - start) for stop in [*pauses, end]})

    def unread(self, cache: SequenceCache, text: Sequence[int]) -> bool:
        """Whether `ahead` would read more of an ended conversation: not if a new request would notice."""
        return (
            not self.keeps_answers
            and self._ahead <= UNNOTICED
            and self.wants(text)
            and cache.handed < self._whole(len(text))
        )

    @property
    def patience(self) -> float:
        """Seconds that nothing should have run before `ahead` is called."""
        return PATIENCE * self._ahead

    def ahead(self, cache: SequenceCache, text: list[int]) -> None:
        """Read a piece of an ended conversation as it will be read when it continues."""
        try:
            reader, end = self._reader(), self._whole(len(text))
            place = reader.begin(text, cache)
            try:
                at = reader.length(place)
                if at < end:
                    self._ahead = reader.read(place, text[at : min(end, at + LEAST_ROWS)])
                if reader.length(place) == end:
                    cache.truncate(cache.handed)
                    reader.hand_over(place, cache, self._pool)
            finally:
                reader.end(place)
        except LcspecError:
            self._ahead = math.inf

    def close(self) -> None:
        """Free the context."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def _whole(self, length: int) -> int:
        """How many of a text's first `length` tokens can be read apart."""
        return length // self._block * self._block

    def _reader(self) -> PromptReader | InPlaceReader:
        if self.reader is None:
            ctx = self._context
            if ctx.options.texts_in_order:
                self.reader = InPlaceReader(ctx, BLOCK_ROWS if self.keeps_answers else LEAST_ROWS)
            else:
                self.reader = PromptReader(ctx.model, ctx.options, ctx.n_ctx)
        return self.reader
