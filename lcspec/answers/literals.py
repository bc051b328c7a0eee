"""Calls with arguments in a notation of their own: Python's (LFM2) and Gemma 4's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lcspec.answers.arguments import python_value
from lcspec.answers.calls import Writer
from lcspec.answers.json_text import dumps, loads
from lcspec.answers.source import Source, Steps, compiled, escaped
from lcspec.answers.tagged import ObjectWriter

CALL = compiled(r"\s*,?\s*(?P<name>[\w.:-]+)\(\s*")
KEYWORD = compiled(r"\s*,?\s*(?P<key>\w+)\s*=\s*")
QUOTE = '<|"|>'


@dataclass(frozen=True)
class PythonCalls:
    """`[name(key="value", other=[1, 2]), ...]` between tags."""

    opener: str
    closer: str

    def read(self, to: Writer) -> Steps[bool]:
        """As in calls.Syntax."""
        source = to.source
        head = yield from source.match(compiled(self.opener + r"\s*\[\s*(?=[\w.:-]+\()"))
        if head is None:
            return False
        source.take(head.end())
        while (call := (yield from source.match(CALL))) is not None:
            source.take(call.end())
            to.start(call["name"])
            if not (yield from self._arguments(to, call["name"])):
                return True
        yield from source.skip("]")
        yield from source.skip(self.closer)
        return True

    def _arguments(self, to: Writer, name: str) -> Steps[bool]:
        source, writer, known = to.source, ObjectWriter(to), to.parameters(name)
        while (found := (yield from source.match(KEYWORD))) is not None:
            source.take(found.end())
            writer.key(found["key"])
            end = yield from literal_end(source)
            if end is None:
                return False
            raw = source.take(end).strip()
            try:
                to.arguments(dumps(python_value(raw)))
            except ValueError:
                to.arguments(known.text(found["key"], raw))
        if (yield from source.skip(")")) is None:
            return False
        writer.close()
        return True


def literal_end(source: Source) -> Steps[int | None]:
    """The index of the comma or bracket after the Python literal that comes next; None if the text ends before."""
    depth, quote, i = 0, "", 0
    while True:
        while i < len(source.text):
            char = source.text[i]
            if quote:
                if char == "\\":
                    i += 1
                elif char == quote:
                    quote = ""
            elif char in "\"'":
                quote = char
            elif char in "([{":
                depth += 1
            elif char in ")]}" and depth:
                depth -= 1
            elif char in ",)]}" and not depth:
                return i
            i += 1
        if source.ended:
            return None
        yield


@dataclass(frozen=True)
class GemmaCalls:
    """`call:name{key:<|"|>text<|"|>,other:[1,2]}` between tags; strings stand between quoting tokens."""

    opener: str = escaped("<|tool_call>")
    closer: str = "<tool_call|>"

    def read(self, to: Writer) -> Steps[bool]:
        """As in calls.Syntax."""
        source = to.source
        head = yield from source.match(compiled(self.opener + r"\s*call:(?P<name>[\w.:-]+)\s*(?=\{)"))
        if head is None:
            return False
        source.take(head.end())
        to.start(head["name"])
        quoted = compiled(rf"{escaped(QUOTE)}|[{{}}]")
        depth, start, inside = 0, 0, False
        while (found := (yield from source.search(quoted, start))) is not None:
            start = found.end()
            if found[0] == QUOTE:
                inside = not inside
            elif not inside:
                depth += 1 if found[0] == "{" else -1
                if depth == 0:
                    break
        if depth or found is None:
            return True  # cut off
        to.arguments(dumps(Gemma(source.take(start)).value()))
        yield from source.skip(self.closer)
        return True


class Gemma:
    """Reads one value of Gemma's notation. What cannot be understood becomes text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.i = 0

    def value(self) -> Any:
        """The value that comes next."""
        self._blank()
        if self.text.startswith(QUOTE, self.i):
            return self._quoted()
        if self._next("{"):
            return self._dict()
        if self._next("["):
            items: list[Any] = []
            while not self._next("]") and self.i < len(self.text):
                items.append(self.value())
                self._next(",")
            return items
        if self.text[self.i : self.i + 1] == '"':
            end = compiled(r'"(?:[^"\\]|\\.)*"').match(self.text, self.i)
            if end is not None:
                self.i = end.end()
                return loads(end[0])
        return self._bare()

    def _dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._next("}") and self.i < len(self.text):
            self._blank()
            if self.text.startswith(QUOTE, self.i):
                key = self._quoted()
            else:
                end = self.text.find(":", self.i)
                end = len(self.text) if end < 0 else end
                key, self.i = self.text[self.i : end].strip().strip('"'), end
            self._next(":")
            found[key] = self.value()
            self._next(",")
        return found

    def _quoted(self) -> str:
        start = self.i + len(QUOTE)
        end = self.text.find(QUOTE, start)
        end = len(self.text) if end < 0 else end
        self.i = end + len(QUOTE)
        return self.text[start:end]

    def _bare(self) -> Any:
        end = compiled(r"[^,\]}]*").match(self.text, self.i)
        word = end[0].strip()
        self.i = max(end.end(), self.i + (not end[0]))
        try:
            return loads(word)
        except ValueError:
            return word

    def _blank(self) -> None:
        while self.i < len(self.text) and self.text[self.i].isspace():
            self.i += 1

    def _next(self, char: str) -> bool:
        self._blank()
        if self.text.startswith(char, self.i):
            self.i += len(char)
            return True
        return False
