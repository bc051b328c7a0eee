"""The tokens of a vocabulary for filling in the middle of a text."""

from __future__ import annotations

from typing import NamedTuple


class FillInMiddle(NamedTuple):
    """Tokens around the parts of a text with a gap: prefix, suffix, and what comes before the missing middle; before a
    repository's name and each of its files' (-1: the model knows none)."""

    prefix: int
    suffix: int
    middle: int
    repository: int = -1
    file: int = -1
