"""How likely drafted nodes are to be accepted: raw confidences, corrected by what happened.

Every node carries its proposers, a raw estimate and a small feature (match length, rank among siblings). Nodes alike
in those share a cell that counts how often such a node was the target's choice, given that its parent was. Counts
forget, so a cell follows the text; a per-request offset follows it faster. What a cell has not seen yet it takes from
the trend of all estimates with its feature, which a few observations are enough for.

Whether a node *was* the target's choice is known from the emitted tokens alone, also for nodes the planner cut off
and never verified. So estimates of drafters that are switched off stay current at no cost.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Iterator, Sequence

from lcspec.planner.calibrator import Trend
from lcspec.spec.token_tree import TokenTree

# A cell remembers about this many observations.
MEMORY = 200.0
# Observations that the trend counts for in a cell.
PRIOR = 8.0
NOTHING = (0.0, 0.0)
# Step of the per-request offset, in log-odds per unit of error: at first, and after many observations.
OFFSET_RATE = 0.15
OFFSET_RATE_LATER = 0.03
OFFSET_SETTLES = 20
OFFSET_LIMIT = 2.5
# Bins of raw estimates, narrow where a chain multiplies them: of 15 tokens at 0.95 all are accepted in half of all
# cases, at 0.99 in 86 of 100.
EDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.997, 0.999)
MAX_DEPTH_CELL = 4
HIGHEST_KIND = 3
# A trend whose shift is surer than this (a variance) has something to say about others: half a dozen examples.
LEARNED = 1.5

Key = tuple[int, int, int, int, int]  # proposers, rivals, feature, depth, bin of the raw estimate
Kind = tuple[int, int, int]  # proposers, rivals, feature up to HIGHEST_KIND


def kind_of(key: Key) -> Kind:
    """The cells that share a trend: any depth and any estimate; ranks apart, long matches together."""
    return (key[0], key[1], min(key[2], HIGHEST_KIND))


def likeness(kind: Kind, other: Kind) -> int:
    """How much a kind says about another: 0, nothing, unless they share a proposer and both or neither have rivals."""
    shared = kind[0] & other[0]
    if not shared or bool(kind[1]) != bool(other[1]):
        return 0
    # Proposers in common count most, then few others, then the feature; never 0, however many drafters there are.
    return 4 * shared.bit_count() + 32 - (kind[0] ^ other[0]).bit_count() + (kind[2] == other[2])


def bin_of(prob: float) -> int:
    """The bin of a raw estimate."""
    return bisect.bisect_right(EDGES, prob)


def key_of(tree: TokenTree, node: int) -> Key:
    """The cell of a node. Rivals are drafters that proposed something else in its place: where drafters disagree each
    of them is right much less often than where it was asked alone.
    """
    source, rivals = tree.sources[node], 0
    siblings = tree.child_map(tree.parents[node])
    if len(siblings) > 1:
        for sibling in siblings.values():
            rivals |= tree.sources[sibling]
        rivals &= ~source
    depth = tree.depths[node]
    depth = depth if depth < MAX_DEPTH_CELL else MAX_DEPTH_CELL
    return (source, rivals, tree.features[node], depth, bin_of(tree.probs[node]))


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


def _grown(tree: TokenTree, size: int) -> bool:
    """Whether the nodes from `size` on left the others' rivals as they were: all their siblings are new as well."""
    return all(min(tree.child_map(tree.parents[v]).values()) >= size for v in range(size, len(tree.tokens)))


@dataclass
class Offsets:
    """A request's own correction, in log-odds, by proposers and rivals."""

    by_source: dict[tuple[int, int], float] = field(default_factory=dict)
    seen: dict[tuple[int, int], int] = field(default_factory=dict)

    def learn(self, source: tuple[int, int], predicted: float, hit: bool) -> None:
        """Move towards what happened."""
        n = self.seen[source] = self.seen.get(source, 0) + 1
        rate = max(OFFSET_RATE_LATER, OFFSET_RATE * OFFSET_SETTLES / (OFFSET_SETTLES + n))
        value = self.by_source.get(source, 0.0) + rate * (float(hit) - predicted)
        self.by_source[source] = max(-OFFSET_LIMIT, min(OFFSET_LIMIT, value))


# No tree has been estimated since the latest lesson.
UNKNOWN: tuple[TokenTree | None, int, Offsets | None, list[float]] = (None, 0, None, [])


