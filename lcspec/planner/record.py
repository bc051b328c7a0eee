"""Running figures of a costly drafter."""

from __future__ import annotations

from dataclasses import dataclass

# Weight of a new observation in the averages: acceptance, and the seconds of a level (three times this if it is less).
RATE, TIME_RATE = 0.015, 0.1
# Observations of earlier texts together count as at most this many.
EARLIER = 8
# Acceptance of a costly drafter before anything is known about it.
FIRST_GUESS = 0.7


@dataclass
class DrafterRecord:
    """Running figures of a costly drafter.

    Attributes:
        acceptance: how often its best child of a node is right, given that the node was.
        tested: number of observations behind `acceptance`.
        level_seconds: what a level costs, for all sequences that are asked together.
        sharing: the number of sequences that were last asked together; 0: not known.
        reading: seconds it last took to catch up with the text before it drafted.
        waited: seconds of decoding since it was last asked.
    """

    acceptance: float = FIRST_GUESS
    tested: int = 0
    level_seconds: float = 0.0
    sharing: int = 0
    reading: float = 0.0
    waited: float = 0.0

    def share(self, sequences: int) -> float:
        """What a level costs each of `sequences` that may be asked together, seconds."""
        return self.level_seconds / (min(self.sharing, sequences) or sequences)

    def saw(self, hit: bool) -> None:
        """Its best child was accepted (`hit`) or refused."""
        self.tested += 1
        self.acceptance += max(RATE, 1.0 / (self.tested + 3)) * (float(hit) - self.acceptance)

    def took(self, seconds: float, sure: bool = True) -> None:
        """A level took `seconds`; if not `sure`, at most that: the first level after a pause also catches up."""
        if not sure:
            self.reading = max(0.0, seconds - self.level_seconds) if self.level_seconds else 0.0
        faster = seconds < self.level_seconds
        if sure or faster or not self.level_seconds:
            rate = (3 * TIME_RATE if faster else TIME_RATE) if self.level_seconds else 1.0
            self.level_seconds += rate * (seconds - self.level_seconds)

    def renew(self) -> None:
        """Another text starts: what earlier ones taught counts for less."""
        self.tested = min(self.tested, EARLIER)
