"""The planner protocol, what it works with, and the planner that decides nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Iterator, NamedTuple, Protocol, Sequence

from lcspec.drafters.base import Budget, Drafter, Window, branch_of
from lcspec.pace import UNNOTICED
from lcspec.planner.window import reserved
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

    `free`: what the free drafters alone had said, if a costly one was asked as well. `probe_rows`: rows granted to the
    windows of drafters that have one; `windows`: what they put into them (see lcspec.planner.window).
    """

    slot: Slot
    tree: TokenTree
    limits: Limits
    seconds: float = 0.0
    kept: TokenTree | None = None
    free: TokenTree | None = None
    probe_rows: int = 0
    windows: list[Window] = field(default_factory=list)

    @property
    def n_probes(self) -> int:
        """Probes in the step's batch."""
        return sum(window.tree.n_drafted for window in self.windows)

    @property
    def evaluated(self) -> TokenTree:
        """What goes into the batch: the kept drafts, and the probes behind them."""
        assert self.kept is not None
        return self.kept.with_probes(*(window.tree for window in self.windows)) if self.windows else self.kept

    def asked(self) -> Iterator[tuple[Window, list[int]]]:
        """Every window with the nodes of `evaluated` after which it wants the target's argmax."""
        assert self.kept is not None
        shift = len(self.kept) - 1
        for window in self.windows:
            yield window, [node + shift if node else 0 for node in window.ask] + list(window.drafted)
            shift += window.tree.n_drafted

    @property
    def mute(self) -> set[int]:
        """Nodes of `evaluated` whose logits nobody reads."""
        if not self.windows:
            return set()
        assert self.kept is not None
        probes = range(len(self.kept), len(self.kept) + self.n_probes)
        return set(probes).difference(*(nodes for _, nodes in self.asked()))


@dataclass(slots=True)
class Plan:
    """The outcome of a step's planning.

    Attributes:
        width: pad the batch to this many tokens (0: as it is).
        tokens: tokens the step is expected to emit, over all slots.
        seconds: target time it is expected to take; 0.0 when unknown.
        considered: (drafted nodes, expected tokens, expected seconds, those of drafting included) of every width that
            was weighed.
    """

    width: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    considered: list[tuple[int, float, float]] = field(default_factory=list)


class Planner(Protocol):
    """Decides for every step; learns from what it cost and what was accepted."""

    def rest(self, others: int) -> Plan | None:
        """The plan of a step in which nobody is asked for drafts, nor told what came of it; None: ask.

        `others` is the width the other slots need anyway.
        """

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

    def aside(self, seconds: float) -> None:
        """The step took `seconds` besides its target decode."""


def reading(slot: Slot, others: int) -> float:
    """`Budget.reading` of a slot beside `others`: streams do not wait for a draft model to read somebody else's text.

    Never a matter of time where the text depends on what is drafted, and so on when drafts begin.
    """
    steady = slot.verifier.lossless and not slot.draws
    return UNNOTICED if steady and not others else 0.0


def ask(slot: Slot, drafter: Drafter, budget: Budget, tree: TokenTree) -> TokenTree:
    """`tree` with what `drafter` says merged into it, as far as the text may go on; the drafter's own tree where
    `tree` is bare."""
    if budget.nodes <= 0 or budget.depth <= 0:
        return tree
    drafted = drafter.draft(slot, budget).ended(slot.end_tokens)
    if len(tree) == 1:
        return drafted
    tree.merge(drafted)
    return tree


class FixedPlanner:
    """No decisions: every drafter gets `max_draft` (or its own default) nodes, and the best of them are kept."""

    def rest(self, others: int) -> Plan | None:
        """Never."""
        return None

    def propose(self, slot: Slot, limits: Limits, others: int) -> Proposal:
        """The same budget every step, within what the step can take."""
        start = time.perf_counter()
        wanted = slot.request.speculation.max_draft
        tree = TokenTree.root(slot.tokens[-1])
        for drafter, spec in zip(slot.drafters, slot.request.speculation.drafters):
            own = spec.integer("nodes", drafter.default_nodes if wanted is None else wanted, 0, 255)
            branch = 1 if limits.leaves == 1 else spec.integer("branch", branch_of(drafter), 1, 64)
            patience = reading(slot, others) if drafter.costly else 0.0
            budget = Budget(min(limits.nodes, own), limits.depth, branch, slot.bit_of(drafter), reading=patience)
            tree = ask(slot, drafter, budget, tree)
        return Proposal(slot, tree, limits, time.perf_counter() - start)

    def select(self, proposals: Sequence[Proposal], base: int, context: int, streams: int = 0) -> Plan:
        """Cut every tree to what the step can take."""
        for p in proposals:
            wanted = p.slot.request.speculation.max_draft
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
