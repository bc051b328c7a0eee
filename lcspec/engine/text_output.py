"""Turns emitted tokens into the pieces of text that a front end shows."""

from __future__ import annotations

from lcspec.answers.text import Piece, StopStrings, StreamDecoder
from lcspec.engine.request import Request
from lcspec.llama.vocab import Vocab


class TextOutput:
    """One request's text: it decodes bytes to characters and searches for stop strings (`stops`)."""

    def __init__(self, request: Request, vocab: Vocab) -> None:
        self._vocab = vocab
        self._decoder = StreamDecoder()
        self.stops = StopStrings(request.stop)

    def feed(self, token: int, drafter: str | None) -> list[Piece]:
        """Add a token, which `drafter` proposed; returns the text that can now be shown."""
        data, control = self._vocab.spelling(token)
        return self.stops.feed(Piece(self._decoder.feed(data), drafter, control))

    def flush(self) -> list[Piece]:
        """The text held back for an incomplete character or a possible stop string."""
        rest = self._decoder.finish()
        return (self.stops.feed(Piece(rest, None)) if rest else []) + self.stops.finish()
