"""Running figures of a costly drafter: what the planner knows about asking it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

# How fast the running figures follow: acceptance, and the seconds of a level (downwards three times as fast).
RATE = 0.015
TIME_RATE = 0.1
# What earlier texts taught counts for so many observations.
EARLIER = 8
# How fast the number of sequences that are asked together follows.
SHARING_RATE = 0.1
# What a costly drafter is believed to be worth before anything is known.
FIRST_GUESS = 0.7


@dataclass
class DrafterRecord:
    """Running figures of a costly drafter.

    Attributes:
        acceptance: how often its best child is right, given that the parent was.
        tested: observations behind that.
        level_seconds: what a level costs, for all sequences that are asked together.
        sharing: how many those are as a rule; 0: not known.
        waited: seconds of decoding since it was asked.
    """

    acceptance: float = FIRST_GUESS
    tested: int = 0
    level_seconds: float = 0.0
    sharing: float = 0.0
    waited: float = 0.0

    def share(self, sequences: int) -> float:
        """What a level costs one of `sequences` that might be asked together."""
        return self.level_seconds / (min(self.sharing, sequences) or sequences)

    def asked(self, sequences: int) -> None:
        """So many sequences were asked together."""
        self.sharing += (SHARING_RATE if self.sharing else 1.0) * (sequences - self.sharing)

    def saw(self, hit: bool) -> None:
        """Its best child was tested."""
        self.tested += 1
        self.acceptance += max(RATE, 1.0 / (self.tested + 3)) * (float(hit) - self.acceptance)

    def took(self, seconds: float, sure: bool = True) -> None:
        """A level took `seconds`, or at most that if it is not `sure`: after a pause the first one also catches up."""
        faster = seconds < self.level_seconds
        if self.level_seconds and not (sure or faster):
            return
        rate = (3 * TIME_RATE if faster else TIME_RATE) if self.level_seconds else 1.0
        self.level_seconds += rate * (seconds - self.level_seconds)

    def renew(self) -> None:
        """A new text: what the earlier ones taught counts for less."""
        self.tested = min(self.tested, EARLIER)

    def as_dict(self) -> dict[str, Any]:
        """For the history."""
        return {"acceptance": self.acceptance, "tested": self.tested, "level_seconds": self.level_seconds}

    @classmethod
    def from_dict(cls, data: Any) -> DrafterRecord:
        """Read `as_dict`'s form; it counts as an earlier request's.

        Raises:
            ValueError: it is not that.
        """
        try:
            out = cls(float(data["acceptance"]), int(data["tested"]), float(data["level_seconds"]))
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a drafter's record: {error}") from error
        if not math.isfinite(out.level_seconds) or out.level_seconds < 0.0:
            raise ValueError("not a drafter's record: bad numbers")
        if not 0.0 <= out.acceptance <= 1.0 or out.tested < 0:
            raise ValueError("not a drafter's record: bad numbers")
        out.renew()
        return out
