"""Drafts that are not decoded: what came shows whether they would have been right.

While a text backs off (see loss_budget), its free drafters are asked once in LOOK steps. If half of what they said LOOK
steps ago has come, drafting goes on: the text may have come to a part that is easy to guess.
"""

from __future__ import annotations

import itertools
import operator
from typing import Sequence

from lcspec.planner.base import PlannedSequence
from lcspec.spec.token_tree import TokenTree

# Steps between two looks, and tokens of a draft that are compared.
LOOK = 8
# Share of the tokens that must have come.
RIGHT = 0.5


class Shadows:
    """The latest draft for every sequence, and where it began."""

    def __init__(self) -> None:
        self._drafts: dict[int, tuple[int, list[int]]] = {}

    @staticmethod
    def due(pause: int) -> bool:
        """Whether to look with `pause` steps of a pause to go."""
        return pause % LOOK == 0 < pause

    def were_right(self, sequences: Sequence[PlannedSequence]) -> bool:
        """Whether enough has come of what was drafted for the sequences LOOK steps ago."""
        right = 0
        for sequence in sequences:
            start, draft = self._drafts.get(sequence.id, (0, []))
            if start == len(sequence.tokens) - LOOK:  # else it is of an earlier pause
                same = map(operator.eq, draft, sequence.tokens[start:])
                right += sum(itertools.takewhile(bool, same))
        return right >= RIGHT * LOOK * len(sequences)

    def keep(self, sequences: Sequence[PlannedSequence], trees: Sequence[TokenTree]) -> None:
        """Remember the likeliest path of each tree."""
        self._drafts = {
            sequence.id: (len(sequence.tokens), [tree.tokens[node] for node in tree.likeliest_path()[1 : LOOK + 1]])
            for sequence, tree in zip(sequences, trees)
        }
