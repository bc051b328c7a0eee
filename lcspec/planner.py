"""Which drafters to ask, how deep, and how many of their nodes to keep.

For a fixed width the best tree has the largest P(v), the probability that node v is accepted; P never grows along a
path, so the most probable nodes always form a tree. Over widths the planner maximises

    (B + sum of the n best P) / (T(B + n) + drafting time)

for B slots, with T the measured cost curve. n = 0 is plain decoding. One formula serves one slot and many: the nodes
of all slots compete for one width, so speculation fades by itself as load rises.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Iterable, Protocol, Sequence

from lcspec.acceptance import Acceptance, Offsets, tested
from lcspec.cost import CostCurve
from lcspec.drafters.base import Budget, Drafter
from lcspec.tree import TokenTree

if TYPE_CHECKING:
    from lcspec.slot import Slot

# Share of the decode time that may go into asking drafters that are currently off.
PROBE_SHARE = 0.02
# Longest draft that is considered when it is decided whether to ask a costly drafter at all.
LOOKAHEAD = 16
# How fast the running figures of a drafter (acceptance, seconds a level) follow.
RATE = 0.1
# What a costly drafter is believed to be worth before anything is known.
FIRST_GUESS = 0.7
# Nodes asked from a drafter that costs nothing.
FREE_NODES = 24
FREE_BRANCH = 3


@dataclass(frozen=True)
class Limits:
    """What a step can take for one slot: drafted nodes, their depth, leaves of the tree.

    `widths`: the step must be one of these many tokens wide (padding included); None means any.
    """

    nodes: int
    depth: int
    leaves: int
    widths: frozenset[int] | None = None


@dataclass
class Proposal:
    """What the drafters of one slot said this step, and what was kept of it."""

    slot: Slot
    tree: TokenTree
    limits: Limits
    seconds: float = 0.0
    kept: TokenTree | None = None


@dataclass
class Plan:
    """The outcome of a step's planning.

    Attributes:
        width: pad the batch to this many tokens (0: as it is).
        tokens: tokens the step is expected to emit, over all slots.
        seconds: target time it is expected to take; 0.0 when unknown.
        considered: (drafted nodes, expected tokens, expected seconds) of every width that was weighed.
    """

    width: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    considered: list[tuple[int, float, float]] = field(default_factory=list)


class Planner(Protocol):
    """Decides for every step; learns from what it cost and what was accepted."""

    def propose(self, slot: Slot, limits: Limits, others: int) -> Proposal:
        """Ask the slot's drafters; `others` is the width the other slots need anyway."""

    def select(self, proposals: Sequence[Proposal], base: int, context: int) -> Plan:
        """Set `kept` of every proposal. `base`: width without any drafted node; `context`: mean context length."""

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """A slot emitted `tokens` after its proposal."""

    def timed(self, width: int, context: int, seconds: float) -> None:
        """A target decode took `seconds`."""


def ask(slot: Slot, drafter: Drafter, budget: Budget, tree: TokenTree) -> None:
    """Merge what `drafter` says into `tree`."""
    if budget.nodes > 0 and budget.depth > 0:
        tree.merge(drafter.draft(slot, budget))


