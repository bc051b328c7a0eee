"""What speculation did in an answer, folded from its steps for the status line and the inspector (no Textual)."""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass, field
from typing import Sequence

from lcspec.engine.events import RequestStats, Step
from lcspec.spec.token_tree import TokenTree

# Steps the inspector can show.
KEPT = 24
# Plain steps of this answer from which on they, and not the stored measurement, say what plain decoding takes.
ENOUGH_PLAIN = 6
# How far plain decoding's time may be from what was measured, as a share, at the least: with steps of this answer to
# compare with, and without.
UNSURE = 0.03
# Share of the answer's time below which nobody notices a difference.
NOTICED = 0.02
UNSURE_BEFORE = 0.15


def accepted_nodes(tree: TokenTree, emitted: Sequence[int], accepted: int) -> list[int]:
    """Nodes of the accepted path below node 0, in order."""
    path: list[int] = []
    node = 0
    for token in emitted[:accepted]:
        child = tree.child(node, token)
        if child is None:
            break
        path.append(child)
        node = child
    return path


def expected_accepted(step: Step) -> float:
    """Drafted nodes that were expected to be accepted: the planner's estimate, else the drafters' own."""
    plan, tree = step.stats.plan, step.stats.tree
    if plan.seconds:
        return max(0.0, plan.tokens - 1.0)
    return float(tree.path_probs()[1:].sum())


@dataclass
class SpeculationLog:
    """Running figures of one answer, or of a whole conversation.

    Attributes:
        steps: the latest steps, newest last.
        by_drafter: name -> [drafted, accepted].
        drafted_by_depth, accepted_by_depth: index d counts nodes at depth d + 1.
        planned: tokens, seconds expected and tokens, target seconds observed in steps whose cost was known before.
        plain: of the plain steps whose cost was known before, the seconds they took over those measured (a count, a sum
            and a sum of squares).
        drafting: of all other such steps, the seconds that plain decoding was measured to take for their tokens, the
            seconds they took, their number, and the seconds measured for a plain step of each.
    """

    steps: collections.deque[Step] = field(default_factory=lambda: collections.deque(maxlen=KEPT))
    count: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    expected: float = 0.0
    seconds: float = 0.0
    plain: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    drafting: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    by_drafter: dict[str, list[int]] = field(default_factory=dict)
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    planned: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])

    def add(self, step: Step) -> None:
        """Count a step."""
        stats, tree = step.stats, step.stats.tree
        self.steps.append(step)
        self.count += 1
        self.emitted += len(stats.emitted)
        self.drafted += tree.n_drafted
        self.accepted += stats.accepted
        self.expected += expected_accepted(step)
        self.seconds += step.seconds
        self._compare(step)
        if step.expected_seconds is not None:
            new = (
                1.0 + expected_accepted(step),
                step.expected_seconds,
                float(len(stats.emitted)),
                stats.target_seconds,
            )
            self.planned = [a + b for a, b in zip(self.planned, new)]
        taken = set(accepted_nodes(tree, stats.emitted, stats.accepted))
        for node in range(1, len(tree)):
            depth = tree.depths[node] - 1
            for counts in (self.drafted_by_depth, self.accepted_by_depth):
                counts.extend([0] * (depth + 1 - len(counts)))
            self.drafted_by_depth[depth] += 1
            self.accepted_by_depth[depth] += node in taken
            for name in step.drafters_of(node):
                tally = self.by_drafter.setdefault(name, [0, 0])
                tally[0] += 1
                tally[1] += node in taken

    def _compare(self, step: Step) -> None:
        """Count a step as one of plain decoding, or as one to be compared with it."""
        if not step.plain_seconds:
            return
        if step.plain:
            ratio = step.seconds / step.plain_seconds
            self.plain = [a + b for a, b in zip(self.plain, (1.0, ratio, ratio * ratio))]
        else:
            new = len(step.stats.emitted) * step.plain_seconds, step.seconds, 1.0, step.plain_seconds
            self.drafting = [a + b for a, b in zip(self.drafting, new)]

    def settle(self, stats: RequestStats) -> None:
        """The answer has ended: from now on count as the engine does, which leaves out what came after its end."""
        self.count, self.emitted = stats.target_steps, stats.step_tokens

    @property
    def saved_seconds(self) -> float:
        """The time that plain decoding would have taken for the tokens of the steps with drafts, less what they took;
        steps without drafts save nothing and cost nothing. Plain decoding is as fast as the plain steps of this answer
        were, or, while there are few, as it was measured before."""
        plain, took, _, _ = self.drafting
        return plain * self._plain_ratio[0] - took

    @property
    def saved(self) -> float | None:
        """`saved_seconds`, or None while nobody would notice it, or while it may be nothing but noise: of plain
        decoding's time, or of the few steps that had drafts, each of which may take longer than usual as plain steps
        do."""
        plain, _, count, each = self.drafting
        mean, unsure, deviation = self._plain_ratio
        noise = plain * mean * unsure + 2 * deviation * each / math.sqrt(count or 1.0)
        return self.saved_seconds if abs(self.saved_seconds) > max(noise, NOTICED * self.seconds) else None

    @property
    def _plain_ratio(self) -> tuple[float, float, float]:
        """Plain steps here over what was measured, by which share that may be wrong (two standard errors), and the
        standard deviation of a single step's."""
        n, total, squares = self.plain
        if n < ENOUGH_PLAIN:
            return 1.0, UNSURE_BEFORE, 0.0
        mean = total / n
        deviation = math.sqrt(max(0.0, squares / n - mean * mean))
        return mean, max(UNSURE, 2 * deviation / math.sqrt(n) / mean), deviation

    @property
    def tokens_per_step(self) -> float:
        """Mean acceptance length: emitted tokens per target step."""
        return self.emitted / self.count if self.count else 0.0

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted; None before anything was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def estimated_acceptance(self) -> float | None:
        """What the acceptance was expected to be."""
        return self.expected / self.drafted if self.drafted else None

    @property
    def expected_rate(self) -> float | None:
        """Tokens per second of target time that the planner expected."""
        tokens, seconds, _, _ = self.planned
        return tokens / seconds if seconds else None

    @property
    def measured_rate(self) -> float | None:
        """Tokens per second of target time in the same steps."""
        _, _, tokens, seconds = self.planned
        return tokens / seconds if seconds else None

    @property
    def rate(self) -> float | None:
        """Tokens per second of all time spent in steps."""
        return self.emitted / self.seconds if self.seconds else None

    def depth_rates(self) -> list[tuple[int, int, int]]:
        """(depth, drafted, accepted), nearest first."""
        return [(d + 1, n, a) for d, (n, a) in enumerate(zip(self.drafted_by_depth, self.accepted_by_depth))]
