"""Drafts that are not decoded: what came shows whether they would have been right.

While a text backs off (see loss_budget), its free drafters are asked once in LOOK steps. If half of what they said LOOK
steps ago has come, drafting goes on: the text may have come to a part that is easy to guess.
"""

from __future__ import annotations

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

    def clear(self) -> None:
        """Forget all of them."""
        self._drafts.clear()

    def were_right(self, sequences: Sequence[PlannedSequence]) -> bool:
        """Whether enough has come of what was drafted for the sequences."""
        right = asked = 0
        for sequence in sequences:
            start, draft = self._drafts.get(sequence.id, (0, []))
            came = sequence.tokens[start : start + LOOK]
            right += next(
                (i for i, pair in enumerate(zip(draft, came)) if pair[0] != pair[1]), min(len(draft), len(came))
            )
            asked += len(came) if sequence.id in self._drafts else LOOK
        return right >= RIGHT * asked > 0

    def keep(self, sequences: Sequence[PlannedSequence], trees: Sequence[TokenTree]) -> None:
        """Remember the likeliest path of each tree."""
        self._drafts = {s.id: (len(s.tokens), _likeliest(tree)) for s, tree in zip(sequences, trees)}


def _likeliest(tree: TokenTree) -> list[int]:
    """Tokens of the path that takes the most probable child of every node."""
    node, path = 0, list[int]()
    while len(path) < LOOK and (children := tree.children(node)):
        node = max(children, key=tree.probs.__getitem__)
        path.append(tree.tokens[node])
    return path
