"""Calibration that needs few examples: a line between log-odds.

Logistic calibration (Platt 1999) learned online: log-odds of the truth = shift + slope * log-odds of the estimate, both
with a Gaussian belief that every example updates (an extended Kalman filter on the logistic model). It begins as the
estimate itself; ten examples move it most of the way where a drafter is much surer, or less sure, than it should be.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

# Variances at first, and the most that forgetting lets them grow to again.
SHIFT_VARIANCE = 4.0
SLOPE_VARIANCE = 0.25
# Examples after which one counts for little.
MEMORY = 400.0
# Estimates are clipped to these log-odds.
SUREST = 5.3


def log_odds(p: float) -> float:
    """Of a probability, clipped to what can be told apart from 0 and 1."""
    if p <= 0.0 or p >= 1.0:
        return SUREST if p >= 1.0 else -SUREST
    return max(-SUREST, min(SUREST, math.log(p / (1.0 - p))))


@dataclass
class Trend:
    """The line, and the covariance of what is believed of it: [[shift, both], [both, slope]]."""

    shift: float = 0.0
    slope: float = 1.0
    var_shift: float = SHIFT_VARIANCE
    var_both: float = 0.0
    var_slope: float = SLOPE_VARIANCE

    @classmethod
    def like(cls, other: Trend | None) -> Trend:
        """A new one that begins with what `other` has found, and as open to be taught as if it had found nothing."""
        return cls() if other is None else cls(other.shift, other.slope)

    def value(self, estimate: float) -> float:
        """The probability that an estimate stands for."""
        return 1.0 / (1.0 + math.exp(-self.shift - self.slope * log_odds(estimate)))

    def learn(self, estimate: float, hit: bool) -> None:
        """An example: what was estimated happened, or did not."""
        z, grow = log_odds(estimate), 1.0 + 1.0 / MEMORY
        # forgetting: what is believed gets less certain, up to what it was at first
        a, c = min(self.var_shift * grow, SHIFT_VARIANCE), min(self.var_slope * grow, SLOPE_VARIANCE)
        b = self.var_both
        p = min(max(self.value(estimate), 1e-3), 1.0 - 1e-3)
        u, v, weight = a + b * z, b + c * z, p * (1.0 - p)
        scale = 1.0 + weight * (u + v * z)
        error = (float(hit) - p) / scale
        self.shift += u * error
        self.slope += v * error
        k = weight / scale
        self.var_shift, self.var_both, self.var_slope = a - k * u * u, b - k * u * v, c - k * v * v

    def as_list(self) -> list[float]:
        """For the history."""
        return list(astuple(self))

    @classmethod
    def from_list(cls, data: Any) -> Trend:
        """Read `as_list`'s form.

        Raises:
            ValueError: it is not that.
        """
        try:
            shift, slope, a, b, c = map(float, data)
        except TypeError as error:
            raise ValueError(f"not a trend: {error}") from error
        possible = 0.0 < a <= 2 * SHIFT_VARIANCE and 0.0 < c <= 2 * SLOPE_VARIANCE and b * b <= a * c
        if not possible or not all(map(math.isfinite, (shift, slope))) or abs(shift) + abs(slope) > 100.0:
            raise ValueError("not a trend: bad numbers")
        return cls(shift, slope, a, b, c)
