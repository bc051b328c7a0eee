"""States of texts that a cache cannot be rolled back to: kept in memory, at places where a later text may part.

A recurrent state is that of one text and of one length, and a sliding window is that of one length. What cannot be
taken back to a length can be put back there, where a copy of it was made: at the end of a prompt, at the end of an
answer, where two texts were seen to part, and every so many tokens.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.llama.context import Context
from lcspec.modelfiles.gguf_header import format_size
from lcspec.modelfiles.memory import copy_budget

log = logging.getLogger(__name__)

# A copy is made at least every so many tokens.
INTERVAL = 512
# Tokens that are sooner read again than worth a pause for a copy.
SHORT = 32
# The beginning of an answer, as templates write it, is no longer than this.
HEADER = 16


@dataclass(eq=False)
class Checkpoint:
    """The state after `tokens`: int32 [length], and the library's own bytes, uint8 [size].

    `apart`: the tokens were read apart from steps, which may give other bits (see lcspec.kv_cache.prompt_reader).
    """

    tokens: NDArray[np.int32]
    data: NDArray[np.uint8]
    apart: bool = False
    used: int = 0

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return len(self.tokens)


class Checkpoints:
    """The checkpoints of one context, no larger than `budget` bytes together.

    When there is no room left, the one that saves the fewest tokens for its age is dropped. It saves what lies between
    it and the checkpoint before it in its text; its age is how many others were used since.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.size = 0
        self._kept: list[Checkpoint] = []
        self._now = 0
        self._limited = False

    def __len__(self) -> int:
        return len(self._kept)

    def longest(self, text: NDArray[np.int32], limit: int, apart: bool = False) -> Checkpoint | None:
        """The longest one whose tokens are the beginning of `text`, of at most `limit` tokens, read as `apart` says."""
        able = [one for one in self._kept if one.apart is apart and len(one.tokens) <= limit]
        for one in sorted(able, key=lambda one: -len(one.tokens)):
            if np.array_equal(one.tokens, text[: one.length]):
                return one
        return None

    def use(self, one: Checkpoint) -> None:
        """It was of use just now."""
        self._now += 1
        one.used = self._now

    def fits(self, size: int) -> bool:
        """Whether a state of `size` bytes can be kept at all."""
        return 0 < size <= self.budget

    def add(self, tokens: NDArray[np.int32], data: NDArray[np.uint8], apart: bool = False) -> None:
        """Keep a state; others give way where there is no room."""
        one = Checkpoint(tokens, data, apart)
        self.use(one)
        self._kept.append(one)
        self.size += data.nbytes + tokens.nbytes
        while self.size > self.budget and len(self._kept) > 1:
            self._drop(min(self._kept[:-1], key=self._worth))

    def limit(self) -> None:
        """Take no more memory than now, because there is none; the user is told once."""
        if not self._limited:
            kept = f"{len(self)} states of earlier texts ({format_size(self.size)})"
            log.warning("no memory for more than %s: what parts elsewhere is read again", kept)
        self.budget, self._limited = self.size, True

    def clear(self) -> None:
        """Keep nothing."""
        self._kept, self.size = [], 0

    def _worth(self, one: Checkpoint) -> float:
        before = self.longest(one.tokens, one.length - 1, one.apart)
        return (one.length - (before.length if before else 0)) / (1 + self._now - one.used)

    def _drop(self, one: Checkpoint) -> None:
        self._kept.remove(one)
        self.size -= one.data.nbytes + one.tokens.nbytes


def pauses(text: Sequence[int], control: frozenset[int], start: int, parting: int) -> list[int]:
    """Where the reading of a prompt stops for a copy of the state, ascending.

    Args:
        text: the prompt.
        control: tokens that only templates write, such as the one that begins a message.
        start: tokens that need not be read.
        parting: where the prompt parts from a text that was there before.

    The last stop is before the header of the answer: when the conversation goes on, what comes after that may be
    written in another way (a template that drops reasoning), and the same prompt may come again. The first is after
    the first message, which other conversations may share.
    """
    n = len(text)
    end = next((i for i in range(n - 1, max(0, n - HEADER), -1) if text[i] in control), n - 1)
    wanted = {end}
    first = next((i for i in range(min(SHORT, n), n) if text[i] in control), None)
    if first is not None and first < end - SHORT:
        wanted.add(first)
    if SHORT <= parting < end:
        wanted.add(parting)
    last = max(start, 0)
    for stop in sorted(wanted):
        wanted.update(range(last + INTERVAL, stop - SHORT, INTERVAL))
        last = stop
    return sorted(stop for stop in wanted if start < stop < n)


def checkpoints_for(context: Context) -> Checkpoints | None:
    """Where the states of texts are kept that cannot be rolled back to; None where every length can be."""
    # A window loses cells to whoever comes next, and a copy of the text in main memory has none before it.
    memory, options = context.memory, context.options
    alone = memory.slack == 0 and (options.slots == 1 or memory.streams)
    windows = memory.window > 0 and not (alone and options.cache_ram == 0)
    loses = windows or not context.model.traits.attention_only
    return Checkpoints(copy_budget()) if loses and memory.exists else None
