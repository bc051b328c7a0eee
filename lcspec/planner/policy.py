"""Asking drafters that cost time (they run a model): whose turn it is, whether it is worth it, and how deep.

What asking one gained so far decides whether to ask it again, apart for steps that promise much and little without it;
before that is known, an imagined chain at its acceptance does. Who is not worth it is probed now and then, on a credit
that grows by a small share of the decode time. One that is asked goes on level by level while that promises a better
rate.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Callable, Iterable, NamedTuple, Sequence

from lcspec.drafters.base import Budget, Drafter
from lcspec.planner.acceptance import Acceptance, Offsets, tested
from lcspec.planner.base import Limits, PlannedSequence, ask, reading
from lcspec.planner.record import ENOUGH_TESTS, DrafterRecord
from lcspec.planner.worth import Costs, bucket, fastest, least_row, promises, rate, value
from lcspec.spec.token_tree import TokenTree

# Share of the decode time that may go into asking drafters that are currently off, and how many steps it is saved for.
PROBE_SHARE = 0.01
PROBE_SAVING = 64
# Steps between two probes of a drafter at least.
PROBE_EVERY = 4
# Of several costly drafters the one that gained most goes first; another one at least every so many steps.
FIRST_EVERY = 48
# A drafter may be surer than it says: nodes are cut before they are looked at below this share of what a row costs.
SAFE = 0.5


@dataclass(eq=False)
class DraftRequest:
    """A slot's step, as those see it who are asked for drafts.

    Attributes:
        slot, limits: whose step it is, and what it can take.
        nodes, branch: drafted nodes in all, children a node.
        others: the width the other slots need anyway.
        costs, base: what the slot's nodes cost it, and its width without any (see `share_of`).
        slots: those that are planned for.
        acceptance, offsets: what is known of drafts, and of this request's.
        rate: tokens a second in the long run.
        alone: no other costly drafter has been asked in this step.
    """

    sequence: PlannedSequence
    limits: Limits
    nodes: int
    branch: int
    others: int
    costs: Costs
    base: int
    slots: int
    acceptance: Acceptance
    offsets: Offsets
    rate: float
    alone: bool = True

    def reach(self, tree: TokenTree) -> list[float]:
        """How likely every node is to be accepted, the root included."""
        return self.acceptance.path_probs(tree, self.offsets)

    def ranked(self, tree: TokenTree) -> list[float]:
        """The same of the drafted nodes, descending."""
        return sorted(self.reach(tree)[1:], reverse=True)


def share_of(costs: Costs, slots: int, base: int) -> tuple[Costs, int]:
    """What a slot's nodes cost it, and its width without any, in a step of `base` rows before drafts.

    A slot among others is asked as if the others did the same, at its share of the step: where T is flat between
    two widths none of them would fill it alone, and all of them together gain by it.
    """
    if slots == 1 or base not in costs:
        return costs, base
    rows = range(base, max(costs) + 1, slots)
    return {1 + n: (costs[r][0] / slots, costs[r][1]) for n, r in enumerate(rows) if r in costs}, 1


class Levels:
    """A drafter on its way down: asked after every level whether another one is worth its time."""

    def __init__(self, record: DrafterRecord, goes_on: Callable[[TokenTree, Iterable[int], int], bool]) -> None:
        """`goes_on(draft, newest nodes, levels so far)`: whether another level promises a better rate."""
        self._record = record
        self._goes_on = goes_on
        self._start = 0.0
        self._first = 0.0
        self._latest = 0.0
        self._stopped = False
        self.done = 0

    def start(self) -> None:
        """The drafter is asked now."""
        self._start = time.perf_counter()

    def __call__(self, draft: TokenTree, frontier: Iterable[int]) -> bool:
        """See Budget.keep_going."""
        self.done += 1
        self._latest = self.seconds
        if self.done == 1:
            self._first = self._latest
        blind = self._record.tested < ENOUGH_TESTS and self.done >= 2 + self._record.tested
        self._stopped = blind or not self._goes_on(draft, frontier, self.done)
        return not self._stopped

    @property
    def seconds(self) -> float:
        """Since it was asked."""
        return time.perf_counter() - self._start

    def finish(self) -> int:
        """Note what a level took; returns how many there were, one that led to nothing included."""
        spent = self._latest if self._stopped else self.seconds  # the others may go on
        n = self.done + (not self._stopped)
        self._record.took(spent if n == 1 else min((spent - self._first) / (n - 1), spent / n), n > 1)
        return n


class _Asked(NamedTuple):
    """A sequence for which a drafter is asked: the tree `before`, and what the decision was made from."""

    turn: DraftRequest
    before: TokenTree
    both: TokenTree
    budget: Budget
    levels: Levels
    price: float
    now: float
    case: int
    worth: bool


class DraftPolicy:
    """What is known about asking each costly drafter, and the credit for asking those that are off."""

    def __init__(self) -> None:
        self.records: dict[str, DrafterRecord] = {}
        self.step_seconds: dict[str, float] = {}  # of draft models that were timed before they were first asked
        self.credit = 0.0
        self.seconds = 0.0  # that the step at hand spent here: the drafters' own records are the judge of those

    def knows(self, name: str) -> bool:
        """Whether there is any figure of what the drafter costs."""
        return name in self.records or name in self.step_seconds

    def renew(self) -> None:
        """A new request: what the earlier ones taught counts for less."""
        for record in self.records.values():
            record.renew()

    def save(self, seconds: float) -> None:
        """A decode took so long: a share of it goes into the credit."""
        # Saved long enough for the dearest drafter: it may only have looked dear when it was asked first.
        dearest = max((record.level_seconds for record in self.records.values()), default=0.0)
        most = max(PROBE_SHARE * PROBE_SAVING * seconds, dearest)
        self.credit = min(self.credit + PROBE_SHARE * seconds, most)

    def learn(self, sequence: PlannedSequence, tree: TokenTree, tokens: Sequence[int]) -> None:
        """How often each drafter's best child was right, of those whose fate the emitted `tokens` tell."""
        for drafter in sequence.drafters:
            if not drafter.costly:
                continue
            bit, best = sequence.bit_of(drafter), dict[int, tuple[float, bool]]()
            for node, hit in tested(tree, tokens):
                parent = tree.parents[node]
                if tree.sources[node] & bit and tree.probs[node] > best.get(parent, (-1.0, False))[0]:
                    best[parent] = tree.probs[node], hit
            for _, hit in best.values():
                self.record(drafter).saw(hit)

    def record(self, drafter: Drafter) -> DrafterRecord:
        """The running figures of `drafter`."""
        record = self.records.get(drafter.name)
        if record is None:
            known = self.step_seconds.get(drafter.name, 0.0)
            record = self.records[drafter.name] = DrafterRecord(level_seconds=known)
        return record

    def by_turn(self, turn: DraftRequest, tree: TokenTree) -> list[Drafter]:
        """The slot's costly drafters: the one that gains most when it is asked first, then the others, which are
        judged by what they still add. Who has not been first for long is, so that an old judgement can be revised.
        """
        costly = [d for d in turn.sequence.drafters if d.costly]
        if len(costly) < 2 or turn.base not in turn.costs:
            return costly
        free = turn.ranked(tree)
        now = value(turn.costs, free, turn.base, rate(turn.costs, free, turn.base))
        case = bucket(now, True, turn.slots)

        def rank(drafter: Drafter) -> float:
            record = self.record(drafter)
            gain = record.gain(case)
            return math.inf if gain is None or record.since_first >= FIRST_EVERY else gain

        costly.sort(key=rank, reverse=True)
        for i, drafter in enumerate(costly):
            record = self.records[drafter.name]
            record.since_first = record.since_first + 1 if i else 0
        return costly

    def ask(self, drafter: Drafter, turns: Sequence[DraftRequest], trees: Sequence[TokenTree]) -> list[TokenTree]:
        """`trees` with what `drafter` says, for those it is worth asking for; the others as they are."""
        asked = [a for turn, tree in zip(turns, trees) if (a := self._begin(drafter, turn, tree)) is not None]
        if not asked:
            return list(trees)
        self.record(drafter).asked(len(asked))
        for one in asked:
            one.levels.start()
        drafted = ask(drafter, [a.turn.sequence for a in asked], [a.budget for a in asked], [a.both for a in asked])
        out = {id(turn): tree for turn, tree in zip(turns, trees)}
        for one, both in zip(asked, drafted):
            out[id(one.turn)] = self._finish(drafter, one, both, len(asked))
        return [out[id(turn)] for turn in turns]

    def _begin(self, drafter: Drafter, turn: DraftRequest, tree: TokenTree) -> _Asked | None:
        """What to ask `drafter` for beside `tree`; None if it is not worth asking."""
        costs, base, alone = turn.costs, turn.base, turn.alone
        if base not in costs:
            return None
        record, free = self.record(drafter), turn.ranked(tree)
        price = rate(costs, free, base)
        now = value(costs, free, base, price)
        case = bucket(now, alone, turn.slots)
        worth = _pays(turn, record, free, price, case, alone)
        record.since_asked += 1
        if not worth and (record.since_asked < PROBE_EVERY or self.credit < record.level_seconds):
            return None
        record.since_asked = 0

        def goes_on(draft: TokenTree, frontier: Iterable[int], levels: int) -> bool:
            reach = turn.reach(draft)
            ahead = max((reach[v] for v in frontier), default=0.0)
            # Nodes the free drafters proposed as well count once.
            ranked = sorted(free + [reach[v] for v in draft.beyond(tree)], reverse=True)
            return promises(costs, ranked, ahead, record.hope, record.share(turn.slots), base, levels)

        both = TokenTree.root(tree.tokens[0])
        both.merge(tree)
        levels = Levels(record, goes_on)
        budget = _budget(turn, drafter, record, price, levels, patient=worth)
        return _Asked(turn, tree, both, budget, levels, price, now, case, worth)

    def _finish(self, drafter: Drafter, asked: _Asked, both: TokenTree, sharing: int) -> TokenTree:
        """Learn from what came of asking; `both`: the tree with what the drafter said, asked for `sharing` at once."""
        turn, levels, worth, record = asked.turn, asked.levels, asked.worth, self.record(drafter)
        costs, base, price, alone = turn.costs, turn.base, asked.price, turn.alone
        spent = levels.seconds / sharing
        self.seconds += spent
        if not levels.done and len(both) == len(asked.before):
            # It reads the text as yet, which says nothing of what its drafts cost and gain.
            self.credit -= 0.0 if worth else spent
            return asked.before
        turn.alone = False
        took = levels.finish() * record.level_seconds / sharing
        reach, bit = turn.reach(both), turn.sequence.bit_of(drafter)
        own = sorted((reach[v] for v in range(1, len(both)) if both.sources[v] & bit), reverse=True)
        tokens, seconds = fastest(costs, own, base, took)
        record.solo.add(tokens, base * seconds / costs[base][0])
        net = value(costs, sorted(reach[1:], reverse=True), base, price) - asked.now - price * took
        if record.tested >= ENOUGH_TESTS:
            record.gained(asked.case, net, probe=not worth)
        if not worth:
            self.credit -= min(spent, max(0.0, -net / price)) if alone else spent  # what paid was no expense
        return both


