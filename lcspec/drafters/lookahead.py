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
from typing import NamedTuple, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, DrafterEnv, ProbingDrafter, SequenceView, Window, register
from lcspec.drafters.jacobi_window import Entry, Gram, JacobiWindow, NgramPool
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

# Columns of the window, tokens of an n-gram and n-grams kept for a token, when nobody says otherwise (the paper's).
DEFAULT_W = 15
DEFAULT_N = 5
DEFAULT_G = 15
MAX_W = 60
MAX_N = 9
# How often an n-gram was seen is told apart in calibration up to this.
MAX_SEEN = 3


class Grams(NamedTuple):
    """What n-grams say comes next: tokens, of which `at` are taken already, weight, and what is known of each."""

    at: int
    items: list[tuple[Gram, float, Entry]]

    @classmethod
    def after(cls, pool: NgramPool, text: Sequence[int], n: int) -> Grams:
        """Those that overlap with the end of `text`, the ones that share most of it; the latest used weigh most."""
        for shared in range(min(n - 1, len(text)), 0, -1):
            known = tuple(text[len(text) - shared + 1 :])
            found = [(g[shared - 1 :], e) for g, e in pool.after(text[-shared]) if g[: shared - 1] == known]
            items = [(rest, 1.0 / rank, entry) for rank, (rest, entry) in enumerate(found, start=1) if rest]
            if items:
                return cls(0, items)
        return cls(0, [])

    @property
    def ended(self) -> bool:
        """Whether none of them has a token left."""
        return all(len(gram) <= self.at for gram, _, _ in self.items)

    def below(self) -> dict[int, list[tuple[Gram, float, Entry]]]:
        """They by their next token."""
        out: dict[int, list[tuple[Gram, float, Entry]]] = {}
        for item in self.items:
            if self.at < len(item[0]):
                out.setdefault(item[0][self.at], []).append(item)
        return out


@dataclass
class _State:
    """One sequence's window and pool."""

    window: JacobiWindow
    pool: NgramPool
    width: int
    length: int  # of the n-grams taken from the text; 0: none are
    read: int = 0  # tokens of the text up to which they have been taken
    asked: dict[int, int] = field(default_factory=dict)  # node of the window -> index among those asked for
    top_nodes: list[int] = field(default_factory=list)
    tops: list[int] = field(default_factory=list)

    @property
    def longest(self) -> int:
        """Tokens of the longest n-grams in the pool."""
        return max(self.window.n, self.length)


