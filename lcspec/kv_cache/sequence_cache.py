"""One slot's share of a KV cache: its text, and the tree of the step in progress.

A slot owns one *main* id that holds its text. To decode a tree it borrows one *leaf* id per extra leaf. Attaching a
leaf id to a long prefix costs time per cell, so leaf ids are attached once, kept, and afterwards only brought up to
date with the positions they missed.

Invariant between steps: every leaf id in `_upto` holds exactly the cells of the main id at positions [0, upto). Cells
behind a sliding window are an exception: either id may have lost them.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama.batch import SeqSets
from lcspec.llama.memory import Memory
from lcspec.llama.model import Branching
from lcspec.spec.token_tree import TokenTree

# What the library takes for all sequence ids at once.
EVERYBODY = -1


@dataclass
class _Saved:
    """The state after the first `length` tokens of a cache's text; `data`: uint8 [size]."""

    length: int
    data: NDArray[np.uint8]


class SequenceCache:
    """One slot's cells in one context: its text up to `length`, and the tree of the step in progress."""

    def __init__(self, memory: Memory, pool: SequencePool) -> None:
        self.memory = memory
        self.pool = pool
        self.main = pool.take()
        pool.caches += 1
        self._bare = SeqSets([self.main], [0], [1])
        self.length = 0
        self.canonical = 0  # leading cells computed in an exact request's prompt blocks (see lcspec.profiles.exactness)
        self.handed = 0  # leading cells of a prompt that was read apart (see lcspec.kv_cache.prompt_reader)
        self.pauses: list[int] = []  # lengths at which the reading of its prompt stops for a checkpoint
        self.kept = 0  # where its latest checkpoint was made (see PrefixCache.keep)
        self._upto: dict[int, int] = {}
        self._sets: SeqSets | list[list[int]] = []  # ids of each placed node; `_grown` if the tree grows
        self._grown: list[list[int]] = []
        self._reach: dict[int, int] = {}
        self._base = 0
        self._saved: _Saved | None = None
        self._pinned: int | None = None  # since which position other ids may hold cells of its windows as well

    @property
    def max_leaves(self) -> int:
        """The most leaves that the next tree may have."""
        return 1 + len(self._upto) + self.pool.free

    @property
    def forks(self) -> int:
        """New branches that a growing tree can still open."""
        return self.pool.free + sum(1 for seq in self._upto if seq not in self._reach)

    @property
    def has_tree(self) -> bool:
        """Whether a step is in progress."""
        return bool(self._sets)

    def reached(self, length: int) -> None:
        """Note that the text's first `length` tokens have been decoded for the main id."""
        self.length = length
        if self._pinned is not None and length - self._pinned > self.memory.window + self.memory.slack:
            self._unpin()

    def _unpin(self) -> None:
        """Give the library the cells before the windows back: it reuses no cells that several ids hold."""
        self.drop_leaves()
        self._pinned = max(0, self.length - self.memory.window - self.memory.slack // 2)
        self.memory.let_go(self.main, self._pinned, self.length, self.pool.spare)

    # One-shot trees (the target): every node is known before the decode.

    def place(self, tree: TokenTree, order: Sequence[int], base: int) -> SeqSets:
        """Choose the sequence ids of every node, `base` being the position of node 0.

        The leaf of the first path of `order` (which lists parents before their children) gets the main id; every other
        leaf gets a leaf id.

        Returns:
            For each node the ids of all leaves below it, the main id first. All ids in use are those of node 0.
        """
        n, parents = len(tree.tokens), tree.parents
        if n == 1:  # plain decoding, the commonest step of all
            self._open(self._bare, base, {self.main: base + 1})
            return self._bare
        if self.memory.redecodes:
            self._save()
        below = [0] * n  # leaves
        for node in range(n - 1, 0, -1):
            below[node] = below[node] or 1
            below[parents[node]] += below[node]
        # Each node's leaves lie side by side, those of the children that come first in `order` first.
        first = [0] * n
        free = [0] * n  # where the next child's leaves begin
        for node in order[1:]:
            parent = parents[node]
            first[node] = free[node] = free[parent]
            free[parent] += below[node]
        ids = [self.main, *self._leaf_ids(below[0] - 1)]
        sets = SeqSets(ids, first, below)
        inner = set(parents)
        depths = tree.depths
        reach = {ids[first[node]]: base + depths[node] + 1 for node in range(n) if node not in inner}
        self._open(sets, base, reach)
        return sets

    # Trees that grow while they are decoded (a draft model): each node belongs to the branch that reached it.

    def grow(self, base: int) -> None:
        """Begin a growing tree whose node 0 sits at position `base` and belongs to the main id."""
        if self.memory.branching is Branching.CHAIN:
            self._save()  # planes take back tokens of the latest decode only, and a draft takes one a token
        self._grown = [[self.main]]
        self._open(self._grown, base, {self.main: base + 1})

    def extend(self, parent: int, depth: int, fork: bool, path: Sequence[int]) -> int:
        """Place one more decoded node below `parent` and return the id its token is decoded with.

        Args:
            parent: a placed node.
            depth: depth of the new node (>= 1).
            fork: False continues the parent's branch, True opens a new one.
            path: placed nodes from node 0 to `parent`.
        """
        seq = self._grown[parent][0]
        if fork:
            source, seq = seq, self._leaf_ids(1, self._reach)[0]
            # a fork starts at `length`: the tokens between there and node 0 are decoded in this very step
            self.memory.copy(source, seq, self.length, self._base + depth)
            for node in path:
                self._grown[node].append(seq)
        self._grown.append([seq])
        self._reach[seq] = self._base + depth + 1
        return seq

    def advance(self, path: Sequence[int], below: Sequence[int]) -> None:
        """Accept the text along `path`, and keep the tree below its end, so that it can grow further.

        Args:
            path: placed nodes in order, without node 0; the last one is node 0 from now on.
            below: all nodes placed below the last one, in the order they were placed; they are 1, 2 ... from now on.
        """
        grown, end, base = self._grown, self._grown[path[-1]], self._base + len(path)
        alive = {seq for node in below for seq in grown[node]}

        def shared(seq: int) -> int:
            return self._base + 1 + sum(seq in grown[node] for node in path)

        if self.main not in end:
            start = shared(self.main)
            self._free(self.main, start, self._reach[self.main])
            self.memory.copy(end[0], self.main, start, base + 1)
            self._reach[self.main] = base + 1
        for seq in self._reach.keys() - alive - {self.main}:
            upto = self._upto[seq] = min(base, shared(seq))
            self._free(seq, upto, self._reach.pop(seq))
        self._upto.update(dict.fromkeys(alive - {self.main}, base))
        root = [self.main, *(seq for seq in end if seq in alive and seq != self.main)]
        self._grown = [root, *(grown[node] for node in below)]
        self.length = base
        self._open(self._grown, base, self._reach)

    def retract(self, n: int) -> None:
        """Take back the `n` nodes that were placed last; all of them are on the branch of the main id."""
        if n:
            del self._grown[-n:]
            end = self._reach[self.main] = self._reach[self.main] - n
            self.memory.remove(self.main, end)

    def commit(self, path: Sequence[int], keep: int | None = None, ordered: bool = True) -> None:
        """Keep the accepted path and drop the rest of the tree; other slots do not change.

        Args:
            path: accepted nodes in order, without node 0; nodes that were never placed are ignored.
            keep: keep only the first `keep` of them (the rest will be decoded again); None: all.
            ordered: whether all other nodes were decoded after the path, so that no cell before it is freed.
        """
        if len(self._sets) == 1:  # plain decoding: nothing to cut, nothing to copy
            self._sets, self._reach = [], {}
            self.reached(self._base + 1)
            return
        placed = [node for node in path if node < len(self._sets)]
        placed = placed[: len(placed) if keep is None else keep]
        base = self._base
        parked = self.pool.parking is not None and self.pool.parking.n > 0
        if not placed and len(self._reach) > 1 and self.pool.caches == 1 and not parked:
            # Everything behind node 0 goes, and nobody else has cells there: one call for all ids.
            self.memory.remove(EVERYBODY, base + 1)
            self._upto.update(dict.fromkeys(self._reach.keys() - {self.main}, base + 1))
            self._sets, self._reach = [], {}
            self.reached(base + 1)
            self._check_window()
            return
        winner = self._sets[placed[-1]] if placed else self._sets[0]
        end = base + 1 + len(placed)
        source = self.main if self.main in winner else winner[0]
        # The winner's cells must reach the main id before its own id is cut.
        if source != self.main:
            shared = base + 1 + sum(1 for node in placed if self.main in self._sets[node])
            self._free(self.main, shared, self._reach[self.main], ordered)
            self.memory.copy(source, self.main, shared, end)
        elif self._reach.get(self.main, 0) > end and not self._free(self.main, end, self._reach[self.main], ordered):
            # A recurrent state that cannot go back this far: what was accepted is evaluated again.
            end = self._go_back(end)
            self.handed = min(self.handed, end)
        if len(self._reach) > 1:
            shared_by = collections.Counter([seq for node in placed for seq in self._sets[node]])
            for seq, reach in self._reach.items():
                if seq == self.main:
                    continue
                shared = base + 1 + shared_by[seq]
                if reach > shared:
                    self._free(seq, shared, reach, ordered)
                self._upto[seq] = shared
        self._sets, self._reach = [], {}
        self.reached(end)
        self._check_window()

    def abandon(self) -> None:
        """Drop the tree of an unfinished step: the cache is as it was after the last commit."""
        if self._sets:
            for seq, reach in self._reach.items():
                if not self._free(seq, self.length, reach):  # only recurrent states refuse, and have no leaf ids
                    self.length = self._go_back(self.length)
                    self.handed = min(self.handed, self.length)
                if seq != self.main:
                    self._upto[seq] = min(self._upto.get(seq, 0), self.length)
            self._sets, self._reach = [], {}
            self._check_window()

    def holds(self, length: int) -> bool:
        """Whether the text could continue after its first `length` positions (see Memory.holds)."""
        return length in (0, self.length) or self.memory.holds(self.main, length)

    def share(self, other: SequenceCache, length: int) -> None:
        """Hold `other`'s cells up to `length` as well. No data moves, except between streams, where it is copied.

        Both texts must be the same up to `length`, and `other` must hold what a token at `length` sees. For a recurrent
        model the state must be restored next, because the state of `other` belongs to its whole text.

        Raises:
            DecodeError: there is no memory to copy it.
        """
        if self.memory.streams:
            self.empty()
            self.memory.copy_stream(other.main, self.main)
            self.memory.remove(self.main, length)
            self.length, self.handed = length, min(other.handed, length)
            return
        if self.pool.parking is not None:
            self.truncate(0)  # the other's cells are in order among themselves only
        start = self.length
        if self.memory.window and self.memory.start(other.main) > 0:
            # `other` has lost cells: with own ones before them there would be a gap, of which the library says nothing.
            self.memory.remove(self.main, 0)
            start = 0
        self.memory.copy(other.main, self.main, start, length)
        self.length = length
        self.handed = min(other.handed, length)
        if self.memory.slack:
            self._unpin()

    def truncate(self, length: int) -> bool:
        """Keep only the first `length` positions; False if this memory cannot, and keeps fewer or none."""
        if length >= self.length:
            self._saved = None
            return True
        for seq, upto in self._upto.items():
            if upto > length:
                self.memory.remove(seq, length)
                self._upto[seq] = length
        kept = self._free(self.main, length, self.length) if length else False
        if not kept:
            length = self._go_back(length)
        self._saved = None
        self.length = length
        self.handed = min(self.handed, length)
        if self._pinned is not None and self._pinned >= length:
            self._pinned = None
        return kept and self._check_window()

    def _check_window(self) -> bool:
        """After a truncation: False if cells that the next token sees are gone; then everything is dropped."""
        if self.memory.holds(self.main, self.length):
            return True
        self.empty()
        return False

    def empty(self) -> None:
        """Hold nothing."""
        self._saved = None
        for seq in [self.main, *self._upto]:
            self._free(seq, 0, self.length)
        self._upto = dict.fromkeys(self._upto, 0)
        self.length = self.canonical = self.handed = 0
        self._pinned = None

    def restore(self, state: NDArray[np.uint8], length: int) -> bool:
        """Load the state that the text had after its first `length` tokens; the cache holds their other cells.

        False if the library refused it or cells are missing; then nothing is held.
        """
        self._saved = self._pinned = None  # the windows' cells are copies that nobody else holds
        if not (self.memory.load_state(self.main, state) and self.memory.remove(self.main, length)):
            self.empty()
            return False
        self.length = length
        self.canonical = min(self.canonical, length)
        return self._check_window()

    def next_pause(self, stop: int) -> int:
        """Where reading the prompt up to `stop` must stop next: at a checkpoint's place, or at `stop`."""
        return next((pause for pause in self.pauses if self.length < pause < stop), stop)

    def drop_leaves(self) -> None:
        """Return every leaf id to the pool."""
        for seq in self._upto:
            self.memory.remove(seq, 0)
            self.pool.give(seq)
        self._upto = {}

    def release(self) -> None:
        """Return all ids; the cache must not be used afterwards."""
        self.abandon()
        self.drop_leaves()
        self._free(self.main, 0, self.length)
        self.pool.give(self.main)
        self.pool.caches -= 1
        self.length = 0
        if self.pool.parking is not None and not self.pool.caches:
            self.pool.parking.clear()

    def _free(self, seq: int, start: int, reach: int, ordered: bool = True) -> bool:
        """Take the cells from position `start` on away from `seq`, which holds cells up to `reach`; returns what
        Memory.remove returns.

        Where the order of cells matters, freed cells that may lie before others are parked.
        """
        if self.pool.parking is not None and (self.pool.caches > 1 or not ordered):
            self.pool.parking.hold(seq, start, reach)
        return self.memory.remove(seq, start)

    def _save(self) -> None:
        """Save the state before a step's decode."""
        room = self._saved.data if self._saved is not None else None
        self._saved = _Saved(self.length, self.memory.save_state(self.main, room)) if self.length else None

    def _go_back(self, length: int) -> int:
        """Load the saved state if it belongs to at most `length` tokens, else empty the main id; returns how many
        tokens the main id holds then."""
        saved = self._saved
        loaded = saved is not None and saved.length <= length and self.memory.load_state(self.main, saved.data)
        if saved is not None and loaded and self.memory.remove(self.main, saved.length):
            return saved.length
        self._saved = None
        self._free(self.main, 0, self.length)
        return 0

    def _open(self, sets: SeqSets | list[list[int]], base: int, reach: dict[int, int]) -> None:
        self._sets, self._base, self._reach = sets, base, reach

    def _leaf_ids(self, n: int, busy: dict[int, int] | None = None) -> list[int]:
        """`n` leaf ids not in `busy`, each brought up to date with the main id."""
        if n and self._pinned is None and self.memory.slack:
            self._unpin()
        ids = [seq for seq in self._upto if not busy or seq not in busy][:n]
        while len(ids) < n:
            seq = self.pool.take(leaf=True)
            self._upto[seq] = 0
            ids.append(seq)
        for seq in ids:
            if self._upto[seq] < self.length:
                self._catch_up(seq)
        return ids

    def _catch_up(self, seq: int) -> None:
        """Let a leaf id hold all cells of the main id."""
        self.memory.copy(self.main, seq, self._upto[seq], self.length)
        if self.memory.window and self.memory.start(seq) != self.memory.start(self.main):
            # The windows' cells that only one of them held were overwritten, and with them all before: the library
            # takes no batch with ids that begin at different positions.
            self.memory.remove(seq, 0)
            self.memory.copy(self.main, seq, 0, self.length)
        self._upto[seq] = self.length
