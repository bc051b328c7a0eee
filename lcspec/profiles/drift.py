"""How a machine differs from when it was measured.

Others who use the memory make the reading of weights longer: every step takes as many seconds more, however wide it is.
Others who use the cores, or a slower clock, make all of it take so many times as long. Steps of one width do not tell
one from the other, and most steps are one token wide. So both are estimated together, by recursive least squares with
forgetting (a Kalman filter): a change is first shared between them, and a few steps of another width decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

# Standard deviations of both numbers before anything is known, and of a single step's time, as a share of it.
BEFORE = 0.2
NOISE = 0.15
# What a step leaves of what is known, and of both numbers' distance from what was measured: a dozen steps say most of
# what steps alike can say, and what these cannot say is forgotten in some hundreds.
KEPT = 0.999
# A decode never takes less than this share of what was measured.
LEAST = 0.2
# What a stored drift may say.
FURTHEST = 1e4


@dataclass
class Drift:
    """Seconds now = scale * measured + shift * measured for one token; and the covariance of both numbers."""

    scale: float = 1.0
    shift: float = 0.0
    var_scale: float = BEFORE**2
    var_both: float = 0.0
    var_shift: float = BEFORE**2

    def seconds(self, measured: float, narrow: float) -> float:
        """What takes `measured` seconds, takes now; `narrow`: measured for one token."""
        return max(self.scale * measured + self.shift * narrow, LEAST * measured)

    def learn(self, measured: float, narrow: float, seconds: float) -> None:
        """What was measured to take `measured` took `seconds`."""
        x, y = measured / narrow, seconds / narrow
        self.scale, self.shift = 1 + KEPT * (self.scale - 1), KEPT * self.shift
        fresh = (1 - KEPT**2) * BEFORE**2
        a, b, c = (KEPT**2 * n for n in (self.var_scale, self.var_both, self.var_shift))
        a, c = a + fresh, c + fresh
        # The filter's gain, for an observation scale * x + shift.
        u, v = a * x + b, b * x + c
        variance = u * x + v + (NOISE * y) ** 2
        error = (y - self.scale * x - self.shift) / variance
        self.scale += u * error
        self.shift += v * error
        self.var_scale, self.var_both, self.var_shift = a - u * u / variance, b - u * v / variance, c - v * v / variance

    def as_list(self) -> list[float]:
        """For the cache file; a later session is as unsure of it as a new one."""
        return [self.scale, self.shift]

    @classmethod
    def from_list(cls, data: Any) -> Drift:
        """Read what `as_list` wrote.

        Raises:
            ValueError, TypeError: the data has another form, or impossible numbers.
        """
        scale, shift = map(float, data)
        if not all(math.isfinite(n) and abs(n) <= FURTHEST for n in (scale, shift)):
            raise ValueError("not a drift: bad numbers")
        return cls(scale, shift)
