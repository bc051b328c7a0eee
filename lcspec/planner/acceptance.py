"""How likely drafted nodes are to be accepted: each drafter's estimate, corrected by what happened.

Every node carries its proposers, its drafter's estimate and a small feature (match length, or rank among siblings).
Nodes with the same proposers, rivals and feature are of one *kind*. For each kind a calibrator learns a line from the
log-odds of the estimate to the log-odds of the truth (see lcspec.planner.calibrator). The estimate of a kind that was
never seen is taken as it is.

Whether a node *was* the target's choice is known from the emitted tokens alone, also for nodes that the planner cut off
and that were never verified. So the calibration of drafters that are switched off stays current at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

from lcspec.planner.calibrator import Calibrator
from lcspec.spec.token_tree import TokenTree

# Features from this value on count as one kind: matches of three tokens and more are calibrated together.
HIGHEST = 3

Kind = tuple[int, int, int]  # proposers, rivals, feature up to HIGHEST


def kind_of(tree: TokenTree, node: int) -> Kind:
    """The kind of a node. Its rivals are the drafters that proposed a sibling: where drafters disagree, each of them is
    right much less often than where it is the only one.
    """
    source, rivals = tree.sources[node], 0
    siblings = tree.child_map(tree.parents[node])
    if len(siblings) > 1:
        for sibling in siblings.values():
            rivals |= tree.sources[sibling]
        rivals &= ~source
    feature = tree.features[node]
    return (source, rivals, feature if feature < HIGHEST else HIGHEST)


def tested(tree: TokenTree, tokens: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Yield (node, hit) for every node whose parent is among the step's emitted `tokens`; hit: the node is, too."""
    node = 0
    for token in tokens:
        for child in tree.children(node):
            yield child, tree.tokens[child] == token
        match = tree.child(node, token)
        if match is None:
            return
        node = match


@dataclass
class Acceptance:
    """Calibrated acceptance probabilities, shared by all requests of an engine and stored per target and draft."""

    calibrators: dict[Kind, Calibrator] = field(default_factory=dict)

    def expected(self, source: int, feature: int, prob: float) -> float:
        """P(a node is accepted, given that its parent was), where no other drafter proposes it or a sibling."""
        calibrator = self.calibrators.get((source, 0, min(feature, HIGHEST)))
        return prob if calibrator is None else calibrator.value(prob)

    def path_probs(self, tree: TokenTree) -> list[float]:
        """P(v) of every node, the root's included (1.0): the product of the calibrated estimates along its path."""
        reach, calibrators, parents, probs = [1.0], self.calibrators, tree.parents, tree.probs
        for node in range(1, len(probs)):
            calibrator = calibrators.get(kind_of(tree, node))
            reach.append(reach[parents[node]] * (probs[node] if calibrator is None else calibrator.value(probs[node])))
        return reach

    def observe(self, tree: TokenTree, tokens: Sequence[int], only: int = -1) -> None:
        """Learn from a step.

        Args:
            tree: as drafted, before any cutting.
            tokens: as emitted.
            only: a mask of drafters; nodes that none of them proposed or rivals are left out.
        """
        for node, hit in tested(tree, tokens):
            kind = kind_of(tree, node)
            if only != -1 and not (kind[0] | kind[1]) & only:
                continue
            calibrator = self.calibrators.get(kind)
            if calibrator is None:
                calibrator = self.calibrators[kind] = Calibrator()
            calibrator.learn(tree.probs[node], hit)

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """For the history file. `names[i]` is the drafter of bit i; a later session may number the drafters anew."""
        return {
            "drafters": list(names),
            "trends": [[*kind, *calibrator.as_list()] for kind, calibrator in self.calibrators.items()],
        }

    @classmethod
    def from_dict(cls, data: Any, names: Sequence[str]) -> Acceptance:
        """Read what `as_dict` wrote, with the bits changed to those of `names`; kinds with other drafters are dropped.

        Raises:
            ValueError: the data has another form.
        """
        try:
            bits = {1 << i: 1 << list(names).index(n) for i, n in enumerate(data["drafters"]) if n in names}
            known = sum(bits)
            calibrators: dict[Kind, Calibrator] = {}
            for source, rivals, feature, *line in data["trends"]:
                calibrator, feature = Calibrator.from_list(line), int(feature)
                if feature > HIGHEST:
                    raise ValueError("not a record of acceptance: bad numbers")
                if not (int(source) | int(rivals)) & ~known:
                    who, others = (sum(new for old, new in bits.items() if m & old) for m in (int(source), int(rivals)))
                    calibrators[who, others, feature] = calibrator
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a record of acceptance: {error}") from error
        return cls(calibrators)
