"""The planner protocol, and what it works with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterator, NamedTuple, Protocol, Sequence

from lcspec.config import SpeculationParams
from lcspec.drafters.base import Budget, Drafter, SequenceView, Window
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import VerifierInfo

# Gaps in a stream shorter than this are not noticed (Miller 1968: a tenth of a second appears instantaneous), seconds.
UNNOTICED = 0.1


class PlannedSequence(SequenceView, Protocol):
    """What the planner sees of a running request."""

    @property
    def request(self) -> PlannedRequest:
        """What was asked for."""

    @property
    def drafters(self) -> Sequence[Drafter]:
        """Those that may draft for it."""

    @property
    def verifier(self) -> VerifierInfo:
        """Who accepts its drafts."""

    @property
    def cache(self) -> LeafRoom:
        """Its share of the KV cache."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end its text."""

    @property
    def n_uncached(self) -> int:
        """How many of its tokens are not in the cache yet."""

    def bit_of(self, drafter: Drafter) -> int:
        """The drafter's bit in TokenTree.sources."""


class PlannedRequest(Protocol):
    """A request, as far as it says how to speculate."""

    @property
    def speculation(self) -> SpeculationParams:
        """How to speculate."""


class LeafRoom(Protocol):
    """A sequence's cache, as far as trees need to know."""

    @property
    def max_leaves(self) -> int:
        """Leaves that a tree may have now."""


class LeafIds(Protocol):
    """Where leaves get their sequence ids from."""

    @property
    def free(self) -> int:
        """Ids that nobody has."""


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
    windows of drafters that have one; `windows`: what they put into them (see lcspec.planner.lookahead_budget).
    """

    sequence: PlannedSequence
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

    def backoff(self, others: int) -> Plan | None:
        """The plan of a plain step in which nobody is asked for drafts, nor told what came of it; None: ask.

        `others` is the width the other slots need anyway.
        """

    def propose(self, sequences: Sequence[PlannedSequence], limits: Sequence[Limits], others: int) -> list[Proposal]:
        """Ask the sequences' drafters, one that runs a model for all of them at once.

        Args:
            sequences: those that are planned for in this step.
            limits: what the step can take for each.
            others: for any one of them, the width that the others need anyway.
        """

    def select(self, proposals: Sequence[Proposal], base: int, context: int, streams: int = 0) -> Plan:
        """Set `kept` of every proposal.

        `base`: width without any drafted node; `context`: mean context length; `streams`: slots that decode in this
        step, also those without a proposal (0: there are no others).
        """

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """A slot emitted `tokens` after its proposal."""

    def timed(self, width: int, context: int, seconds: float) -> None:
        """A target decode took `seconds`."""

    def observe_overhead(self, seconds: float) -> None:
        """The step took `seconds` besides its target decode."""


def reading(sequence: PlannedSequence, others: int) -> float:
    """`Budget.reading` of a slot beside `others`: streams do not wait for a draft model to read somebody else's text.

    Never a matter of time where the text depends on what is drafted, and so on when drafts begin.
    """
    steady = sequence.verifier.lossless and not sequence.draws
    return UNNOTICED if steady and not others else 0.0


def ask(
    drafter: Drafter, sequences: Sequence[PlannedSequence], budgets: Sequence[Budget], trees: Sequence[TokenTree]
) -> list[TokenTree]:
    """`trees` with what `drafter` says merged into them, as far as the texts may go on; the drafter's own tree where
    one is bare."""
    able = [i for i, budget in enumerate(budgets) if budget.nodes > 0 and budget.depth > 0]
    if not able:
        return list(trees)
    found, out = drafter.draft_batch([sequences[i] for i in able], [budgets[i] for i in able]), list(trees)
    for i, drafted in zip(able, found):
        drafted = drafted.ended(sequences[i].end_tokens)
        if len(out[i]) == 1:
            out[i] = drafted
        else:
            out[i].merge(drafted)
    return out


def fit(proposals: Sequence[Proposal], room: int, ids: LeafIds) -> None:
    """Every sequence was planned for as if the step were its own: cut what does not fit into it together.

    Args:
        proposals: after `select`.
        room: rows that the step has for drafts.
        ids: what is left of them is shared.
    """
    free = ids.free
    for p in proposals:
        assert p.kept is not None
        leaves = p.sequence.cache.max_leaves - ids.free + free
        kept = p.kept = p.kept.best(room).with_leaves(leaves)
        room -= kept.n_drafted
        free = min(free, leaves - len(kept.leaves()))
