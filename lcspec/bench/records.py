"""What a benchmark keeps of every run: the raw part of results.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Sequence

from lcspec.bench.prompts import Prompt


@dataclass(frozen=True)
class Step:
    """One decode step.

    Attributes:
        position: tokens that decode steps had emitted before it.
        width: tokens of the batch, padding included.
        drafted: nodes that were verified.
        depth: depth of the tree that was verified.
        accepted: nodes that were accepted.
        emitted: tokens that came of it.
        target: seconds of the target's decode.
        draft: seconds of drafting (and of planning what to draft).
        overhead: remaining seconds.
        plan_tokens: tokens the planner expected (0.0: there was no planner).
        plan_seconds: target seconds the planner expected (0.0: unknown).
        matched: depth to which the text followed what was proposed, including what the planner cut off.
    """

    position: int
    width: int
    drafted: int
    depth: int
    accepted: int
    emitted: int
    target: float
    draft: float
    overhead: float
    plan_tokens: float
    plan_seconds: float
    matched: int


STEP_COLUMNS = tuple(Step.__dataclass_fields__)


@dataclass
class Run:
    """One answer.

    Attributes:
        strategy: as the user named it.
        repeat: 0 for the first time.
        order: how many runs of the same repeat came before it.
        ids: tokens of the answer; the first comes from the prompt's last row.
        text: the answer.
        tokens_per_second: tokens of decode steps over their time.
        stats: `RequestStats.as_dict`.
        steps: every decode step.
        difference: first token that differs from the first plain run, None if there is none.
        lossless: whether the verifier claims to keep the target's distribution.
        error: what ended the run early, if anything did; the figures are then void.
    """

    strategy: str
    repeat: int
    order: int
    ids: list[int] = field(default_factory=list)
    text: str = ""
    tokens_per_second: float = 0.0
    stats: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    difference: int | None = None
    lossless: bool = True
    error: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens that decode steps emitted."""
        return sum(s.emitted for s in self.steps)

    def as_dict(self) -> dict[str, Any]:
        """For results.json; steps as rows of `STEP_COLUMNS`."""
        out = {k: getattr(self, k) for k in self.__dataclass_fields__ if k != "steps"}
        rows = ([getattr(s, c) for c in STEP_COLUMNS] for s in self.steps)
        out["steps"] = [[round(x, 8) if isinstance(x, float) else x for x in row] for row in rows]
        return out


@dataclass
class PromptResult:
    """Everything that was run on one prompt.

    Attributes:
        prompt: the prompt.
        tokens: its length, after cutting.
        cut_characters: characters cut off its beginning to fit the context.
        runs: in the order in which they ran.
    """

    prompt: Prompt
    tokens: int
    cut_characters: int
    runs: list[Run] = field(default_factory=list)

    def of(self, strategy: str) -> list[Run]:
        """The runs of a strategy that came to their end."""
        return [r for r in self.runs if r.strategy == strategy and r.error is None]

    def covers(self, strategies: Sequence[str]) -> bool:
        """Whether every strategy ran at least once."""
        return all(self.of(s) for s in strategies)

    def as_dict(self) -> dict[str, Any]:
        """For results.json."""
        return {
            **asdict(self.prompt),
            "tokens": self.tokens,
            "cut_characters": self.cut_characters,
            "runs": [r.as_dict() for r in self.runs],
        }


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which two token sequences differ, None if they are the same."""
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))
