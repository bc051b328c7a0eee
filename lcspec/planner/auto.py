"""Which drafters to ask, how deep, and how many of their nodes to keep.

For a fixed width the best tree has the largest P(v), the probability that node v is accepted; P never grows along a
path, so the most probable nodes always form a tree. Every step maximises

    tokens / time = (B + sum of the n best P) / (T(B + n) + drafting time)

for B slots, with T the measured cost curve; n = 0 is plain decoding. (Where drafting cost more than it can bring, more
nodes have to beat the rate of plain decoding.) One formula serves one slot and many: the nodes of all slots compete
for one width, so speculation fades by itself as load rises. (A ratio of sums is largest when a step maximises
tokens - rate x time at the long-run rate instead; but that rate is an estimate, too high after every easy passage, and
a step that waits for better drafts than the text allows loses more than the others gain.)
"""

from __future__ import annotations

import time
from typing import Any, Callable, Sequence

from lcspec.drafters.base import Budget
from lcspec.planner.acceptance import Acceptance, Offsets
from lcspec.planner.base import Limits, Plan, PlannedSequence, Proposal, ask
from lcspec.planner.longrun import LongRun
from lcspec.planner.lookahead_budget import LookaheadBudget, Offer
from lcspec.planner.planning_backoff import PlanningBackoff
from lcspec.planner.policy import DraftPolicy, DraftRequest, share_of
from lcspec.planner.record import DrafterRecord
from lcspec.planner.stake import Hold
from lcspec.planner.widths import COLUMN, Item, Step, choose
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.stake import Stake
from lcspec.spec.token_tree import TokenTree

# Steps for which a table of costs is kept, and the contexts it serves (a power of two).
TABLE_STEPS = 8
TABLE_CONTEXT = 64
# Steps that pass before windows that did not pay are thought about again.
IDLE = 3
# Nodes asked from a drafter that costs nothing.
FREE_NODES = 24
FREE_BRANCH = 3


