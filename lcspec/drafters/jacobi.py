"""Jacobi decoding: a block of guesses for the next positions is the draft, and the target's own answers to it are the
next block (Santilli et al. 2023, arXiv:2305.10427).

The degenerate case of lookahead decoding, n = 2: nothing but the trunk is left. As no n-grams are collected, the trunk
itself is verified. A guess that an iteration does not change has reached a *fixed point*. As far as all guesses from
the first on have, they are what greedy decoding gives, and a greedy verifier accepts exactly these. Behind a wrong
guess a fixed point is only likelier to be right, which is said to the planner.
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
# What a guess is believed to be worth before anything is known: one that changed last time, and a fixed point.
MOVING, FIXED = 0.2, 0.6


@dataclass
class _State:
    """One slot's block: `guesses[i]` is for the i-th position after the pending token's, `fixed[i]` whether the latest
    iteration left it as it was."""

    width: int
    rng: random.Random
    prompt: list[int]
    guesses: list[int] = field(default_factory=list)
    fixed: list[bool] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)  # nodes of the kept tree that carry guesses, node 0 first
    answers: list[int] = field(default_factory=list)  # the target's argmax after each of them

    def fill(self) -> None:
        """Begin new positions with tokens of the prompt."""
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
            node = tree.add(node, guess, FIXED if fixed else MOVING, budget.source, feature=int(fixed))
        return tree

    def reserved_rows(self, sequence: SequenceView) -> int:
        """It has no probes."""
        return 0

    def window(self, sequence: SequenceView, kept: TokenTree, rows: int, leaves: int) -> Window:
        """Answers are wanted after every guess that was kept."""
        state = self._slots[sequence.id]
        state.chain = [0]
        for guess in state.guesses:
            node = kept.child(state.chain[-1], guess)
            if node is None:
                break
            state.chain.append(node)
        return Window(self, TokenTree.root(kept.tokens[0]), drafted=tuple(state.chain))

    def harvest(self, sequence: SequenceView, best: NDArray[np.int32]) -> None:
        """The target's answers: the next iterate."""
        self._slots[sequence.id].answers = best.tolist()

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """The answers become the guesses of the positions that are still open."""
        state = self._slots[sequence.id]
        answers = state.answers + state.guesses[len(state.answers) :]
        fixed = [a == g for a, g in zip(state.answers, state.guesses)] + [False] * len(answers)
        state.guesses, state.fixed = answers[len(verdict.tokens) :], fixed[len(verdict.tokens) : len(answers)]
        state.answers = []

    def end(self, sequence: SequenceView) -> None:
        """Drop the block."""
        self._slots.pop(sequence.id, None)