class FixedPlanner:
    """No decisions: every drafter gets `max_draft` (or its own default) nodes, and the best of them are kept."""

    def propose(self, slot: Slot, limits: Limits, others: int) -> Proposal:
        """The same budget every step, within what the step can take."""
        start = time.perf_counter()
        wanted = slot.request.speculation.max_draft
        tree = TokenTree.root(slot.tokens[-1])
        for drafter, spec in zip(slot.drafters, slot.request.speculation.drafters):
            own = spec.integer("nodes", drafter.default_nodes if wanted is None else wanted, 0, 255)
            branch = 1 if limits.leaves == 1 else spec.integer("branch", 1, 1, 64)
            ask(slot, drafter, Budget(min(limits.nodes, own), limits.depth, branch, slot.bit_of(drafter)), tree)
        return Proposal(slot, tree, limits, time.perf_counter() - start)

    def select(self, proposals: Sequence[Proposal], base: int, context: int) -> Plan:
        """Cut every tree to what the step can take."""
        for p in proposals:
            wanted = p.slot.request.speculation.max_draft
            nodes = p.limits.nodes if wanted is None else min(p.limits.nodes, wanted)
            p.kept = p.tree.best(nodes).with_leaves(p.limits.leaves)
        return Plan()

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Nothing to learn."""

    def timed(self, width: int, context: int, seconds: float) -> None:
        """Nothing to learn."""


@dataclass
class DrafterRecord:
    """Running figures of a costly drafter: how often its best child is right, and what a level costs."""

    acceptance: float = FIRST_GUESS
    level_seconds: float = 0.0
    since_asked: int = 0
    probe_every: int = 8


class AutoPlanner:
    """The planner of the module docstring."""

    def __init__(self, curve: CostCurve, acceptance: Acceptance | None = None) -> None:
        """Plan with a measured `curve`."""
        self.curve = curve
        self.acceptance = acceptance or Acceptance()
        self.records: dict[str, DrafterRecord] = {}
        self.decode_seconds = 0.0
        self.probe_seconds = 0.0
        self._offsets: dict[int, Offsets] = {}
        self._costs: dict[int, tuple[float, int]] = {}

    def propose(self, slot: Slot, limits: Limits, others: int) -> Proposal:
        """Free drafters are always asked; costly ones while that promises a better rate, or as a bounded probe."""
        start = time.perf_counter()
        tree = TokenTree.root(slot.tokens[-1])
        cap = slot.request.speculation.max_draft
        nodes = min(limits.nodes, self.curve.max_width - 1, limits.nodes if cap is None else cap)
        branch = 1 if limits.leaves == 1 else FREE_BRANCH
        if nodes > 0:
            self._costs = self.curve.effective(len(slot.tokens), limits.widths)
            for drafter in slot.drafters:
                bit = slot.bit_of(drafter)
                if not drafter.costly:
                    ask(slot, drafter, Budget(min(nodes, FREE_NODES), limits.depth, branch, bit), tree)
            for drafter in slot.drafters:
                if drafter.costly:
                    self._ask_costly(slot, drafter, tree, nodes, limits, others)
        return Proposal(slot, tree, limits, time.perf_counter() - start)

    def select(self, proposals: Sequence[Proposal], base: int, context: int) -> Plan:
        """Keep the n most probable nodes of all slots together, n by expected tokens per second."""
        self._costs = self.curve.effective(context, proposals[0].limits.widths)
        pool: list[tuple[float, int, int]] = []  # (-P, proposal, node): parents sort before their children
        for i, p in enumerate(proposals):
            reach = self.acceptance.path_probs(p.tree, self.offsets(p.slot))
            pool += [(-reach[v], i, v) for v in range(1, len(p.tree))]
        pool.sort()
        slots = len(proposals)
        if base not in self._costs:
            for p in proposals:
                p.kept = TokenTree.root(p.tree.tokens[0])
            return Plan(tokens=float(slots))
        best_n, best = 0, slots / self._costs[base][0]
        expected, best_expected = float(slots), float(slots)
        considered = [(0, expected, self._costs[base][0])]
        # The width is shared, so the room of the step is what any one slot may still take.
        room = max((p.limits.nodes for p in proposals), default=0)
        for n, (negative, _, _) in enumerate(pool[:room], start=1):
            if base + n not in self._costs:
                break
            expected -= negative
            seconds = self._costs[base + n][0]
            considered.append((n, expected, seconds))
            if expected / seconds > best:
                best_n, best, best_expected = n, expected / seconds, expected
        for i, p in enumerate(proposals):
            if p.tree.trials:
                # Sampled drafts may not be cut by the tokens they drew (see TokenTree.best).
                p.kept = p.tree.best(p.limits.nodes)
            else:
                keep = [v for _, j, v in pool[:best_n] if j == i]
                p.kept = p.tree.pruned(keep).with_leaves(p.limits.leaves)
        used = base + sum(p.kept.n_drafted for p in proposals if p.kept is not None)
        seconds, width = self._costs.get(used, (0.0, 0))
        return Plan(width, best_expected, seconds, considered)

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Learn from every drafted node whose fate is known, kept or not."""
        tree, slot = proposal.tree, proposal.slot
        self.acceptance.observe(tree, tokens, self.offsets(slot))
        for drafter in slot.drafters:
            if not drafter.costly:
                continue
            bit, record = slot.bit_of(drafter), self.records[drafter.name]
            seen: set[int] = set()
            for node, hit in tested(tree, tokens):
                parent = tree.parents[node]
                if tree.sources[node] & bit and parent not in seen:
                    seen.add(parent)
                    record.acceptance += RATE * (float(hit) - record.acceptance)

    def timed(self, width: int, context: int, seconds: float) -> None:
        """Correct the cost curve."""
        self.curve.observe(width, context, seconds)
        self.decode_seconds += seconds

    def offsets(self, slot: Slot) -> Offsets:
        """The request's own acceptance correction."""
        return self._offsets.setdefault(slot.id, Offsets())

    def forget(self, slot: Slot) -> None:
        """The request is over."""
        self._offsets.pop(slot.id, None)

    # ------------------------------------------------------------ costly drafters

    def _ask_costly(
        self, slot: Slot, drafter: Drafter, tree: TokenTree, nodes: int, limits: Limits, others: int
    ) -> None:
        record = self.records.setdefault(drafter.name, DrafterRecord())
        offsets = self.offsets(slot)
        base = others + 1
        free = self.acceptance.path_probs(tree, offsets)[1:]
        worth = self._promises(free, 1.0, record, base)
        if not worth:
            record.since_asked += 1
            affordable = self.probe_seconds + record.level_seconds <= PROBE_SHARE * self.decode_seconds
            if record.since_asked < record.probe_every or not affordable:
                return
        record.probe_every = 8 if worth else min(64, record.probe_every * 2)
        record.since_asked = 0
        levels = itertools.count(1)
        used = 0

        def keep_going(draft: TokenTree, frontier: Iterable[int]) -> bool:
            nonlocal used
            used = next(levels)
            if not worth:
                return False
            reach = self.acceptance.path_probs(draft, offsets)
            ahead = max((reach[v] for v in frontier), default=0.0)
            return self._promises(free + reach[1:], ahead, record, base)

        branch = 1 if limits.leaves == 1 else FREE_BRANCH
        start = time.perf_counter()
        ask(slot, drafter, Budget(nodes, limits.depth, branch, slot.bit_of(drafter), keep_going), tree)
        spent = time.perf_counter() - start
        per_level = spent / max(1, used)
        record.level_seconds += (RATE if record.level_seconds else 1.0) * (per_level - record.level_seconds)
        if not worth:
            self.probe_seconds += spent

    def _promises(self, probs: Sequence[float], ahead: float, record: DrafterRecord, base: int) -> bool:
        """Whether drafting on from a node reached with probability `ahead` promises a better rate than stopping.

        The continuation is imagined as a chain accepted at the drafter's running rate; several levels are looked
        at because one more node may not pay where four more (the next cheap width) would.
        """
        ranked = sorted(probs, reverse=True)
        now = self._best_rate(ranked, base, 0.0)
        chain: list[float] = []
        for level in range(1, LOOKAHEAD + 1):
            ahead *= record.acceptance
            chain.append(ahead)
            if self._best_rate(sorted(ranked + chain, reverse=True), base, level * record.level_seconds) > now:
                return True
        return False

    def _best_rate(self, ranked: Sequence[float], base: int, drafting: float) -> float:
        """The best tokens per second over widths, given acceptance probabilities in descending order."""
        best, expected = 0.0, float(base)
        for n in range(len(ranked) + 1):
            if n:
                expected += ranked[n - 1]
            cost = self._costs.get(base + n)
            if cost is None:
                break
            best = max(best, expected / (cost[0] + drafting))
        return best if math.isfinite(best) else 0.0
