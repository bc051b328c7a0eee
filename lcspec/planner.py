"""Which drafters to ask, and how many of their nodes to keep."""

from __future__ import annotations

from typing import Protocol

from lcspec.drafters.base import Budget
from lcspec.slot import Slot
from lcspec.tree import TokenTree
from lcspec.verify import Verdict

Limits = tuple[int, int, int]  # nodes, depth, leaves a step can take


class Planner(Protocol):
    """Decides for every step; learns from what it cost and what was accepted."""

    def budgets(self, slot: Slot, limits: Limits) -> list[Budget]:
        """What each of the slot's drafters may propose, in the slot's order."""

    def select(self, slot: Slot, tree: TokenTree, limits: Limits) -> TokenTree:
        """The part of the merged tree that is worth its width."""

    def observe(self, slot: Slot, tree: TokenTree, verdict: Verdict) -> None:
        """What came of a selected tree."""

    def timed(self, width: int, seconds: float) -> None:
        """A target decode `width` tokens wide took `seconds`."""


class FixedPlanner:
    """No decisions: every drafter gets `max_draft` (or its own default) nodes, and the best of them are kept."""

    def budgets(self, slot: Slot, limits: Limits) -> list[Budget]:
        """The same budget every step, within what the step can take."""
        nodes, depth, leaves = limits
        wanted = slot.request.speculation.max_draft
        out = []
        for drafter, spec in zip(slot.drafters, slot.request.speculation.drafters):
            own = spec.integer("nodes", drafter.default_nodes if wanted is None else wanted, 0, 255)
            branch = 1 if leaves == 1 else spec.integer("branch", 1, 1, 64)
            out.append(Budget(min(nodes, own), depth, branch))
        return out

    def select(self, slot: Slot, tree: TokenTree, limits: Limits) -> TokenTree:
        """Cut the merged tree to what the step can take."""
        nodes, _, leaves = limits
        wanted = slot.request.speculation.max_draft
        tree = tree.best(nodes if wanted is None else min(nodes, wanted))
        return tree.with_leaves(leaves)

    def observe(self, slot: Slot, tree: TokenTree, verdict: Verdict) -> None:
        """Nothing to learn."""

    def timed(self, width: int, seconds: float) -> None:
        """Nothing to learn."""
