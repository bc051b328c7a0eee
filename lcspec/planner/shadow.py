"""Drafts that are not decoded: what came shows whether they would have been right.

While a text backs off (see loss_budget), its free drafters are asked once in LOOK steps, or less often where asking
takes long beside a step. If half of what they said the time before has come, drafting goes on: the text may have come
to a part that is easy to guess.
"""

from __future__ import annotations

import itertools
import math
import operator
from typing import Sequence

from lcspec.planner.base import PlannedSequence
from lcspec.spec.token_tree import TokenTree

# The fewest steps between two looks, and tokens of a draft that are compared.
LOOK = 8
# The most of the time that looks may take.
LOOK_SHARE = 0.02
# Share of the tokens that must have come.
RIGHT = 0.5
# Weight of a new look in what one takes. A look is taken to last LONGEST steps at most: something else interrupted it.
RATE, LONGEST = 0.3, 1.0


class Shadows:
    """The latest draft for every sequence, and where it began."""

    def __init__(self) -> None:
        self._drafts: dict[int, tuple[int, list[int]]] = {}
        self._share = 0.0  # of a step that a look takes
        self._gap = LOOK  # steps from the latest look to the next one
        self._left = LOOK - 1  # of them

    def due(self, pause: int) -> bool:
        """Whether to look in this step, with `pause` steps of a pause to go; called in every step of a pause."""
        self._left -= 1
        return self._left < 0 < pause

    def took(self, share: float) -> None:
        """A look took this share of a step."""
        share = min(share, LONGEST)
        self._share += RATE * (share - self._share) if self._share else share

    def were_right(self, sequences: Sequence[PlannedSequence]) -> bool:
        """Whether enough has come of what was drafted for the sequences at the latest look."""
        right = 0
        for sequence in sequences:
            start, draft = self._drafts.get(sequence.id, (0, []))
            if start == len(sequence.tokens) - self._gap:  # else it is of an earlier pause
                same = map(operator.eq, draft, sequence.tokens[start:])
                right += sum(itertools.takewhile(bool, same))
        return right >= RIGHT * LOOK * len(sequences)

    def keep(self, sequences: Sequence[PlannedSequence], trees: Sequence[TokenTree]) -> None:
        """Remember the likeliest path of each tree."""
        self._gap = max(LOOK, math.ceil(self._share / LOOK_SHARE))
        self._left = self._gap - 1
        self._drafts = {
            sequence.id: (len(sequence.tokens), [tree.tokens[node] for node in tree.likeliest_path()[1 : LOOK + 1]])
            for sequence, tree in zip(sequences, trees)
        }
