"""Which drafters to ask, how deep, and how many of their nodes to keep.

For a fixed width the best tree has the largest P(v), the probability that node v is accepted; P never grows along a
path, so the most probable nodes always form a tree. What is to be maximised is

    tokens / time = sum over steps of (B + sum of the n best P) / sum over steps of (T(B + n) + drafting time)

for B slots, with T the measured cost curve. n = 0 is plain decoding. A ratio of sums is largest when every step
maximises tokens - rate x time at the rate that is reached in the long run (renewal reward; Dinkelbach 1967): a step
with a sure draft may then be wider, and one without narrower, than its own tokens / time alone would say. Until that
rate is known a step maximises its own. One formula serves one slot and many: the nodes of all slots compete for one
width, so speculation fades by itself as load rises.
"""

from __future__ import annotations

import bisect
import operator
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Iterable, Sequence

from lcspec.acceptance import Acceptance, Offsets, tested
from lcspec.cost import CostCurve
from lcspec.drafters.base import Budget, Drafter
from lcspec.planner import Limits, Plan, Proposal, ask
from lcspec.tree import TokenTree

if TYPE_CHECKING:
    from lcspec.slot import Slot

# Share of the decode time that may go into asking drafters that are currently off, and how many steps it is saved for.
PROBE_SHARE = 0.01
PROBE_SAVING = 64
# Steps between two probes of a drafter at least.
PROBE_EVERY = 4
# Longest draft that is considered when it is decided whether to ask a costly drafter at all.
LOOKAHEAD = 16
# How fast the running figures of a costly drafter follow: acceptance, seconds a level, what asking it gains.
RATE = 0.015
TIME_RATE = 0.1
GAIN_RATE = 0.05
PROBE_GAIN_RATE = 0.2
# Asks after which their measured gain decides whether to ask again, instead of an imagined chain.
ENOUGH_ASKS = 4
ENOUGH_TESTS = 8
# What a step gains without asking (tokens): asking is judged apart below, between and above these.
GAIN_BUCKETS = (0.25, 1.0)
# The long-run rate covers about this many tokens' worth of plain decoding, and is believed from the second figure on.
RATE_MEMORY = 64.0
RATE_KNOWN = 16.0
# Steps for which a table of costs is kept, and the contexts it serves (a power of two).
TABLE_STEPS = 8
TABLE_CONTEXT = 64
# Share of a decode that asking free drafters may take while nothing pays, and the longest rest from asking, in steps.
THINKING_SHARE = 0.02
MAX_REST = 16
# What a costly drafter is believed to be worth before anything is known.
FIRST_GUESS = 0.7
# Nodes asked from a drafter that costs nothing.
FREE_NODES = 24
FREE_BRANCH = 3


@dataclass
class DrafterRecord:
    """Running figures of a costly drafter.

    Attributes:
        acceptance: how often its best child is right, given that the parent was.
        tested: observations behind that.
        level_seconds: what a level costs.
        since_asked: steps since it was asked.
        gains: [mean, asks] of what asking it gained, in tokens net of its time, by what the step gained without it.
    """

    acceptance: float = FIRST_GUESS
    tested: int = 0
    level_seconds: float = 0.0
    since_asked: int = 0
    gains: dict[int, list[float]] = field(default_factory=dict)

    @property
    def hope(self) -> float:
        """Its acceptance, as high as it may well be: a drafter nobody knows yet deserves to be tried."""
        return min(0.98, self.acceptance + 1.0 / (self.tested + 3))

    def saw(self, hit: bool) -> None:
        """Its best child was tested."""
        self.tested += 1
        self.acceptance += max(RATE, 1.0 / (self.tested + 3)) * (float(hit) - self.acceptance)

    def took(self, seconds: float) -> None:
        """A level took `seconds`. Follows downwards faster: after a pause the first level also catches up."""
        faster = seconds < self.level_seconds
        rate = (3 * TIME_RATE if faster else TIME_RATE) if self.level_seconds else 1.0
        self.level_seconds += rate * (seconds - self.level_seconds)

    def gained(self, bucket: int, tokens: float, probe: bool) -> None:
        """An ask gained `tokens`."""
        entry = self.gains.setdefault(bucket, [0.0, 0.0])
        entry[1] += 1.0
        entry[0] += max(PROBE_GAIN_RATE if probe else GAIN_RATE, 1.0 / entry[1]) * (tokens - entry[0])

    def renew(self) -> None:
        """A new request: what the earlier ones taught counts for less."""
        self.tested = min(self.tested, ENOUGH_TESTS)
        for entry in self.gains.values():
            entry[1] = min(entry[1], float(ENOUGH_ASKS))


