"""When to ask drafters that run a model: in which order, whether one is worth its time, and how deep.

The policy imagines a chain of a drafter's tokens, accepted at its usual rate. It asks the drafter if the step has a
better rate with the chain than without, and begins with the drafter whose chain is best. What it has drafted ahead
takes no time, so it is taken in any case. A drafter that is not worth its time is probed when 1 % of the decode time
has paid for one level. While it drafts, it goes on level by level as long as another level promises a better rate.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, Iterable, NamedTuple, Sequence

from lcspec.drafters.base import Budget, Drafter
from lcspec.planner.acceptance import Acceptance, tested
from lcspec.planner.base import Limits, PlannedSequence, ask, reading
from lcspec.planner.record import DrafterRecord
from lcspec.planner.worth import imagined, least_row, rate
from lcspec.profiles.stake import Costs
from lcspec.spec.token_tree import TokenTree

# Share of the decode time that probes of one drafter may take.
PROBE_SHARE = 0.01
# A drafter's estimate may be too low: a node is cut early only if it is worth less than this share of a row's cost.
SAFE = 0.5


@dataclass(frozen=True)
class DraftRequest:
    """A sequence's step, as the policy for costly drafters sees it.

    Attributes:
        sequence, limits: whose step it is, and what the step has room for.
        nodes, branch: the most drafted nodes in all, and the most children of a node.
        others: the width in tokens that the other sequences need.
        costs, base: what the sequence's nodes cost it, and its width without any (see `share_of`).
        streams: number of sequences that are planned for.
        acceptance: the calibrated acceptance of drafts.
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

    With several streams, each is charged its share of a step in which all of them draft alike. Where T is flat between
    two widths, none of them would fill it alone, and all of them together gain.
    """
    if streams == 1 or base not in costs:
        return costs, base
    rows = range(base, max(costs) + 1, streams)
    return {1 + n: (costs[r][0] / streams, costs[r][1]) for n, r in enumerate(rows) if r in costs}, 1


class Levels:
    """Decides after each level of a draft whether another level is worth its time, and times the levels."""

    def __init__(
        self, record: DrafterRecord, goes_on: Callable[[TokenTree, Iterable[int], int], bool], ready: int = 0
    ) -> None:
        """`goes_on(draft, newest nodes, levels so far)`: whether another level promises a better rate; `ready`: levels
        that there are already, which take no time."""
        self.ready = ready
        self._record, self._goes_on = record, goes_on
        self._asked, self._stopped = not ready, False
        self._start, self._ends = 0.0, list[float]()  # of the levels, seconds since the start

    def start(self) -> None:
        """Start the clock: the drafter is asked now."""
        self._start = time.perf_counter()

    def __call__(self, draft: TokenTree, frontier: Iterable[int]) -> bool:
        """See Budget.keep_going."""
        if self._asked:
            self._ends.append(self.seconds)
        else:  # about what was ready
            self._asked = True
            self.start()
        self._stopped = not self._goes_on(draft, frontier, self.done)
        return not self._stopped

    @property
    def done(self) -> int:
        """Levels that were drafted in this step."""
        return len(self._ends)

    @property
    def seconds(self) -> float:
        """Seconds since `start`."""
        return time.perf_counter() - self._start

    def finish(self) -> None:
        """Record what a level took."""
        # What follows a stop are other sequences' levels; without one, a last level that added nothing counts as well.
        ends = self._ends if self._stopped else [*self._ends, self.seconds]
        if not self._asked or not ends:
            return
        n, spent = len(ends), ends[-1]
        # The first level may also have caught up with the text.
        rest = spent if self.ready or n == 1 else (spent - ends[0]) / (n - 1)
        self._record.took(min(rest, spent / n), bool(self.ready) or n > 1)


class _Asked(NamedTuple):
    """A sequence for which a drafter is asked: the tree `before`, and a copy of it to draft into."""

    request: DraftRequest
    before: TokenTree
    both: TokenTree
    budget: Budget
    levels: Levels


class ReadyLevels(NamedTuple):
    """What a drafter had ready for a sequence in the current step: levels, and the seconds that one usually takes."""

    sequence: int
    drafter: str
    bit: int
    levels: int
    seconds: float


class DraftPolicy:
    """What is known about asking each costly drafter, and the decision to ask."""

    def __init__(self) -> None:
        self.ready: list[ReadyLevels] = []  # in the current step
        self.records: dict[str, DrafterRecord] = {}
        self.step_seconds: dict[str, float] = {}  # of draft models that were timed before they were first asked
        self.reading = 0.0  # seconds of the current step in which a drafter read a text without drafting

    def knows(self, name: str) -> bool:
        """Whether there is any figure for the drafter's cost."""
        return name in self.records or name in self.step_seconds

    def renew(self) -> None:
        """A new text starts: what earlier texts taught counts for less."""
        for record in self.records.values():
            record.renew()

    def save(self, seconds: float) -> None:
        """A target decode took `seconds`: a share of it pays for probes."""
        for record in self.records.values():
            record.waited += seconds

    def learn(self, sequence: PlannedSequence, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Learn from the emitted `tokens` how often each drafter's best child of a node was right."""
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
        """The running figures of `drafter`, made when they are first needed."""
        record = self.records.get(drafter.name)
        if record is None:
            known = self.step_seconds.get(drafter.name, 0.0)
            record = self.records[drafter.name] = DrafterRecord(level_seconds=known)
        return record

    def by_promise(self, request: DraftRequest) -> list[Drafter]:
        """The sequence's costly drafters, the most promising first; each later one is judged by what it adds."""
        costly = [d for d in request.sequence.drafters if d.costly]
        if len(costly) < 2 or request.base not in request.costs:
            return costly
        records = {d.name: self.record(d) for d in costly}

        def alone(drafter: Drafter) -> float:
            record = records[drafter.name]
            return imagined(request.costs, [], [1.0], record.acceptance, record.share(request.streams), request.base)

        return sorted(costly, key=alone, reverse=True)

    def ask(self, drafter: Drafter, requests: Sequence[DraftRequest], trees: Sequence[TokenTree]) -> list[TokenTree]:
        """Add the drafts of `drafter` to the trees of the sequences for which it is worth asking; leave the others."""
        begun = [self._begin(drafter, request, tree) for request, tree in zip(requests, trees)]
        asked = [one for one in begun if one is not None]
        if not asked:
            return list(trees)
        record = self.record(drafter)
        record.asked(len(asked))
        record.waited = 0.0
        for one in asked:
            one.levels.start()
        sequences, budgets = [a.request.sequence for a in asked], [a.budget for a in asked]
        drafted = iter(ask(drafter, sequences, budgets, [a.both for a in asked]))
        out = list(trees)
        for i, begin in enumerate(begun):
            if begin is None:
                continue
            both = next(drafted)
            if begin.levels.ready:
                sequence, bit = begin.request.sequence, begin.budget.source
                level = ReadyLevels(sequence.id, drafter.name, bit, begin.levels.ready, record.level_seconds)
                self.ready.append(level)
            if begin.levels.done or begin.levels.ready or len(both) > len(begin.before):
                begin.levels.finish()
                out[i] = both
            else:
                # It is still reading the text; that says nothing about what its drafts cost and gain.
                self.reading += begin.levels.seconds / len(asked)
        return out

    def _begin(self, drafter: Drafter, request: DraftRequest, tree: TokenTree) -> _Asked | None:
        """The budget and tree with which to ask `drafter`; None if it is not worth asking."""
        costs, base = request.costs, request.base
        if base not in costs:
            return None
        record, reach = self.record(drafter), request.acceptance.path_probs(tree)
        level, hope, known = record.share(request.streams), record.acceptance, sorted(reach[1:], reverse=True)
        price = rate(costs, known, base)
        ready = drafter.levels_ready(request.sequence)
        worth = ready > 0 or imagined(costs, known, left_open(tree, reach), hope, level, base) > price
        if not worth and record.waited * PROBE_SHARE < record.level_seconds:
            return None

        def goes_on(draft: TokenTree, frontier: Iterable[int], levels: int) -> bool:
            reach = request.acceptance.path_probs(draft)
            ahead = max((reach[v] for v in frontier), default=0.0)
            # Nodes that other drafters proposed as well count once.
            ranked = sorted(known + [reach[v] for v in draft.beyond(tree)], reverse=True)
            spent = levels * level
            # Where a drafter is sure it tends to stay sure, and `hope` may come from another text.
            surer = max(hope, ahead ** (1 / levels) if levels else 0.0)
            return imagined(costs, ranked, [ahead], surer, level, base, spent) > rate(costs, ranked, base, spent)

        both = TokenTree.root(tree.tokens[0])
        both.merge(tree)
        levels = Levels(record, goes_on, ready)
        return _Asked(request, tree, both, _budget(request, drafter, record, price, levels, patient=worth), levels)


def left_open(tree: TokenTree, reach: Sequence[float]) -> list[float]:
    """For each depth, the probability that the text leaves the tree below a node of that depth."""
    out = [0.0] * (max(tree.depths) + 1)
    for node, p in enumerate(reach):
        out[tree.depths[node]] += p
        if node:
            out[tree.depths[node] - 1] -= p
    return out


def _budget(
    request: DraftRequest, drafter: Drafter, record: DrafterRecord, price: float, levels: Levels, patient: bool
) -> Budget:
    """What the drafter may propose. `patient`: it may read the text for a while; a mere probe may not."""
    bit, row = request.sequence.bit_of(drafter), least_row(request.costs, request.base)

    def expects(depth: int, rank: int, prob: float) -> float:
        return request.acceptance.expected(bit, rank, prob)

    # What a drafter's token must be worth for its children: a row, and the drafter's own row at half a level's cost.
    below = price * (row + record.share(request.streams) / 2) / max(0.1, record.acceptance)
    patience = reading(request.sequence, request.others) if patient else 0.0
    return Budget(
        request.nodes, request.limits.depth, request.branch, bit, SAFE * price * row, below, patience, expects, levels
    )
