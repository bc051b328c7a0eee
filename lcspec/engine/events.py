"""The events of a request, in order: Started, Prefill*, (Tokens | StepStats)*, then one of Finished or Failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence, Union

from lcspec.answers.text import Piece
from lcspec.errors import LcspecError
from lcspec.spec.token_tree import TokenTree

if TYPE_CHECKING:
    from lcspec.planner.base import Plan


class TokenInfo(NamedTuple):
    """One emitted token: its id, its drafter (None: the target itself), and the target's log-probability.

    `logprob` is the log softmax of the target's raw logits; `top` are the most probable (id, logprob) pairs. Both are
    set only if the request asked for log-probabilities.
    """

    id: int
    drafter: str | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Started:
    """The request started in a slot; `reused` prompt tokens were already in its cache."""

    request: int
    prompt_tokens: int
    reused: int
    seed: int


@dataclass(frozen=True)
class Prefill:
    """Prompt progress: `done` of `total` tokens are in the cache."""

    request: int
    done: int
    total: int


class Tokens(NamedTuple):
    """Newly emitted tokens, and the text that can now be shown (it may lag behind the tokens)."""

    request: int
    tokens: tuple[TokenInfo, ...]
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The new text."""
        return "".join(p.text for p in self.pieces)


class StepStats(NamedTuple):
    """One decode step of one request.

    `width` counts all tokens of the batch without padding. Seconds are those of the whole step, which all running
    sequences share. `plan` is what the planner expected. `probes`: tokens of the sequence that were evaluated but are
    no drafts (see lcspec.engine.fitting).
    """

    request: int
    width: int
    tree: TokenTree
    accepted: int
    emitted: tuple[int, ...]
    target_seconds: float
    draft_seconds: float
    overhead_seconds: float
    plan: Plan
    probes: int = 0

    @property
    def seconds(self) -> float:
        """Time of the whole step."""
        return self.target_seconds + self.draft_seconds + self.overhead_seconds


@dataclass(frozen=True)
class Step:
    """A decode step, and what is needed to judge it (see lcspec.engine.details).

    Attributes:
        stats: the engine's own account.
        names: drafter names by bit of `TokenTree.sources`.
        plain_seconds: what plain decoding would have taken for one token at this context; None when nobody measured.
        expected_seconds: what the target was expected to take for this step; None when nobody measured.
    """

    stats: StepStats
    names: tuple[str, ...] = ()
    plain_seconds: float | None = None
    expected_seconds: float | None = None

    @property
    def request(self) -> int:
        """The request's number."""
        return self.stats.request

    @property
    def plain(self) -> bool:
        """Whether nothing was drafted or looked at besides the answer's own token."""
        return not self.stats.tree.n_drafted and not self.stats.probes

    @property
    def seconds(self) -> float:
        """Time of the whole step."""
        return self.stats.seconds

    def drafters_of(self, node: int) -> list[str]:
        """Who proposed a node."""
        source = self.stats.tree.sources[node]
        return [name for i, name in enumerate(self.names) if source >> i & 1]


@dataclass
class RequestStats:
    """Totals of one request. `accepted_by_depth[d]` counts accepted nodes at depth d + 1. Probes do not count as
    drafts."""

    target_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    probes: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    by_drafter: dict[str, dict[str, int]] = field(default_factory=dict)
    step_tokens: int = 0
    widths: dict[int, int] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Emitted tokens per target step, bonus tokens included."""
        return self.step_tokens / self.target_steps if self.target_steps else 0.0

    @property
    def overhead_seconds(self) -> float:
        """Time of the decode phase spent neither in the target nor in drafting: Python, sampling, events."""
        return max(0.0, self.decode_seconds - self.target_seconds - self.draft_seconds)

    @property
    def tokens_per_second(self) -> float:
        """Tokens emitted by decode steps per second; the first token comes from the prompt's last row and is left
        out."""
        return self.step_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0

    def count(self, tree: TokenTree, path: Sequence[int], emitted: int, bits: Mapping[str, int]) -> int:
        """Add a decode step that emitted so many tokens; returns how many drafted nodes were accepted and emitted.

        Args:
            tree: the drafts that were verified; `path`: those of its nodes that were accepted.
            bits: the drafters' bits in `tree.sources`.
        """
        width = len(tree.tokens)
        self.target_steps += 1
        self.step_tokens += emitted
        self.widths[width] = self.widths.get(width, 0) + 1
        if width == 1:
            return 0
        accepted = path[:emitted]
        self.drafted += tree.n_drafted
        self.accepted += len(accepted)
        for counts in (self.drafted_by_depth, self.accepted_by_depth):
            counts.extend([0] * (max(tree.depths) - len(counts)))
        for depth in tree.depths[1:]:
            self.drafted_by_depth[depth - 1] += 1
        for node in accepted:
            self.accepted_by_depth[tree.depths[node] - 1] += 1
        for name, bit in bits.items():
            if drafted := len([source for source in tree.sources[1:] if source & bit]):
                tally = self.by_drafter.setdefault(name, {"drafted": 0, "accepted": 0})
                tally["drafted"] += drafted
                tally["accepted"] += len([node for node in accepted if tree.sources[node] & bit])
        return len(accepted)

    def as_dict(self) -> dict[str, Any]:
        """The `stats` object of `lcspec generate --json`."""
        return {
            "target_steps": self.target_steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "probes": self.probes,
            "accepted_by_depth": list(self.accepted_by_depth),
            "drafted_by_depth": list(self.drafted_by_depth),
            "by_drafter": {k: dict(v) for k, v in self.by_drafter.items()},
            "widths": {str(k): v for k, v in sorted(self.widths.items())},
            "mean_acceptance_length": self.mean_acceptance_length,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "target_seconds": self.target_seconds,
            "draft_seconds": self.draft_seconds,
            "overhead_seconds": self.overhead_seconds,
            "tokens_per_second": self.tokens_per_second,
        }


@dataclass(frozen=True)
class Finished:
    """The request ended: `reason` is stop | length | context | cancelled."""

    request: int
    reason: str
    stop: str | None
    prompt_tokens: int
    completion_tokens: int
    seed: int
    stats: RequestStats
    lossless: bool = True


@dataclass(frozen=True)
class Failed:
    """The request ended with an error; other requests go on."""

    request: int
    error: LcspecError


Event = Union[Started, Prefill, Tokens, StepStats, Step, Finished, Failed]
