"""How likely drafted nodes are to be accepted: each drafter's estimate, corrected by what happened.

For each set of proposers a calibrator learns a line from the log-odds of their estimate to the log-odds of the truth
(see lcspec.planner.calibrator). The estimate of proposers that were never seen is taken as it is.

Whether a node *was* the target's choice is known from the emitted tokens alone, also for nodes that the planner cut off
and that were never verified. So the calibration of drafters that are switched off stays current at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterator, Sequence

from lcspec.planner.calibrator import Calibrator
from lcspec.spec.token_tree import TokenTree


def tested(tree: TokenTree, tokens: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Yield (node, hit) for every node whose parent is among the step's emitted `tokens`; hit: the node is, too."""
    node = 0
    for token in tokens:
        children = tree.child_map(node)
        for other, child in children.items():
            yield child, other == token
        if token not in children:
            return
        node = children[token]


@dataclass
class Acceptance:
    """Calibrated acceptance probabilities, shared by all requests of an engine and stored per target and draft.

    `calibrators`: by the proposers of a node, as bits (see TokenTree.sources).
    """

    calibrators: dict[int, Calibrator] = field(default_factory=dict)

    def expected(self, source: int, prob: float) -> float:
        """P(a node is accepted, given that its parent was), where `source` proposed it with the estimate `prob`."""
        calibrator = self.calibrators.get(source)
        return prob if calibrator is None else calibrator.value(prob)

    def path_probs(self, tree: TokenTree) -> list[float]:
        """P(v) of every node, the root's included (1.0): the product of the calibrated estimates along its path."""
        reach = [1.0]
        for parent, source, prob in zip(tree.parents[1:], tree.sources[1:], tree.probs[1:]):
            calibrator = self.calibrators.get(source)
            reach.append(reach[parent] * (prob if calibrator is None else calibrator.value(prob)))
        return reach

    def observe(self, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Learn from a step: `tree` as drafted, before any cutting, and the emitted `tokens`."""
        for node, hit in tested(tree, tokens):
            source = tree.sources[node]
            calibrator = self.calibrators.get(source)
            if calibrator is None:
                calibrator = self.calibrators[source] = Calibrator()
            calibrator.learn(tree.probs[node], hit)
