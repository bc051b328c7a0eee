"""How likely drafted nodes are to be accepted: raw estimates, corrected by what happened.

Every node carries its proposers, a raw estimate and a small feature (match length, rank among siblings). Nodes alike
in proposers, rivals and feature are of one *kind*, and a line between the log-odds of estimate and truth is learned
for each kind (see lcspec.planner.calibrator). A kind nobody has seen is believed.

Whether a node *was* the target's choice is known from the emitted tokens alone, also for nodes the planner cut off
and never verified. So estimates of drafters that are switched off stay current at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

from lcspec.planner.calibrator import Trend
from lcspec.spec.token_tree import TokenTree

# Features from here on are one kind: a match of five tokens says what one of four does.
HIGHEST = 3

Kind = tuple[int, int, int]  # proposers, rivals, feature up to HIGHEST


def kind_of(tree: TokenTree, node: int) -> Kind:
    """The kind of a node. Rivals are drafters that proposed something else in its place: where drafters disagree each
    of them is right much less often than where it was asked alone.
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
    """Nodes whose parent was emitted, with whether they were emitted themselves, given the step's `tokens`."""
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
    """Calibrated acceptance, shared by all requests of an engine and saved per target/drafter pair."""

    trends: dict[Kind, Trend] = field(default_factory=dict)

    def expected(self, source: int, feature: int, prob: float) -> float:
        """P(a node is accepted, given its parent was), if nobody else proposes it or anything in its place."""
        trend = self.trends.get((source, 0, min(feature, HIGHEST)))
        return prob if trend is None else trend.value(prob)

    def path_probs(self, tree: TokenTree) -> list[float]:
        """P(v) of every node: the product of the estimates along its path."""
        reach, trends, parents, probs = [1.0], self.trends, tree.parents, tree.probs
        for node in range(1, len(probs)):
            trend = trends.get(kind_of(tree, node))
            reach.append(reach[parents[node]] * (probs[node] if trend is None else trend.value(probs[node])))
        return reach

    def observe(self, tree: TokenTree, tokens: Sequence[int], only: int = -1) -> None:
        """Learn from a step: `tree` as drafted (before any cutting), `tokens` as emitted.

        `only`: a mask of drafters; nodes that none of them proposed or rivalled are left out.
        """
        for node, hit in tested(tree, tokens):
            kind = kind_of(tree, node)
            if only != -1 and not (kind[0] | kind[1]) & only:
                continue
            trend = self.trends.get(kind)
            if trend is None:
                trend = self.trends[kind] = Trend()
            trend.learn(tree.probs[node], hit)

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """For the cache file; `names[i]` is the drafter of bit i, so that a later session may number them anew."""
        return {"drafters": list(names), "trends": [[*kind, *trend.as_list()] for kind, trend in self.trends.items()]}

    @classmethod
    def from_dict(cls, data: Any, names: Sequence[str]) -> Acceptance:
        """Read `as_dict`'s form, renumbering proposers to `names`; kinds of drafters not among them are dropped.

        Raises:
            ValueError: it is not that.
        """
        try:
            bits = {1 << i: 1 << list(names).index(n) for i, n in enumerate(data["drafters"]) if n in names}
            known = sum(bits)
            trends: dict[Kind, Trend] = {}
            for source, rivals, feature, *line in data["trends"]:
                trend, feature = Trend.from_list(line), int(feature)
                if feature > HIGHEST:
                    raise ValueError("not what drafts were worth: bad numbers")
                if not (int(source) | int(rivals)) & ~known:
                    who, others = (sum(new for old, new in bits.items() if m & old) for m in (int(source), int(rivals)))
                    trends[who, others, feature] = trend
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not what drafts were worth: {error}") from error
        return cls(trends)
