"""The planner for a named strategy: it decides nothing."""

from __future__ import annotations

import time
from typing import Sequence

from lcspec.drafters.base import Budget, Drafter, probing
from lcspec.planner.base import Limits, Plan, PlannedSequence, Planner, Proposal, ask, reading
from lcspec.spec import cutting
from lcspec.spec.token_tree import TokenTree


class FixedPlanner(Planner):
    """Gives every drafter `max_draft` nodes (or the drafter's default), and keeps the best of them."""

    def propose(self, sequences: Sequence[PlannedSequence], limits: Sequence[Limits], others: int) -> list[Proposal]:
        """Ask with the same budget in every step, within what the step has room for."""
        start = time.perf_counter()
        trees = {sequence.id: TokenTree.root(sequence.tokens[-1]) for sequence in sequences}
        room = dict(zip(trees, limits))
        drafters = {drafter.name: drafter for sequence in sequences for drafter in sequence.drafters}
        for drafter in drafters.values():
            asked = [sequence for sequence in sequences if drafter in sequence.drafters]
            budgets = [_budget(sequence, drafter, room[sequence.id], others) for sequence in asked]
            found = ask(drafter, asked, budgets, [trees[sequence.id] for sequence in asked])
            trees.update((sequence.id, tree) for sequence, tree in zip(asked, found))
        seconds = (time.perf_counter() - start) / len(sequences)
        return [Proposal(sequence, trees[sequence.id], room[sequence.id], seconds) for sequence in sequences]

    def select(self, proposals: Sequence[Proposal], base: int, context: int, streams: int = 0) -> Plan:
        """Cut every tree to what the step has room for."""
        for p in proposals:
            wanted = p.sequence.request.speculation.max_draft
            p.probe_rows = _reserved(p)
            nodes = p.limits.nodes - p.probe_rows
            nodes = nodes if wanted is None else min(nodes, wanted)
            columns = min(p.limits.leaves // 2, p.probe_rows)
            p.kept = cutting.best(cutting.with_leaves(p.tree, p.limits.leaves - columns), nodes)
        return Plan()


def _budget(sequence: PlannedSequence, drafter: Drafter, limits: Limits, others: int) -> Budget:
    speculation = sequence.request.speculation
    spec = next(spec for spec in speculation.drafters if spec.name == drafter.name)
    default = drafter.default_nodes if speculation.max_draft is None else speculation.max_draft
    nodes = min(limits.nodes, spec.integer("nodes", default, 0, 255))
    branch = 1 if limits.leaves == 1 else spec.integer("branch", drafter.default_branch, 1, 64)
    patience = reading(sequence, others) if drafter.costly else 0.0
    return Budget(nodes, limits.depth, branch, sequence.bit_of(drafter), reading=patience)


def _reserved(p: Proposal) -> int:
    """Rows for windows (see lcspec.engine.fitting): what the user's parameters ask for, at most half of the step."""
    rows = sum(d.reserved_rows(p.sequence) for d in probing(p.sequence.drafters)) if p.limits.leaves > 1 else 0
    return min(rows, max(p.limits.nodes // 2, p.limits.nodes - p.tree.n_drafted))