class AutoPlanner:
    """The planner of the module docstring."""

    def __init__(self, curve: CostCurve, acceptance: Acceptance | None = None) -> None:
        """Plan with a measured `curve`."""
        self.curve = curve
        self.acceptance = acceptance or Acceptance()
        self.records: dict[str, DrafterRecord] = {}
        self.decode_seconds = 0.0
        self.probe_credit = 0.0
        self._offsets: dict[int, Offsets] = {}
        self._costs: dict[int, tuple[float, int]] = {}
        self._tables: dict[tuple[int, frozenset[int] | None], dict[int, tuple[float, int]]] = {}
        self._table_age = 0
        self._thinking = 0.0  # seconds that asking the free drafters takes
        self._rest = 0  # steps for which nobody is asked
        # Tokens emitted, and those that plain decoding would have emitted in the same time; both forgetting.
        self._emitted = 0.0
        self._plain = 0.0
        # The step at hand: decoding slots, those of them planned for, seconds of a decode without drafts, tokens and
        # drafting seconds so far.
        self._slots = 1
        self._planned = 1
        self._narrowest = 0.0
        self._tokens = 0
        self._drafting = 0.0

    @property
    def speedup(self) -> float | None:
        """Tokens per second over those of plain decoding in recent steps, at least 1; None before it is known."""
        return max(1.0, self._emitted / self._plain) if self._plain >= RATE_KNOWN else None

    def propose(self, slot: Slot, limits: Limits, others: int) -> Proposal:
        """Free drafters are always asked; costly ones while that promises a better rate, or as a bounded probe."""
        start = time.perf_counter()
        tree = TokenTree.root(slot.tokens[-1])
        cap = slot.request.speculation.max_draft
        nodes = min(limits.nodes, self.curve.max_width - 1, limits.nodes if cap is None else cap)
        free: TokenTree | None = None
        branch = 1 if limits.leaves == 1 else FREE_BRANCH
        if self._rest > 0 and others == 0:
            self._rest -= 1
            nodes = 0
        if nodes > 0:
            self._costs = self._table(len(slot.tokens), limits.widths)
            if slot.id not in self._offsets:
                for record in self.records.values():
                    record.renew()
            for drafter in slot.drafters:
                bit = slot.bit_of(drafter)
                if not drafter.costly:
                    ask(slot, drafter, Budget(min(nodes, FREE_NODES), limits.depth, branch, bit), tree)
            self._thinking += TIME_RATE * (time.perf_counter() - start - self._thinking)
            for drafter in slot.drafters:
                if drafter.costly:
                    before = tree
                    tree = self._ask_costly(slot, drafter, tree, nodes, limits, others)
                    free = before if free is None and tree is not before else free
        return Proposal(slot, tree, limits, time.perf_counter() - start, free=free)

    def select(self, proposals: Sequence[Proposal], base: int, context: int, streams: int = 0) -> Plan:
        """Keep the n most probable nodes of all slots together, n by expected tokens and seconds."""
        self._costs = self._table(context, proposals[0].limits.widths)
        # Streams that draft nothing lose as much by a longer step as the others.
        slots = self._slots = max(streams, len(proposals))
        self._planned = len(proposals)
        self._narrowest = self._costs[min(slots, base)][0] if base in self._costs else 0.0
        self._tokens, self._drafting = 0, 0.0
        # The width is shared, so the room of the step is what any one slot may still take.
        room = max((p.limits.nodes for p in proposals), default=0)
        if not self._narrowest:
            for p in proposals:
                p.kept = TokenTree.root(p.tree.tokens[0])
            return Plan(tokens=float(slots))
        pool: list[tuple[float, int, int]] = []  # (-P, proposal, node): parents sort before their children
        need = base
        expected = float(slots)
        for i, p in enumerate(proposals):
            if p.tree.n_drafted == 0:
                p.kept = p.tree
                continue
            reach = self.acceptance.path_probs(p.tree, self.offsets(p.slot))
            if p.tree.trials:
                # Sampled drafts may not be cut by the tokens they drew (see TokenTree.best).
                p.kept = p.tree.best(min(p.limits.nodes, room)).with_leaves(p.limits.leaves)
                room -= p.kept.n_drafted
                need += p.kept.n_drafted
                expected += sum(reach[1:]) * p.kept.n_drafted / p.tree.n_drafted
            else:
                pool += [(-reach[v], i, v) for v in range(1, len(p.tree))]
        pool.sort()
        considered = []
        for n, negative in enumerate([0.0, *(entry[0] for entry in pool[:room])]):
            if need + n not in self._costs:
                break
            expected -= negative
            considered.append((need - base + n, expected, self._costs[need + n][0]))
        best_n, best_expected = self._choose(considered, slots)
        if best_n == 0 and slots == 1 and self._rest == 0:
            # Nothing pays at the moment. Where a decode is so short that asking costs a share of it, ask less often.
            self._rest = min(MAX_REST, int(self._thinking / (THINKING_SHARE * self._narrowest)))
        for i, p in enumerate(proposals):
            if p.kept is None:
                keep = [v for _, j, v in pool[:best_n] if j == i]
                whole = len(keep) == p.tree.n_drafted
                p.kept = (p.tree if whole else p.tree.pruned(keep)).with_leaves(p.limits.leaves)
        used = base + sum(p.kept.n_drafted for p in proposals if p.kept is not None)
        seconds, width = self._costs.get(used, (0.0, 0))
        return Plan(width, best_expected, seconds, considered)

    def _choose(self, considered: Sequence[tuple[int, float, float]], slots: int) -> tuple[int, float]:
        """The best of (nodes, tokens, seconds) by the module's rule: its index, and its tokens."""
        if not considered:
            return 0, float(slots)
        speedup = self.speedup
        if speedup is None:
            price = max(tokens / seconds for _, tokens, seconds in considered)
        else:
            price = speedup * slots / self._narrowest
        best = max(range(len(considered)), key=lambda n: considered[n][1] - price * considered[n][2])
        return best, considered[best][1]

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Learn from every drafted node whose fate is known, kept or not."""
        tree, slot = proposal.tree, proposal.slot
        self._tokens += len(tokens)
        self._drafting += proposal.seconds
        if not tree.n_drafted:
            return
        only = -1
        if proposal.free is not None:
            # How often they are right when nobody else is asked must be known to decide whether to ask.
            self.acceptance.observe(proposal.free, tokens, self.offsets(slot))
            only = sum(slot.bit_of(d) for d in slot.drafters if d.costly)
        self.acceptance.observe(tree, tokens, self.offsets(slot), only)
        for drafter in slot.drafters:
            if not drafter.costly:
                continue
            bit, best = slot.bit_of(drafter), dict[int, tuple[float, bool]]()
            for node, hit in tested(tree, tokens):
                parent = tree.parents[node]
                if tree.sources[node] & bit and tree.probs[node] > best.get(parent, (-1.0, False))[0]:
                    best[parent] = tree.probs[node], hit
            for _, hit in best.values():
                self.records.setdefault(drafter.name, DrafterRecord()).saw(hit)

    def timed(self, width: int, context: int, seconds: float) -> None:
        """Correct the cost curve and the long-run rate."""
        self.curve.observe(width, context, seconds)
        self.decode_seconds += seconds
        self.probe_credit = min(self.probe_credit + PROBE_SHARE * seconds, PROBE_SHARE * PROBE_SAVING * seconds)
        self._table_age += 1
        if self._table_age >= TABLE_STEPS:
            self._tables.clear()
            self._table_age = 0
        if self._tokens and self._narrowest:
            self._tokens += self._slots - self._planned
            plain = self._slots * (seconds + self._drafting) / self._narrowest
            keep = max(0.0, 1.0 - plain / RATE_MEMORY)
            self._emitted = self._emitted * keep + self._tokens
            self._plain = self._plain * keep + plain
            self._tokens, self._drafting = 0, 0.0

    def offsets(self, slot: Slot) -> Offsets:
        """The request's own acceptance correction."""
        return self._offsets.setdefault(slot.id, Offsets())

    def forget(self, slot: Slot) -> None:
        """The request is over."""
        self._offsets.pop(slot.id, None)

    def _table(self, context: int, widths: frozenset[int] | None) -> dict[int, tuple[float, int]]:
        """`CostCurve.effective`, kept for a few steps."""
        key = (context // TABLE_CONTEXT, widths)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self.curve.effective(context, widths)
        return table

    # ------------------------------------------------------------ costly drafters

    def _ask_costly(
        self, slot: Slot, drafter: Drafter, tree: TokenTree, nodes: int, limits: Limits, others: int
    ) -> TokenTree:
        """`tree` with what `drafter` says, or `tree` itself if it is not worth asking."""
        record = self.records.setdefault(drafter.name, DrafterRecord())
        offsets = self.offsets(slot)
        base = others + 1
        if base not in self._costs:
            return tree
        free = self.acceptance.path_probs(tree, offsets)[1:]
        free.sort(reverse=True)
        price = self._price(free, base)
        now = self._value(free, base, price)
        bucket = sum(now >= edge for edge in GAIN_BUCKETS)
        mean, asks = record.gains.get(bucket, (0.0, 0.0))
        worth = mean > 0.0 if asks >= ENOUGH_ASKS else self._promises(free, 1.0, record, base, price)
        record.since_asked += 1
        if not worth and (record.since_asked < PROBE_EVERY or self.probe_credit < record.level_seconds):
            return tree
        record.since_asked = 0
        levels, stopped, first = 0, False, 0.0

        def keep_going(draft: TokenTree, frontier: Iterable[int]) -> bool:
            nonlocal levels, stopped, first
            levels += 1
            if levels == 1:
                first = time.perf_counter() - start
            reach = self.acceptance.path_probs(draft, offsets)
            ahead = max((reach[v] for v in frontier), default=0.0)
            place: dict[int, int | None] = {0: 0}  # nodes the free drafters proposed as well count once
            for v in range(1, len(draft)):
                parent = place[draft.parents[v]]
                place[v] = None if parent is None else tree.child(parent, draft.tokens[v])
            ranked = sorted(free + [reach[v] for v, other in place.items() if other is None], reverse=True)
            stopped = levels >= 2 + record.tested or not self._promises(ranked, ahead, record, base, price)
            return not stopped

        branch = 1 if limits.leaves == 1 else FREE_BRANCH
        both = TokenTree.root(tree.tokens[0])
        both.merge(tree)
        start = time.perf_counter()
        ask(slot, drafter, Budget(nodes, limits.depth, branch, slot.bit_of(drafter), keep_going), both)
        spent = time.perf_counter() - start
        levels += not stopped
        record.took(spent if levels == 1 else min((spent - first) / (levels - 1), spent / levels))
        ranked = sorted(self.acceptance.path_probs(both, offsets)[1:], reverse=True)
        net = self._value(ranked, base, price) - now - price * levels * record.level_seconds
        if record.tested >= ENOUGH_TESTS:
            record.gained(bucket, net, probe=not worth)
        if not worth:
            self.probe_credit -= spent
        return both

    def _price(self, free: Sequence[float], base: int) -> float:
        """Tokens that a second is worth: the long-run rate, or what the free drafters promise until it is known."""
        slots = min(self._slots, base)
        narrowest = self._costs[slots][0]
        if self.speedup is not None:
            return self.speedup * slots / narrowest
        best, tokens = slots / narrowest, float(slots)
        for n, p in enumerate(free, start=base + 1):
            tokens += p
            if n in self._costs:
                best = max(best, tokens / self._costs[n][0])
        return best

    def _promises(self, ranked: Sequence[float], ahead: float, record: DrafterRecord, base: int, price: float) -> bool:
        """Whether drafting on from a node reached with probability `ahead` promises more than stopping.

        The continuation is imagined as a chain accepted at the drafter's running rate; several levels are looked
        at because one more node may not pay where four more (the next cheap width) would.
        """
        level_price = price * record.level_seconds
        now = self._value(ranked, base, price)
        hope, probs = record.hope, list(ranked)
        for level in range(1, LOOKAHEAD + 1):
            ahead *= hope
            if ahead < level_price and ahead < 0.01:
                return False
            bisect.insort(probs, ahead, key=operator.neg)
            if self._value(probs, base, price) - level * level_price > now:
                return True
        return False

    def _value(self, ranked: Sequence[float], base: int, price: float) -> float:
        """Tokens gained over drafting nothing, net of the target's time; `ranked`: acceptance, descending."""
        costs = self._costs
        narrowest = costs[base][0]
        best = total = 0.0
        for n, p in enumerate(ranked, start=base + 1):
            cost = costs.get(n)
            if cost is None:
                break
            total += p
            value = total - price * (cost[0] - narrowest)
            if value > best:
                best = value
        return best
