"""The planner that decides nothing: a user named what to draft."""

from __future__ import annotations

import time
from typing import Sequence

from lcspec.drafters.base import Budget, branch_of
from lcspec.planner.base import Limits, Plan, PlannedSequence, Proposal, ask, reading
from lcspec.planner.lookahead_budget import reserved
from lcspec.spec.token_tree import TokenTree


class FixedPlanner:
    """No decisions: every drafter gets `max_draft` (or its own default) nodes, and the best of them are kept."""

    def rest(self, others: int) -> Plan | None:
        """Never."""
        return None

    def propose(self, sequence: PlannedSequence, limits: Limits, others: int) -> Proposal:
        """The same budget every step, within what the step can take."""
        start = time.perf_counter()
        wanted = sequence.request.speculation.max_draft
        tree = TokenTree.root(sequence.tokens[-1])
        for drafter, spec in zip(sequence.drafters, sequence.request.speculation.drafters):
            own = spec.integer("nodes", drafter.default_nodes if wanted is None else wanted, 0, 255)
            branch = 1 if limits.leaves == 1 else spec.integer("branch", branch_of(drafter), 1, 64)
            patience = reading(sequence, others) if drafter.costly else 0.0
            budget = Budget(min(limits.nodes, own), limits.depth, branch, sequence.bit_of(drafter), reading=patience)
            tree = ask(sequence, drafter, budget, tree)
        return Proposal(sequence, tree, limits, time.perf_counter() - start)

    def select(self, proposals: Sequence[Proposal], base: int, context: int, streams: int = 0) -> Plan:
        """Cut every tree to what the step can take."""
        for p in proposals:
            wanted = p.sequence.request.speculation.max_draft
            p.probe_rows = reserved(p)
            nodes = p.limits.nodes - p.probe_rows
            nodes = nodes if wanted is None else min(nodes, wanted)
            columns = min(p.limits.leaves // 2, p.probe_rows)
            p.kept = p.tree.best(nodes).with_leaves(p.limits.leaves - columns)
        return Plan()

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Nothing to learn."""

    def timed(self, width: int, context: int, seconds: float) -> None:
        """Nothing to learn."""

    def aside(self, seconds: float) -> None:
        """Nothing to learn."""
