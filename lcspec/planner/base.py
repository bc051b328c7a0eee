"""The planner protocol and its data types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, Sequence

from lcspec.config import SpeculationParams
from lcspec.drafters.base import Budget, Drafter, SequenceView
from lcspec.spec import cutting
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import VerifierInfo

if TYPE_CHECKING:
    from lcspec.kv_cache.sequence_cache import SequenceCache

# A pause shorter than this is not noticed in a stream (Miller 1968: a tenth of a second seems instantaneous); seconds.
UNNOTICED = 0.1


class PlannedSequence(SequenceView, Protocol):
    """What the planner sees of a running request."""

    @property
    def request(self) -> PlannedRequest:
        """The request."""

    @property
    def drafters(self) -> Sequence[Drafter]:
        """The drafters that may draft for it."""

    @property
    def verifier(self) -> VerifierInfo:
        """The verifier that accepts or refuses its drafts."""

    @property
    def cache(self) -> SequenceCache:
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
    """The part of a request that says how to speculate."""

    @property
    def speculation(self) -> SpeculationParams:
        """How to speculate."""


class Limits(NamedTuple):
    """What a step has room for, for one sequence: drafted nodes, their depth, leaves of the tree.

    `widths`: the widths in tokens that the step may have, padding included; None means any.
    """

    nodes: int
    depth: int
    leaves: int
    widths: frozenset[int] | None = None


@dataclass(slots=True)
class Proposal:
    """What the drafters of one sequence proposed in this step, and what was kept of it.

    `probe_rows`: rows granted to the windows of drafters that have one (see lcspec.engine.fitting).
    """

    sequence: PlannedSequence
    tree: TokenTree
    limits: Limits
    seconds: float = 0.0
    kept: TokenTree | None = None
    probe_rows: int = 0


@dataclass(slots=True)
class Plan:
    """The result of planning a step.

    Attributes:
        width: pad the batch to this many tokens; 0: no padding.
        tokens: how many tokens the step is expected to emit, over all sequences.
        seconds: the expected time of the target's decode; 0.0 when unknown.
        considered: (drafted nodes, expected tokens, expected seconds including drafting) of every width that was
            compared.
    """

    width: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    considered: list[tuple[int, float, float]] = field(default_factory=list)


class Planner(Protocol):
    """Decides every step, and may learn from what the step cost and what was accepted."""

    def backoff(self, streams: int) -> Plan | None:
        """A plan for a plain step, in which no drafter is asked and none observes the outcome; None: ask them.

        It is asked where the step is the next token of `streams` sequences, and all of them are planned for.
        """
        return None

    def propose(self, sequences: Sequence[PlannedSequence], limits: Sequence[Limits], others: int) -> list[Proposal]:
        """Ask the sequences' drafters; a drafter that runs a model is asked for all sequences at once.

        `limits`: what the step has room for, for each; `others`: for any one, the width in tokens that the others need.
        """
        raise NotImplementedError

    def select(self, proposals: Sequence[Proposal], base: int, context: int, streams: int = 0) -> Plan:
        """Set `kept` of every proposal.

        `base`: width without any drafted node; `context`: mean context length; `streams`: sequences that decode in
        this step, also those without a proposal (0: as many as proposals).
        """
        raise NotImplementedError

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """A sequence emitted `tokens` after its proposal."""
        return None

    def timed(self, width: int, context: int, seconds: float) -> None:
        """A target decode took `seconds`."""
        return None

    def observe_overhead(self, seconds: float) -> None:
        """The step took `seconds` besides its target decode."""
        return None


def reading(sequence: PlannedSequence, others: int) -> float:
    """`Budget.reading` of a sequence, in seconds: how long a draft model may read its text before it drafts.

    0 while other sequences decode: they do not wait for it. 0, too, where the text depends on the drafts, and so on
    the step in which they begin: that must not depend on time.
    """
    steady = sequence.verifier.lossless and not sequence.draws
    return UNNOTICED if steady and not others else 0.0


def ask(
    drafter: Drafter, sequences: Sequence[PlannedSequence], budgets: Sequence[Budget], trees: Sequence[TokenTree]
) -> list[TokenTree]:
    """Merge what `drafter` proposes into `trees`, cut after tokens that end a text. Where a tree has only its root, the
    drafter's own tree takes its place."""
    able = [i for i, budget in enumerate(budgets) if budget.nodes > 0 and budget.depth > 0]
    if not able:
        return list(trees)
    found, out = drafter.draft_batch([sequences[i] for i in able], [budgets[i] for i in able]), list(trees)
    for i, drafted in zip(able, found):
        drafted = cutting.ended(drafted, sequences[i].end_tokens)
        if len(out[i]) == 1:
            out[i] = drafted
        else:
            out[i].merge(drafted)
    return out
