"""The plan of a step and its result. Both are made once and then only read."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from lcspec.engine.events import Event
from lcspec.engine.sequence import ActiveSequence
from lcspec.errors import LcspecError
from lcspec.planner.base import Plan, Proposal
from lcspec.spec.token_tree import TokenTree


class Part(NamedTuple):
    """One sequence's part of a step.

    Attributes:
        sequence: whose part it is.
        end: how many of its tokens are evaluated after the step, not counting drafts.
        kept: the drafts to verify, below the pending token; None: a prompt chunk that does not reach the end.
        evaluated: `kept`, and what drafters need evaluated besides (see lcspec.planner.lookahead_budget).
        mute: nodes of `evaluated` whose rows are not read.
        proposal: the planner's proposal, from which it learns; None if it did not plan this part.
        unobserved: a plain step that planner and drafters observe later.
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
        """Whether the step continues the sequence's answer (and does not just read its prompt)."""
        return self.kept is not None and not self.sequence.prefilling


class StepPlan(NamedTuple):
    """A step: all parts, the width to pad to (0: no padding), and what the planner expects."""

    parts: tuple[Part, ...]
    width: int
    plan: Plan

    @property
    def drafting_seconds(self) -> float:
        """Seconds that the drafters took."""
        return sum(part.proposal.seconds for part in self.parts if part.proposal is not None)


class BatchRows(NamedTuple):
    """Where a part's rows are: `order` of its nodes in the batch, `row_of` each node in the logits.

    `text`: which tokens of the batch belong to the text, from position `start` on, not counting drafts.
    """

    order: list[int]
    row_of: list[int]
    start: int
    text: range

    def accepted(self, path: Sequence[int]) -> list[int]:
        """The indices in the batch of the text's tokens, if the drafted nodes of `path` are accepted."""
        root = self.text.stop - 1
        at = {node: root + i for i, node in enumerate(self.order)} if path else {}
        return [*self.text, *(at[node] for node in path)]


class PartResult(NamedTuple):
    """The result of a part.

    Attributes:
        part: the part.
        tokens: the verdict's tokens, up to the one that ends the text.
        accepted: how many drafted nodes were accepted and emitted.
        first: whether the prompt was finished in this step.
        events: for the front end.
        error: why the sequence cannot continue; None: it can.
    """

    part: Part
    tokens: tuple[int, ...] = ()
    accepted: int = 0
    first: bool = False
    events: tuple[Event, ...] = ()
    error: LcspecError | None = None

    @property
    def decoded(self) -> bool:
        """Whether it was a decode step of an answer."""
        return self.part.kept is not None and not self.first


class StepResult(NamedTuple):
    """The result of a step: those of its parts, the tokens in its batch, and the seconds of its decode.

    `width`: tokens without padding; `padded`: with it.
    """

    parts: tuple[PartResult, ...]
    width: int
    padded: int
    seconds: float

    @property
    def only_decodes(self) -> bool:
        """Whether no prompt was read in the step."""
        alive = [found.decoded for found in self.parts if found.error is None]
        return bool(alive) and all(alive)
