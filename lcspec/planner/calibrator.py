"""Calibration from few examples: a line between log-odds.

Logistic calibration (Platt 1999), learned online: log-odds of the truth = shift + slope * log-odds of the estimate.
Shift and slope have a Gaussian prior, which every example updates (an extended Kalman filter on the logistic model).
The line starts as the identity; ten examples move it most of the way if a drafter is much too sure, or not sure enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Variances of the prior; forgetting lets them grow back to these at most.
SHIFT_VARIANCE = 4.0
SLOPE_VARIANCE = 0.25
# After this many further examples, an example counts for little.
MEMORY = 400.0
# Estimates are clipped to these log-odds.
SUREST = 5.3


def log_odds(p: float) -> float:
    """Log-odds of a probability, clipped to +-SUREST."""
    if p <= 0.0 or p >= 1.0:
        return SUREST if p >= 1.0 else -SUREST
    return max(-SUREST, min(SUREST, math.log(p / (1.0 - p))))


@dataclass
class Calibrator:
    """The line, and the covariance of its parameters: [[var_shift, var_both], [var_both, var_slope]]."""

    shift: float = 0.0
    slope: float = 1.0
    var_shift: float = SHIFT_VARIANCE
    var_both: float = 0.0
    var_slope: float = SLOPE_VARIANCE

    def value(self, estimate: float) -> float:
        """The calibrated probability for an estimate."""
        return 1.0 / (1.0 + math.exp(-self.shift - self.slope * log_odds(estimate)))

    def learn(self, estimate: float, hit: bool) -> None:
        """Update the line by an example: what was estimated happened (`hit`), or did not."""
        z, grow = log_odds(estimate), 1.0 + 1.0 / MEMORY
        # forgetting: the variances grow, up to those of the prior
        a, c = min(self.var_shift * grow, SHIFT_VARIANCE), min(self.var_slope * grow, SLOPE_VARIANCE)
        b = self.var_both
        p = min(max(1.0 / (1.0 + math.exp(-self.shift - self.slope * z)), 1e-3), 1.0 - 1e-3)
        u, v, weight = a + b * z, b + c * z, p * (1.0 - p)
        scale = 1.0 + weight * (u + v * z)
        error = (float(hit) - p) / scale
        self.shift += u * error
        self.slope += v * error
        k = weight / scale
        self.var_shift, self.var_both, self.var_slope = a - k * u * u, b - k * u * v, c - k * v * v
