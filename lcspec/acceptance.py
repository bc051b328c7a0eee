"""How likely drafted nodes are to be accepted: raw confidences, corrected by what happened.

Every node carries its proposers, a raw estimate and a small feature (match length, rank among siblings). Nodes alike
in those share a cell that counts how often such a node was the target's choice, given that its parent was. Counts
forget, so a cell follows the text; a per-request offset follows it faster.

Whether a node *was* the target's choice is known from the emitted tokens alone, also for nodes the planner cut off
and never verified. So estimates of drafters that are switched off stay current at no cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

from lcspec.tree import TokenTree

# A cell remembers about this many observations.
MEMORY = 200.0
# Observations that the raw estimate counts for.
PRIOR = 4.0
# Step of the per-request offset, in log-odds per unit of error.
OFFSET_RATE = 0.15
OFFSET_LIMIT = 2.5
PROB_BINS = 10
MAX_DEPTH_CELL = 4

Key = tuple[int, int, int, int]  # proposers, feature, depth, bin of the raw estimate


def key_of(tree: TokenTree, node: int) -> Key:
    """The cell of a node."""
    bin_ = min(PROB_BINS - 1, int(tree.probs[node] * PROB_BINS))
    return (tree.sources[node], tree.features[node], min(tree.depths[node], MAX_DEPTH_CELL), bin_)


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
class Offsets:
    """A request's own correction, in log-odds, by proposer mask."""

    by_source: dict[int, float] = field(default_factory=dict)

    def learn(self, source: int, predicted: float, hit: bool) -> None:
        """Move towards what happened."""
        value = self.by_source.get(source, 0.0) + OFFSET_RATE * (float(hit) - predicted)
        self.by_source[source] = max(-OFFSET_LIMIT, min(OFFSET_LIMIT, value))


@dataclass
class Acceptance:
    """Calibrated acceptance, shared by all requests of an engine and saved per target/drafter pair."""

    cells: dict[Key, tuple[float, float]] = field(default_factory=dict)  # (hits, observations), both forgetting

    def estimate(self, tree: TokenTree, node: int, offsets: Offsets) -> float:
        """P(node is accepted, given its parent was)."""
        hits, n = self.cells.get(key_of(tree, node), (0.0, 0.0))
        p = (hits + PRIOR * tree.probs[node]) / (n + PRIOR)
        shift = offsets.by_source.get(tree.sources[node], 0.0)
        if shift:
            p = min(max(p, 1e-4), 1 - 1e-4)
            p = 1.0 / (1.0 + math.exp(-(math.log(p / (1.0 - p)) + shift)))
        return p

    def path_probs(self, tree: TokenTree, offsets: Offsets) -> list[float]:
        """P(v) of every node: the product of the estimates along its path."""
        reach = [1.0] * len(tree)
        for node in range(1, len(tree)):
            reach[node] = reach[tree.parents[node]] * self.estimate(tree, node, offsets)
        return reach

    def observe(self, tree: TokenTree, tokens: Sequence[int], offsets: Offsets) -> None:
        """Learn from a step: `tree` as drafted (before any cutting), `tokens` as emitted."""
        for node, hit in tested(tree, tokens):
            predicted = self.estimate(tree, node, offsets)
            offsets.learn(tree.sources[node], predicted, hit)
            key = key_of(tree, node)
            hits, n = self.cells.get(key, (0.0, 0.0))
            keep = 1.0 - 1.0 / MEMORY
            self.cells[key] = (hits * keep + float(hit), n * keep + 1.0)

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """For the cache file; `names[i]` is the drafter of bit i, so that a later session may number them anew."""
        return {"drafters": list(names), "cells": [[*key, *value] for key, value in self.cells.items()]}

    @classmethod
    def from_dict(cls, data: Any, names: Sequence[str]) -> Acceptance:
        """Read `as_dict`'s form, renumbering proposers to `names`; cells of drafters not among them are dropped.

        Raises:
            ValueError: it is not that.
        """
        try:
            bits = {1 << i: 1 << list(names).index(n) for i, n in enumerate(data["drafters"]) if n in names}
            known = sum(bits)
            out: dict[Key, tuple[float, float]] = {}
            for source, feature, depth, bin_, hits, n in data["cells"]:
                hits, n = float(hits), float(n)
                if not (0.0 <= hits <= n <= MEMORY + 1):
                    raise ValueError("not acceptance counts: bad numbers")
                if int(source) & ~known == 0:
                    mask = sum(new for old, new in bits.items() if int(source) & old)
                    out[(mask, int(feature), int(depth), int(bin_))] = (hits, n)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not acceptance counts: {error}") from error
        return cls(out)
