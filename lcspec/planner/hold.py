"""Whether to keep every step at one width for a while.

A GPU replays the kernels of a decode that is as wide as the two before it, which can take half as long as launching
them (see lcspec.profiles.change). So sixteen rows in every step may cost little more than one row in every step, and
much less than sixteen rows now and then. Running averages compare two rates, tokens per second: of steps that the
planner chooses one by one, and of steps that are all padded to one width and draft as much as fits into it.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Sequence

from lcspec.planner.worth import Step
from lcspec.profiles.change import STEPS
from lcspec.profiles.cost_curve import CostCurve

# Weight of a step in the averages; the first ones have more.
RATE = 1 / 8
# What it takes to change the width is spread over so many steps.
LASTS = 8


class Average:
    """Tokens per second of a way to go on, over recent steps."""

    def __init__(self) -> None:
        self.tokens = self.seconds = 0.0
        self._seen = 0

    def add(self, tokens: float, seconds: float) -> None:
        """A step would emit `tokens` in `seconds`."""
        self._seen += 1
        weight = max(RATE, 1 / self._seen)
        self.tokens += weight * (tokens - self.tokens)
        self.seconds += weight * (seconds - self.seconds)

    def rate(self, more: float = 0.0) -> float:
        """Tokens per second, if a step takes `more` seconds more."""
        return self.tokens / (self.seconds + more) if self.seconds else 0.0


class Hold:
    """The width that steps keep at present.

    Attributes:
        width: in tokens; 0: steps are as wide as each of them is worth.
    """

    def __init__(self, curve: CostCurve) -> None:
        self.width = 0
        self._curve = curve
        self._free, self._held = Average(), {width: Average() for width in (curve.held.widths if curve.held else ())}
        self._steps = 0  # at this width, one after the other

    def table(self, base: int, context: int) -> dict[int, tuple[float, int]]:
        """What a step costs at the width that is held, by need, as CostCurve.effective does; empty if none is."""
        if not base <= self.width or self._curve.held is None:
            return {}
        cost = self._curve.held.seconds(self.width, context), self.width
        return dict.fromkeys(range(base, self.width + 1), cost)

    def weigh(self, step: Step, worths: Sequence[float], free: tuple[float, float], context: int) -> None:
        """Decide about this step and the next ones.

        Args:
            step: without drafts.
            worths: expected tokens of what was drafted, descending.
            free: expected tokens and seconds of the best step of any width, drafting included.
            context: mean length of the texts.
        """
        assert self._curve.held is not None
        gained = list(accumulate(worths, initial=step.tokens))
        self._free.add(*free)
        rates = {}
        for width, average in self._held.items():
            if width > step.need:
                tokens = gained[min(width - step.need, len(worths))]
                average.add(tokens, step.drafting + self._curve.held.seconds(width, context))
                rates[width] = average.rate(0.0 if width == self.width else self._change(width, context))
        best = max(rates, key=rates.__getitem__, default=0)
        self.width = best if best and rates[best] > self._free.rate() else 0

    def _change(self, width: int, context: int) -> float:
        """Seconds by which a change to `width`, and one back, make each step longer that comes between them."""
        assert self._curve.held is not None
        slower = self._curve.seconds(width, context) - self._curve.held.seconds(width, context)
        return (STEPS * max(0.0, slower) + self._curve.change.back) / LASTS

    def took(self, width: int, context: int, seconds: float) -> bool:
        """Note a decode; returns whether it says nothing about decodes of this width after others."""
        self._steps = self._steps + 1 if width == self.width else 0
        if self._steps > STEPS and self._curve.held is not None:
            self._curve.held.observe(width, context, seconds)
        return self._steps > 1
