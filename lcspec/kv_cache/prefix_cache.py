"""Which cells a new request may use: those of ended requests, and those of running ones.

There are never more caches than slots, and the context has a slot's cells for each. So the cells of all caches always
fit. An evicted text moves to main memory (see HostCache), and so does an idle one over which many rows have passed.

Attention's cells can be cut anywhere. A recurrent state, and what a sliding window has lost, comes from a checkpoint
(see Checkpoints). Then only a beginning of a text that has a checkpoint can be reused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

import numpy as np

from lcspec.errors import DecodeError
from lcspec.kv_cache.checkpoints import INTERVAL, SHORT, Checkpoint, Checkpoints, pauses
from lcspec.kv_cache.host_cache import HostCache, HostText
from lcspec.kv_cache.reuse import Reuse, common_prefix
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama.context import Context

# So few cells are evaluated again rather than kept in a cache.
TAIL = 32
# Idle cells are moved to main memory after so many rows have passed over them: that takes about as long as moving them
# there and back, so idle cells cost at most twice what they must. On a GPU moving takes far longer than passing.
PASSES, PASSES_ON_GPU = 16, 1024


@dataclass(eq=False)
class _Held:
    """A cache and the text that it holds the beginning of."""

    cache: SequenceCache
    text: Sequence[int]


@dataclass(eq=False)
class _Idle(_Held):
    """A cache that waits for a text like its own.

    Attributes:
        passed: rows that have passed over its cells.
        limit: rows after which it is moved to main memory.
    """

    text: list[int]
    passed: int = 0
    limit: float = 0.0


@dataclass(frozen=True)
class _Offer:
    """A beginning of a text that can be reused: `length` tokens, from the cells of `source` (if any), with `state` to
    load (if one is needed)."""

    length: int = 0
    source: SequenceCache | None = None
    state: Checkpoint | None = None


class PrefixCache:
    """Hands out caches, which already hold as much of the prompt as can be reused."""

    def __init__(
        self,
        context: Context,
        pool: SequencePool,
        slots: int,
        share: bool = False,
        checkpoints: Checkpoints | None = None,
        host: HostCache | None = None,
    ) -> None:
        """Make an empty cache.

        Args:
            context: has the cells.
            pool: where sequence ids come from.
            slots: the most caches at a time.
            share: cells may belong to several caches.
            checkpoints: where states are kept; None: cells can be cut anywhere, or nothing is kept.
            host: main memory for evicted texts; None: they are lost.
        """
        self.context = context
        self.pool = pool
        self.slots = slots
        pool.reclaim = self._drop_leaves
        self.checkpoints = checkpoints
        self.sharing = share or checkpoints is not None
        self.host = host
        self._idle: list[_Idle] = []  # least recently used first
        self._lent: list[_Held] = []

    @property
    def caches(self) -> list[SequenceCache]:
        """All caches, idle or not."""
        return [held.cache for held in self._held]

    @property
    def _held(self) -> list[_Held]:
        return [*self._idle, *self._lent]

    @property
    def latest(self) -> tuple[SequenceCache, list[int]] | None:
        """The cache that became idle last, and its text."""
        return (self._idle[-1].cache, self._idle[-1].text) if self._idle else None

    def take(self, text: Sequence[int], reuse: Reuse = Reuse.ANY) -> SequenceCache:
        """A cache with the longest available beginning of `text`.

        An idle cache is cut to its common beginning with `text` if that loses little. Otherwise it stays, and its cells
        are shared. When there is no room for another cache, the one that was idle longest is evicted, or the one with
        the common beginning if that loses less.

        The last token of `text` is never taken from a cache, because its logits are needed. Cells of exact prompt
        blocks are not shared, because they must lie where they were computed.
        """
        self._bring_back(text, reuse)
        own = [self._own(idle, text, reuse) for idle in self._idle]
        best = max(range(len(own)), key=lambda i: own[i].length, default=-1)
        full = len(self._idle) + len(self._lent) >= self.slots
        sharing = self.sharing and reuse is not Reuse.BLOCKS
        offer = self._offer(text, reuse) if sharing else _Offer()

        def loss(i: int) -> int:
            return self._idle[i].cache.length - own[i].length

        fits = best >= 0 and own[best].length >= offer.length
        if best >= 0 and (own[best].length > 0 or full) and (not sharing or (fits and loss(best) <= TAIL)):
            chosen = best
        elif not full:
            chosen = -1
        else:
            chosen = best if fits and loss(best) <= loss(0) else 0
        parting = max((common_prefix(idle.text, text) for idle in self._idle), default=0) if self.checkpoints else 0
        if chosen < 0:
            kept, cache = _Offer(), SequenceCache(self.context.memory, self.pool)
        else:
            kept, idle = own[chosen], self._idle.pop(chosen)
            cache = idle.cache
            if self.host is not None and cache.length - kept.length > TAIL:
                self.host.add(cache, idle.text)
        given = offer.length > kept.length and offer.source is not cache
        if not given or kept.state is None:  # a state that is loaded takes cells, which may be those of the offer
            self._cut(cache, kept)
        cache.canonical = min(cache.canonical, cache.length)
        if given:
            self._give(cache, offer)
        if self.checkpoints is not None:
            cache.kept = cache.length
            if SHORT <= cache.length == parting:  # others may part here as well, when a window has lost these cells
                self.keep(cache, text, now=True)
            cache.pauses = pauses(text, self.context.model.vocab.control_tokens, cache.length, parting)
        self._lent.append(_Held(cache, text))
        return cache

    def relabel(self, cache: SequenceCache, text: Sequence[int]) -> None:
        """Note that a cache in use holds the beginning of `text`, not of the text that it was taken for."""
        for lent in self._lent:
            if lent.cache is cache:
                lent.text = text

    def held(self, text: Sequence[int], reuse: Reuse = Reuse.ANY) -> int:
        """How many tokens of `text` an idle cache or main memory holds."""
        here = max((self._own(idle, text, reuse).length for idle in self._idle), default=0)
        return max(here, self._moved(text, reuse)[0])

    def top_up(self, cache: SequenceCache, text: Sequence[int], reuse: Reuse = Reuse.ANY) -> int:
        """Let `cache` share what other caches hold of `text` by now; returns how many tokens that adds."""
        if not self.sharing:
            return 0
        before = cache.length
        offer = self._offer(text, reuse, cache)
        if offer.length > before:
            self._give(cache, offer)
        return cache.length - before

    def shareable(self, cache: SequenceCache, length: int) -> int:
        """How many of the first `length` tokens, which `cache` is reading, other caches can share afterwards."""
        if self.checkpoints is None:
            return length
        return max((stop for stop in cache.pauses if stop <= length), default=0)

    def keep(self, cache: SequenceCache, text: Sequence[int], now: bool = False) -> None:
        """Make a checkpoint of `cache`, which holds the beginning of `text`, if one is due (or `now`)."""
        if self.checkpoints is None:
            return
        n = cache.length
        if n == 0 or not (now or n in cache.pauses or n - cache.kept >= INTERVAL):
            return
        apart = cache.handed > 0
        if self._must_stay(apart) or (apart and cache.handed < n):
            return  # no other text is read like this, or goes on from here
        cache.kept = n
        tokens = np.asarray(text[:n], dtype=np.int32)
        known = self.checkpoints.longest(tokens, n, apart)
        if known is not None and known.length == n:
            self.checkpoints.use(known)
        elif self.checkpoints.fits(self.context.memory.state_size(cache.main)):
            try:
                self.checkpoints.add(tokens, self.context.memory.save_state(cache.main), apart)
            except DecodeError:  # those that are kept are all there will be
                self.checkpoints.limit()

    def put(self, cache: SequenceCache, text: list[int]) -> None:
        """Take back a cache that holds `text` or a beginning of it: it is idle from now on."""
        cache.abandon()
        cache.drop_leaves()
        cache.truncate(len(text))
        self.keep(cache, text, now=cache.length >= SHORT)
        self.lost(cache)
        self._idle.append(_Idle(cache, text))

    def clear(self) -> None:
        """Drop every idle cache, the texts in main memory, and all checkpoints."""
        for idle in self._idle:
            idle.cache.release()
        self._idle = []
        if self.host is not None:
            self.host.texts = []
        if self.checkpoints is not None:
            self.checkpoints.clear()

    def lost(self, cache: SequenceCache) -> None:
        """Forget that a cache was taken: it was released, or is not in use any more."""
        self._lent = [lent for lent in self._lent if lent.cache is not cache]

    def pass_over(self, rows: int) -> None:
        """Count that attention of `rows` tokens passes over idle cells, and move the idle caches to main memory over
        which enough rows have passed."""
        # Cells that are parked when they are freed would be passed over all the same.
        if self.host is None or self.context.memory.streams or self.pool.parking is not None:
            return
        least = PASSES_ON_GPU if self.context.model.gpu_layers else PASSES
        for idle in list(self._idle):
            idle.passed += rows
            if idle.passed < max(least, idle.limit):
                continue
            held = (other.text for other in self._held if other is not idle)
            own = idle.cache.length - max((common_prefix(idle.text, text) for text in held), default=0)
            idle.limit = least * idle.cache.length / max(1, own)
            if idle.passed >= idle.limit and own > TAIL:
                if self.host.add(idle.cache, idle.text):
                    self._release(idle)
                else:
                    idle.limit = math.inf

    def _drop_leaves(self) -> None:
        """Return the ids of leaves that no tree has now."""
        for held in self._held:
            if not held.cache.has_tree:
                held.cache.drop_leaves()

    def _release(self, idle: _Idle) -> None:
        """Free an idle cache."""
        self._idle.remove(idle)
        idle.cache.release()

    def _moved(self, text: Sequence[int], reuse: Reuse) -> tuple[int, HostText | None]:
        """The text in main memory with the longest usable beginning of `text`, and the length of that beginning."""
        best: tuple[int, HostText | None] = (0, None)
        if self.host is None or reuse is Reuse.BLOCKS or self._must_stay(reuse is Reuse.READ_APART):
            return best  # they must lie where they were computed
        wanted = np.asarray(text[:-1], dtype=np.int32)
        states: dict[int, int] = {}  # how much of the first n tokens a state is kept of
        for one in self.host.texts:
            n = min(common_prefix(one.text, wanted), reuse.of(len(one.text), one.handed))
            if n > best[0] and n < len(one.text) and (self.checkpoints is not None or self.context.memory.window):
                if n not in states:  # what lies before a window was not copied
                    state = self._state(text, n, reuse)
                    states[n] = state.length if state is not None else 0
                n = states[n]
            if n > best[0]:
                best = n, one
        return best

    def _bring_back(self, text: Sequence[int], reuse: Reuse) -> None:
        """Restore the text in main memory that has clearly more of `text` than any cache, as an idle cache."""
        length, one = self._moved(text, reuse)
        if one is None or self.host is None or length <= TAIL:
            return
        here = max((self._own(idle, text, reuse).length for idle in self._idle), default=0)
        if length - max(here, self._offer(text, reuse).length if self.sharing else 0) <= TAIL:
            return
        self.host.texts.remove(one)
        if len(self._idle) + len(self._lent) >= self.slots:
            self.host.add(self._idle[0].cache, self._idle[0].text)
            self._release(self._idle[0])
        parking = self.pool.parking
        if parking is not None and parking.full:  # or the text's cells might not lie in order
            parking.compact(self.caches)
        cache = SequenceCache(self.context.memory, self.pool)
        if not one.load(cache):
            cache.release()
            return
        idle = _Idle(cache, one.text.tolist())
        if len(one.text) - length > TAIL:  # it stays for who goes on with the rest
            self.host.keep(one)
            self._cut(cache, self._own(idle, text, reuse))
        if self.sharing and not self.context.memory.streams and self.checkpoints is None and parking is None:
            self._exchange(idle, reuse)
        self._idle.append(idle)

    def _exchange(self, idle: _Idle, reuse: Reuse) -> None:
        """Let an idle cache share the cells that another cache has of its beginning, instead of cells of its own."""
        most, source = TAIL, None
        for held in self._held:
            n = min(common_prefix(held.text, idle.text), reuse.usable(held.cache), idle.cache.length)
            if n > most:
                most, source = n, held.cache
        if source is not None:
            self.context.memory.remove(idle.cache.main, 0, most)
            self.context.memory.copy(source.main, idle.cache.main, 0, most)

    def _own(self, idle: _Idle, text: Sequence[int], reuse: Reuse) -> _Offer:
        """The beginning of `text` that an idle cache can be cut to."""
        limit = min(len(text) - 1, reuse.usable(idle.cache))
        return self._reach(idle.cache, min(common_prefix(idle.text, text), limit), text, reuse)

    def _reach(self, cache: SequenceCache, length: int, text: Sequence[int], reuse: Reuse) -> _Offer:
        """The longest beginning that a cache can be cut to, of its first `length` tokens, which are those of `text`."""
        # Where a state is part of the cache, a prompt is read apart in whole blocks: they cannot be cut within.
        blocks = reuse is Reuse.READ_APART and self.checkpoints is not None
        anywhere = not blocks or self.context.model.traits.attention_only
        if (anywhere or length == cache.length) and cache.holds(length):
            return _Offer(length, cache)
        state = None
        if reuse is not Reuse.BLOCKS:
            state = self._state(text, length, reuse)
        return _Offer(state.length, cache, state) if state is not None else _Offer()

    def _cut(self, cache: SequenceCache, offer: _Offer) -> None:
        """Cut a cache to the beginning `offer`, or load its state."""
        if offer.state is None:
            cache.truncate(offer.length)
        else:
            self._restore(cache, offer.state)

    def _give(self, cache: SequenceCache, offer: _Offer) -> None:
        """Let a cache hold the beginning `offer`: share its cells, and load its state if it has one."""
        if self.checkpoints is None and offer.source is not None:
            cache.share(offer.source, offer.length)
            return
        cache.empty()
        if offer.source is not None:
            cache.share(offer.source, offer.length)
        if offer.state is not None:
            self._restore(cache, offer.state)

    def _restore(self, cache: SequenceCache, state: Checkpoint) -> None:
        assert self.checkpoints is not None
        self.checkpoints.use(state)
        cache.restore(state.data, state.length)
        cache.kept = cache.length
        cache.handed = cache.length if state.apart else 0

    def _state(self, text: Sequence[int], length: int, reuse: Reuse) -> Checkpoint | None:
        """The longest checkpoint of a text's beginning, of at most `length` tokens, read in the way `reuse` wants."""
        if self.checkpoints is None or self._must_stay(reuse is Reuse.READ_APART):
            return None
        tokens = np.asarray(text[:length], dtype=np.int32)
        return self.checkpoints.longest(tokens, length, reuse is Reuse.READ_APART)

    def _must_stay(self, apart: bool) -> bool:
        """Whether a text read so gets other bits once cells within its windows are put back, which is elsewhere: what
        reads many rows at a time groups cells by where they lie."""
        return apart and self.context.model.traits.n_swa > 0

    def rewind(self, cache: SequenceCache, text: Sequence[int]) -> None:
        """Take a cache that holds the beginning of `text` back to the part that was read apart, if that needs a
        state."""
        if self.checkpoints is not None and not cache.holds(cache.handed):
            state = self._state(text, cache.handed, Reuse.READ_APART)
            if state is not None:
                self._restore(cache, state)

    def _offer(self, text: Sequence[int], reuse: Reuse, but: SequenceCache | None = None) -> _Offer:
        """The longest beginning of `text` without its last token that any cache, idle or not, can share; not `but`.

        Between a step's decode and its commit only cells below a cache's `length` are certain, so only those count.
        """
        best, limit = _Offer(), len(text) - 1
        least = TAIL if self.context.memory.streams else 0  # there sharing is copying
        for held in self._held:
            cache, usable = held.cache, reuse.usable(held.cache)
            if cache is not but and usable > best.length:
                shared = min(common_prefix(held.text, text), usable, limit)
                if shared > max(best.length, least):
                    best = max(best, self._shared(cache, shared, text, reuse), key=lambda offer: offer.length)
        if self.checkpoints is not None and self.context.model.traits.recurrent:  # its state is all there is
            state = self._state(text, limit, reuse)
            if state is not None and state.length > best.length:
                best = _Offer(state.length, None, state)
        return best

    def _shared(self, cache: SequenceCache, length: int, text: Sequence[int], reuse: Reuse) -> _Offer:
        """What a cache can share of its first `length` tokens while it keeps them; with a recurrent state only what a
        checkpoint has."""
        if self.checkpoints is None or self.context.model.traits.attention_only:
            return self._reach(cache, length, text, reuse)
        state = self._state(text, length, reuse)
        return _Offer(state.length, cache, state) if state is not None else _Offer()
