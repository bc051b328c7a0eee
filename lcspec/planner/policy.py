"""When to ask drafters that run a model: in which order, whether one is worth its time, and how deep.

The policy imagines a chain of a drafter's tokens, accepted at its usual rate. It asks the drafter if the step has a
better rate with the chain than without, and begins with the drafter whose chain is best. What it has drafted ahead
takes no time, so it is taken in any case. A drafter that is not worth its time is probed when 1 % of the decode time
has paid for one level and for catching up with the text. While it drafts, it goes on level by level as long as another
level promises a better rate.
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
from lcspec.profiles.stake import Costs, Stake
from lcspec.spec.token_tree import TokenTree

# The most children of a node that drafters are asked for.
BRANCH = 3
# Share of the decode time that probes of one drafter may take.
PROBE_SHARE = 0.01


@dataclass
class DraftRequest:
    """A sequence's step, as the policy for costly drafters sees it.

    Attributes:
        sequence, limits: whose step it is, and what may be drafted for it.
        tree: what has been drafted in this step.
        others: the width in tokens that the other sequences need.
        costs, stake: what rows cost the target, and what a chain costs beside its rows; a step without drafts is among
            the widths that are known.
        streams: number of sequences that are planned for.
        acceptance: the calibrated acceptance of drafts.
    """

    sequence: PlannedSequence
    limits: Limits
    tree: TokenTree
    others: int
    costs: Costs
    stake: Stake | None
    streams: int
    acceptance: Acceptance

    def shared(self, hope: float) -> tuple[Costs, int]:
        """What the sequence's nodes cost it, and its width without any, if tokens are accepted with probability `hope`.

        With several streams, each is charged its share of a step in which all of them draft alike. Where T is flat
        between two widths, none of them would fill it alone, and all of them together gain.
        """
        base, costs, streams = self.others + 1, self.costs, self.streams
        if self.stake is not None:
            costs = self.stake.table(costs, base, hope)
        if streams == 1:
            return costs, base
        rows = range(base, max(costs) + 1, streams)
        return {1 + n: (costs[r][0] / streams, costs[r][1]) for n, r in enumerate(rows) if r in costs}, 1


class Levels:
    """Decides after each level of a draft whether another level is worth its time, and times the levels.

    Attributes:
        ready: levels that there were already, which take no time.
        done: levels that were drafted in this step.
    """

    def __init__(self, record: DrafterRecord, goes_on: Callable[[TokenTree, Iterable[int], int], bool], ready: int):
        """`goes_on(draft, newest nodes, levels so far)`: whether another level promises a better rate."""
        self.ready, self.done = ready, 0
        self._record, self._goes_on = record, goes_on
        self._running, self._start = not ready, 0.0

    def start(self) -> None:
        """Start the clock: a level begins."""
        self._start = time.perf_counter()

    def __call__(self, draft: TokenTree, frontier: Iterable[int]) -> bool:
        """See Budget.keep_going."""
        self.finish()  # the first time, what was ready
        self._running = self._goes_on(draft, frontier, self.done)
        return self._running

    @property
    def seconds(self) -> float:
        """Seconds since `start`."""
        return time.perf_counter() - self._start

    def finish(self) -> None:
        """Record what a level took; what follows a stop are other sequences' levels."""
        if self._running:
            # The first level may also have caught up with the text.
            self._record.took(self.seconds, sure=bool(self.ready or self.done))
            self.done += 1
        self.start()


