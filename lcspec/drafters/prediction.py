"""Drafts from a text that the caller expects (OpenAI's predicted outputs): an edited file, a template, an earlier
answer.

The drafter follows the prediction. Where the answer departs from it, the last tokens of the answer are searched in the
prediction, and the match nearest to the place of departure is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

# Numbers of tokens that must match to find the place again, tried in this order.
ANCHORS = (8, 5, 3, 2)
MAX_RUN = 15


@dataclass
class _Place:
    """A place in the prediction: the index of the next expected token, and how many tokens have matched so far."""

    text: tuple[int, ...]
    anchors: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    at: int = 0
    run: int = 0
    read: int = 0

    def index(self) -> None:
        """Index where every anchor ends."""
        for n in ANCHORS:
            for i in range(n, len(self.text) + 1):
                self.anchors.setdefault(self.text[i - n : i], []).append(i)

    def follow(self, answer: list[int]) -> None:
        """Read new tokens of the answer."""
        for i in range(self.read, len(answer)):
            if self.at < len(self.text) and self.text[self.at] == answer[i]:
                self.at += 1
                self.run += 1
            else:
                self.run = 0
                self._find(answer[: i + 1])
        self.read = len(answer)

    def _find(self, answer: list[int]) -> None:
        for n in ANCHORS:
            places = self.anchors.get(tuple(answer[-n:])) if len(answer) >= n else None
            if places:
                # An edit inserts or deletes a little: the match nearest to the place of departure is the likeliest.
                self.at = min(places, key=lambda p: abs(p - self.at))
                self.run = n
                return


@register("prediction")
class PredictionDrafter(Drafter):
    """Drafts the expected text."""

    name = "prediction"
    default_nodes = 8

    def __init__(self, env: DrafterEnv) -> None:
        self._slots: dict[int, _Place] = {}

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Index the request's prediction; without one it drafts nothing."""
        spec.check_keys({"nodes"})
        place = _Place(tuple(sequence.prediction))
        place.index()
        self._slots[sequence.id] = place

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """The prediction from its current place on; the more tokens have matched, the higher the estimate."""
        place = self._slots[sequence.id]
        ahead = place.text[place.at : place.at + min(budget.nodes, budget.depth)]
        started = bool(sequence.tokens[sequence.n_prompt :])
        tree = TokenTree.root(sequence.tokens[-1])
        if started and not place.run:
            return tree
        node = 0
        run = min(place.run, MAX_RUN)
        for token in ahead:
            node = tree.add(node, token, (run + 1) / (run + 2), budget.source)
        return tree

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Follow the answer."""
        place = self._slots[sequence.id]
        place.follow(list(sequence.tokens[sequence.n_prompt :]))

    def end(self, sequence: SequenceView) -> None:
        """Drop the sequence's place."""
        self._slots.pop(sequence.id, None)
