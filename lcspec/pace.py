"""How much of a prompt fits beside running decodes, so that nobody's stream stalls.

A step with a prompt chunk may take a small multiple of the step the streams are used to, or as long as a reader does
not notice, whichever is longer. How many tokens that is follows from what steps take on this machine: the cost
curve where it has been measured, and seconds a token of wider steps as they happen.
"""

from __future__ import annotations

import math

from lcspec.cost import CostCurve

# A step with a prompt chunk may take this many times a step without.
STALL = 4.0
# Gaps in a stream shorter than this are not noticed (Miller 1968: a tenth of a second appears instantaneous), seconds.
UNNOTICED = 0.1
# Prompt tokens beside decodes as long as nothing has been timed.
FIRST_CHUNK = 32
# How fast the running figures follow.
RATE = 0.3


class Pace:
    """Running figures of how long steps take: by width (in powers of two), and of decoding alone."""

    def __init__(self) -> None:
        self._per_token: dict[int, float] = {}  # width.bit_length() -> seconds a token
        self._decode: dict[int, float] = {}  # decoding slots -> seconds a step

    def observe(self, width: int, seconds: float) -> None:
        """A step of `width` tokens took `seconds`."""
        if width > 0:
            _follow(self._per_token, width.bit_length(), seconds / width)

    def decoded(self, slots: int, seconds: float) -> None:
        """A step in which `slots` decode and nobody reads a prompt took `seconds`."""
        _follow(self._decode, slots, seconds)

    def limit(self, slots: int, context: int, curve: CostCurve | None) -> float | None:
        """Seconds that a step beside `slots` decoding slots may take; None when nothing is known yet."""
        usual = self._decode.get(slots)
        if curve is not None and math.isfinite(plain := curve.seconds(slots, context)):
            usual = plain
        elif usual is None and self._decode:
            usual = self._decode[min(self._decode, key=lambda n: abs(n - slots))]
        return None if usual is None else max(STALL * usual, UNNOTICED)

    def room(self, slots: int, base: int, context: int, curve: CostCurve | None = None) -> int:
        """Prompt tokens that fit into a step whose `slots` decoding slots take `base` tokens; may be 0 or less."""
        limit = self.limit(slots, context, curve)
        per_token = dict(self._per_token)
        if curve is not None:
            for width in curve.widths:
                per_token.setdefault(width.bit_length(), curve.seconds(width, context) / width)
        if limit is None or not per_token:
            return FIRST_CHUNK
        # The widest step that ends in time. Seconds a token fall with the width, so the figure of a narrower width
        # errs on the safe side; where it was too careful, the wider step it allows is timed, and the next is wider.
        for bits in sorted(per_token, reverse=True):
            width = int(limit / per_token[bits])
            if width >= 1 << (bits - 1):
                return min(width, (2 << bits) - 1) - base
        return 0


def _follow(figures: dict[int, float], key: int, value: float) -> None:
    old = figures.get(key)
    figures[key] = value if old is None else old + RATE * (value - old)
