"""Which drafters to ask, how deep, and how many of their nodes to keep.

For a fixed width the best tree has the largest P(v), the probability that node v is accepted; P never grows along a
path, so the most probable nodes always form a tree. Every step maximises

    tokens / time = (B + sum of the n best P) / (T(B + n) + drafting time)

for B slots, with T the measured cost curve. n = 0 is plain decoding. One formula serves one slot and many: the nodes of
all slots compete for one width, so speculation fades by itself as load rises. (A ratio of sums is largest when a step
maximises tokens - rate x time at the long-run rate instead; but that rate is an estimate, too high after every easy
passage, and a step that waits for better drafts than the text allows loses more than the others gain.)
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Iterable, Sequence

from lcspec.acceptance import Acceptance, Offsets, tested
from lcspec.cost import CostCurve
from lcspec.drafters.base import Budget, Drafter, branch_of
from lcspec.longrun import LongRun
from lcspec.planner import Limits, Plan, Proposal, ask, reading
from lcspec.record import ENOUGH_TESTS, DrafterRecord
from lcspec.rest import Rest
from lcspec.tree import TokenTree
from lcspec.widths import COLUMN, Item, Step, choose
from lcspec.window import Offer, Sizer
from lcspec.worth import Costs, bucket, fastest, least_row, promises, rate, value

if TYPE_CHECKING:
    from lcspec.slot import Slot

# Share of the decode time that may go into asking drafters that are currently off, and how many steps it is saved for.
PROBE_SHARE = 0.01
PROBE_SAVING = 64
# Steps between two probes of a drafter at least.
PROBE_EVERY = 4
# Of several costly drafters the one that gained most goes first; another one at least every so many steps.
FIRST_EVERY = 48
# Steps for which a table of costs is kept, and the contexts it serves (a power of two).
TABLE_STEPS = 8
TABLE_CONTEXT = 64
# Steps that pass before windows that did not pay are thought about again.
IDLE = 3
# A drafter may be surer than it says: nodes are cut before they are looked at below this share of what a row costs.
SAFE = 0.5
# Nodes asked from a drafter that costs nothing.
FREE_NODES = 24
FREE_BRANCH = 3


class AutoPlanner:
    """The planner of the module docstring."""

    def __init__(self, curve: CostCurve, acceptance: Acceptance | None = None) -> None:
        """Plan with a measured `curve`."""
        self.curve = curve
        self.acceptance = acceptance or Acceptance()
        self.records: dict[str, DrafterRecord] = {}
        self.step_seconds: dict[str, float] = {}  # of draft models that were timed before they were first asked
        self.windows = Sizer()
        self.rate = LongRun()
        self.decode_seconds = 0.0
        self.probe_credit = 0.0
        self._offsets: dict[int, Offsets] = {}
        self._costs: dict[int, tuple[float, int]] = {}
        self._tables: dict[tuple[int, frozenset[int] | None], dict[int, tuple[float, int]]] = {}
        self._table_age = 0
        self.pause = Rest()
        self._resting = False
        self._gained: float | None = None  # what the step at hand promises, in steps without drafts
        self._asking = 0.0  # seconds of it that costly drafters took: their own records are the judge of those
        self._idle = 0  # steps for which no window is offered anything
        # The step at hand: decoding slots, those of them planned for, seconds of a decode without drafts, tokens and
        # drafting seconds so far.
        self._slots = 1
        self._planned = 1
        self._narrowest = 0.0
        self._tokens = 0
        self._drafting = 0.0
        self._used = 0
        self._tokens_a_second = 0.0

    @property
    def speedup(self) -> float | None:
        """Tokens per second over those of plain decoding in recent steps, at least 1; None before it is known."""
        return self.rate.speedup

    def rest(self, others: int) -> Plan | None:
        """A plain step while thinking about more does not pay (see Rest)."""
        self._resting = others == 0 and 1 in self._costs and self.pause.takes()
        if not self._resting:
            return None
        self._slots = self._planned = self._tokens = 1
        self._narrowest, width = self._costs[1]
        self._drafting = 0.0
        return Plan(width, 1.0, self._narrowest)

    def propose(self, slot: Slot, limits: Limits, others: int) -> Proposal:
        """Free drafters are always asked; costly ones while that promises a better rate, or as a bounded probe."""
        start, self._asking = time.perf_counter(), 0.0
        tree = TokenTree.root(slot.tokens[-1])
        cap = slot.request.speculation.max_draft
        nodes = min(limits.nodes, self.curve.max_width - 1, limits.nodes if cap is None else cap)
        free: TokenTree | None = None
        branch = 1 if limits.leaves == 1 else FREE_BRANCH
        if nodes > 0:
            self._costs = self._table(len(slot.tokens), limits.widths)
            if slot.id not in self._offsets:
                for record in self.records.values():
                    record.renew()
            for drafter in slot.drafters:
                bit = slot.bit_of(drafter)
                if not drafter.costly:
                    width = 1 if branch == 1 else branch_of(drafter, branch)
                    tree = ask(slot, drafter, Budget(min(nodes, FREE_NODES), limits.depth, width, bit), tree)
            for drafter in self._by_turn(slot, tree, others):
                before = tree
                tree = self._ask_costly(slot, drafter, tree, nodes, limits, others, alone=free is None)
                free = before if free is None and tree is not before else free
        return Proposal(slot, tree, limits, time.perf_counter() - start, free=free)

    def select(self, proposals: Sequence[Proposal], base: int, context: int, streams: int = 0) -> Plan:
        """Keep the n most probable nodes of all slots together, n by expected tokens and seconds."""
        self._costs, self._gained = self._table(context, proposals[0].limits.widths), None
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
        pool: list[Item] = []
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
                pool += [Item(-reach[v], 1, i, v) for v in range(1, len(p.tree))]
        self._tokens_a_second = (self.speedup or 1.0) * slots / self._narrowest
        offers = self._window_offers(proposals, need)
        pool += [Item(-offer.tokens / offer.rows, offer.rows, offer.proposal, COLUMN) for offer in offers]
        chosen, considered = choose(sorted(pool), Step(base, need, expected, room), self._costs)
        used = need + sum(item.rows for item in chosen)
        for i, p in enumerate(proposals):
            nodes = [item.node for item in chosen if item.proposal == i and item.node != COLUMN]
            columns = [item.rows for item in chosen if item.proposal == i and item.node == COLUMN]
            p.probe_rows = sum(columns)
            if p.kept is None:
                kept = p.tree if len(nodes) == p.tree.n_drafted else p.tree.pruned(nodes)
                p.kept = kept.with_leaves(p.limits.leaves - len(columns))
        self._used = used
        expected -= sum(item.worth for item in chosen if item.node != COLUMN)
        seconds, width = self._costs.get(used, (0.0, 0))
        if slots == 1 and seconds:
            more = seconds - self._narrowest + self._asking
            self._gained = expected - 1.0 - more / (self._narrowest + self.pause.bare)
        return Plan(width, expected, seconds, considered)

    def _window_offers(self, proposals: Sequence[Proposal], need: int) -> list[Offer]:
        """Columns of windows that may pay. What that depends on hardly moves: after a no, a few steps do not ask."""
        if self._idle > 0:
            self._idle -= 1
            return []
        offers = self.windows.offers(proposals, self._costs, need, self._tokens_a_second)
        self._idle = 0 if offers else IDLE
        return offers

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Learn from every drafted node whose fate is known, kept or not."""
        tree, slot = proposal.tree, proposal.slot
        self._tokens += len(tokens)
        self._drafting += proposal.seconds
        if (proposal.kept is not None and proposal.kept.n_drafted) or proposal.probe_rows:
            self.windows.learn(proposal, self._saved, self._tokens_a_second)
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
                self._record(drafter).saw(hit)

    def timed(self, width: int, context: int, seconds: float) -> None:
        """Correct the cost curve and the long-run rate."""
        self.curve.observe(width, context, seconds)
        self.decode_seconds += seconds
        self.windows.timed(seconds)
        # Saved long enough for the dearest drafter: it may only have looked dear when it was asked first.
        dearest = max((record.level_seconds for record in self.records.values()), default=0.0)
        most = max(PROBE_SHARE * PROBE_SAVING * seconds, dearest)
        self.probe_credit = min(self.probe_credit + PROBE_SHARE * seconds, most)
        self._table_age += 1
        if self._table_age >= TABLE_STEPS:
            self._tables.clear()
            self._table_age = 0
        if self._tokens and self._narrowest:
            self._tokens += self._slots - self._planned
            plain = self._slots * (seconds + self._drafting) / self._narrowest
            self.rate.add(self._tokens, plain)
            self._tokens, self._drafting = 0, 0.0

    def aside(self, seconds: float) -> None:
        """The step took so many seconds besides its decode."""
        if self._resting:
            self.pause.rested(seconds)
        elif self._gained is not None:
            self.pause.thought(seconds - self._asking, self._gained, self._narrowest)
        self._resting, self._gained = False, None

    def _saved(self, nodes: int) -> float:
        """Seconds that the step at hand would have taken less with so many nodes fewer."""
        costs = self._costs
        return costs[self._used][0] - costs[self._used - nodes][0] if self._used in costs else 0.0

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """What was learned, for the history; `names` are the engine's drafters in order."""
        return {
            "acceptance": self.acceptance.as_dict(names),
            "records": {name: record.as_dict() for name, record in self.records.items()},
            "speedup": self.speedup,
        }

    def restore(self, data: Any, names: Sequence[str]) -> None:
        """Begin with what `as_dict` gave.

        Raises:
            ValueError: it is not that; nothing has changed.
        """
        try:
            acceptance = Acceptance.from_dict(data["acceptance"], names)
            records = {str(name): DrafterRecord.from_dict(r) for name, r in data["records"].items()}
            speedup = data["speedup"]
            rate = LongRun.of(None if speedup is None else float(speedup))
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not what a planner learned: {error}") from error
        self.acceptance, self.records = acceptance, {n: r for n, r in records.items() if n in names}
        self.rate = rate

    def offsets(self, slot: Slot) -> Offsets:
        """The request's own acceptance correction."""
        return self._offsets.setdefault(slot.id, Offsets())

    def forget(self, slot: Slot) -> None:
        """The request is over, and so is a rest that its text was a reason for."""
        self._offsets.pop(slot.id, None)
        self.pause.wake()

    def _table(self, context: int, widths: frozenset[int] | None) -> dict[int, tuple[float, int]]:
        """`CostCurve.effective`, kept for a few steps."""
        key = (context // TABLE_CONTEXT, widths)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self.curve.effective(context, widths)
        return table

    # ------------------------------------------------------------ costly drafters

    def _record(self, drafter: Drafter) -> DrafterRecord:
        record = self.records.get(drafter.name)
        if record is None:
            known = self.step_seconds.get(drafter.name, 0.0)
            record = self.records[drafter.name] = DrafterRecord(level_seconds=known)
        return record

    def _share_of(self, base: int) -> tuple[Costs, int]:
        """What a slot's nodes cost it, and its width without any, in a step of `base` rows before drafts.

        A slot among others is asked as if the others did the same, at its share of the step: where T is flat between
        two widths none of them would fill it alone, and all of them together gain by it.
        """
        m = self._planned
        if m == 1 or base not in self._costs:
            return self._costs, base
        rows = range(base, max(self._costs) + 1, m)
        shares = {1 + n: (self._costs[r][0] / m, self._costs[r][1]) for n, r in enumerate(rows) if r in self._costs}
        return shares, 1

    def _by_turn(self, slot: Slot, tree: TokenTree, others: int) -> list[Drafter]:
        """The slot's costly drafters: the one that gains most when it is asked first, then the others, which are
        judged by what they still add. Who has not been first for long is, so that an old judgement can be revised.
        """
        costly = [d for d in slot.drafters if d.costly]
        if len(costly) < 2:
            return costly
        costs, base = self._share_of(others + 1)
        if base not in costs:
            return costly
        free = sorted(self.acceptance.path_probs(tree, self.offsets(slot))[1:], reverse=True)
        case = bucket(value(costs, free, base, rate(costs, free, base)), True, self._planned)

        def rank(drafter: Drafter) -> float:
            record = self._record(drafter)
            gain = record.gain(case)
            return math.inf if gain is None or record.since_first >= FIRST_EVERY else gain

        costly.sort(key=rank, reverse=True)
        for i, drafter in enumerate(costly):
            record = self.records[drafter.name]
            record.since_first = record.since_first + 1 if i else 0
        return costly

    def _ask_costly(
        self, slot: Slot, drafter: Drafter, tree: TokenTree, nodes: int, limits: Limits, others: int, alone: bool
    ) -> TokenTree:
        """`tree` with what `drafter` says, or `tree` itself if it is not worth asking. `alone`: no other costly
        drafter has been asked in this step.
        """
        record, bit = self._record(drafter), slot.bit_of(drafter)
        offsets = self.offsets(slot)
        costs, base = self._share_of(others + 1)
        if base not in costs:
            return tree
        free = self.acceptance.path_probs(tree, offsets)[1:]
        free.sort(reverse=True)
        price = rate(costs, free, base)
        now = value(costs, free, base, price)
        case = bucket(now, alone, self._planned)
        gain = record.gain(case)
        worth = gain > 0.0 if gain is not None else promises(costs, free, 1.0, record, base)
        if not worth and alone and not record.settled(case):
            # Other texts say no. This one has a say as well: have its steps gone better with nobody else but this
            # drafter than this step would without it?
            worth = record.solo.beats(price * costs[base][0] / base)
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
            # Nodes the free drafters proposed as well count once.
            ranked = sorted(free + [reach[v] for v in draft.beyond(tree)], reverse=True)
            blind = record.tested < ENOUGH_TESTS and levels >= 2 + record.tested
            stopped = blind or not promises(costs, ranked, ahead, record, base, levels)
            return not stopped

        branch = 1 if limits.leaves == 1 else FREE_BRANCH
        both = TokenTree.root(tree.tokens[0])
        both.merge(tree)
        start = time.perf_counter()
        row = least_row(costs, base)
        floor = SAFE * price * row
        # What a token below must be worth: its row, and one of the drafter's own, which costs less than a level.
        below = max(price, self._tokens_a_second) * (row + record.level_seconds / 2) / record.hope

        def expects(depth: int, rank: int, prob: float) -> float:
            return self.acceptance.expected(bit, depth, rank, prob, offsets)

        # As a mere probe it takes a piece of the text at a time.
        patience = reading(slot, others) if worth else 0.0
        budget = Budget(nodes, limits.depth, branch, bit, floor, below, patience, expects, keep_going)
        both = ask(slot, drafter, budget, both)
        spent = time.perf_counter() - start
        self._asking += spent
        if not levels and len(both) == len(tree):
            # It reads the text as yet, which says nothing of what its drafts cost and gain.
            self.probe_credit -= 0.0 if worth else spent
            return tree
        levels += not stopped
        record.took(spent if levels == 1 else min((spent - first) / (levels - 1), spent / levels), levels > 1)
        reach = self.acceptance.path_probs(both, offsets)
        own = sorted((reach[v] for v in range(1, len(both)) if both.sources[v] & bit), reverse=True)
        tokens, seconds = fastest(costs, own, base, levels * record.level_seconds)
        record.solo.add(tokens, base * seconds / costs[base][0])
        ranked = sorted(reach[1:], reverse=True)
        net = value(costs, ranked, base, price) - now - price * levels * record.level_seconds
        if record.tested >= ENOUGH_TESTS:
            record.gained(case, net, probe=not worth)
        if not worth:
            self.probe_credit -= min(spent, max(0.0, -net / price)) if alone else spent  # what paid was no expense
        return both