@register("lookahead")
class LookaheadDrafter(ProbingDrafter):
    """Drafts the n-grams that the target itself came up with for later positions."""

    name = "lookahead"
    default_nodes = 60
    default_branch = DEFAULT_G

    def __init__(self, env: DrafterEnv) -> None:
        self._slots: dict[int, _State] = {}

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Begin with an empty window, its first guesses being tokens of the prompt.

        Options: `w` columns, `n` tokens an n-gram, `g` n-grams a token, `pool_from_prompt` (begin with the prompt's
        n-grams), `pool_from_answer` (take the answer's as it grows; on unless it is 0, which is for company that reads
        the text itself), `nodes`.
        """
        spec.check_keys({"w", "n", "g", "pool_from_prompt", "pool_from_answer", "nodes"})
        n = spec.integer("n", DEFAULT_N, 3, MAX_N)
        pool = NgramPool(spec.integer("g", DEFAULT_G, 1, 64))
        prompt = list(sequence.tokens)
        rng = random.Random(len(prompt))
        window = JacobiWindow(n, lambda position: rng.choice(prompt))
        width = spec.integer("w", DEFAULT_W, 1, MAX_W)
        length = n if spec.integer("pool_from_answer", 1, 0, 1) else 0
        state = _State(window, pool, width, length, len(prompt) - 1)
        if spec.integer("pool_from_prompt", 0, 0, 1):
            pool.add_text(prompt, n, now=0)
            state.read = max(0, len(prompt) - n + 1)
        self._slots[sequence.id] = state

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """N-grams of the pool that go on after the pending token, as one tree.

        Those that share most with the end of the text, at least the pending token; the paper has all that begin with
        it. Where they end, others that overlap with their ends go on, so drafts are not bound to n - 1 tokens.
        """
        state = self._slots[sequence.id]
        tree = TokenTree.root(sequence.tokens[-1])
        n = state.longest
        text = list(sequence.tokens[-n:-1])
        # Of every node to go on from: its reach, itself, and the n-grams there.
        heap: list[tuple[float, int, Grams]] = [(-1.0, 0, Grams(0, []))]
        while heap and tree.n_drafted < budget.nodes:
            reach, node, grams = heapq.heappop(heap)
            if tree.depths[node] >= budget.depth:
                continue
            if grams.ended:
                path = [tree.tokens[v] for v in tree.path_to(node)]
                grams = Grams.after(state.pool, text + path, n)
            below = grams.below()
            weights = {token: sum(weight for _, weight, _ in items) for token, items in below.items()}
            total = sum(weight for _, weight, _ in grams.items)
            for token, items in itertools.islice(below.items(), min(budget.branch, budget.nodes - tree.n_drafted)):
                # More than counted: that an n-gram was found once does not make it certain.
                share = weights[token] / (total + 1.0)
                child = tree.add(node, token, share, budget.source, _feature([entry for _, _, entry in items]))
                heapq.heappush(heap, (reach * share, child, Grams(grams.at + 1, items)))
        return tree

    def reserved_rows(self, sequence: SequenceView) -> int:
        """The warm window's rows."""
        state = self._slots[sequence.id]
        return max(0, state.width * (state.window.n - 1) - 1)

    def window(self, sequence: SequenceView, kept: TokenTree, rows: int, leaves: int) -> Window:
        """The probes of as many columns as there is room for."""
        state = self._slots[sequence.id]
        window = state.window
        columns = min(window.columns_for(rows, state.width), leaves)
        if columns <= 0:
            return Window(self, TokenTree.root(sequence.tokens[-1]))
        window.widen(columns, len(sequence.tokens) - 1, sequence.tokens[-1])
        tree, state.top_nodes = window.tree(columns)
        ask = sorted(set(state.top_nodes))
        state.asked = {node: i for i, node in enumerate(ask)}
        return Window(self, tree, tuple(ask))

    def harvest(self, sequence: SequenceView, best: NDArray[np.int32]) -> None:
        """The new top of every column."""
        state = self._slots[sequence.id]
        state.tops = [int(best[state.asked[node]]) for node in state.top_nodes]

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Move the window on and keep the n-grams it gave."""
        state = self._slots[sequence.id]
        key, emitted, at = tree.tokens[0], verdict.tokens, len(sequence.tokens) - 1
        state.pool.used(key, emitted)
        for first, gram in state.window.advance(state.tops, emitted):
            state.pool.add(first, gram, at)
        state.tops = []
        self._read(sequence)

    def _read(self, sequence: SequenceView) -> None:
        """Take the n-grams of the text itself that are complete by now: what was written may be written again."""
        state = self._slots[sequence.id]
        n, text = state.length, sequence.tokens
        if 0 < n <= len(text) - state.read:
            state.pool.add_text(text[state.read :], n, now=0)
            state.read = len(text) - n + 1

    def end(self, sequence: SequenceView) -> None:
        """Drop the window and the pool."""
        self._slots.pop(sequence.id, None)


def _feature(entries: list[Entry]) -> int:
    """What tells n-grams apart in calibration: how often they came up, and whether one was right before."""
    seen = hits = 0
    for entry in entries:
        seen += entry.seen
        hits += entry.hits
    return min(MAX_SEEN, seen) + (MAX_SEEN if hits else 0)
