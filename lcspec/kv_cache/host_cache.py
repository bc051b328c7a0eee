"""Texts whose cells were moved out of a context into main memory, until somebody goes on with them.

Attention passes over the cells of idle texts as well, and there are no more texts in a context than slots. Reading a
text again takes far longer than copying it back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lcspec.errors import DecodeError
from lcspec.kv_cache.sequence_cache import SequenceCache


@dataclass(eq=False)
class HostText:
    """The text, int32 [n], and the library's own bytes of its cells and states.

    `handed`: leading tokens that were read apart, as SequenceCache.handed.
    """

    text: NDArray[np.int32]
    data: bytearray
    handed: int

    def load(self, cache: SequenceCache) -> bool:
        """Put it into an empty cache; False if the library refused it."""
        if not cache.memory.set_state(cache.main, self.data):
            return False
        cache.length, cache.handed = len(self.text), self.handed
        return True


class HostCache:
    """Texts in main memory, no larger than `budget` bytes together; the least recently used ones give way."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.texts: list[HostText] = []  # least recently used first

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return sum(len(one.data) + one.text.nbytes for one in self.texts)

    def add(self, cache: SequenceCache, text: list[int]) -> bool:
        """Copy what `cache` holds of `text`; False if there is no room. What it goes on from is held no longer."""
        tokens = np.asarray(text[: cache.length], dtype=np.int32)
        if cache.memory.full_size(cache.main) + tokens.nbytes > self.budget:
            return False
        try:
            data = cache.memory.state(cache.main)
        except DecodeError:  # no memory
            return False
        self.texts = [one for one in self.texts if not np.array_equal(one.text, tokens[: len(one.text)])]
        self.keep(HostText(tokens, data, cache.handed))
        return True

    def keep(self, one: HostText) -> None:
        """Hold a text, as the most recently used one."""
        self.texts.append(one)
        while self.size > self.budget:
            del self.texts[0]