class ReadyLevels(NamedTuple):
    """What a drafter had ready for a sequence in the current step: levels, and what one usually costs it, seconds."""

    sequence: int
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

    def level_seconds(self, name: str) -> float:
        """What a level of the drafter costs; 0 if there is no figure."""
        record = self.records.get(name)
        return self.step_seconds.get(name, 0.0) if record is None else record.level_seconds

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

    def by_promise(self, requests: Sequence[DraftRequest]) -> list[Drafter]:
        """The sequences' costly drafters, the most promising first; each later one is judged by what it adds."""
        costly = {d.name: d for request in requests for d in request.sequence.drafters if d.costly}

        def promise(drafter: Drafter) -> float:
            record = self.record(drafter)
            costs, base = requests[0].shared(record.acceptance)
            return imagined(costs, [], [1.0], record.acceptance, record.share(requests[0].streams), base)

        return sorted(costly.values(), key=promise, reverse=True) if len(costly) > 1 else list(costly.values())

    def ask(self, drafter: Drafter, requests: Sequence[DraftRequest]) -> None:
        """Add the drafts of `drafter` to the trees of the sequences for which it is worth asking."""
        asked = list[tuple[DraftRequest, Budget, Levels]]()
        for request in requests:
            mine = drafter.name in [d.name for d in request.sequence.drafters]
            if mine and (begun := self._begin(drafter, request)) is not None:
                asked.append((request, *begun))
        if not asked:
            return
        record = self.record(drafter)
        record.sharing, record.waited = len(asked), 0.0
        for _, _, levels in asked:
            levels.start()
        sequences, budgets = [request.sequence for request, _, _ in asked], [budget for _, budget, _ in asked]
        trees = ask(drafter, sequences, budgets, [request.tree for request, _, _ in asked])
        for (request, budget, levels), tree in zip(asked, trees):
            request.tree = tree
            if levels.ready:
                level = record.share(len(asked))
                self.ready.append(ReadyLevels(request.sequence.id, budget.source, levels.ready, level))
            if levels.done or levels.ready or any(source & budget.source for source in tree.sources):
                levels.finish()
            else:
                # It is still reading the text; that says nothing about what its drafts cost and gain.
                record.reading = levels.seconds / len(asked)
                self.reading += record.reading

    def _begin(self, drafter: Drafter, request: DraftRequest) -> tuple[Budget, Levels] | None:
        """The budget with which to ask `drafter`, and its levels; None if it is not worth asking."""
        record, before = self.record(drafter), request.tree
        hope, level = record.acceptance, record.share(request.streams)
        costs, base = request.shared(hope)
        reach = request.acceptance.path_probs(before)
        known = sorted(reach[1:], reverse=True)
        price = rate(costs, known, base)
        ready = drafter.levels_ready(request.sequence)
        worth = ready > 0 or imagined(costs, known, left_open(before, reach), hope, level, base, enough=price) > price
        if not worth and record.waited * PROBE_SHARE < record.probe_seconds:
            return None

        def goes_on(draft: TokenTree, frontier: Iterable[int], levels: int) -> bool:
            reach = request.acceptance.path_probs(draft)
            ahead = max((reach[v] for v in frontier), default=0.0)
            # Nodes that other drafters proposed as well count once.
            ranked = sorted(known + [reach[v] for v in draft.beyond(before)], reverse=True)
            spent = levels * level
            # Where a drafter is sure it tends to stay sure, and `hope` may come from another text.
            surer = max(hope, ahead ** (1 / levels) if levels else 0.0)
            without = rate(costs, ranked, base, spent)
            return imagined(costs, ranked, [ahead], surer, level, base, spent, without) > without

        def expects(depth: int, rank: int, prob: float) -> float:
            return request.acceptance.expected(bit, rank, prob)

        bit, levels = request.sequence.bit_of(drafter), Levels(record, goes_on, ready)
        row = least_row(costs, base)
        # What a token must be worth for children of its own: a row, and the drafter's own row at half a level's cost.
        below = price * (row + level / 2) / max(0.1, hope)
        patience = reading(request.sequence, request.others) if worth else 0.0  # a mere probe does not wait
        nodes, depth, leaves, _ = request.limits
        branch = 1 if leaves == 1 else BRANCH
        return Budget(nodes, depth, branch, bit, price * row, below, patience, expects, levels), levels


def left_open(tree: TokenTree, reach: Sequence[float]) -> list[float]:
    """For each depth, the probability that the text leaves the tree below a node of that depth."""
    out = [0.0] * (max(tree.depths) + 1)
    for node, p in enumerate(reach):
        out[tree.depths[node]] += p
        if node:
            out[tree.depths[node] - 1] -= p
    return out
