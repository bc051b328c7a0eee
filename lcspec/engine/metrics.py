"""Totals of an engine for a metrics endpoint: counters, which only grow, and a few gauges."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Sequence

from lcspec.engine.events import RequestStats

if TYPE_CHECKING:
    from lcspec.engine.sequence import ActiveSequence
    from lcspec.planner.auto import AutoPlanner


@dataclass(frozen=True)
class Totals:
    """A snapshot. It shares no data with the engine, so any thread may keep it.

    Counters since the engine was made, running requests included:

    Attributes:
        done: ended requests by reason (stop, length, context, cancelled, failed).
        prompt_evaluated: prompt tokens that were evaluated.
        prompt_reused: prompt tokens that were taken from the cache of an ended or running request.
        decode_tokens: emitted tokens, the first of each request included.
        decode_steps: decode steps summed over requests (see `steps` for those of the engine).
        drafted: drafted tokens that the target verified.
        accepted: drafted tokens that were accepted and emitted.
        by_drafter: name -> {"drafted": n, "accepted": n}; a token that two drafters proposed counts for both.
        drafted_by_depth: [d] counts drafted tokens at depth d + 1.
        accepted_by_depth: [d] counts accepted tokens at depth d + 1.
        steps: decode steps of the engine by their width in tokens, padding not counted. Steps that also read a
            prompt are in `mixed_steps`.
        mixed_steps: steps that read a prompt.
        decode_seconds: the target's time in `steps`.
        mixed_seconds: the target's time in `mixed_steps`.

    Gauges:
        waiting: requests without a slot.
        running: requests with a slot.
        slots: the most requests that can run.
        plain_seconds: what a decode of a single token takes now by the cost curve; None without a curve.
        speedup: tokens per second over those of plain decoding in recent steps; None while unknown.
        rate: tokens per second of a single stream, on average: speedup / plain_seconds; None while unknown.
    """

    waiting: int = 0
    running: int = 0
    slots: int = 0
    done: dict[str, int] = field(default_factory=dict)
    prompt_evaluated: int = 0
    prompt_reused: int = 0
    decode_tokens: int = 0
    decode_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    by_drafter: dict[str, dict[str, int]] = field(default_factory=dict)
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)
    mixed_steps: int = 0
    decode_seconds: float = 0.0
    mixed_seconds: float = 0.0
    plain_seconds: float | None = None
    speedup: float | None = None
    rate: float | None = None


class Counters:
    """Adds up what `Totals` shows. A step only adds its width; the rest is taken from ended requests."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.steps: Counter[int] = Counter()
        self.mixed_steps = 0
        self.decode_seconds = 0.0
        self.mixed_seconds = 0.0
        self._sum = _Sum()

    def stepped(self, width: int, seconds: float, decoding_only: bool) -> None:
        """Count a step of `width` tokens for which the target took `seconds`."""
        if decoding_only:
            self.steps[width] += 1
            self.decode_seconds += seconds
        else:
            self.mixed_steps += 1
            self.mixed_seconds += seconds

    def ended(self, reason: str, sequence: ActiveSequence | None = None) -> None:
        """Count an ended request; `sequence`: its final state, None if it never ran."""
        self.done[reason] += 1
        if sequence is not None:
            self._sum.add(sequence)

    def totals(
        self, running: Sequence[ActiveSequence], waiting: int, slots: int, planner: AutoPlanner | None
    ) -> Totals:
        """Make the snapshot. Running requests count with what they have done so far."""
        total = self._sum.copy()
        for sequence in running:
            total.add(sequence)
        stats, plain, speedup = total.stats, None, None
        if planner is not None:
            plain = planner.curve.effective(0).get(1, (None, 0))[0]
            speedup = planner.speedup
        return Totals(
            waiting=waiting,
            running=len(running),
            slots=slots,
            done=dict(self.done),
            prompt_evaluated=total.evaluated,
            prompt_reused=total.reused,
            decode_tokens=total.tokens,
            decode_steps=stats.target_steps,
            drafted=stats.drafted,
            accepted=stats.accepted,
            by_drafter=stats.by_drafter,
            drafted_by_depth=stats.drafted_by_depth,
            accepted_by_depth=stats.accepted_by_depth,
            steps=dict(self.steps),
            mixed_steps=self.mixed_steps,
            decode_seconds=self.decode_seconds,
            mixed_seconds=self.mixed_seconds,
            plain_seconds=plain,
            speedup=speedup,
            rate=speedup / plain if speedup and plain else None,
        )


@dataclass
class _Sum:
    """Sums over requests."""

    stats: RequestStats = field(default_factory=RequestStats)
    evaluated: int = 0
    reused: int = 0
    tokens: int = 0

    def add(self, sequence: ActiveSequence) -> None:
        if sequence.prompt.started:
            self.reused += sequence.prompt.reused
            self.evaluated += max(0, min(sequence.cache.length, sequence.n_prompt) - sequence.prompt.reused)
        self.tokens += sequence.generated
        ours, theirs = self.stats, sequence.stats
        ours.target_steps += theirs.target_steps
        ours.drafted += theirs.drafted
        ours.accepted += theirs.accepted
        _add(ours.drafted_by_depth, theirs.drafted_by_depth)
        _add(ours.accepted_by_depth, theirs.accepted_by_depth)
        for name, counts in theirs.by_drafter.items():
            tally = ours.by_drafter.setdefault(name, {"drafted": 0, "accepted": 0})
            for key, n in counts.items():
                tally[key] += n

    def copy(self) -> _Sum:
        s = self.stats
        stats = RequestStats(
            target_steps=s.target_steps,
            drafted=s.drafted,
            accepted=s.accepted,
            drafted_by_depth=list(s.drafted_by_depth),
            accepted_by_depth=list(s.accepted_by_depth),
            by_drafter={name: dict(counts) for name, counts in s.by_drafter.items()},
        )
        return _Sum(stats, self.evaluated, self.reused, self.tokens)


def _add(ours: list[int], theirs: list[int]) -> None:
    ours.extend([0] * (len(theirs) - len(ours)))
    for i, n in enumerate(theirs):
        ours[i] += n
