"""Lookahead decoding: no draft model at all (Fu et al. 2024, arXiv:2402.02057).

A window of Jacobi guesses rides along in the target's batches as probes; the n-grams it gives are kept in a pool, with
those of the answer itself, and the ones that begin with the pending token are drafted as an ordinary tree.
docs/lookahead.md has the picture.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, DrafterEnv, Feeding, SlotView, Window, register
from lcspec.drafters.jacobi_window import Entry, Gram, JacobiWindow, NgramPool
from lcspec.tree import TokenTree
from lcspec.verify import Verdict

# N-grams are this long, and this many are kept for a token, when nobody says otherwise.
DEFAULT_N = 5
DEFAULT_G = 15
# Where the planner chooses: their length by the rows that it grants to begin with.
LENGTHS = ((12, 5), (6, 4), (0, 3))
MAX_W = 60
MAX_N = 9
# Tokens for which an n-gram counts as owed to the probes that brought it: without them it would not have been there.
YOUNG = 128
# How often an n-gram was seen is told apart in calibration up to this.
MAX_SEEN = 3


@dataclass
class _State:
    """One slot's window and pool. `width` 0: the planner sizes it; `open`: the n-grams' length is yet to be chosen."""

    window: JacobiWindow
    pool: NgramPool
    width: int
    open: bool
    length: int  # of the n-grams taken from the text; 0: none are
    read: int = 0  # tokens of the text up to which they have been taken
    bit: int = 0
    asked: dict[int, int] = field(default_factory=dict)  # node of the window -> index among those asked for
    top_nodes: list[int] = field(default_factory=list)
    tops: list[int] = field(default_factory=list)
    feeding: Feeding = Feeding()


@register("lookahead")
class LookaheadDrafter:
    """Drafts the n-grams that the target itself came up with for later positions."""

    name = "lookahead"
    default_nodes = 60
    default_branch = DEFAULT_G
    costly = False
    wants_hidden = False
    wants_rows = True

    def __init__(self, env: DrafterEnv) -> None:
        self._slots: dict[int, _State] = {}

    def begin(self, slot: SlotView, spec: DrafterSpec) -> None:
        """Begin with an empty window, its first guesses being tokens of the prompt.

        Options: `w` columns (`auto`, the default: the planner chooses, 0 included), `n` tokens an n-gram, `g` n-grams
        a token, `pool_from_prompt` (begin with the prompt's n-grams), `pool_from_answer` (take the answer's as it
        grows; on unless it is 0, which is for company that reads the text itself), `nodes`.
        """
        spec.check_keys({"w", "n", "g", "pool_from_prompt", "pool_from_answer", "nodes"})
        auto = spec.sized_by_planner
        n = spec.integer("n", DEFAULT_N, 3, MAX_N)
        pool = NgramPool(spec.integer("g", DEFAULT_G, 1, 64))
        prompt = list(slot.tokens)
        rng = random.Random(len(prompt))
        window = JacobiWindow(n, lambda position: rng.choice(prompt))
        width = 0 if auto else spec.integer("w", 0, 1, MAX_W)
        length = n if spec.integer("pool_from_answer", 1, 0, 1) else 0
        state = _State(window, pool, width, auto and "n" not in spec.options, length, len(prompt) - 1)
        if spec.integer("pool_from_prompt", 0, 0, 1):
            pool.add_text(prompt, n, now=-YOUNG)
            state.read = max(0, len(prompt) - n + 1)
        self._slots[slot.id] = state

    def draft(self, slot: SlotView, budget: Budget) -> TokenTree:
        """The n-grams that begin with the pending token, as one tree; those used last weigh most."""
        state = self._slots[slot.id]
        state.bit = budget.source
        tree = TokenTree.root(slot.tokens[-1])
        grams = [(gram, 1.0 / (rank + 1), entry) for rank, (gram, entry) in enumerate(state.pool.after(tree.tokens[0]))]
        heap: list[tuple[float, int, int, list[tuple[Gram, float, Entry]]]] = [(-1.0, 0, 0, grams)]
        while heap and tree.n_drafted < budget.nodes:
            reach, _, node, here = heapq.heappop(heap)
            depth = tree.depths[node]
            if depth >= budget.depth:
                continue
            below: dict[int, list[tuple[Gram, float, Entry]]] = {}
            weights: dict[int, float] = {}
            total = 0.0
            for item in here:
                gram, weight, _ = item
                total += weight
                if depth < len(gram):
                    token = gram[depth]
                    if token in below:
                        below[token].append(item)
                        weights[token] += weight
                    else:
                        below[token], weights[token] = [item], weight
            for token, items in itertools.islice(below.items(), min(budget.branch, budget.nodes - tree.n_drafted)):
                # More than counted: that an n-gram was found once does not make it certain.
                share = weights[token] / (total + 1.0)
                child = tree.add(node, token, share, budget.source, _feature([entry for _, _, entry in items]))
                heapq.heappush(heap, (reach * share, child, child, items))
        return tree

    def column_rows(self, slot: SlotView) -> int:
        """A warm column's rows, if the planner chooses the width."""
        state = self._slots[slot.id]
        return 0 if state.width else LENGTHS[-1][1] - 1 if state.open else state.window.n - 1

    def reserved_rows(self, slot: SlotView) -> int:
        """The warm window's rows, if the user chose the width."""
        state = self._slots[slot.id]
        return max(0, state.width * (state.window.n - 1) - 1)

    def window(self, slot: SlotView, kept: TokenTree, rows: int, leaves: int) -> Window:
        """The probes of as many columns as there is room for."""
        state = self._slots[slot.id]
        window = state.window
        if state.open and rows > 0:  # less than nothing when the other slots took what there was
            window.n = next(n for least, n in LENGTHS if rows >= least)
            state.open = False
        width = state.width or (rows + 1) // (window.n - 1)
        columns = min(window.columns_for(rows, width), leaves) if width else 0
        if columns <= 0:
            return Window(self, TokenTree.root(slot.tokens[-1]))
        window.widen(columns, len(slot.tokens) - 1, slot.tokens[-1])
        tree, state.top_nodes = window.tree(columns)
        ask = sorted(set(state.top_nodes))
        state.asked = {node: i for i, node in enumerate(ask)}
        return Window(self, tree, tuple(ask))

    def harvest(self, slot: SlotView, best: NDArray[np.int32]) -> None:
        """The new top of every column."""
        state = self._slots[slot.id]
        state.tops = [int(best[state.asked[node]]) for node in state.top_nodes]

    def observe(self, slot: SlotView, tree: TokenTree, verdict: Verdict) -> None:
        """Move the window on and keep the n-grams it gave."""
        state = self._slots[slot.id]
        key, emitted, at = tree.tokens[0], verdict.tokens, len(slot.tokens) - 1
        state.feeding = Feeding(len(state.tops), self._gained(state, tree, verdict, at))
        state.pool.used(key, emitted)
        for first, gram in state.window.advance(state.tops, emitted):
            state.pool.add(first, gram, at)
        state.tops = []
        self._read(slot)

    def _read(self, slot: SlotView) -> None:
        """Take the n-grams of the text itself that are complete by now: what was written may be written again."""
        state = self._slots[slot.id]
        n, text = state.length, slot.tokens
        if 0 < n <= len(text) - state.read:
            state.pool.add_text(text[state.read :], n, now=-YOUNG)
            state.read = len(text) - n + 1

    @staticmethod
    def _gained(state: _State, tree: TokenTree, verdict: Verdict, at: int) -> float:
        """Accepted tokens that nobody else had drafted, from n-grams that are all young."""
        gained, drafted = 0, [tree.tokens[v] for v in verdict.path]
        for depth, node in enumerate(verdict.path, start=1):
            if tree.sources[node] == state.bit:
                same = [e for g, e in state.pool.after(tree.tokens[0]) if list(g[:depth]) == drafted[:depth]]
                gained += bool(same) and min(entry.born for entry in same) > at - YOUNG
        return float(gained)

    def feeding(self, slot: SlotView) -> Feeding:
        """What came of the latest step; told once."""
        state = self._slots[slot.id]
        told, state.feeding = state.feeding, Feeding()
        return told

    def end(self, slot: SlotView) -> None:
        """Drop the window and the pool."""
        self._slots.pop(slot.id, None)

    def close(self) -> None:
        """Nothing to free."""


def _feature(entries: list[Entry]) -> int:
    """What tells n-grams apart in calibration: how often they came up, and whether one was right before."""
    seen = hits = 0
    for entry in entries:
        seen += entry.seen
        hits += entry.hits
    return min(MAX_SEEN, seen) + (MAX_SEEN if hits else 0)
