"""Turning a stream of token bytes into text that is safe to show (no llama_cpp)."""

from __future__ import annotations

import codecs
from typing import NamedTuple, Sequence


class Piece(NamedTuple):
    """Text to show, and the drafter that proposed its token (None: the target's own). A control token has no text to
    show: how it is spelled stands in `control`, for those who read answers (lcspec.answers)."""

    text: str
    drafter: str | None
    control: str = ""


class StreamDecoder:
    """UTF-8 decoding across token borders: a character comes out with the token that completes it."""

    def __init__(self) -> None:
        self._begun = b""  # the beginning of a character

    def feed(self, data: bytes) -> str:
        """Text that is complete after `data`; may be empty."""
        data = self._begun + data
        text, read = codecs.utf_8_decode(data, "replace", False)
        self._begun = data[read:]
        return text

    @property
    def holds(self) -> bool:
        """Whether the bytes so far end within a character."""
        return bool(self._begun)

    def finish(self) -> str:
        """What an unfinished character at the end becomes (U+FFFD), or nothing."""
        begun, self._begun = self._begun, b""
        return begun.decode("utf-8", "replace")


class StopStrings:
    """Finds stop strings across token borders, holding back only text that may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = [s for s in stops if s]
        self._held: list[Piece] = []
        self.found: str | None = None

    def feed(self, piece: Piece) -> list[Piece]:
        """Pieces that may be shown now. After a stop string was `found`, the text before it has come out."""
        if self.found is not None:
            return []
        if piece.control in self.stops and piece.control:
            self.found = piece.control
            return self._release(sum(len(p.text) for p in self._held))
        if not self.stops:
            return [piece] if piece.text or piece.control else []
        self._held.append(piece)
        text = "".join(p.text for p in self._held)
        hits = [(at, s) for s in self.stops if (at := text.find(s)) >= 0]
        if hits:
            # The stop string that is complete first (of those, the longest), however the text was cut into pieces.
            at, self.found = min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            return self._release(at)
        return self._release(len(text) - self._suspicious(text))

    def finish(self) -> list[Piece]:
        """Everything held back: the text ended and no stop string was completed."""
        held, self._held = self._held, []
        return [p for p in held if p.text or p.control] if self.found is None else []

    def _suspicious(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self.stops:
            for n in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:n]):
                    longest = n
                    break
        return longest

    def _release(self, n: int) -> list[Piece]:
        out: list[Piece] = []
        while self._held and n >= len(self._held[0].text):
            piece = self._held.pop(0)
            n -= len(piece.text)
            if piece.text or piece.control:
                out.append(piece)
        if n > 0 and self._held:
            piece = self._held[0]
            out.append(Piece(piece.text[:n], piece.drafter))
            self._held[0] = piece._replace(text=piece.text[n:])
        return out
