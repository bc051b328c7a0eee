"""How much of a prompt fits beside running decodes, so that its answer begins soon and nobody's stream stands still.

A prompt is soonest read in one step, and all streams stand still meanwhile. Pieces cost it time: narrow steps are dear
for each of their tokens, and every step takes the streams' next tokens along. So a piece is as narrow as it can be
while the prompt is read hardly later than in one step; narrower than that where the streams would stop for too long,
but never so narrow that it is dear; and as wide as a reader does not notice in any case. How many tokens that is
follows from what steps take on this machine: the cost curve where it has been measured, and wider steps as they happen.

Kernels for wide steps multiply blocks of rows, and a block that is not full takes as long as a full one: steps fill
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

# Reading a prompt in pieces may take this many times as long as reading it in the best steps there are ...
HARDLY = 1.03
# ... and so many times where the streams would stop for longer than PAUSE, seconds: a reader's thoughts stay with the
# text for about that long (Nielsen 1993).
DEAR = 1.15
PAUSE = 1.0
# Tokens of a prompt whose last piece does not matter.
LONG = 1 << 20
# Prompt tokens of a step as long as nothing has been timed.
FIRST_CHUNK = 32
# Rows of a block. Where blocks are smaller they divide it, and to fill it costs nothing.
BLOCK = 32
# After so many pieces a wider one is tried, by this factor; after each trial it takes twice as many to the next.
TRY_AFTER, WIDER = 4, 4
# How fast the running figures follow.
RATE = 0.3


class PrefillBudget:
    """Running figures of how long steps take, by width."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float]] = {}  # _kind(width) -> mean width, mean seconds
        self._doubtful: set[int] = set()  # those of them that steps wider than any before have given
        self._widest = self._pieces = 0
        self._blocky = 0.0  # share of a full block's time that a block with one row takes
        self._trial = 1  # the piece at which a wider one is tried

    def observe(self, width: int, seconds: float) -> None:
        """A step of `width` tokens took `seconds`."""
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
                # What steps cost that fill their blocks is known; this one tells what the empty rows of a block cost.
                linear = width / w
                free = (seconds / s - linear) / (1 - linear)
                self._blocky += RATE * (min(1.0, max(0.0, free)) - self._blocky)
                return
            w, s = width, seconds
        self._points[kind] = w + RATE * (width - w), s + RATE * (seconds - s)

    def room(self, base: int, context: int, curve: CostCurve | None = None, left: int = LONG) -> int:
        """Prompt tokens for a step in which decodes take `base` tokens anyway; at least 1. `left`: of its prompt.

        Now and then more than seems best: steps wider than any tried may be cheaper, whatever those between cost, and
        finding out takes no time that the prompt would not take.
        """
        self._pieces += 1
        best, most = _best(base, left, *self._seconds(context, curve))
        if self._pieces >= self._trial:
            self._trial = 2 * self._pieces + TRY_AFTER
            best = max(best, min(_full(WIDER * (base + best)) - base, most))
        return best

    def alone(self, context: int, curve: CostCurve | None = None) -> int | None:
        """Prompt tokens for a step that nobody else waits for; None: as many as there are, for all that is known.

        Somebody may come, who then should not wait for longer than PAUSE.
        """
        timed, seconds = self._seconds(context, curve)
        if not len(seconds):
            return None
        return max(_best(0, LONG, timed, seconds)[0], _full(int(PAUSE * len(seconds) / seconds[-1])))

    def riders(self, width: int, others: int, context: int, curve: CostCurve | None = None) -> int:
        """Tokens of `others` prompts that may ride along in a step of `width` tokens in which a prompt is finished.

        They delay its answer, and save the others what a step of their own takes beyond what they add to this one: as
        many as do not delay it by more than all the others gain.
        """
        _, seconds = self._seconds(context, curve)
        if len(seconds) <= width or not others:
            return 0
        longer = seconds[width:]
        delay, gain = longer - seconds[width - 1], seconds[width - 1] + seconds[: len(longer)] - longer
        paying = np.flatnonzero(delay <= others * gain)
        return int(paying[-1]) + 1 if paying.size else 0

    def _seconds(self, context: int, curve: CostCurve | None) -> tuple[float, NDArray[np.float64]]:
        """What steps of 1, 2, 3 ... tokens take, up to twice the widest timed, and the narrowest one timed.

        Straight lines between the widths that have been timed, and from zero, as far as rows are paid for one by one;
        nothing if none has been timed.
        """
        points = dict(self._points.values())
        doubtful = {self._points[kind][0] for kind in self._doubtful}
        if curve is not None:
            points = {w: s for w, s in points.items() if w > curve.max_width}
            doubtful &= points.keys()  # what the curve says has been measured
            points |= {w: s for w in curve.widths if math.isfinite(s := curve.seconds(w, context))}
        if not points:
            return math.inf, np.zeros(0)
        # The first use of memory takes the kernel's time, up to that of the step itself: as a measure it counts only as
        # far as the step was no dearer, for each token, than narrower ones.
        least = min((s / w for w, s in points.items() if w not in doubtful), default=math.inf)
        points = {w: min(s, w * least) if w in doubtful else s for w, s in points.items()}
        known = np.array([0.0, *sorted(points)])
        known += self._blocky * (_filled(known) - known)
        taken = np.array([0.0, *(points[w] for w in sorted(points))])
        # On from the widest known as from half of it to there, since neighbours say little about a slope. Two steps of
        # half the width would do as well, so none is dearer for each token than the widest known.
        half = float(known[-1]) / 2
        slope = min(max(0.0, taken[-1] - np.interp(half, known, taken)) / half, taken[-1] / known[-1])
        widths = np.arange(1, BLOCK * math.ceil(2 * known[-1] / BLOCK) + 1)
        even: NDArray[np.float64] = np.interp(widths, known, taken) + slope * np.maximum(0.0, widths - known[-1])
        return float(known[1]), even + self._blocky * (even[_filled(widths).astype(int) - 1] - even)


def _best(base: int, left: int, timed: float, seconds: NDArray[np.float64]) -> tuple[int, int]:
    """Tokens of a piece of a prompt with `left` of them, beside `base` rows: the number that seems best, and those that
    take no longer than PAUSE. For `timed` and `seconds` see PrefillBudget._seconds.
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
    # How a prompt divides is no reason to let the streams stop for longer than PAUSE.
    return max(lasting(UNNOTICED), costing(DEAR, each), min(costing(HARDLY, total), longest)), longest


def _kind(width: int) -> int:
    """Which widths are told apart: powers of two up to a block, then blocks."""
    return width.bit_length() if width <= BLOCK else BLOCK.bit_length() - 1 + math.ceil(width / BLOCK)


def _full(width: int) -> int:
    """The widest step up to `width` that fills its blocks."""
    return width if width <= BLOCK else width - width % BLOCK


def _filled(widths: NDArray[Any]) -> NDArray[np.float64]:
    """The narrowest steps from `widths` that fill their blocks."""
    return np.where(widths <= BLOCK, widths, BLOCK * np.ceil(widths / BLOCK))
