"""Whose cells a new request may use: caches of ended requests, and those of requests that run.

There are never more caches than slots: every cell up to the highest used one costs attention time, whoever it belongs
to. So the cells of all of them together always fit, because the context has a slot's worth for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np

from lcspec.llama.context import Context
from lcspec.llama.sequences import SequencePool, SlotCache

# Cells of a text that are sooner evaluated again than worth keeping a cache for.
TAIL = 32


@dataclass(eq=False)
class _Lent:
    """A cache in use and the text that it holds the beginning of."""

    cache: SlotCache
    text: Sequence[int]


class CacheShelf:
    """Hands out caches, with as much of the prompt in them as can be had without evaluating it."""

    def __init__(self, context: Context, pool: SequencePool, slots: int, share: bool = False) -> None:
        """Make an empty shelf.

        Args:
            context: whose cells they are.
            pool: where sequence ids come from.
            slots: caches there may be.
            share: cells may belong to several caches (attention only: a recurrent state is one text's).
        """
        self.context = context
        self.pool = pool
        self.slots = slots
        self.sharing = share
        self._idle: list[tuple[SlotCache, list[int]]] = []  # least recently used first
        self._lent: list[_Lent] = []

    def take(self, text: Sequence[int], exact: bool = False) -> SlotCache:
        """A cache with the longest beginning of `text` that there is.

        An idle cache is cut to what it shares if that loses little; else its cells are shared and it stays. When all
        caches are in use, the one that was idle longest gives way, or that with the beginning if it loses less.

        The last token is never taken from a cache: its logits are needed. `exact` reuses only cells that were
        computed the way an exact prompt's are (`SlotCache.canonical`), and lie where they were computed.
        """
        own = self._own(text, exact)
        best = max(range(len(own)), key=own.__getitem__, default=-1)
        full = len(self._idle) + len(self._lent) >= self.slots
        sharing = self.sharing and not exact
        donor, shared = self._donor(text) if sharing else (None, 0)

        def loss(i: int) -> int:
            return self._idle[i][0].length - own[i]

        if best >= 0 and (own[best] > 0 or full) and (not sharing or (own[best] >= shared and loss(best) <= TAIL)):
            chosen = best
        elif not full:
            chosen = -1
        else:
            chosen = best if own[best] >= shared and loss(best) <= loss(0) else 0
        if chosen >= 0:
            cache, _ = self._idle.pop(chosen)
            cache.truncate(own[chosen])
            cache.canonical = min(cache.canonical, cache.length)
        else:
            cache = SlotCache(self.context, self.pool)
        if donor is not None and donor is not cache and shared > cache.length:
            cache.share(donor, shared)
        self._lent.append(_Lent(cache, text))
        return cache

    def held(self, text: Sequence[int], exact: bool = False) -> int:
        """How much of `text` an idle cache holds."""
        return max(self._own(text, exact), default=0)

    def top_up(self, cache: SlotCache, text: Sequence[int]) -> int:
        """Share what others have evaluated of `text` since `cache` was taken; returns how many tokens that saves."""
        if not self.sharing:
            return 0
        before = cache.length
        donor, shared = self._donor(text, cache)
        if donor is not None and shared > before:
            cache.share(donor, shared)
        return cache.length - before

    def put(self, cache: SlotCache, text: list[int]) -> None:
        """Take back a cache that holds (the beginning of) `text`."""
        cache.abandon()
        cache.drop_leaves()
        cache.truncate(len(text))
        self.lost(cache)
        self._idle.append((cache, text))

    def clear(self) -> None:
        """Drop every idle cache."""
        for cache, _ in self._idle:
            cache.release()
        self._idle = []

    def lost(self, cache: SlotCache) -> None:
        """A cache that was taken has been released and will not come back."""
        self._lent = [lent for lent in self._lent if lent.cache is not cache]

    def _own(self, text: Sequence[int], exact: bool) -> list[int]:
        """How much of `text` each idle cache holds."""
        limit = len(text) - 1
        own = [min(common_prefix(t, text), limit, c.canonical if exact else c.length) for c, t in self._idle]
        return [n if c.holds(n) else 0 for n, (c, _) in zip(own, self._idle)]

    def _donor(self, text: Sequence[int], but: SlotCache | None = None) -> tuple[SlotCache | None, int]:
        """The cache, idle or not, that holds the longest beginning of `text` (its last token excepted), and how long.

        Between a step's decode and its commit only cells below a cache's `length` are certain, so only those count.
        """
        best: tuple[SlotCache | None, int] = None, 0
        for cache, held in [*self._idle, *((lent.cache, lent.text) for lent in self._lent)]:
            if cache is not but and cache.length > best[1]:
                shared = min(common_prefix(held, text), cache.length, len(text) - 1)
                if shared > best[1] and cache.holds(shared):
                    best = cache, shared
        return best


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two token sequences."""
    n = min(len(a), len(b))
    same = np.asarray(a[:n]) == np.asarray(b[:n])
    return n if same.all() else int(same.argmin())
