"""Asking drafters that cost time (they run a model): whose turn it is, whether it is worth it, and how deep.

A chain of its drafts is imagined, accepted as often as they usually are: a drafter is asked if the step goes better
with the chain than without, the one first with which it goes best. Who is not worth it is probed when a small share of
the decode time has paid for a level. One that is asked goes on level by level while that promises a better rate.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, Iterable, NamedTuple, Sequence

from lcspec.drafters.base import Budget, Drafter
from lcspec.planner.acceptance import Acceptance, tested
from lcspec.planner.base import Limits, PlannedSequence, ask, reading
from lcspec.planner.record import DrafterRecord
from lcspec.planner.worth import Costs, imagined, least_row, promises, rate
from lcspec.spec.token_tree import TokenTree

# Share of the decode time that goes into asking each drafter that is currently off.
PROBE_SHARE = 0.01
# A drafter may be surer than it says: nodes are cut before they are looked at below this share of what a row costs.
SAFE = 0.5


@dataclass(frozen=True)
class DraftRequest:
    """A sequence's step, as those see it who are asked for drafts.

    Attributes:
        sequence, limits: whose step it is, and what it can take.
        nodes, branch: drafted nodes in all, children a node.
        others: the width the other sequences need anyway.
        costs, base: what the sequence's nodes cost it, and its width without any (see `share_of`).
        streams: sequences that are planned for.
        acceptance: what is known of drafts.
    """

    sequence: PlannedSequence
    limits: Limits
    nodes: int
    branch: int
    others: int
    costs: Costs
    base: int
    streams: int
    acceptance: Acceptance


def share_of(costs: Costs, streams: int, base: int) -> tuple[Costs, int]:
    """What a sequence's nodes cost it, and its width without any, in a step of `base` rows before drafts.

    A sequence among others is asked as if the others did the same, at its share of the step: where T is flat between
    two widths none of them would fill it alone, and all of them together gain by it.
    """
    if streams == 1 or base not in costs:
        return costs, base
    rows = range(base, max(costs) + 1, streams)
    return {1 + n: (costs[r][0] / streams, costs[r][1]) for n, r in enumerate(rows) if r in costs}, 1


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
        self._stopped = not self._goes_on(draft, frontier, self.done)
        return not self._stopped

    @property
    def seconds(self) -> float:
        """Since it was asked."""
        return time.perf_counter() - self._start

    def finish(self) -> None:
        """Note what a level took."""
        spent = self._latest if self._stopped else self.seconds  # the others may go on
        n = self.done + (not self._stopped)  # with one that led to nothing
        self._record.took(spent if n == 1 else min((spent - self._first) / (n - 1), spent / n), n > 1)


class _Asked(NamedTuple):
    """A sequence for which a drafter is asked: the tree `before`, and a copy of it to draft into."""

    turn: DraftRequest
    before: TokenTree
    both: TokenTree
    budget: Budget
    levels: Levels


class DraftPolicy:
    """What is known about asking each costly drafter."""

    def __init__(self) -> None:
        self.records: dict[str, DrafterRecord] = {}
        self.step_seconds: dict[str, float] = {}  # of draft models that were timed before they were first asked
        self.reading = 0.0  # seconds of the step at hand in which a drafter read a text

    def knows(self, name: str) -> bool:
        """Whether there is any figure of what the drafter costs."""
        return name in self.records or name in self.step_seconds

    def renew(self) -> None:
        """A new text: what the earlier ones taught counts for less."""
        for record in self.records.values():
            record.renew()

    def save(self, seconds: float) -> None:
        """A decode took so long: a share of it pays for asking those that are off."""
        for record in self.records.values():
            record.waited += seconds

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

    def by_turn(self, turn: DraftRequest) -> list[Drafter]:
        """The sequence's costly drafters: the one that promises most first; the others are judged by what they add."""
        costly = [d for d in turn.sequence.drafters if d.costly]
        if len(costly) < 2 or turn.base not in turn.costs:
            return costly
        records = {d.name: self.record(d) for d in costly}

        def alone(drafter: Drafter) -> float:
            record = records[drafter.name]
            return imagined(turn.costs, [], [1.0], record.acceptance, record.share(turn.streams), turn.base)

        return sorted(costly, key=alone, reverse=True)

    def ask(self, drafter: Drafter, turns: Sequence[DraftRequest], trees: Sequence[TokenTree]) -> list[TokenTree]:
        """`trees` with what `drafter` says, for those it is worth asking for; the others as they are."""
        begun = [self._begin(drafter, turn, tree) for turn, tree in zip(turns, trees)]
        asked = [one for one in begun if one is not None]
        if not asked:
            return list(trees)
        record = self.record(drafter)
        record.asked(len(asked))
        record.waited = 0.0
        for one in asked:
            one.levels.start()
        sequences, budgets = [a.turn.sequence for a in asked], [a.budget for a in asked]
        drafted = iter(ask(drafter, sequences, budgets, [a.both for a in asked]))
        out = list(trees)
        for i, begin in enumerate(begun):
            if begin is None:
                continue
            both = next(drafted)
            if begin.levels.done or len(both) > len(begin.before):
                begin.levels.finish()
                out[i] = both
            else:
                # It reads the text as yet, which says nothing of what its drafts cost and gain.
                self.reading += begin.levels.seconds / len(asked)
        return out

    def _begin(self, drafter: Drafter, turn: DraftRequest, tree: TokenTree) -> _Asked | None:
        """What to ask `drafter` for beside `tree`; None if it is not worth asking."""
        costs, base = turn.costs, turn.base
        if base not in costs:
            return None
        record, reach = self.record(drafter), turn.acceptance.path_probs(tree)
        level, hope, known = record.share(turn.streams), record.acceptance, sorted(reach[1:], reverse=True)
        price = rate(costs, known, base)
        worth = imagined(costs, known, left_open(tree, reach), hope, level, base) > price
        if not worth and record.waited * PROBE_SHARE < record.level_seconds:
            return None

        def goes_on(draft: TokenTree, frontier: Iterable[int], levels: int) -> bool:
            reach = turn.acceptance.path_probs(draft)
            ahead = max((reach[v] for v in frontier), default=0.0)
            # Nodes the others proposed as well count once.
            ranked = sorted(known + [reach[v] for v in draft.beyond(tree)], reverse=True)
            return promises(costs, ranked, ahead, hope, level, base, levels)

        both = TokenTree.root(tree.tokens[0])
        both.merge(tree)
        levels = Levels(record, goes_on)
        return _Asked(turn, tree, both, _budget(turn, drafter, record, price, levels, patient=worth), levels)


def left_open(tree: TokenTree, reach: Sequence[float]) -> list[float]:
    """The probability that the text leaves the tree below a node of each depth."""
    out = [0.0] * (max(tree.depths) + 1)
    for node, p in enumerate(reach):
        out[tree.depths[node]] += p
        if node:
            out[tree.depths[node] - 1] -= p
    return out


def _budget(
    turn: DraftRequest, drafter: Drafter, record: DrafterRecord, price: float, levels: Levels, patient: bool
) -> Budget:
    """What the drafter may propose. `patient`: it is no mere probe, which takes a piece of the text at a time."""
    bit, row = turn.sequence.bit_of(drafter), least_row(turn.costs, turn.base)

    def expects(depth: int, rank: int, prob: float) -> float:
        return turn.acceptance.expected(bit, rank, prob)

    # What a token below must be worth: its row, and one of the drafter's own, which costs less than a level.
    below = price * (row + record.share(turn.streams) / 2) / max(0.1, record.acceptance)
    patience = reading(turn.sequence, turn.others) if patient else 0.0
    return Budget(turn.nodes, turn.limits.depth, turn.branch, bit, SAFE * price * row, below, patience, expects, levels)
