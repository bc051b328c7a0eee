"""Freed cells that the library must not use again yet, so that every text lies in its cache in order.

Attention sums run over a text's cells in the order of the cells. The library gives a new token the first free cell, so
a cell that was freed below others would make a later token's summand come earlier, and the sum would round otherwise.
So freed cells are *parked*: a sequence of its own keeps them. When too many are parked, all texts are taken out and put
back one after the other, in order, which keeps every bit of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable

from lcspec.llama.context import Context
from lcspec.llama.context_params import parking_room

if TYPE_CHECKING:
    from lcspec.kv_cache.sequence_cache import SequenceCache


class Parking:
    """The parked cells of one context."""

    def __init__(self, context: Context, seq: int) -> None:
        """Park on the unused sequence id `seq`."""
        self.seq = seq
        self.n = 0  # cells parked, at most: one that others hold as well counts too
        self._memory = context.memory
        self._room = parking_room(context.options.slots * context.n_ctx) - 2 * context.options.max_width

    @property
    def full(self) -> bool:
        """Whether it is time to `compact`: less than two steps' cells are left."""
        return self.n > self._room

    def hold(self, seq: int, start: int, stop: int) -> None:
        """Keep the cells of `seq` at positions [start, stop), which are about to be taken away from it."""
        if stop > start:
            self._memory.copy(seq, self.seq, start, stop)
            self.n += stop - start

    def compact(self, caches: Iterable[SequenceCache]) -> None:
        """Put the texts of all `caches` (every one of this context, between two steps) together and free the rest."""
        held = []
        for cache in caches:
            cache.drop_leaves()
            if cache.length:
                held.append((cache, self._memory.state(cache.main)))
        for cache, _ in held:
            self._memory.remove(cache.main, 0)
        self.clear()
        for cache, data in held:
            if not self._memory.set_state(cache.main, data):
                cache.empty()  # its text is read again

    def clear(self) -> None:
        """Free all parked cells; for when no text is held."""
        self._memory.remove(self.seq, 0)
        self.n = 0
