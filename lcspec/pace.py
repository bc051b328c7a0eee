"""How much of a prompt fits beside running decodes, so that its answer begins soon and nobody's stream stands still.

A prompt is soonest read in one step, and all streams stand still meanwhile. Pieces cost it time: narrow steps are dear
for each of their tokens, and every step takes the streams' next tokens along. So a piece is as narrow as it can be
while the prompt is read hardly later than in one step; narrower than that where the streams would stop for too long,
but never so narrow that it is dear; and as wide as a reader does not notice in any case. How many tokens that is
follows from what steps take on this machine: the cost curve where it has been measured, and wider steps as they happen.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lcspec.cost import CostCurve

# Reading a prompt in pieces may take this many times as long as reading it in the best steps there are ...
HARDLY = 1.05
# ... and so many times where the streams would stop for longer than PAUSE, seconds: a reader's thoughts stay with the
# text for about that long (Nielsen 1993).
DEAR = 1.15
PAUSE = 1.0
# Gaps in a stream shorter than this are not noticed (Miller 1968: a tenth of a second appears instantaneous), seconds.
UNNOTICED = 0.1
# Prompt tokens of a step as long as nothing has been timed.
FIRST_CHUNK = 32
# Every so many pieces a wider one is tried, by this factor.
TRY_EVERY, WIDER = 8, 4
# How fast the running figures follow.
RATE = 0.3


class Pace:
    """Running figures of how long steps take, by width."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float]] = {}  # width.bit_length() -> mean width, mean seconds
        self._widest = self._pieces = 0
        self._doubtful: set[int] = set()  # those of them that steps wider than any before have given

    def observe(self, width: int, seconds: float) -> None:
        """A step of `width` tokens took `seconds`."""
        bits = width.bit_length()
        w, s = self._points.get(bits, (width, seconds))
        if width > self._widest:
            self._widest = width
            self._doubtful.add(bits)
        elif bits in self._doubtful:
            self._doubtful.remove(bits)
            w, s = width, seconds
        self._points[bits] = w + RATE * (width - w), s + RATE * (seconds - s)

    def room(self, base: int, context: int, curve: CostCurve | None = None, left: int = 0) -> int:
        """Prompt tokens for a step in which decodes take `base` tokens anyway; at least 1. A prompt with `left` tokens
        to be read is read in equal pieces, for a small last one would be dear.

        Now and then more than seems best: steps wider than any tried may be cheaper, whatever those between cost, and
        finding out takes no time that the prompt would not take.
        """
        self._pieces += 1
        best, most = self._best(base, context, curve)
        if self._pieces % TRY_EVERY == 1:
            best = max(best, min(WIDER * best, most))
        equal = -(-left // max(1, round(left / best)))
        return equal if best < left and equal <= max(best, most) else best

    def _best(self, base: int, context: int, curve: CostCurve | None) -> tuple[int, int]:
        """The tokens that seem best, and those that take no longer than PAUSE."""
        timed, seconds = self._seconds(context, curve)
        if len(seconds) <= base:
            return FIRST_CHUNK, FIRST_CHUNK
        widths = np.arange(1, len(seconds) + 1)
        each = seconds[base:] / (widths[base:] - base)  # of the tokens beyond `base`

        def lasting(limit: float) -> int:
            return int(widths[seconds <= limit].max(initial=0)) - base

        def costing(factor: float) -> int:
            n = int(np.argmax(each <= factor * each.min())) + 1
            return n if base + n >= timed else FIRST_CHUNK

        longest = lasting(PAUSE)
        return max(lasting(UNNOTICED), costing(DEAR), min(costing(HARDLY), longest)), longest

    def alone(self, context: int, curve: CostCurve | None = None) -> int | None:
        """Prompt tokens for a step that nobody else waits for; None: as many as there are, for all that is known.

        Somebody may come, who then should not wait for longer than PAUSE.
        """
        _, seconds = self._seconds(context, curve)
        if not len(seconds):
            return None
        return max(self._best(0, context, curve)[0], int(PAUSE * len(seconds) / seconds[-1]))

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

        Straight lines between the widths that have been timed, and from zero; nothing if none has.
        """
        points = dict(self._points.values())
        doubtful = {self._points[bits][0] for bits in self._doubtful}
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
        known = np.array([0, *sorted(points)])
        taken = np.array([0.0, *(points[w] for w in sorted(points))])
        # Two steps of half the width would do as well, so none is dearer for each token than the widest known.
        slope = min(max(0.0, (taken[-1] - taken[-2]) / (known[-1] - known[-2])), taken[-1] / known[-1])
        widths = np.arange(1, int(2 * known[-1]) + 1)
        between: NDArray[np.float64] = np.interp(widths, known, taken)
        return float(known[1]), between + slope * np.maximum(0.0, widths - known[-1])