def _pays(
    turn: DraftRequest, record: DrafterRecord, free: Sequence[float], price: float, case: int, alone: bool
) -> bool:
    """Whether asking is expected to be worth its time, beside the `free` drafts (acceptance, descending)."""
    gain = record.gain(case)
    worth = (
        gain > 0.0
        if gain is not None
        else promises(turn.costs, free, 1.0, record.hope, record.share(turn.slots), turn.base)
    )
    if not worth and alone and not record.settled(case):
        # Other texts say no. This one has a say as well: have its steps gone better with nobody else but this
        # drafter than this step would without it?
        worth = record.solo.beats(price * turn.costs[turn.base][0] / turn.base)
    return worth


def _budget(
    turn: DraftRequest, drafter: Drafter, record: DrafterRecord, price: float, levels: Levels, patient: bool
) -> Budget:
    """What the drafter may propose. `patient`: it is no mere probe, which takes a piece of the text at a time."""
    bit, row = turn.sequence.bit_of(drafter), least_row(turn.costs, turn.base)

    def expects(depth: int, rank: int, prob: float) -> float:
        return turn.acceptance.expected(bit, depth, rank, prob, turn.offsets)

    # What a token below must be worth: its row, and one of the drafter's own, which costs less than a level.
    below = max(price, turn.rate) * (row + record.share(turn.slots) / 2) / record.hope
    patience = reading(turn.sequence, turn.others) if patient else 0.0
    return Budget(turn.nodes, turn.limits.depth, turn.branch, bit, SAFE * price * row, below, patience, expects, levels)
