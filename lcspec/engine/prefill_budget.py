"""How many prompt tokens go into a step with running decodes, so that the answer starts soon and no stream pauses long.

A prompt is read fastest in one step, but all streams pause during that step. Reading it in pieces takes longer: narrow
steps cost more per token, and every step also decodes the streams' next tokens. So a piece is as narrow as possible
while the prompt is read in hardly more time than in one step. It is narrower where the streams would pause too long,
but never so narrow that it is too expensive, and always as wide as a reader does not notice. How many tokens that is
follows from what steps take on this machine: from the measured cost curve, and from the times of wider steps.

Kernels for wide steps multiply blocks of rows, and a block takes the same time when it is not full, so steps fill
their blocks. On two cores with AMX and a 1B model in Q4_0:

    rows    32    33 ..  64    65 ..  96    97 .. 128
    ms     137   250 .. 263   363 .. 393   496 .. 532
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lcspec.planner.base import UNNOTICED
from lcspec.profiles.cost_curve import CostCurve

# Reading a prompt in pieces may take this many times as long as reading it in steps of the best width ...
HARDLY = 1.03
# ... and this many times where the streams would otherwise pause for longer than PAUSE seconds, the time for which a
# reader's attention stays with the text (Nielsen 1993).
DEAR = 1.15
PAUSE = 1.0
# Length of a prompt that is so long that its last piece does not matter.
LONG = 1 << 20
# Prompt tokens of a step while no step has been timed.
FIRST_CHUNK = 32
# Rows of a block. Smaller blocks divide it, so filling it costs nothing there.
BLOCK = 32
# After so many pieces a piece wider by this factor is tried; the number of pieces until the next trial doubles.
TRY_AFTER, WIDER = 4, 4
# Weight of a new step in the running averages.
RATE = 0.3

Curve = tuple[float, NDArray[np.float64]]


class PrefillBudget:
    """How long steps take, by width, as running averages."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float]] = {}  # _kind(width) -> mean width, mean seconds
        self._doubtful: set[int] = set()  # widths whose time comes from a step wider than any before
        self._widest = self._pieces = 0
        self._blocky = 0.0  # share of a full block's time that a block with one row takes
        self._trial = 1  # the piece at which a wider one is tried next
        self._latest: tuple[int, CostCurve | None, Curve] | None = None  # what `_seconds` said, until the next step

    def observe(self, width: int, seconds: float) -> None:
        """A step of `width` tokens took `seconds`."""
        self._latest = None
        kind = _kind(width)
        w, s = self._points.get(kind, (width, seconds))
        if width > self._widest:
            self._widest = width
            self._doubtful.add(kind)
        elif kind in self._doubtful:
            self._doubtful.remove(kind)
            w, s = width, seconds
        if width > BLOCK and abs(width - w) > BLOCK / 8:
            if width < w:
                # The time of steps with full blocks is known; this step shows what a block's empty rows cost.
                linear = width / w
                free = (seconds / s - linear) / (1 - linear)
                self._blocky += RATE * (min(1.0, max(0.0, free)) - self._blocky)
                return
            w, s = width, seconds
        self._points[kind] = w + RATE * (width - w), s + RATE * (seconds - s)

    def room(self, base: int, context: int, curve: CostCurve | None = None, left: int = LONG) -> int:
        """Prompt tokens for a step in which decodes take `base` tokens; at least 1. `left`: tokens left of the prompt.

        Now and then it returns more than seems best: a step wider than any before may be cheaper, and trying it takes
        no time that the prompt would not take anyway.
        """
        self._pieces += 1
        best, most = _best(base, left, *self._seconds(context, curve))
        if self._pieces >= self._trial:
            self._trial = 2 * self._pieces + TRY_AFTER
            best = max(best, min(_full(WIDER * (base + best)) - base, most))
        return best

    def alone(self, context: int, curve: CostCurve | None = None) -> int | None:
        """Prompt tokens for a step while no other request waits; None: as many as there are.

        A request may arrive meanwhile, and should then not wait longer than PAUSE.
        """
        timed, seconds = self._seconds(context, curve)
        if not len(seconds):
            return None
        return max(_best(0, LONG, timed, seconds)[0], _full(int(PAUSE * len(seconds) / seconds[-1])))

    def riders(self, width: int, others: int, context: int, curve: CostCurve | None = None) -> int:
        """Tokens of `others` prompts to add to a step of `width` tokens that finishes a prompt.

        They delay the answer of that prompt, and save the others the part of a step of their own that they do not add
        to this one. As many are added as delay it by no more than what all the others gain together.
        """
        _, seconds = self._seconds(context, curve)
        if len(seconds) <= width or not others:
            return 0
        longer = seconds[width:]
        delay, gain = longer - seconds[width - 1], seconds[width - 1] + seconds[: len(longer)] - longer
        paying = np.flatnonzero(delay <= others * gain)
        return int(paying[-1]) + 1 if paying.size else 0

    def _seconds(self, context: int, curve: CostCurve | None) -> Curve:
        """The narrowest timed width, and seconds of steps of 1, 2, 3 ... tokens, up to twice the widest timed width."""
        if self._latest is None or self._latest[:2] != (context, curve):
            self._latest = context, curve, self._drawn(context, curve)
        return self._latest[2]

    def _drawn(self, context: int, curve: CostCurve | None) -> Curve:
        """`_seconds`, computed.

        It draws straight lines between the timed widths, and from zero up to where each row is paid for singly; it is
        empty if no width has been timed.
        """
        points = dict(self._points.values())
        doubtful = {self._points[kind][0] for kind in self._doubtful}
        if curve is not None:
            points = {w: s for w, s in points.items() if w > curve.max_width}
            doubtful &= points.keys()  # what the curve contains has been measured
            points.update(curve.every(context).items())
        if not points:
            return math.inf, np.zeros(0)
        # At the first use of memory the kernel may need as much time as the step itself. Such a step counts only as
        # far as it cost no more per token than narrower steps.
        least = min((s / w for w, s in points.items() if w not in doubtful), default=math.inf)
        points = {w: min(s, w * least) if w in doubtful else s for w, s in points.items()}
        known = np.array([0.0, *sorted(points)])
        known += self._blocky * (_filled(known) - known)
        taken = np.array([0.0, *(points[w] for w in sorted(points))])
        # Extrapolate with the slope from half the widest known width to the widest, since neighbours say little about a
        # slope. Two steps of half the width would do as well, so no width costs more per token than the widest known.
        half = float(known[-1]) / 2
        slope = min(max(0.0, taken[-1] - np.interp(half, known, taken)) / half, taken[-1] / known[-1])
        widths = np.arange(1, BLOCK * math.ceil(2 * known[-1] / BLOCK) + 1)
        even: NDArray[np.float64] = np.interp(widths, known, taken) + slope * np.maximum(0.0, widths - known[-1])
        return float(known[1]), even + self._blocky * (even[_filled(widths).astype(int) - 1] - even)


