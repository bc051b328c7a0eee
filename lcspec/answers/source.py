"""Text that is still being written, for parsers that read it from left to right.

Parsers are generators: they `yield` when they need more text. `regex` tells a pattern that does not match from one that
may match when more has come.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Generator, TypeVar

import regex

T = TypeVar("T")
Steps = Generator[None, None, T]
Pattern = Any  # regex.Pattern, for which there are no types
Match = Any


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Pattern:
    """A pattern that can match in part."""
    return regex.compile(pattern, regex.DOTALL)


def escaped(text: str) -> str:
    """A pattern for `text` itself."""
    return str(regex.escape(text))


class Source:
    """What has come and has not been read.

    Attributes:
        text: that; at: where it begins, in characters from the beginning; ended: nothing more will come.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False

    def take(self, n: int) -> str:
        """Read `n` characters."""
        taken, self.text = self.text[:n], self.text[n:]
        self.at += n
        return taken

    def fill(self, n: int) -> Steps[bool]:
        """Wait for `n` characters; False if the text ends before."""
        while len(self.text) < n and not self.ended:
            yield
        return len(self.text) >= n

    def match(self, pattern: Pattern, start: int = 0) -> Steps[Match | None]:
        """A match at `start`, waiting while there may be one; nothing is read."""
        while True:
            found = pattern.match(self.text, start, partial=not self.ended)
            if found is None or not found.partial:
                return found
            yield

    def search(self, pattern: Pattern, start: int = 0) -> Steps[Match | None]:
        """The first match from `start` on; None when the text ended without one."""
        while True:
            found = pattern.search(self.text, start, partial=not self.ended)
            if found is not None and not found.partial:
                return found
            if self.ended:
                return None
            start = len(self.text) if found is None else found.start()
            yield

    def ahead(self, *literals: str) -> Steps[str | None]:
        """Which of `literals` comes next after blank space; nothing is read."""
        while True:
            rest = self.text.lstrip()
            found = next((item for item in literals if rest.startswith(item)), None)
            if found is not None or self.ended or not any(item.startswith(rest) for item in literals):
                return found
            yield

    def skip(self, *literals: str) -> Steps[str | None]:
        """Read one of `literals` and the blank space before it, if one comes next."""
        found = yield from self.ahead(*literals)
        if found is not None:
            self.take(len(self.text) - len(self.text.lstrip()) + len(found))
        return found
