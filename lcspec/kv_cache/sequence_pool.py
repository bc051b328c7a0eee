"""The sequence ids of a context: every cache, leaf and parked cell needs one, and there are few."""

from __future__ import annotations

from typing import Callable

from lcspec.kv_cache.parking import Parking


class SequencePool:
    """Hands out the sequence ids of one context."""

    def __init__(self, n: int, shared: bool = True) -> None:
        """Hand out `n` ids. `shared`: cells may belong to several, so those that are left can be leaves."""
        self.n = n
        self.caches = 0  # slots' caches that have an id
        self.parking: Parking | None = None  # where the order of a text's cells decides its bits
        self.reclaim: Callable[[], None] = lambda: None  # returns ids of leaves that no tree has now
        self._shared = shared
        self._free = list(range(n - 1, -1, -1))
        self._spare: int | None = None

    @property
    def crowded(self) -> bool:
        """Whether parked cells leave too little room."""
        return self.parking is not None and self.parking.full

    @property
    def free(self) -> int:
        """Ids left for leaves."""
        return len(self._free) if self._shared else 0

    def take(self, leaf: bool = False) -> int:
        """An unused id, the smallest ones first; leaves give way to anything else.

        Raises:
            IndexError: none is left (callers ask `free` before they take one for a leaf).
        """
        if not (self._free or leaf):
            self.reclaim()
        return self._free.pop()

    @property
    def spare(self) -> int:
        """An id that has cells during a decode, or between two of them, and never longer."""
        if self._spare is None:
            self._spare = self.take()
        return self._spare

    def give(self, seq: int) -> None:
        """Return an id whose cells have been removed."""
        self._free.append(seq)
