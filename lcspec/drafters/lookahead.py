"""Lookahead decoding: drafting without a draft model (Fu et al. 2024, arXiv:2402.02057).

Every batch of the target carries a window of Jacobi guesses as probes. A pool keeps the n-grams that they give, and
those of the answer itself; n-grams that start with the pending token are drafted as a tree. docs/lookahead.md has a
picture.
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
from lcspec.drafters.jacobi_window import Gram, JacobiWindow, NgramPool
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

# Default columns of the window, tokens in an n-gram and n-grams kept for a token (those of the paper).
DEFAULT_W = 15
DEFAULT_N = 5
DEFAULT_G = 15
MAX_W = 60
MAX_N = 9


class Grams(NamedTuple):
    """N-grams that may continue at a node: their tokens, the first `at` of which are drafted, and their weights."""

    at: int
    items: list[tuple[Gram, float]]

    @classmethod
    def after(cls, pool: NgramPool, text: Sequence[int], n: int) -> Grams:
        """The n-grams that overlap most with the end of `text`; the most recently used weigh most."""
        for shared in range(min(n - 1, len(text)), 0, -1):
            known = tuple(text[len(text) - shared + 1 :])
            found = [g[shared - 1 :] for g in pool.after(text[-shared]) if g[: shared - 1] == known]
            items = [(rest, 1.0 / rank) for rank, rest in enumerate(found, start=1) if rest]
            if items:
                return cls(0, items)
        return cls(0, [])

    @property
    def ended(self) -> bool:
        """Whether all n-grams have run out of tokens."""
        return all(len(gram) <= self.at for gram, _ in self.items)

    def below(self) -> dict[int, list[tuple[Gram, float]]]:
        """The n-grams grouped by their next token."""
        out: dict[int, list[tuple[Gram, float]]] = {}
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
    length: int  # of the n-grams taken from the text; 0: none are taken
    read: int = 0  # how many tokens of the text they have been taken from
    asked: dict[int, int] = field(default_factory=dict)  # node of the window -> index among the nodes in `ask`
    top_nodes: list[int] = field(default_factory=list)
    tops: list[int] = field(default_factory=list)

    @property
    def longest(self) -> int:
        """Length in tokens of the longest n-grams in the pool."""
        return max(self.window.n, self.length)


@register("lookahead")
class LookaheadDrafter(ProbingDrafter):
    """Drafts n-grams that the target itself produced for later positions."""

    name = "lookahead"
    default_nodes = 60
    default_branch = DEFAULT_G

    def __init__(self, env: DrafterEnv) -> None:
        self._slots: dict[int, _State] = {}

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Start with an empty window, whose first guesses are tokens of the prompt.

        Options: `w` columns, `n` tokens in an n-gram, `g` n-grams for a token, `pool_from_prompt` (start with the
        prompt's n-grams), `pool_from_answer` (add the answer's as it grows; on by default, 0 turns it off, which suits
        a strategy with another drafter that reads the text), `nodes`.
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
            pool.add_text(prompt, n)
            state.read = max(0, len(prompt) - n + 1)
        self._slots[sequence.id] = state

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """A tree of the pool's n-grams that continue after the pending token.

        It takes those that overlap most with the end of the text, by at least the pending token; the paper takes all
        that start with it. Where they end, others that overlap with their ends continue, so a draft can be longer than
        n - 1 tokens.
        """
        state = self._slots[sequence.id]
        tree = TokenTree.root(sequence.tokens[-1])
        n = state.longest
        text = list(sequence.tokens[-n:-1])
        # For every node that can be continued: its reach (negated), the node, and the n-grams there.
        heap: list[tuple[float, int, Grams]] = [(-1.0, 0, Grams(0, []))]
        while heap and tree.n_drafted < budget.nodes:
            reach, node, grams = heapq.heappop(heap)
            if tree.depths[node] >= budget.depth:
                continue
            if grams.ended:
                path = [tree.tokens[v] for v in tree.path_to(node)]
                grams = Grams.after(state.pool, text + path, n)
            below = grams.below()
            weights = {token: sum(weight for _, weight in items) for token, items in below.items()}
            total = sum(weight for _, weight in grams.items)
            for token, items in itertools.islice(below.items(), min(budget.branch, budget.nodes - tree.n_drafted)):
                # The total plus one: an n-gram that was found once is not certain.
                share = weights[token] / (total + 1.0)
                child = tree.add(node, token, share, budget.source)
                heapq.heappush(heap, (reach * share, child, Grams(grams.at + 1, items)))
        return tree

    def reserved_rows(self, sequence: SequenceView) -> int:
        """The rows of the warm window."""
        state = self._slots[sequence.id]
        return max(0, state.width * (state.window.n - 1) - 1)

    def window(self, sequence: SequenceView, kept: TokenTree, rows: int, leaves: int) -> Window:
        """The probes of as many columns as fit into `rows` and `leaves`."""
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
        """Take the new top of every column."""
        state = self._slots[sequence.id]
        state.tops = [int(best[state.asked[node]]) for node in state.top_nodes]

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Advance the window, and add the n-grams that it completed to the pool."""
        state = self._slots[sequence.id]
        key, emitted = tree.tokens[0], verdict.tokens
        state.pool.used(key, emitted)
        for first, gram in state.window.advance(state.tops, emitted):
            state.pool.add(first, gram)
        state.tops = []
        self._read(sequence)

    def _read(self, sequence: SequenceView) -> None:
        """Add the new n-grams of the text itself to the pool: text tends to repeat."""
        state = self._slots[sequence.id]
        n, text = state.length, sequence.tokens
        if 0 < n <= len(text) - state.read:
            state.pool.add_text(text[state.read :], n)
            state.read = len(text) - n + 1

    def end(self, sequence: SequenceView) -> None:
        """Drop the window and the pool."""
        self._slots.pop(sequence.id, None)
