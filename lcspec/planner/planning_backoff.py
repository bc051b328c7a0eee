"""Thinking less often while nothing comes of it.

Asking drafters and choosing among what they say takes Python's time: a few per cent of a short decode, half of a very
short one. Where thoughts gain less than they cost, the planner rests for some steps, in which nobody is asked or told
anything, so that thinking takes a small share of the time. It thinks in rounds: one thought alone after a rest finds
drafters that have yet to hear of the rest's tokens, and says little about thinking every time.
"""

from __future__ import annotations

from dataclasses import dataclass

# Share of the time that rounds may take while nothing comes of them, and the longest rest, in steps.
SHARE = 0.01
LONGEST = 256
# Thoughts of a round.
ROUND = 8
# How fast the running figures follow; the first values of the time are means.
TIME_RATE = 0.1
GAIN_RATE = 1 / 24
# What a thought is believed to gain before anything is known, in steps without drafts.
FIRST_GAIN = 0.3
# Thoughts before the first rest: the first ones make what later ones find made.
ENOUGH = 16
# A thought counts for so many times the running figure at most: the machine may have been elsewhere.
OUTLIER = 4.0


@dataclass
class PlanningBackoff:
    """Running figures of thinking, and the rest under way.

    Attributes:
        left: steps for which nobody is asked.
        bare: seconds besides its decode that a step of a rest takes.
        thinking: seconds that a step with a thought takes more than that, the first of a text and after a
            rest left out.
        gain: what such a thought gains, in steps without drafts.
    """

    left: int = 0
    bare: float = 0.0
    thinking: float = 0.0
    gain: float = FIRST_GAIN
    _rested: int = 0
    _thoughts: int = 0
    _since: int = 0  # thoughts since the latest rest, about the text at hand
    _lost: float = 0.0  # seconds that those of the round under way cost more than they gained

    def takes(self) -> bool:
        """Whether this step belongs to a rest."""
        if self.left == 0:
            return False
        self.left -= 1
        self._afresh()
        return True

    def wake(self) -> None:
        """Another text has come, which a rest was no answer to."""
        self.left = 0
        self._afresh()

    def _afresh(self) -> None:
        """The next thought begins a round, and finds drafters that have yet to read."""
        self._since, self._lost = 0, 0.0

    def rested(self, seconds: float) -> None:
        """A step of a rest took so many seconds besides its decode."""
        self._rested += 1
        self.bare += max(TIME_RATE, 1.0 / self._rested) * (seconds - self.bare)

    def thought(self, seconds: float, gained: float, decode: float) -> None:
        """A step with a thought took `seconds` besides its decode, and is expected to gain as much as `gained` steps
        without drafts, whose decode takes `decode`.
        """
        step = decode + self.bare
        more = max(0.0, seconds - self.bare)
        if self.thinking > 0.0:
            more = min(more, OUTLIER * self.thinking)
        self._lost += more - gained * step
        if self._since:
            self._thoughts += 1
            self.thinking += max(TIME_RATE, 1.0 / self._thoughts) * (more - self.thinking)
            self.gain += GAIN_RATE * (gained - self.gain)
        self._since += 1
        if self._since % ROUND == 0:
            if self._thoughts >= ENOUGH and self.gain * step < self.thinking and self._lost > 0.0:
                # What a step takes without thoughts must be known to say what they cost: one tells.
                most = LONGEST if self._rested else 1
                self.left = max(1, min(most, int(self._lost / (SHARE * step))))
            self._lost = 0.0
