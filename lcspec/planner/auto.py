"""Decides which drafters to ask, how deep, and how many of their nodes to keep.

Let P(v) be the probability that node v is accepted. P never grows along a path, so the n most probable nodes form a
tree, and it is the best one of n nodes. Every step maximises

    tokens / time = (B + sum of the n best P) / (T(B + n) + drafting time)

for B sequences, with T the measured cost curve; n = 0 is plain decoding. The same formula serves one sequence and many:
the nodes of all of them compete for the rows of one step, so speculation fades as load rises.

What a text may lose by drafting is bounded (see lcspec.planner.loss_budget).
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from typing import Iterator, Sequence

from lcspec.drafters.base import Budget
from lcspec.planner.acceptance import Acceptance
from lcspec.planner.base import Limits, Plan, PlannedSequence, Proposal, ask
from lcspec.planner.loss_budget import LossBudget
from lcspec.planner.overlap import Overlap
from lcspec.planner.policy import BRANCH, DraftPolicy, DraftRequest
from lcspec.planner.shadow import Shadows, half_right_pays
from lcspec.planner.worth import Item, best_chain, choose
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.stake import Costs
from lcspec.spec import cutting
from lcspec.spec.token_tree import TokenTree

# Steps for which a table of costs is kept.
TABLE_STEPS = 8
# The most nodes that a drafter is asked for which costs nothing.
FREE_NODES = 24
# The displayed speed-up averages over about RECENT plain steps, and is None before KNOWN of them.
RECENT, KNOWN = 64.0, 16.0


class AutoPlanner:
    """The planner of the module docstring."""

    def __init__(self, curve: CostCurve, acceptance: Acceptance | None = None, *, in_turn: bool = False) -> None:
        """Plan with a measured `curve`. `in_turn`: the library evaluates what one of several sequences drafted after
        the next token of all of them, as it does where each has a cache or a state of its own.
        """
        self.curve = curve
        self.in_turn = in_turn
        self.acceptance = acceptance or Acceptance()
        self.costly = DraftPolicy()
        self.budgets = defaultdict[int, LossBudget](LossBudget)  # by how many sequences decode
        self.overlap = Overlap()
        self.decode_seconds = 0.0
        self._costs: Costs = {}
        self._tables: dict[tuple[frozenset[int] | None, int, int, int], Costs] = {}
        self._steps = 0
        self._emitted = self._plain = 0.0  # running sums: tokens, and what plain decoding would have emitted
        # The current step: whether it backs off, or only looks what drafters would say; sequences that decode, those of
        # them planned for, tokens so far, seconds of a decode without drafts, and seconds of its decode.
        self._backing_off = self._looking = False
        self._shadows, self._begins = Shadows(), True  # the next single text is another one
        self._streams = self._planned = 1
        self._tokens = 0
        self._narrowest = self._decode = 0.0
        self._plain_width = 1  # of a step without drafts

    @property
    def speedup(self) -> float | None:
        """Tokens per second over those of plain decoding in recent steps, at least 1; None until it is known."""
        return max(1.0, self._emitted / self._plain) if self._plain >= KNOWN else None

    @property
    def budget(self) -> LossBudget:
        """What the texts of the current step may lose."""
        return self.budgets[self._streams]

    def backoff(self, streams: int) -> Plan | None:
        """A plain step while the texts have lost as much as they may (see LossBudget)."""
        if streams not in self._costs or self._looking:
            return None
        self._streams = self._planned = self._tokens = streams
        if self._begins and streams == 1:
            self._begin()
        seconds, width = self._costs[streams]
        self._narrowest, self._backing_off = seconds, self.budget.pauses
        self._looking = self._backing_off and self._shadows.due()
        return Plan(width, float(streams), seconds) if self._backing_off and not self._looking else None

    def _begin(self) -> None:
        """A text begins. It is looked at before anything is drafted where drafts that a look calls right would not pay.
        Drafters that run a model cannot be looked at."""
        self._begins = False
        looks = not (self.costly.records or half_right_pays(self._costs))
        self.budget.begin(looks)
        if looks:
            self._shadows.begin()

    def propose(self, sequences: Sequence[PlannedSequence], limits: Sequence[Limits], others: int) -> list[Proposal]:
        """Ask free drafters always; costly ones while they promise a better rate, or as a bounded probe."""
        start = time.perf_counter()
        self.costly.saved = 0.0
        capped = [limit._replace(nodes=self._nodes(s, limit)) for s, limit in zip(sequences, limits)]
        trees = [self._free(s, limit) for s, limit in zip(sequences, capped)]
        if self._looking and not self._resumes(sequences, trees):
            return [Proposal(s, tree, limit) for s, tree, limit in zip(sequences, trees, limits)]
        context = sum([len(sequence.tokens) for sequence in sequences]) // len(sequences)
        requests: dict[int, DraftRequest] = {}
        for i, (sequence, limit) in enumerate(zip(sequences, capped)):
            costs, streams = self._table(context, limit.widths, others + 1), len(sequences)
            if limit.nodes > 0 and others + 1 in costs and any([drafter.costly for drafter in sequence.drafters]):
                requests[i] = DraftRequest(
                    sequence, limit, trees[i], others, costs, self.curve.stake, streams, self.acceptance
                )
        self.budget.costly = bool(requests)
        asked = {d.name: d for request in requests.values() for d in request.sequence.drafters if d.costly}
        # The one that is right most often comes first; each later one is judged by what it adds.
        for drafter in sorted(asked.values(), key=lambda d: -self.costly.record(d).acceptance):
            self.costly.ask(drafter, list(requests.values()))
        for i, request in requests.items():
            trees[i] = request.tree
        seconds = (time.perf_counter() - start) / len(sequences)
        return [Proposal(sequence, tree, limit, seconds) for sequence, tree, limit in zip(sequences, trees, limits)]

    def _resumes(self, sequences: Sequence[PlannedSequence], trees: Sequence[TokenTree]) -> bool:
        """Look at what drafters say; returns whether that ends the pause."""
        if not (self._shadows.were_right(sequences) | self._shadows.sure(trees, self.acceptance)):
            self._shadows.keep(sequences, trees)
            return False
        self.budget.begin()
        self._backing_off = self._looking = False
        return True

    def _nodes(self, sequence: PlannedSequence, limits: Limits) -> int:
        """The most drafted nodes that a step may have for the sequence."""
        cap = sequence.request.speculation.max_draft
        return min(limits.nodes, self.curve.max_width - 1, limits.nodes if cap is None else cap)

    def _free(self, sequence: PlannedSequence, limits: Limits) -> TokenTree:
        """The merged drafts of the drafters that cost nothing."""
        tree = TokenTree.root(sequence.tokens[-1])
        for drafter in sequence.drafters:
            if not drafter.costly:
                branch = 1 if limits.leaves == 1 else max(BRANCH, drafter.default_branch)
                budget = Budget(min(limits.nodes, FREE_NODES), limits.depth, branch, sequence.bit_of(drafter))
                [tree] = ask(drafter, [sequence], [budget], [tree])
        return tree

    def select(self, proposals: Sequence[Proposal], base: int, context: int, streams: int = 0) -> Plan:
        """Keep the n most probable nodes of all sequences together; n maximises expected tokens per second."""
        self._costs = self._table(context, proposals[0].limits.widths, base)
        self._plain_width = self._costs[base][1] if base in self._costs else base
        # Streams without drafts lose as much by a longer step as the others.
        streams = self._streams = max(streams, len(proposals))
        self._planned, self._tokens = len(proposals), 0
        self._narrowest = self._costs[min(streams, base)][0] if base in self._costs else 0.0
        # All sequences share the width: what one of them takes is missing for the others.
        room = max((p.limits.nodes for p in proposals), default=0)
        if not self._narrowest or self._looking:
            for p in proposals:
                p.kept = TokenTree.root(p.tree.tokens[0])
            return Plan(self._plain_width if self._looking else 0, float(streams), self._narrowest)
        pool: list[Item] = []
        need, expected = base, float(streams)
        for i, p in enumerate(proposals):
            nodes = self._nodes(p.sequence, p.limits)
            if p.tree.n_drafted == 0 or nodes <= 0:
                p.kept = cutting.best(p.tree, 0)
                continue
            reach = self.acceptance.path_probs(p.tree)
            if p.tree.trials:
                # Sampled drafts must not be chosen by the tokens they drew (see TokenTree.best).
                p.kept = cutting.best(cutting.with_leaves(p.tree, p.limits.leaves), min(nodes, room))
                room -= p.kept.n_drafted
                need += p.kept.n_drafted
                expected += sum(reach[1:]) * p.kept.n_drafted / p.tree.n_drafted
            else:
                # Drafters draft into one tree each up to the limit, so the tree may exceed it.
                chosen = best_chain(p.tree, reach, self._costs, base) if p.limits.leaves == 1 else range(1, len(p.tree))
                pool += sorted([Item(-reach[v], i, v) for v in chosen])[:nodes]
        if not pool:
            seconds, width = self._costs.get(need, (0.0, 0))
            return Plan(width, expected, seconds)
        pool.sort()
        drafting = sum(p.seconds for p in proposals)
        beside = self._stakes(pool, proposals, base) if self.curve.stake is not None else itertools.repeat(0.0)
        n, considered = choose(pool[: max(0, room)], self._costs, base, need, expected, drafting, beside)
        for i, p in enumerate(proposals):
            if p.kept is None:
                chosen = [item.node for item in pool[:n] if item.proposal == i]
                kept = p.tree if len(chosen) == p.tree.n_drafted else cutting.pruned(p.tree, chosen)
                p.kept = cutting.with_leaves(kept, p.limits.leaves)
        expected -= sum([item.worth for item in pool[:n]])
        seconds, width = self._costs.get(need + n, (0.0, 0))
        seconds = max(0.0, seconds - self.curve.change.price) if width != self._plain_width else seconds
        # No draft saves more time than its tokens would have taken plainly.
        least = max(0.0, expected / streams * self._narrowest - seconds - drafting)
        self.overlap.gained = min(self.costly.saved, least)
        return Plan(width, expected, seconds, considered)

    def _stakes(self, pool: Sequence[Item], proposals: Sequence[Proposal], base: int) -> Iterator[float]:
        """For each node of the pool, what it and those before it cost beside their rows (see CostCurve.stake)."""
        assert self.curve.stake is not None
        reach, seconds = defaultdict[int, list[float]](list), dict[int, float]()
        for item in pool:
            reach[item.proposal].append(-item.worth)
            uncached = proposals[item.proposal].sequence.n_uncached
            seconds[item.proposal] = self.curve.stake.seconds(self._costs, base, uncached, reach[item.proposal])
            yield sum(seconds.values())

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Learn from every drafted node whose outcome is known, kept or not."""
        self._tokens += len(tokens)
        tree, sequence = proposal.tree, proposal.sequence
        if tree.n_drafted:
            self.acceptance.observe(tree, tokens)
            self.costly.learn(sequence, tree, tokens)

    def timed(self, width: int, context: int, seconds: float) -> None:
        """Correct the cost curve, by steps during which nothing was drafted ahead."""
        if self.overlap.running:
            alone = self.curve.seconds(width, context)
            self.overlap.gained -= seconds - alone if math.isfinite(alone) else 0.0
        else:
            after = max(0, width - self._plain_width) if self.in_turn and self._plain_width > 1 else 0
            self.curve.observe(width, context, seconds, width == self._plain_width, after)
        self._decode = seconds
        self.decode_seconds += seconds
        self.costly.save(seconds)
        self._steps += 1
        if self._steps % TABLE_STEPS == 0:
            self._tables.clear()

    def observe_overhead(self, seconds: float) -> None:
        """Note the seconds that the step took besides its decode, and update the loss budget and the speed-up."""
        if self._tokens and self._narrowest and self._decode:
            tokens = self._tokens + self._streams - self._planned
            if self._looking:
                self._shadows.took(self.budget.planning(seconds, self._narrowest))
            elif self._backing_off:
                self.budget.unplanned(seconds)
            else:
                beside = seconds - self.costly.reading
                self.budget.planned(tokens / self._streams, self._decode, beside, self._narrowest)
            plain = self._streams * (self._decode + seconds) / (self._narrowest + (self.budget.bare or 0.0))
            keep = max(0.0, 1.0 - plain / RECENT)
            self._emitted, self._plain = self._emitted * keep + tokens, self._plain * keep + plain
        if self._narrowest:
            self.overlap.finish(self._narrowest)
        self._backing_off = self._looking = False
        self._tokens, self._decode, self.costly.reading = 0, 0.0, 0.0

    def forget(self, sequence: PlannedSequence) -> None:
        """The request has ended: the next single text has a loss budget of its own, and earlier ones count for less."""
        self._begins = True
        for record in self.costly.records.values():
            record.renew()

    def _table(self, context: int, widths: frozenset[int] | None, base: int) -> Costs:
        """What steps cost that need at least `base` rows, kept for a few steps, in which the context grows little."""
        change = self.curve.change
        key = widths, base, change.since, change.last
        if key not in self._tables:
            bare = widths, 0, 0, 0
            if bare not in self._tables:
                self._tables[bare] = self.curve.effective(context, widths)
            self._tables[key] = self.curve.with_changes(self._tables[bare], context, base, in_turn=self.in_turn)
        return self._tables[key]
