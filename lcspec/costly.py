"""The running figures of a drafter that costs time: what it is worth, what it takes, what asking it has gained."""

from __future__ import annotations

from dataclasses import dataclass, field

# How fast the running figures of a costly drafter follow: acceptance, seconds a level, what asking it gains.
RATE = 0.015
TIME_RATE = 0.1
GAIN_RATE = 0.05
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
        level_seconds: what a level costs.
        since_asked: steps since it was asked.
        gains: [mean, asks] of what asking it gained, in tokens net of its time, by what the step gained without it.
    """

    acceptance: float = FIRST_GUESS
    tested: int = 0
    level_seconds: float = 0.0
    since_asked: int = 0
    gains: dict[int, list[float]] = field(default_factory=dict)

    @property
    def hope(self) -> float:
        """Its acceptance, as high as it may well be: a drafter nobody knows yet deserves to be tried."""
        return min(0.98, self.acceptance + 1.0 / (self.tested + 3))

    def saw(self, hit: bool) -> None:
        """Its best child was tested."""
        self.tested += 1
        self.acceptance += max(RATE, 1.0 / (self.tested + 3)) * (float(hit) - self.acceptance)

    def took(self, seconds: float) -> None:
        """A level took `seconds`. Follows downwards faster: after a pause the first level also catches up."""
        faster = seconds < self.level_seconds
        rate = (3 * TIME_RATE if faster else TIME_RATE) if self.level_seconds else 1.0
        self.level_seconds += rate * (seconds - self.level_seconds)

    def gained(self, bucket: int, tokens: float, probe: bool) -> None:
        """An ask gained `tokens`."""
        entry = self.gains.setdefault(bucket, [0.0, 0.0])
        entry[1] += 1.0
        entry[0] += max(PROBE_GAIN_RATE if probe else GAIN_RATE, 1.0 / entry[1]) * (tokens - entry[0])

    def renew(self) -> None:
        """A new request: what the earlier ones taught counts for less."""
        self.tested = min(self.tested, ENOUGH_TESTS)
        for entry in self.gains.values():
            entry[1] = min(entry[1], float(ENOUGH_ASKS))
