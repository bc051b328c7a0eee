"""A sequence's state in a draft model: its cells, and the tree that grows below its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Sequence

from lcspec.drafters.base import Budget, SequenceView
from lcspec.drafters.decoding import Wanted
from lcspec.drafters.growth import place_level
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.spec.token_tree import TokenTree

# Called with a sequence and what has been drafted for it so far; returns what may follow (see ModelDrafter.begin).
Guess = Callable[[SequenceView, Sequence[int]], Sequence[int]]


@dataclass
class DraftState:
    """One sequence's state in the draft model."""

    cache: SequenceCache
    p_min: float
    guess: Guess | None = None
    tree: TokenTree | None = None
    placed: dict[int, int] = field(default_factory=dict)  # tree node -> index among the decoded nodes
    start: int = 0  # position of the tree's node 0
    asked: Budget | None = None  # the latest one
    ahead: bool = False  # it is drafted for while the target decodes
    offered: TokenTree | None = None  # the latest draft

    def plant(self, tokens: Sequence[int]) -> TokenTree:
        """Start a tree below the last of `tokens`, which has been decoded."""
        self.tree, self.placed, self.start = TokenTree.root(tokens[-1]), {0: 0}, len(tokens) - 1
        return self.tree

    def follow(self, path: Sequence[int]) -> None:
        """The text goes on along `path`, all of it decoded: keep what lies below."""
        assert self.tree is not None
        tree, place = self.tree.below(path[-1])
        kept = sorted(place.keys() & self.placed.keys() - {path[-1]}, key=lambda node: self.placed[node])
        self.cache.advance([self.placed[node] for node in path], [self.placed[node] for node in kept])
        self.placed = {0: 0, **{place[node]: i for i, node in enumerate(kept, 1)}}
        self.tree, self.start = tree, self.start + len(path)

    def drop(self) -> None:
        """Forget the tree; its cells are those of the text up to node 0 at most."""
        self.cache.abandon()
        self.tree, self.placed = None, {}

    def useful(self, tree: TokenTree) -> Callable[[int], bool]:
        """Which nodes of `tree` the next draft may need if it is no deeper than the latest one: the step ends with a
        token that the latest draft does not have, and the next draft begins there."""
        offered = self.offered or TokenTree.root(tree.tokens[0])
        most, twins, below = max(1, *offered.depths), {0: 0}, [0]

        def useful(node: int) -> bool:
            for new in range(len(below), node + 1):  # the tree grows
                parent = tree.parents[new]
                twin = offered.child(twins[parent], tree.tokens[new]) if parent in twins else None
                if twin is not None:
                    twins[new] = twin
                below.append(0 if twin is not None else below[parent] + 1)
            return below[node] <= most

        return useful

    def level(self, tree: TokenTree, level: Sequence[int], base: int) -> Wanted:
        """The nodes of one level, to decode together."""
        placed = place_level(self.cache, tree, self.placed, level)
        return Wanted([(tree.tokens[node], base + tree.depths[node], seq) for node, seq in placed])


def for_seconds(seconds: float) -> Callable[[float], bool]:
    """A function that says whether `seconds` are left after what it was told of."""
    left = seconds

    def goes_on(took: float) -> bool:
        nonlocal left
        left -= took
        return left > 0.0

    return goes_on
