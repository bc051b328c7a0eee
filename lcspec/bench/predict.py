"""What the cost curve T(n) says a run should take, and what nobody could beat.

Leviathan et al. 2023 and Chen et al. 2023 predict the gain from the acceptance rate, assuming that a wider decode
costs what a narrow one does. Here the same is done with the measured T(n). All rates are tokens per second of decode
steps; what Python adds is not in them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Callable, Sequence

from lcspec.bench.records import Run, Step
from lcspec.profiles.cost_curve import CostCurve

Price = Callable[[int, int], float]  # (position, width) -> seconds of the cheapest decode at least that wide


def curve_seconds(run: Run, n_prompt: int, curve: CostCurve) -> float | None:
    """Seconds of a run's decode steps by T(n), plus the drafting time as it was; None if T(n) lacks a width."""
    total = sum(curve.seconds(s.width, n_prompt + 1 + s.position) + s.draft for s in run.steps)
    return total if math.isfinite(total) and total > 0 else None


def rescaled(curve: CostCurve, plain: Sequence[Run], n_prompt: int) -> CostCurve:
    """The curve moved, at all widths alike, to the speed of the machine while `plain` runs were made.

    Drafting times are measured, so T(n) has to be of the same moment; its shape, T(n) / T(1), is what predicts.
    """
    took = sum(s.target for run in plain for s in run.steps)
    expected = sum(curve.seconds(s.width, n_prompt + 1 + s.position) for run in plain for s in run.steps)
    if not (math.isfinite(expected) and expected > 0 and took > 0):
        return curve
    factor, drift = took / expected, curve.drift
    return replace(curve, drift=replace(drift, scale=drift.scale * factor, shift=drift.shift * factor))


def chain_acceptance(steps: Sequence[Step]) -> float | None:
    """The acceptance rate per token if every test succeeded alike (maximum likelihood); None if nothing was tested."""
    hits = sum(s.accepted for s in steps)
    misses = sum(s.accepted < s.depth for s in steps)
    return hits / (hits + misses) if hits + misses else None


def expected_tokens(acceptance: float, depth: int) -> float:
    """Mean tokens of a step that verifies a chain of `depth` (Leviathan et al. 2023, equation 1)."""
    return float(depth + 1) if acceptance >= 1.0 else (1 - acceptance ** (depth + 1)) / (1 - acceptance)


def analysis_rate(run: Run, n_prompt: int, curve: CostCurve) -> float | None:
    """Tokens per second that the acceptance rate and T(n) predict for the depths that were drafted."""
    seconds, acceptance = curve_seconds(run, n_prompt, curve), chain_acceptance(run.steps)
    if seconds is None:
        return None
    return sum(expected_tokens(acceptance or 0.0, s.depth) for s in run.steps) / seconds


def cheapest(reach: Sequence[int], price: Price) -> float:
    """The least time for `len(reach)` tokens when, at position q, the next `reach[q]` tokens are known in advance.

    A step of width w then emits w tokens, w - 1 <= reach[q]. By dynamic programming from the end.
    """
    n = len(reach)
    best = [0.0] * (n + 1)
    for q in range(n - 1, -1, -1):
        best[q] = math.inf
        for w in range(1, min(reach[q] + 1, n - q) + 1):
            seconds = price(q, w)
            if not math.isfinite(seconds):
                break
            best[q] = min(best[q], seconds + best[q + w])
    return best[0]


def pricing(curve: CostCurve, n_prompt: int, allowed: frozenset[int] | None) -> Price:
    """Costs along a text that follows `n_prompt` tokens; `allowed` widths only (None: all)."""
    tables: dict[int, dict[int, tuple[float, int]]] = {}

    def price(position: int, width: int) -> float:
        if position not in tables:
            tables[position] = curve.effective(n_prompt + 1 + position, allowed)
        return tables[position].get(width, (math.inf, 0))[0]

    return price


def perfect_drafter_seconds(n_tokens: int, price: Price) -> float:
    """A drafter that is always right and costs nothing, at the best widths."""
    return cheapest([n_tokens - q - 1 for q in range(n_tokens)], price)


def perfect_knowledge_seconds(run: Run, price: Price) -> float:
    """The same proposals in the same drafting time, by somebody who knows which nodes will be accepted and verifies
    just those, when it pays."""
    n = run.tokens
    reach, known = [0] * n, 0  # the text is known up to `known`
    matches = {s.position: s.matched for s in run.steps}
    for q in range(n):
        known = max(known, q + matches.get(q, 0))
        reach[q] = known - q
    return cheapest(reach, price) + sum(s.draft for s in run.steps)


def planner_ratios(steps: Sequence[Step]) -> dict[str, float] | None:
    """The planner's own expectations over what happened (1.0 is perfect); None if nothing was planned.

    `tokens` emitted, `seconds` of the target, and the `rate` of both, where the prediction knows nothing of Python's
    overhead and takes drafting time as it was.
    """
    planned = [s for s in steps if s.plan_seconds > 0 and s.plan_tokens > 0]
    if not planned:
        return None
    tokens, seconds = sum(s.plan_tokens for s in planned), sum(s.plan_seconds for s in planned)
    emitted, target = sum(s.emitted for s in planned), sum(s.target for s in planned)
    draft, rest = sum(s.draft for s in planned), sum(s.overhead for s in planned)
    if not emitted or target <= 0:
        return None
    return {
        "tokens": tokens / emitted,
        "seconds": seconds / target,
        "rate": (tokens / (seconds + draft)) / (emitted / (target + draft + rest)),
        "steps": float(len(planned)),
    }
