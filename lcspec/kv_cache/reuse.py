"""How much of a text another one has, and what of it may be taken over."""

from __future__ import annotations

import enum
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.kv_cache.sequence_cache import SequenceCache

# Tokens that are compared at once.
BLOCK = 512


class Reuse(enum.Enum):
    """Which cells a request may take over: exact ones want those that were computed as theirs would be."""

    ANY = "any"
    BLOCKS = "those of exact prompt blocks (SequenceCache.canonical)"
    IN_PLACE = "those of caches without cells read apart"
    READ_APART = "those read apart (SequenceCache.handed)"

    def usable(self, cache: SequenceCache) -> int:
        """Leading cells of `cache` that may be taken over."""
        return min(cache.canonical, cache.length) if self is Reuse.BLOCKS else self.of(cache.length, cache.handed)

    def of(self, length: int, handed: int) -> int:
        """Leading cells that may be taken over of `length`, the first `handed` of which were read apart."""
        if self is Reuse.IN_PLACE:
            return 0 if handed else length
        return handed if self is Reuse.READ_APART else length


def common_prefix(a: Sequence[int] | NDArray[np.int32], b: Sequence[int] | NDArray[np.int32]) -> int:
    """Length of the longest common prefix of two token sequences."""
    n = min(len(a), len(b))
    for start in range(0, n, BLOCK):  # most texts part early: the rest need not become an array
        end = min(start + BLOCK, n)
        same = np.asarray(a[start:end]) == np.asarray(b[start:end])
        if not same.all():
            return start + int(same.argmin())
    return n
