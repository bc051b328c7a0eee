"""From the tokens of a verdict to the pieces of text that a front end shows."""

from __future__ import annotations

from lcspec.answers.text import Piece, StopStrings, StreamDecoder
from lcspec.engine.request import Request
from lcspec.llama.vocab import Vocab


class TextOutput:
    """One request's text: bytes become characters, stop strings are looked for."""

    def __init__(self, request: Request, vocab: Vocab) -> None:
        self._vocab = vocab
        self._decoder = StreamDecoder()
        self._stops = StopStrings(request.stop)

    @property
    def found(self) -> str | None:
        """The stop string that has ended the text."""
        return self._stops.found

    def feed(self, token: int, drafter: str | None) -> list[Piece]:
        """The text that can be shown after another token; `drafter` proposed it."""
        text = self._decoder.feed(self._vocab.piece(token))
        return self._stops.feed(Piece(text, drafter, self._vocab.control(token)))

    def flush(self) -> list[Piece]:
        """Text held back for an unfinished character or a possible stop string."""
        rest = self._decoder.finish()
        return (self._stops.feed(Piece(rest, None)) if rest else []) + self._stops.finish()
