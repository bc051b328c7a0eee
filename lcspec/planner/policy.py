"""When to ask drafters that run a model: whether one is worth its time, and how deep.

The policy imagines a chain of a drafter's tokens, accepted at its usual rate. It asks the drafter if the step has a
better rate with the chain than without. What it has drafted ahead takes no time, so it is taken in any case. A drafter
that is not worth its time is probed when 1 % of the decode time has paid for one level and for catching up with the
text. While it drafts, it goes on level by level as long as another level promises a better rate.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Iterable, Iterator, Sequence

from lcspec.drafters.base import Budget, Drafter
from lcspec.planner.acceptance import Acceptance, tested
from lcspec.planner.base import Limits, PlannedSequence, ask, reading
from lcspec.planner.record import DrafterRecord
from lcspec.planner.worth import best_chain, chain_worth, imagined, least_row, rate
from lcspec.profiles.stake import Costs, Stake
from lcspec.spec.token_tree import TokenTree

# The most children of a node that drafters are asked for.
BRANCH = 3
# How many levels are imagined ahead: one more node may not pay where four more (the next cheap width) would.
LOOKAHEAD = 16
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
    """A drafter that runs a model, and a sequence: decides whether to ask, after each level whether another level is
    worth its time, and times the levels.

    Attributes:
        ready: levels that there were already, which take no time.
        done: levels that were drafted in this step.
        worth: whether to ask promises a better rate.
    """

    def __init__(self, drafter: Drafter, record: DrafterRecord, request: DraftRequest) -> None:
        self.request, self.bit = request, request.sequence.bit_of(drafter)
        self.ready, self.done = drafter.levels_ready(request.sequence), 0
        self._record, self._hope, self._level = record, record.acceptance, record.share(request.streams)
        self._running, self._start = not self.ready, 0.0
        self._costs, self._base = request.shared(self._hope)
        self._before, reach = request.tree, request.acceptance.path_probs(request.tree)
        self._chains = request.limits.leaves == 1  # only one can be verified
        verified = best_chain(request.tree, reach, self._costs, self._base) if self._chains else range(1, len(reach))
        self._known = sorted([reach[v] for v in verified], reverse=True)
        self._price = rate(self._costs, self._known, self._base)
        # The i-th token of the chain is right with probability hope ** i. It brings something only where the text has
        # left the drafts of others by then.
        drafted = [0.0] * (LOOKAHEAD + 1)
        for v in verified:
            drafted[min(request.tree.depths[v], LOOKAHEAD)] += reach[v]
        chain = ((1.0 - drafted[i]) * p for i, p in enumerate(self._chain(1.0, self._hope, self._price), 1))
        self.worth = self.ready > 0 or self._better(self._known, chain, 0.0, self._price)

    def _chain(self, reach: float, hope: float, price: float) -> Iterator[float]:
        """How likely the tokens of a chain are reached that begins where the text is `reach`ed, while one is worth its
        level: a token that is not leaves the step no better rate, and neither do those below it."""
        for _ in range(LOOKAHEAD):
            reach *= hope
            if reach <= price * self._level:
                return
            yield reach

    def _better(self, known: Sequence[float], chain: Iterable[float], spent: float, price: float) -> bool:
        """Whether a chain of more nodes brings more than `price` tokens per second."""
        return imagined(self._costs, known, chain, self._level, self._base, spent, price) > price

    def budget(self) -> Budget:
        """What the drafter is asked for."""
        row, request = least_row(self._costs, self._base), self.request
        # What a token must be worth for children of its own: a row, and the drafter's own row at half a level's cost.
        below = self._price * (row + self._level / 2) / max(0.1, self._hope)
        patience = reading(request.sequence, request.others) if self.worth else 0.0  # a mere probe does not wait
        nodes, depth, leaves, _ = request.limits
        branch, expects = 1 if leaves == 1 else BRANCH, functools.partial(request.acceptance.expected, self.bit)
        return Budget(nodes, depth, branch, self.bit, self._price * row, below, patience, expects, self)

    def start(self) -> None:
        """Start the clock: a level begins."""
        self._start = time.perf_counter()

    def __call__(self, draft: TokenTree, frontier: Iterable[int]) -> bool:
        """See Budget.keep_going."""
        self.finish()  # the first time, what was ready
        reach = self.request.acceptance.path_probs(draft)
        ahead = max((reach[v] for v in frontier), default=0.0)
        if self._chains:
            ranked = max(self._known, reach[1:], key=lambda probs: chain_worth(self._costs, probs, self._base))
        else:  # nodes that other drafters proposed as well count once
            ranked = sorted(self._known + [reach[v] for v in draft.beyond(self._before)], reverse=True)
        spent = self.done * self._level
        # Where a drafter is sure it tends to stay sure, and its usual rate may come from another text.
        hope = max(self._hope, ahead ** (1 / self.done) if self.done else 0.0)
        price = rate(self._costs, ranked, self._base, spent)
        self._running = self._better(ranked, self._chain(ahead, hope, price), spent, price)
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


class DraftPolicy:
    """What is known about asking each costly drafter, and the decision to ask."""

    def __init__(self) -> None:
        self.saved = 0.0  # seconds that levels would have taken which were ready in the current step
        self.records: dict[str, DrafterRecord] = {}
        self.reading = 0.0  # seconds of the current step in which a drafter read a text without drafting

    def level_seconds(self, name: str) -> float:
        """What a level of the drafter costs; 0 if there is no figure."""
        return self.records[name].level_seconds if name in self.records else 0.0

    def save(self, seconds: float) -> None:
        """A target decode took `seconds`: a share of it pays for probes."""
        for record in self.records.values():
            record.waited += seconds

    def learn(self, sequence: PlannedSequence, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Learn from the emitted `tokens` how often each drafter's best child of a node was right."""
        for drafter in sequence.drafters:
            if drafter.costly:
                bit, best = sequence.bit_of(drafter), dict[int, tuple[float, bool]]()
                for node, hit in tested(tree, tokens):
                    parent = tree.parents[node]
                    if tree.sources[node] & bit and tree.probs[node] > best.get(parent, (-1.0, False))[0]:
                        best[parent] = tree.probs[node], hit
                for _, hit in best.values():
                    self.record(drafter).saw(hit)

    def record(self, drafter: Drafter) -> DrafterRecord:
        """The running figures of `drafter`, made when they are first needed."""
        return self.records.setdefault(drafter.name, DrafterRecord())

    def ask(self, drafter: Drafter, requests: Sequence[DraftRequest]) -> None:
        """Add the drafts of `drafter` to the trees of the sequences for which it is worth asking."""
        record, asked = self.record(drafter), list[Levels]()
        for request in requests:
            if drafter.name in [d.name for d in request.sequence.drafters]:
                levels = Levels(drafter, record, request)
                if levels.worth or record.waited * PROBE_SHARE >= record.level_seconds + record.reading:
                    asked.append(levels)
        if not asked:
            return
        record.sharing, record.waited = len(asked), 0.0
        sequences, budgets = [levels.request.sequence for levels in asked], [levels.budget() for levels in asked]
        for levels in asked:
            levels.start()
        trees = ask(drafter, sequences, budgets, [levels.request.tree for levels in asked])
        for levels, tree in zip(asked, trees):
            levels.request.tree = tree
            self.saved += record.share(len(asked)) * levels.ready
            if levels.done or levels.ready or any(source & levels.bit for source in tree.sources):
                levels.finish()
            else:
                # It is still reading the text; that says nothing about what its drafts cost and gain.
                record.reading = levels.seconds / len(asked)
                self.reading += record.reading