@dataclass
class Acceptance:
    """Calibrated acceptance, shared by all requests of an engine and saved per target/drafter pair."""

    cells: dict[Key, tuple[float, float]] = field(default_factory=dict)  # (hits, observations), both forgetting
    trends: dict[Kind, Trend] = field(default_factory=dict)
    _lent: dict[Kind, Trend | None] = field(default_factory=dict, repr=False)  # of kinds without a trend of their own
    _latest: tuple[TokenTree | None, int, Offsets | None, list[float]] = field(default=UNKNOWN, repr=False)

    def estimate(self, tree: TokenTree, node: int, offsets: Offsets) -> float:
        """P(node is accepted, given its parent was)."""
        return self._estimate(key_of(tree, node), tree.probs[node], offsets)

    def expected(self, source: int, depth: int, feature: int, prob: float, offsets: Offsets) -> float:
        """`estimate` of a node that is not in a tree yet, if nobody else proposes it or anything in its place."""
        return self._estimate((source, 0, feature, min(depth, MAX_DEPTH_CELL), bin_of(prob)), prob, offsets)

    def _estimate(self, key: Key, raw: float, offsets: Offsets) -> float:
        """A cell's estimate, the trend's where it has seen little: plain decoding tests nothing but the first level, so
        deeper cells must not wait for observations of their own.
        """
        kind = kind_of(key)
        trend = self.trends.get(kind) or self._nearest(kind)
        p = raw if trend is None else trend.value(raw)
        hits, n = self.cells.get(key, NOTHING)
        p = (hits + PRIOR * p) / (n + PRIOR)
        shift = offsets.by_source.get(key[:2], 0.0)
        if shift:
            p = min(max(p, 1e-4), 1 - 1e-4)
            p = 1.0 / (1.0 + (1.0 - p) / p * math.exp(-shift))
        return p

    def _nearest(self, kind: Kind) -> Trend | None:
        """The trend of the kind that is most like one without a trend of its own, if any has learned something."""
        if kind not in self._lent:
            found = [(likeness(kind, k), -t.var_shift, t) for k, t in self.trends.items() if t.var_shift < LEARNED]
            best = max(found, key=itemgetter(0, 1), default=(0, 0.0, None))
            self._lent[kind] = best[2] if best[0] else None
        return self._lent[kind]

    def path_probs(self, tree: TokenTree, offsets: Offsets) -> list[float]:
        """P(v) of every node: the product of the estimates along its path.

        Asked several times a step about one tree, which only grows: the latest answer is kept until something is
        learned.
        """
        n = len(tree.tokens)
        if n == 1:
            return [1.0]
        known, size, mine, reach = self._latest
        if known is not tree or size > n or mine is not offsets or not _grown(tree, size):
            size, reach = 1, [1.0]
        if size < n:
            parents, probs, reach = tree.parents, tree.probs, reach[:]
            for node in range(size, n):
                reach.append(reach[parents[node]] * self._estimate(key_of(tree, node), probs[node], offsets))
            self._latest = tree, n, offsets, reach
        return list(reach)

    def observe(self, tree: TokenTree, tokens: Sequence[int], offsets: Offsets, only: int = -1) -> None:
        """Learn from a step: `tree` as drafted (before any cutting), `tokens` as emitted.

        `only`: a mask of drafters; nodes that none of them proposed or rivalled are left out.
        """
        self._latest = UNKNOWN
        self._lent.clear()
        for node, hit in tested(tree, tokens):
            key = key_of(tree, node)
            if not (key[0] | key[1]) & only and only != -1:
                continue
            raw = tree.probs[node]
            offsets.learn(key[:2], self._estimate(key, raw, offsets), hit)
            kind = kind_of(key)
            if kind not in self.trends:
                self.trends[kind] = Trend.like(self._nearest(kind))
            self.trends[kind].learn(raw, hit)
            keep = 1.0 - 1.0 / MEMORY
            hits, n = self.cells.get(key, NOTHING)
            self.cells[key] = (hits * keep + float(hit), n * keep + 1.0)

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """For the cache file; `names[i]` is the drafter of bit i, so that a later session may number them anew."""
        return {
            "edges": list(EDGES),
            "drafters": list(names),
            "cells": [[*key, *value] for key, value in self.cells.items()],
            "trends": [[*kind, *trend.as_list()] for kind, trend in self.trends.items()],
        }

    @classmethod
    def from_dict(cls, data: Any, names: Sequence[str]) -> Acceptance:
        """Read `as_dict`'s form, renumbering proposers to `names`; cells of drafters not among them are dropped.

        Raises:
            ValueError: it is not that.
        """
        try:
            if data["edges"] != list(EDGES):
                raise ValueError("not acceptance counts: other bins")
            bits = {1 << i: 1 << list(names).index(n) for i, n in enumerate(data["drafters"]) if n in names}
            known = sum(bits)

            def renumbered(source: int, rivals: int) -> tuple[int, int] | None:
                if (source | rivals) & ~known:
                    return None
                mine, theirs = (sum(new for old, new in bits.items() if m & old) for m in (source, rivals))
                return mine, theirs

            out: dict[Key, tuple[float, float]] = {}
            trends: dict[Kind, Trend] = {}
            for source, rivals, feature, depth, bin_, hits, n in data["cells"]:
                hits, n = float(hits), float(n)
                if not (0.0 <= hits <= n <= MEMORY + 1):
                    raise ValueError("not acceptance counts: bad numbers")
                if (who := renumbered(int(source), int(rivals))) is not None:
                    out[who[0], who[1], int(feature), int(depth), int(bin_)] = (hits, n)
            for source, rivals, feature, *line in data["trends"]:
                trend = Trend.from_list(line)
                if (who := renumbered(int(source), int(rivals))) is not None:
                    trends[who[0], who[1], int(feature)] = trend
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not acceptance counts: {error}") from error
        return cls(out, trends)
