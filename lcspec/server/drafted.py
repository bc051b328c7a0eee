"""Who drafted which part of an answer, for streams that are asked to say so."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Iterable

from lcspec.answers.deltas import Content, Delta, Reasoning
from lcspec.answers.formats import Format
from lcspec.answers.text import Piece


class Drafted:
    """Keeps the drafter of every character that a reader of answers was fed."""

    def __init__(self, form: Format) -> None:
        """Of a reader with the format `form`, which says what control tokens the reader sees."""
        self._form = form
        self._ends: list[int] = []  # of stretches with one drafter, in characters
        self._names: list[str | None] = []

    def add(self, pieces: Iterable[Piece]) -> None:
        """What the reader is fed next."""
        for piece in pieces:
            n = len(piece.text) + (len(piece.control) if self._form.knows(piece.control) else 0)
            end = (self._ends[-1] if self._ends else 0) + n
            if self._ends and self._names[-1] == piece.drafter:
                self._ends[-1] = end
            else:
                self._ends.append(end)
                self._names.append(piece.drafter)

    def split(self, found: Iterable[Delta]) -> list[tuple[Delta, str | None]]:
        """What the reader found, cut so that each part has one drafter (None: the target itself)."""
        out: list[tuple[Delta, str | None]] = []
        for delta in found:
            if not isinstance(delta, (Content, Reasoning)) or delta.at < 0:
                out.append((delta, None))
                continue
            start, end = delta.at, delta.at + len(delta.text)
            while start < end:
                i = bisect_right(self._ends, start)
                known = i < len(self._ends)
                stop = min(end, self._ends[i]) if known else end
                text = delta.text[start - delta.at : stop - delta.at]
                out.append((replace(delta, text=text, at=start), self._names[i] if known else None))
                start = stop
        return out
