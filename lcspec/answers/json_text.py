"""JSON as models write it: where a value ends, and mending line breaks inside its strings."""

from __future__ import annotations

import json
from typing import Any

# Line breaks and the like must be escaped inside a JSON string, and models forget it.
ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


class JsonEnd:
    """Finds where a JSON value that begins with `{`, `[` or a quote ends, looking at every character once.

    Attributes:
        depth: open braces and brackets.
    """

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self._quoted = False
        self._escaped = False
        self._mended: list[str] = []

    def scan(self, text: str) -> int | None:
        """Feed more text; the index after the value's last character, or None if it goes on."""
        self._mended = []
        for i, char in enumerate(text):
            self._mended.append(ESCAPES.get(char, char) if self._quoted and char < " " else char)
            if self._quoted:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._quoted = False
                    if self.depth == 0:
                        return i + 1
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self.depth += 1
            elif char in "}]":
                self.depth -= 1
                if self.depth <= 0:
                    return i + 1
        return None

    @property
    def mended(self) -> str:
        """What the last scan looked at, up to the value's end, with control characters in strings escaped."""
        return "".join(self._mended)


def mended(text: str) -> str:
    """`text`, which begins with a JSON value, with control characters in its strings escaped."""
    end = JsonEnd()
    n = end.scan(text)
    return end.mended + (text[n:] if n is not None else "")


def loads(text: str) -> Any:
    """A JSON value, line breaks in strings forgiven.

    Raises:
        ValueError: it is none.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ValueError:
        return json.loads(mended(text.strip()))


def dumps(value: Any) -> str:
    """JSON text with letters of all languages as they are."""
    return json.dumps(value, ensure_ascii=False)
