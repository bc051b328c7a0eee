"""How a machine differs from when it was measured.

Other programs that use the memory make reading the weights slower: every step takes the same number of seconds more,
whatever its width. Other programs that use the cores, or a lower clock rate, multiply the time of every step. Steps of
a single width cannot tell these two effects apart, and most steps are one token wide. So both are estimated together,
by recursive least squares with forgetting (a Kalman filter): a change is first divided between them, and a few steps of
another width decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

# Standard deviations: of scale and shift before anything is known, and of a single step's time, as a share of it.
BEFORE = 0.2
NOISE = 0.15
# At each step, what is known and the distance of both numbers from the measurement shrink by this factor: a dozen steps
# of one width say most of what that width can say, and what it cannot say is forgotten within some hundred steps.
KEPT = 0.999
# A decode never takes less than this share of what was measured.
LEAST = 0.2
# Stored numbers beyond this are refused.
FURTHEST = 1e4


@dataclass
class Drift:
    """Seconds now = scale * (seconds measured) + shift * (seconds measured for one token).

    `var_scale`, `var_both`, `var_shift`: the covariance of scale and shift.
    """

    scale: float = 1.0
    shift: float = 0.0
    var_scale: float = BEFORE**2
    var_both: float = 0.0
    var_shift: float = BEFORE**2

    def seconds(self, measured: float, narrow: float) -> float:
        """How long a step takes now that was measured at `measured` seconds; `narrow`: one token's measurement."""
        return max(self.scale * measured + self.shift * narrow, LEAST * measured)

    def learn(self, measured: float, narrow: float, seconds: float) -> None:
        """A step that was measured at `measured` seconds took `seconds`; `narrow`: one token's measurement."""
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
        """For the cache file. The covariance is not stored: a later session starts as uncertain as a new one."""
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
