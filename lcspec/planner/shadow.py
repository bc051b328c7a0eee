"""Drafts that are not decoded: what came shows whether they would have been right.

While a text backs off (see loss_budget), its free drafters are asked once in LOOK steps, or less often where asking
takes long beside a step. If half of what they said the time before has come, drafting goes on: the text may have come
to a part that is easy to guess.

Where such drafts would not pay, every text begins with a look, and nothing is drafted before one was right. Only if the
drafters are as sure at the first look already (the same text once more), drafting begins at once.
"""

from __future__ import annotations

import itertools
import operator
from typing import Sequence

from lcspec.planner.acceptance import Acceptance
from lcspec.planner.base import PlannedSequence
from lcspec.planner.worth import could_pay
from lcspec.profiles.stake import Costs
from lcspec.spec.token_tree import TokenTree

# The fewest steps between two looks, and tokens of a draft that are compared.
LOOK = 8
# The most of the time that looks may take. A look is taken to last a step at most: else something interrupted it.
LOOK_SHARE = 0.02
# Share of the tokens that must have come.
RIGHT = 0.5


def half_right_pays(costs: Costs) -> bool:
    """Whether chains whose tokens are right as often as a look asks for would be faster than plain decoding."""
    return could_pay(costs, [RIGHT] * LOOK, 0.0, promise=1.0)


class Shadows:
    """The latest draft for every sequence, and where it began."""

    def __init__(self) -> None:
        self._drafts: dict[int, tuple[int, list[int]]] = {}
        self._left = LOOK  # steps of pauses to the next look
        self._begins = False  # that is a text's first one

    def begin(self) -> None:
        """A text begins with a look."""
        self._left, self._begins = 1, True

    def due(self) -> bool:
        """Whether to look in this step; called in every step of a pause."""
        self._left -= 1
        return self._left <= 0

    def took(self, share: float) -> None:
        """A look took this share of a step."""
        self._left = max(LOOK, round(min(share, 1.0) / LOOK_SHARE))

    def sure(self, trees: Sequence[TokenTree], acceptance: Acceptance) -> bool:
        """Whether this is a text's first look, and so much is expected of the drafts as must have come."""
        begins, self._begins = self._begins, False
        expected = 0.0
        for tree in trees if begins else ():
            reach = acceptance.path_probs(tree)
            expected += sum(reach[node] for node in tree.likeliest_path()[1 : LOOK + 1])
        return begins and expected >= RIGHT * LOOK * len(trees)

    def were_right(self, sequences: Sequence[PlannedSequence]) -> bool:
        """Whether enough has come of what was drafted for the sequences at the latest look, which is forgotten."""
        right, drafts, self._drafts, self._left = 0, self._drafts, {}, LOOK
        for sequence in sequences:
            start, draft = drafts.get(sequence.id, (0, []))
            same = map(operator.eq, draft, sequence.tokens[start:])
            right += sum(itertools.takewhile(bool, same))
        return right >= RIGHT * LOOK * len(sequences)

    def keep(self, sequences: Sequence[PlannedSequence], trees: Sequence[TokenTree]) -> None:
        """Remember the likeliest path of each tree."""
        self._drafts = {
            sequence.id: (len(sequence.tokens), [tree.tokens[node] for node in tree.likeliest_path()[1 : LOOK + 1]])
            for sequence, tree in zip(sequences, trees)
        }