def _best(base: int, left: int, timed: float, seconds: NDArray[np.float64]) -> tuple[int, int]:
    """Widths of a prompt's next piece with `left` tokens, beside `base` rows: the best one, and the widest that takes
    no longer than PAUSE. For `timed` and `seconds` see PrefillBudget._seconds.
    """
    every = np.arange(base + 1, len(seconds) + 1)
    widths = every[(every <= BLOCK) | (every % BLOCK == 0) | (every == base + left)]
    if not widths.size:
        return FIRST_CHUNK, FIRST_CHUNK
    each = seconds[widths - 1] / (widths - base)  # of the tokens beyond `base`
    whole, rest = np.divmod(left, widths - base)
    total = whole * seconds[widths - 1] + np.where(rest, seconds[base + rest - 1], 0.0)

    def lasting(limit: float) -> int:
        return int(widths[seconds[widths - 1] <= limit].max(initial=base)) - base

    def costing(factor: float, cost: NDArray[np.float64]) -> int:
        width = int(widths[np.argmax(cost <= factor * cost.min())])
        return width - base if width >= timed else FIRST_CHUNK

    longest = lasting(PAUSE)
    # Blocks of rows are no reason to let the streams pause for longer than PAUSE.
    return max(lasting(UNNOTICED), costing(DEAR, each), min(costing(HARDLY, total), longest)), longest


def _kind(width: int) -> int:
    """The class of a width: powers of two up to a block, then numbers of blocks."""
    return width.bit_length() if width <= BLOCK else BLOCK.bit_length() - 1 + math.ceil(width / BLOCK)


def _full(width: int) -> int:
    """The widest step up to `width` with full blocks."""
    return width if width <= BLOCK else width - width % BLOCK


def _filled(widths: NDArray[Any]) -> NDArray[np.float64]:
    """The narrowest steps from `widths` on with full blocks."""
    return np.where(widths <= BLOCK, widths, BLOCK * np.ceil(widths / BLOCK))
