"""The plan of a step and its result. Both are made once and then only read."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from lcspec.engine.events import Event
from lcspec.engine.fitting import Probes
from lcspec.engine.sequence import ActiveSequence
from lcspec.errors import LcspecError
from lcspec.planner.base import Plan, Proposal
from lcspec.spec.token_tree import TokenTree


class Part(NamedTuple):
    """One sequence's part of a step: a prompt chunk, or what is not in the cache up to the pending token, and drafts.

    Attributes:
        sequence: whose part it is.
        chunk: how many of its tokens are evaluated after the step; None: all, and the last one's row is read.
        kept: the drafts to verify, below the pending token; None: there are none.
        evaluated: `kept`, and what drafters need evaluated besides (see lcspec.engine.fitting).
        mute: nodes of `evaluated` whose rows are not read.
        probes: whose windows read the rows of `evaluated`.
        proposal: the planner's proposal, from which it learns; None if it did not plan this part.
        unobserved: a plain step that planner and drafters observe later.
    """

    sequence: ActiveSequence
    chunk: int | None = None
    kept: TokenTree | None = None
    evaluated: TokenTree | None = None
    mute: frozenset[int] = frozenset()
    proposal: Proposal | None = None
    probes: Probes | None = None
    unobserved: bool = False

    @property
    def end(self) -> int:
        """How many of its tokens are evaluated after the step, not counting drafts; to be asked before the step."""
        return len(self.sequence.tokens) if self.chunk is None else self.chunk

    @property
    def decodes(self) -> bool:
        """Whether the step continues the sequence's answer (and does not just read its prompt)."""
        return self.chunk is None and not self.sequence.prefilling


class StepPlan(NamedTuple):
    """A step.

    Attributes:
        parts: what each sequence puts into the batch.
        width: pad the batch to this many tokens; 0: no padding.
        plan: what the planner expects.
        drafting_seconds: seconds that the drafters took.
        stands: all sequences decode and nobody drafts: as long as that is so, the next steps are the same.
    """

    parts: tuple[Part, ...]
    width: int
    plan: Plan
    drafting_seconds: float = 0.0
    stands: bool = False


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
        events: for the front end.
        decoded: the tree that was verified; None: the step did not continue an answer.
        tokens: the verdict's tokens, up to the one that ends the text.
        accepted: how many drafted nodes were accepted and emitted.
        error: why the sequence cannot continue; None: it can.
    """

    part: Part
    events: Sequence[Event] = ()
    decoded: TokenTree | None = None
    tokens: tuple[int, ...] = ()
    accepted: int = 0
    error: LcspecError | None = None


class StepResult(NamedTuple):
    """The result of a step: those of its parts, the tokens in its batch, and the seconds of its decode.

    `width`: tokens without padding; `padded`: with it; `only_decodes`: no prompt was read in the step.
    """

    parts: Sequence[PartResult]
    width: int
    padded: int
    seconds: float
    only_decodes: bool
