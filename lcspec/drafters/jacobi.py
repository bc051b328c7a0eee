"""Jacobi decoding: the draft is a block of guesses for the next positions, and the target's answers are the next block
(Santilli et al. 2023, arXiv:2305.10427).

It is lookahead decoding with n = 2: only the trunk is left. Without n-grams, the trunk itself is verified. A guess that
an iteration does not change has reached a *fixed point*. If all guesses from the first on have, they equal greedy
decoding, and a greedy verifier accepts exactly these. After a wrong guess, a fixed point is only more likely to be
right; its estimate tells the planner so.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, DrafterEnv, ProbingDrafter, SequenceView, Window, register
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

DEFAULT_W = 8
MAX_W = 60
# Estimates before anything is known: of a guess that changed in the last iteration, and of a fixed point.
MOVING, FIXED = 0.2, 0.6


@dataclass
class _State:
    """One sequence's block: `guesses[i]` is for the i-th position after the pending token's, `fixed[i]` tells whether
    the latest iteration left it unchanged."""

    width: int
    rng: random.Random
    prompt: list[int]
    guesses: list[int] = field(default_factory=list)
    fixed: list[bool] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)  # nodes of the kept tree that carry guesses, node 0 first
    answers: list[int] = field(default_factory=list)  # the target's argmax after each of them

    def fill(self) -> None:
        """Fill new positions with tokens of the prompt."""
        while len(self.guesses) < self.width:
            self.guesses.append(self.rng.choice(self.prompt))
            self.fixed.append(False)


@register("jacobi")
class JacobiDrafter(ProbingDrafter):
    """Drafts what the target answered to the previous draft."""

    name = "jacobi"
    default_nodes = MAX_W

    def __init__(self, env: DrafterEnv) -> None:
        self._slots: dict[int, _State] = {}

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Option `w`: guesses in a block."""
        spec.check_keys({"w", "nodes"})
        prompt = list(sequence.tokens)
        width = spec.integer("w", DEFAULT_W, 1, MAX_W)
        self._slots[sequence.id] = _State(width, random.Random(len(prompt)), prompt)

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """The block as a chain."""
        state = self._slots[sequence.id]
        state.fill()
        tree = TokenTree.root(sequence.tokens[-1])
        node = 0
        for guess, fixed in list(zip(state.guesses, state.fixed))[: min(budget.nodes, budget.depth)]:
            node = tree.add(node, guess, FIXED if fixed else MOVING, budget.source)
        return tree

    def reserved_rows(self, sequence: SequenceView) -> int:
        """0: it has no probes."""
        return 0

    def window(self, sequence: SequenceView, kept: TokenTree, rows: int, leaves: int) -> Window:
        """Ask for the target's argmax after every guess that was kept."""
        state = self._slots[sequence.id]
        state.chain = [0]
        for guess in state.guesses:
            node = kept.child(state.chain[-1], guess)
            if node is None:
                break
            state.chain.append(node)
        return Window(self, TokenTree.root(kept.tokens[0]), drafted=tuple(state.chain))

    def harvest(self, sequence: SequenceView, best: NDArray[np.int32]) -> None:
        """Take the target's answers as the next iterate."""
        self._slots[sequence.id].answers = best.tolist()

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Make the answers the guesses of the positions that are still open."""
        state = self._slots[sequence.id]
        answers = state.answers + state.guesses[len(state.answers) :]
        fixed = [a == g for a, g in zip(state.answers, state.guesses)] + [False] * len(answers)
        state.guesses, state.fixed = answers[len(verdict.tokens) :], fixed[len(verdict.tokens) : len(answers)]
        state.answers = []

    def end(self, sequence: SequenceView) -> None:
        """Drop the block."""
        self._slots.pop(sequence.id, None)
