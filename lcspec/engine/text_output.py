"""Turns emitted tokens into the pieces of text that a front end shows."""

from __future__ import annotations

from lcspec.answers.text import Piece, StopStrings, StreamDecoder
from lcspec.engine.request import Request
from lcspec.llama.vocab import Vocab


class TextOutput:
    """One request's text: it decodes bytes to characters and searches for stop strings."""

    def __init__(self, request: Request, vocab: Vocab) -> None:
        self._vocab = vocab
        self._decoder = StreamDecoder()
        self._stops = StopStrings(request.stop)

    @property
    def found(self) -> str | None:
        """The stop string that has ended the text."""
        return self._stops.found

    def feed(self, token: int, drafter: str | None) -> list[Piece]:
        """Add a token, which `drafter` proposed; returns the text that can now be shown."""
        text = self._decoder.feed(self._vocab.piece(token))
        return self._stops.feed(Piece(text, drafter, self._vocab.control(token)))

    def flush(self) -> list[Piece]:
        """The text held back for an incomplete character or a possible stop string."""
        rest = self._decoder.finish()
        return (self._stops.feed(Piece(rest, None)) if rest else []) + self._stops.finish()
