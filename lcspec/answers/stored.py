"""Answers as one text, for places that keep no more than that: reasoning stands between `<think>` and `</think>`,
however the model wrote it."""

from __future__ import annotations

from typing import Iterable, Sequence

from lcspec.answers.deltas import Content, Delta, Reasoning
from lcspec.answers.formats import Format, Tags
from lcspec.answers.reader import AnswerReader
from lcspec.answers.text import Piece

OPENING, CLOSING = "<think>\n", "\n</think>\n\n"


class ThinkTags:
    """Rewrites pieces of an answer as they come; each keeps its drafter."""

    def __init__(self, form: Format, opened: Tags | None = None) -> None:
        """`opened`: the prompt has opened the reasoning; then the first thing to come out is the tag."""
        self._reader = AnswerReader(form, opened=opened)
        self._origins: list[tuple[int, Piece]] = []  # where pieces end, in what the reader was fed
        self._fed = 0
        self._inside = opened is not None and self._reader.thinking

    @property
    def opening(self) -> list[Piece]:
        """What stands before everything else."""
        return [Piece(OPENING, None)] if self._inside else []

    def feed(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What can be shown of more pieces."""
        out: list[Piece] = []
        for piece in pieces:
            control = piece.control if piece.control and self._reader.form.knows(piece.control) else ""
            self._fed += len(control)
            if piece.text:
                self._origins.append((self._fed, piece))
            self._fed += len(piece.text)
            out += self._written(self._reader.feed_pieces([piece]))
        return out

    def finish(self, complete: bool = True) -> list[Piece]:
        """What is left when the answer is over."""
        out = self._written(self._reader.finish(complete))
        if self._inside and not self._reader.thinking:
            out.append(Piece(CLOSING, None))
        return out

    def _written(self, deltas: Iterable[Delta]) -> list[Piece]:
        out: list[Piece] = []
        for delta in deltas:
            if not isinstance(delta, (Content, Reasoning)):
                continue
            if isinstance(delta, Reasoning) != self._inside:
                out.append(Piece(CLOSING if self._inside else OPENING, None))
                self._inside = not self._inside
            out += self._slices(delta.at, delta.at + len(delta.text))
        return out

    def _slices(self, start: int, end: int) -> list[Piece]:
        """The pieces between two places of what was fed."""
        out = []
        for begin, piece in self._origins:
            text = piece.text[max(0, start - begin) : max(0, end - begin)]
            if text:
                out.append(Piece(text, piece.drafter))
        self._origins = [(begin, piece) for begin, piece in self._origins if begin + len(piece.text) > end]
        return out
