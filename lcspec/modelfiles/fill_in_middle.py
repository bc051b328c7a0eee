"""The tokens of a vocabulary for filling in the middle of a text."""

from __future__ import annotations

from typing import NamedTuple


class FillInMiddle(NamedTuple):
    """Tokens around the parts of a text with a gap: prefix, suffix, and what comes before the missing middle."""

    prefix: int
    suffix: int
    middle: int
