"""T(n): what a target decode of width n costs on this machine.

Curves are jagged: a width that fills the kernels' row blocks can be cheaper than a narrower one. So only measured
widths count, nothing is interpolated over width, and a step may be *padded* with throwaway tokens to a wider,
cheaper width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from lcspec.profiles.change import Change
from lcspec.profiles.drift import Drift
from lcspec.profiles.stake import Costs, Stake

# How fast real steps correct the measured curve for a width.
WIDTH_RATE = 0.1
# What a step leaves of every width's own factor: a width that a disturbed moment made look dear is not taken any more,
# so nothing else would ever correct it.
KEPT = 0.997
# A single step that took this many times longer than expected was interrupted by something else.
OUTLIER = 4.0
# What a stored curve may say: widths, and logs of correction factors.
WIDEST = 4096
FURTHEST = 10.0


@dataclass
class CostCurve:
    """Measured seconds of a decode by width and context length, corrected by what real steps took.

    Attributes:
        points: width -> {context length in tokens: seconds}.
        drift: how the machine as a whole differs from when it was measured.
        bias: width -> log of the factor that is particular to that width (1 has none); forgotten slowly. Those of
            decodes in two computations have the width below zero.
        change: what a change of width costs the steps after it.
        stake: seconds to save and load a state, where drafts are verified so (see lcspec.profiles.stake).
        retaken: widths that were measured again because something disturbed them. Not stored.
        unsteady: those of them whose figures still cannot be right.
    """

    points: dict[int, dict[int, float]] = field(default_factory=dict)
    drift: Drift = field(default_factory=Drift)
    bias: dict[int, float] = field(default_factory=dict)
    change: Change = field(default_factory=Change)
    stake: Stake | None = None
    retaken: tuple[int, ...] = field(default=(), compare=False)
    unsteady: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def flat(cls, seconds: float, max_width: int) -> CostCurve:
        """A machine on which every width up to `max_width` costs the same (a GPU with work to spare)."""
        return cls({n: {0: seconds} for n in range(1, max_width + 1)})

    @property
    def widths(self) -> list[int]:
        """Measured widths, ascending."""
        return sorted(self.points)

    @property
    def max_width(self) -> int:
        """The widest measured width, 0 when nothing was measured."""
        return max(self.points, default=0)

    def measured(self, width: int, context: int) -> float:
        """Seconds at `width` as measured, linear in the context length; inf at a width nobody measured."""
        by_context = self.points.get(width)
        if not by_context:
            return math.inf
        if len(by_context) == 1:
            return next(iter(by_context.values()))
        lengths = sorted(by_context)
        below = max((c for c in lengths if c <= context), default=lengths[0])
        i = min(lengths.index(below), len(lengths) - 2)
        a, b = lengths[i], lengths[i + 1]
        slope = max(0.0, (by_context[b] - by_context[a]) / (b - a))
        return max(by_context[a] + slope * (context - a), by_context[a] * 0.5)

    def seconds(self, width: int, context: int, after: int = 0) -> float:
        """Expected seconds of a decode `width` tokens wide at `context` tokens, as the machine is now.

        `after`: so many of the rows are evaluated in a second computation.
        """
        measured, narrow, kind = self._parts(width, context, after)
        if not math.isfinite(measured):
            return measured
        return self.drift.seconds(measured, narrow) * math.exp(self.bias.get(kind, 0.0))

    def every(self, context: int) -> dict[int, float]:
        """`seconds` of every measured width."""
        narrow = self._narrow(context) if self.points else 0.0
        out = {}
        for width in self.points:
            measured = self.measured(width, context)
            now = self.drift.seconds(measured, narrow if width > 1 else measured)
            out[width] = now * math.exp(self.bias.get(width, 0.0))
        return out

    def _parts(self, width: int, context: int, after: int) -> tuple[float, float, int]:
        """Measured seconds of a decode and of a single row, and the decode's key in `bias`."""
        measured = self.measured(width - after, context) + (self.measured(after, context) if after else 0.0)
        narrow = self._narrow(context) if width > 1 and self.points else measured
        return measured, narrow, -width if after else width

    def _narrow(self, context: int) -> float:
        return self.measured(1 if 1 in self.points else min(self.points), context)

    def effective(self, context: int, allowed: frozenset[int] | None = None) -> dict[int, tuple[float, int]]:
        """For each need n: the cheapest (seconds, width) among widths >= n, i.e. with padding allowed.

        `allowed` restricts the widths (to a certified class, say). Needs beyond the widest width are missing.
        """
        best: tuple[float, int] | None = None
        out: dict[int, tuple[float, int]] = {}
        every = self.every(context)
        for width in range(self.max_width, 0, -1):
            cost = every.get(width, math.inf) if allowed is None or width in allowed else math.inf
            if cost < (best[0] if best is not None else math.inf):
                best = (cost, width)
            if best is not None:
                out[width] = best
        return out

    def with_changes(self, table: Costs, context: int, base: int, *, in_turn: bool = False) -> Costs:
        """`effective`'s table for steps that need at least `base` rows, and more where they have drafts. If such a step
        has another width, it costs later steps something, too. If it is padded to the width of a latest step with
        drafts, it is spared something.

        `in_turn`: drafts of several sequences are evaluated in a second computation, and not padded.
        """
        apart, price, last = in_turn and base > 1, self.change.price, self.change.last
        if apart or price:
            plain = table[base][1] if base in table else 0
            taken = {n: self.seconds(n, context, n - base) if apart and n > base else s for n, (s, _) in table.items()}
            table = {n: (taken[n] + price * (n > base and w != plain), w) for n, (_, w) in table.items()}
        if self.change.same > 0.0 and not in_turn and base < last and table.get(last, (0.0, 0))[1] == last:
            again = table[last][0] - self.change.same, last
            table = {n: min(cost, again) if base < n <= last else cost for n, cost in table.items()}
        return table

    def observe(self, width: int, context: int, seconds: float, plain: bool | None = None, after: int = 0) -> None:
        """A real decode took `seconds`; `plain`: without drafts, or with some. None: not one of a row of steps.

        `after` as for `seconds`.
        """
        measured, narrow, kind = self._parts(width, context, after)
        if not math.isfinite(measured) or seconds <= 0 or measured <= 0:
            return
        own = self.bias.get(kind, 0.0)
        expected = self.drift.seconds(measured, narrow) * math.exp(own)
        if plain is not None:
            seconds = max(0.5 * expected, seconds - self.change.took(width, plain, seconds, expected))
        if seconds > OUTLIER * expected:
            seconds = OUTLIER**0.25 * expected
        if not after:  # two graphs are built for two computations, which says nothing of the machine
            self.drift.learn(measured, narrow, seconds / math.exp(own))
        if width > 1:  # what all widths together do not explain
            left = math.log(seconds / self.drift.seconds(measured, narrow)) - own
            self.bias = {other: KEPT * factor for other, factor in self.bias.items()}
            self.bias[kind] = KEPT * own + WIDTH_RATE * left

    def as_dict(self) -> dict[str, Any]:
        """For the cache file."""
        return {
            "points": {str(n): {str(c): s for c, s in by.items()} for n, by in self.points.items()},
            "drift": self.drift.as_list(),
            "bias": {str(n): b for n, b in self.bias.items()},
            "change": self.change.as_list(),
            **({"state": [self.stake.save, self.stake.load]} if self.stake is not None else {}),
            **({"unsteady": list(self.unsteady)} if self.unsteady else {}),
        }

    @classmethod
    def from_dict(cls, data: Any) -> CostCurve:
        """Read `as_dict`'s form.

        Raises:
            ValueError: it is not that.
        """
        try:
            points = {int(n): {int(c): float(s) for c, s in by.items()} for n, by in data["points"].items()}
            curve = cls(points, Drift.from_list(data["drift"]), {int(n): float(b) for n, b in data["bias"].items()})
            if "change" in data:
                curve.change = Change.from_list(data["change"])
            if "state" in data:
                save, load = data["state"]
                curve.stake = Stake(float(save), float(load))
            curve.unsteady = tuple(int(n) for n in data.get("unsteady", ()))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a cost curve: {error}") from error
        values = [s for by in points.values() for s in by.values()]
        values += [curve.stake.save, curve.stake.load] if curve.stake is not None else []
        if not values or not all(math.isfinite(s) and s > 0 for s in values) or 1 not in points:
            raise ValueError("not a cost curve: bad numbers")
        if not all(points.values()) or not 0 < min(points) <= max(points) <= WIDEST:
            raise ValueError("not a cost curve: bad widths")
        if not all(abs(x) <= FURTHEST for x in curve.bias.values()):
            raise ValueError("not a cost curve: bad numbers")
        return curve