class AutoPlanner:
    """The planner of the module docstring."""

    def __init__(self, curve: CostCurve, acceptance: Acceptance | None = None) -> None:
        """Plan with a measured `curve`."""
        self.curve = curve
        self.acceptance = acceptance or Acceptance()
        self.costly = DraftPolicy()
        self.windows = LookaheadBudget()
        self.rate = LongRun()
        self.decode_seconds = 0.0
        self._offsets: dict[int, Offsets] = {}
        self._costs: dict[int, tuple[float, int]] = {}
        self._tables: dict[tuple[int, frozenset[int] | None], dict[int, tuple[float, int]]] = {}
        self._table_age = 0
        self.pause = PlanningBackoff()
        self._hold = Hold()
        self._resting = False
        self._gained: float | None = None  # what the step at hand promises, in steps without drafts
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
        """A plain step while thinking about more does not pay (see PlanningBackoff)."""
        self._resting = others == 0 and 1 in self._costs and self.pause.takes()
        if not self._resting:
            return None
        self._slots = self._planned = self._tokens = 1
        self._narrowest, width = self._costs[1]
        self._drafting = 0.0
        return Plan(width, 1.0, self._narrowest)

    def propose(self, sequences: Sequence[PlannedSequence], limits: Sequence[Limits], others: int) -> list[Proposal]:
        """Free drafters are always asked; costly ones while that promises a better rate, or as a bounded probe."""
        start, self.costly.seconds = time.perf_counter(), 0.0
        trees = [self._free(sequence, limit) for sequence, limit in zip(sequences, limits)]
        free: list[TokenTree | None] = [None] * len(trees)
        turns = {
            i: self._turn(sequence, limit, others)
            for i, (sequence, limit) in enumerate(zip(sequences, limits))
            if self._asks(sequence, limit)
        }
        orders = {i: self.costly.by_turn(turn, trees[i]) for i, turn in turns.items()}
        for place in range(max(map(len, orders.values()), default=0)):
            groups: dict[str, list[int]] = {}
            for i, order in orders.items():
                if place < len(order):
                    groups.setdefault(order[place].name, []).append(i)
            for members in groups.values():
                drafter = orders[members[0]][place]
                found = self.costly.ask(drafter, [turns[i] for i in members], [trees[i] for i in members])
                for i, tree in zip(members, found):
                    if tree is not trees[i]:
                        free[i] = trees[i] if free[i] is None else free[i]
                        trees[i] = tree
        seconds = (time.perf_counter() - start) / len(sequences)
        return [
            Proposal(sequence, tree, limit, seconds, free=alone)
            for sequence, tree, limit, alone in zip(sequences, trees, limits, free)
        ]

    def _nodes(self, sequence: PlannedSequence, limits: Limits) -> int:
        """Drafted nodes that a step may have for it."""
        cap = sequence.request.speculation.max_draft
        return min(limits.nodes, self.curve.max_width - 1, limits.nodes if cap is None else cap)

    def _asks(self, sequence: PlannedSequence, limits: Limits) -> bool:
        """Whether there is anybody to ask who costs time, and room for what is said."""
        return self._nodes(sequence, limits) > 0 and any(drafter.costly for drafter in sequence.drafters)

    def _free(self, sequence: PlannedSequence, limits: Limits) -> TokenTree:
        """What the drafters say that cost nothing."""
        tree, nodes = TokenTree.root(sequence.tokens[-1]), self._nodes(sequence, limits)
        if nodes <= 0:
            return tree
        self._costs = self._table(len(sequence.tokens), limits.widths)
        if sequence.id not in self._offsets:
            self.costly.renew()
        for drafter in sequence.drafters:
            if not drafter.costly:
                width = 1 if limits.leaves == 1 else max(FREE_BRANCH, drafter.default_branch)
                budget = Budget(min(nodes, FREE_NODES), limits.depth, width, sequence.bit_of(drafter))
                [tree] = ask(drafter, [sequence], [budget], [tree])
        return tree

    def _turn(self, sequence: PlannedSequence, limits: Limits, others: int) -> DraftRequest:
        """The step at hand as the sequence's costly drafters see it."""
        slots, known = self._planned, self.offsets(sequence)
        nodes, branch = self._nodes(sequence, limits), 1 if limits.leaves == 1 else FREE_BRANCH
        table = self._costs = self._table(len(sequence.tokens), limits.widths)
        if self.curve.stake is not None:
            table = self._hold.table(self.curve.stake, table, others + 1)
        costs, base = share_of(table, slots, others + 1)
        return DraftRequest(
            sequence, limits, nodes, branch, others, costs, base, slots, self.acceptance, known, self._tokens_a_second
        )

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
            reach = self.acceptance.path_probs(p.tree, self.offsets(p.sequence))
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
        drafting = sum(p.seconds for p in proposals)
        beside = None if self.curve.stake is None else self._beside(self.curve.stake, proposals, base)
        chosen, considered = choose(sorted(pool), Step(base, need, expected, room, drafting), self._costs, beside)
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
            stake = next((s - drafting - seconds for n, _, s in considered if n == used - base), 0.0)
            more = seconds + stake - self._narrowest + self.costly.seconds
            self._gained = expected - 1.0 - more / (self._narrowest + self.pause.bare)
        return Plan(width, expected, seconds, considered)

    def _beside(self, stake: Stake, proposals: Sequence[Proposal], base: int) -> Callable[[Item], float]:
        """What the drafts added so far cost beside their rows, over all slots."""
        reach: dict[int, list[float]] = {}
        seconds: dict[int, float] = {}

        def beside(item: Item) -> float:
            if item.node != COLUMN:
                i, chain = item.proposal, reach.setdefault(item.proposal, [])
                chain.append(-item.worth)
                seconds[i] = stake.seconds(self._costs, base, proposals[i].sequence.n_uncached, chain)
            return sum(seconds.values())

        return beside

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
        tree, sequence = proposal.tree, proposal.sequence
        self._tokens += len(tokens)
        self._drafting += proposal.seconds
        if self.curve.stake is not None and proposal.kept is not None and proposal.kept.n_drafted:
            drafted, accepted = proposal.kept.n_drafted, len(tokens) - 1
            self._hold.saw(min(drafted, accepted + 1), accepted)
        if (proposal.kept is not None and proposal.kept.n_drafted) or proposal.probe_rows:
            self.windows.learn(proposal, self._saved, self._tokens_a_second)
        if not tree.n_drafted:
            return
        only = -1
        if proposal.free is not None:
            # How often they are right when nobody else is asked must be known to decide whether to ask.
            self.acceptance.observe(proposal.free, tokens, self.offsets(sequence))
            only = sum(sequence.bit_of(d) for d in sequence.drafters if d.costly)
        self.acceptance.observe(tree, tokens, self.offsets(sequence), only)
        self.costly.learn(sequence, tree, tokens)

    def timed(self, width: int, context: int, seconds: float) -> None:
        """Correct the cost curve and the long-run rate."""
        self.curve.observe(width, context, seconds)
        self.decode_seconds += seconds
        self.windows.timed(seconds)
        self.costly.save(seconds)
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
            self.pause.thought(seconds - self.costly.seconds, self._gained, self._narrowest)
        self._resting, self._gained = False, None

    def _saved(self, nodes: int) -> float:
        """Seconds that the step at hand would have taken less with so many nodes fewer."""
        costs = self._costs
        return costs[self._used][0] - costs[self._used - nodes][0] if self._used in costs else 0.0

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """What was learned, for the history; `names` are the engine's drafters in order."""
        return {
            "acceptance": self.acceptance.as_dict(names),
            "records": {name: record.as_dict() for name, record in self.costly.records.items()},
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
        self.acceptance, self.rate = acceptance, rate
        self.costly.records = {n: r for n, r in records.items() if n in names}

    def offsets(self, sequence: PlannedSequence) -> Offsets:
        """The request's own acceptance correction."""
        return self._offsets.setdefault(sequence.id, Offsets())

    def forget(self, sequence: PlannedSequence) -> None:
        """The request is over, and so is a rest that its text was a reason for."""
        self._offsets.pop(sequence.id, None)
        self.pause.wake()

    def _table(self, context: int, widths: frozenset[int] | None) -> dict[int, tuple[float, int]]:
        """`CostCurve.effective`, kept for a few steps."""
        key = (context // TABLE_CONTEXT, widths)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self.curve.effective(context, widths)
        return table
