"""Running figures of a costly drafter: what the planner knows about asking it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from lcspec.planner.longrun import LongRun

# How fast the running figures of a costly drafter follow: acceptance, seconds a level, what asking it gains.
RATE = 0.015
TIME_RATE = 0.1
GAIN_RATE = 0.05
SHARING_RATE = 0.1
PROBE_GAIN_RATE = 0.2
# Asks after which their measured gain decides whether to ask again, instead of an imagined chain.
ENOUGH_ASKS = 4
ENOUGH_TESTS = 8
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
        since_asked: steps since it was asked.
        since_first: steps since it was the first costly drafter whose turn it was.
        gains: [mean, asks] of what asking it gained, in tokens net of its time, by what the step gained without it
            and whether other costly drafters had been asked before.
        solo: what the latest steps in which it was asked would have reached without any other drafter.
    """

    acceptance: float = FIRST_GUESS
    tested: int = 0
    level_seconds: float = 0.0
    sharing: float = 0.0
    since_asked: int = 0
    since_first: int = 0
    gains: dict[int, list[float]] = field(default_factory=dict)
    solo: LongRun = field(default_factory=LongRun)

    @property
    def hope(self) -> float:
        """Its acceptance, as high as it may well be: a drafter nobody knows yet deserves to be tried."""
        return min(0.98, self.acceptance + 1.0 / (self.tested + 3))

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
        """A level took `seconds`, or at most that if it is not `sure`: after a pause the first one also catches up.

        Follows downwards faster.
        """
        faster = seconds < self.level_seconds
        if self.level_seconds and not (sure or faster):
            return
        rate = (3 * TIME_RATE if faster else TIME_RATE) if self.level_seconds else 1.0
        self.level_seconds += rate * (seconds - self.level_seconds)

    def gained(self, bucket: int, tokens: float, probe: bool) -> None:
        """An ask gained `tokens`."""
        entry = self.gains.setdefault(bucket, [0.0, 0.0])
        entry[1] += 1.0
        entry[0] += max(PROBE_GAIN_RATE if probe else GAIN_RATE, 1.0 / entry[1]) * (tokens - entry[0])

    def gain(self, bucket: int) -> float | None:
        """What asking gains on average; None before enough is known."""
        mean, asks = self.gains.get(bucket, (0.0, 0.0))
        return mean if asks >= ENOUGH_ASKS else None

    def settled(self, bucket: int) -> bool:
        """Whether `gain` has seen enough of the request at hand."""
        return self.gains.get(bucket, (0.0, 0.0))[1] >= 2 * ENOUGH_ASKS

    def renew(self) -> None:
        """A new request: what the earlier ones taught counts for less."""
        self.tested = min(self.tested, ENOUGH_TESTS)
        for entry in self.gains.values():
            entry[1] = min(entry[1], float(ENOUGH_ASKS))

    def as_dict(self) -> dict[str, Any]:
        """For the history."""
        return {
            "acceptance": self.acceptance,
            "tested": self.tested,
            "level_seconds": self.level_seconds,
            "gains": {str(bucket): entry for bucket, entry in self.gains.items()},
        }

    @classmethod
    def from_dict(cls, data: Any) -> DrafterRecord:
        """Read `as_dict`'s form; it counts as an earlier request's.

        Raises:
            ValueError: it is not that.
        """
        try:
            gains = {int(b): [float(mean), float(asks)] for b, (mean, asks) in data["gains"].items()}
            out = cls(float(data["acceptance"]), int(data["tested"]), float(data["level_seconds"]), gains=gains)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a drafter's record: {error}") from error
        numbers = [out.acceptance, out.level_seconds, *(x for entry in gains.values() for x in entry)]
        if not all(map(math.isfinite, numbers)) or not 0.0 <= out.acceptance <= 1.0 or out.level_seconds < 0.0:
            raise ValueError("not a drafter's record: bad numbers")
        if out.tested < 0 or any(asks < 0 for _, asks in gains.values()):
            raise ValueError("not a drafter's record: bad numbers")
        out.renew()
        return out
