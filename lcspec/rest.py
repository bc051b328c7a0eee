"""Thinking less often while nothing comes of it.

Asking the free drafters and choosing among what they say takes Python's time, a few per cent of a short decode. Where a
thought gains less than it costs, the planner rests for a few steps, so that thinking takes a small share of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

# Share of the decode time that thinking may take while nothing comes of it, and the longest rest, in steps.
SHARE = 0.01
LONGEST = 16
# How fast the running figures follow.
TIME_RATE = 0.1
GAIN_RATE = 1 / 24
# What a thought is believed to gain before anything is known, in steps without drafts.
FIRST_GAIN = 0.3


@dataclass
class Rest:
    """Running figures of thinking, and the rest under way.

    Attributes:
        left: steps for which nobody is asked.
        thinking: seconds of a thought.
        gain: what a thought gains, in steps without drafts.
    """

    left: int = 0
    thinking: float = 0.0
    gain: float = FIRST_GAIN

    def takes(self) -> bool:
        """Whether this step belongs to a rest."""
        self.left -= self.left > 0
        return self.left > 0

    def thought(self, seconds: float, gained: float, step: float, idle: bool) -> None:
        """A thought took `seconds` and is expected to save `gained` seconds, where a step without drafts takes `step`.

        `idle`: it chose nothing.
        """
        self.thinking += TIME_RATE * (seconds - self.thinking)
        self.gain += GAIN_RATE * (gained / step - self.gain)
        if idle and self.gain * step < self.thinking:
            self.left = min(LONGEST, int(self.thinking / (SHARE * step))) + 1
