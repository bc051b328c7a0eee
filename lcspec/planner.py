"""The planner protocol, what it works with, and the planner that decides nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, Sequence

from lcspec.drafters.base import Budget, Drafter
from lcspec.tree import TokenTree

if TYPE_CHECKING:
    from lcspec.slot import Slot


class Limits(NamedTuple):
    """What a step can take for one slot: drafted nodes, their depth, leaves of the tree.

    `widths`: the step must be one of these many tokens wide (padding included); None means any.
    """

    nodes: int
    depth: int
    leaves: int
    widths: frozenset[int] | None = None


NOTHING = Limits(0, 0, 1)


@dataclass(slots=True)
class Proposal:
    """What the drafters of one slot said this step, and what was kept of it.

    `free`: what the free drafters alone had said, if a costly one was asked as well.
    """

    slot: Slot
    tree: TokenTree
    limits: Limits
    seconds: float = 0.0
    kept: TokenTree | None = None
    free: TokenTree | None = None


@dataclass(slots=True)
class Plan:
    """The outcome of a step's planning.

    Attributes:
        width: pad the batch to this many tokens (0: as it is).
        tokens: tokens the step is expected to emit, over all slots.
        seconds: target time it is expected to take; 0.0 when unknown.
        considered: (drafted nodes, expected tokens, expected seconds) of every width that was weighed.
    """

    width: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    considered: list[tuple[int, float, float]] = field(default_factory=list)


class Planner(Protocol):
    """Decides for every step; learns from what it cost and what was accepted."""

    def propose(self, slot: Slot, limits: Limits, others: int) -> Proposal:
        """Ask the slot's drafters; `others` is the width the other slots need anyway."""

    def select(self, proposals: Sequence[Proposal], base: int, context: int, streams: int = 0) -> Plan:
        """Set `kept` of every proposal.

        `base`: width without any drafted node; `context`: mean context length; `streams`: slots that decode in this
        step, also those without a proposal (0: there are no others).
        """

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """A slot emitted `tokens` after its proposal."""

    def timed(self, width: int, context: int, seconds: float) -> None:
        """A target decode took `seconds`."""


def ask(slot: Slot, drafter: Drafter, budget: Budget, tree: TokenTree) -> None:
    """Merge what `drafter` says into `tree`."""
    if budget.nodes > 0 and budget.depth > 0:
        tree.merge(drafter.draft(slot, budget))


class FixedPlanner:
    """No decisions: every drafter gets `max_draft` (or its own default) nodes, and the best of them are kept."""

    def propose(self, slot: Slot, limits: Limits, others: int) -> Proposal:
        """The same budget every step, within what the step can take."""
        start = time.perf_counter()
        wanted = slot.request.speculation.max_draft
        tree = TokenTree.root(slot.tokens[-1])
        for drafter, spec in zip(slot.drafters, slot.request.speculation.drafters):
            own = spec.integer("nodes", drafter.default_nodes if wanted is None else wanted, 0, 255)
            branch = 1 if limits.leaves == 1 else spec.integer("branch", 1, 1, 64)
            ask(slot, drafter, Budget(min(limits.nodes, own), limits.depth, branch, slot.bit_of(drafter)), tree)
        return Proposal(slot, tree, limits, time.perf_counter() - start)

    def select(self, proposals: Sequence[Proposal], base: int, context: int, streams: int = 0) -> Plan:
        """Cut every tree to what the step can take."""
        for p in proposals:
            wanted = p.slot.request.speculation.max_draft
            nodes = p.limits.nodes if wanted is None else min(p.limits.nodes, wanted)
            p.kept = p.tree.best(nodes).with_leaves(p.limits.leaves)
        return Plan()

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Nothing to learn."""

    def timed(self, width: int, context: int, seconds: float) -> None:
        """Nothing to learn."""
