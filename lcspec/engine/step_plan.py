"""What goes into a step, and what came of it. Made once, then only read."""

from __future__ import annotations

from typing import NamedTuple

from lcspec.engine.events import Event
from lcspec.engine.sequence import ActiveSequence
from lcspec.errors import LcspecError
from lcspec.planner.base import Plan, Proposal
from lcspec.spec.token_tree import TokenTree


class Part(NamedTuple):
    """One sequence's part of a step.

    Attributes:
        sequence: whose it is.
        end: so many of its tokens are evaluated after the step, drafts aside.
        kept: the drafts to verify, below the pending token; None: a prompt chunk that does not reach the end.
        evaluated: `kept`, and what drafters want evaluated besides (see lcspec.planner.lookahead_budget).
        mute: nodes of `evaluated` whose rows nobody reads.
        proposal: what the planner proposed and learns from; None where it had no say.
        unobserved: a plain step that planner and drafters hear of later.
    """

    sequence: ActiveSequence
    end: int
    kept: TokenTree | None = None
    evaluated: TokenTree | None = None
    mute: frozenset[int] = frozenset()
    proposal: Proposal | None = None
    unobserved: bool = False

    @property
    def decodes(self) -> bool:
        """Whether the sequence's answer goes on in this step (rather than its prompt being read)."""
        return self.kept is not None and not self.sequence.prefilling


class StepPlan(NamedTuple):
    """A step: everybody's part, the width to pad to (0: as it is), and what the planner expects of it."""

    parts: tuple[Part, ...]
    width: int
    plan: Plan

    @property
    def drafting_seconds(self) -> float:
        """Time that the drafters took."""
        return sum(part.proposal.seconds for part in self.parts if part.proposal is not None)


class BatchRows(NamedTuple):
    """Where a part's nodes are: `order` in the batch, `row_of` every node its row of logits."""

    order: list[int]
    row_of: list[int]


class PartResult(NamedTuple):
    """What came of a part.

    Attributes:
        part: of which.
        tokens: those of the verdict, the first of which may end the text.
        accepted: drafted nodes that were accepted and emitted.
        first: the prompt was finished in this step.
        events: for the front end.
        error: the sequence cannot go on.
    """

    part: Part
    tokens: tuple[int, ...] = ()
    accepted: int = 0
    first: bool = False
    events: tuple[Event, ...] = ()
    error: LcspecError | None = None

    @property
    def decoded(self) -> bool:
        """Whether it was a step of an answer."""
        return self.part.kept is not None and not self.first


class StepResult(NamedTuple):
    """What came of a step: every part's result, the tokens in its batch, and the seconds of its decode.

    `width`: tokens without padding; `padded`: with it.
    """

    parts: tuple[PartResult, ...]
    width: int
    padded: int
    seconds: float

    @property
    def only_decodes(self) -> bool:
        """Whether no prompt was read in it."""
        alive = [found.decoded for found in self.parts if found.error is None]
        return bool(alive) and all(alive)
