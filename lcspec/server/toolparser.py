"""Finding tool calls in an answer while it is being written.

Models write calls in a few ways, and all are looked for at once: JSON between <tool_call> tags (Hermes, Qwen), after
[TOOL_CALLS] (Mistral), on its own at the beginning of the answer (Llama 3, or what a grammar forces), and parameters
between <function=...> tags (Qwen Coder). Text that may yet become a call is held back; what does not is content.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Union

MARKERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=")
CLOSING = "</tool_call>"
HEAD = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=[{"])'
)
FIRST_KEY = re.compile(r'\{\s*"([^"]*)"')
NAMED_ARGS = re.compile(r"([\w.-]+)\[ARGS\](?=\{)")
XML_CALL = re.compile(r"<function=([^>\n]+)>(.*?)</function>", re.DOTALL)
XML_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
# A bare JSON object that begins with another key is content.
CALL_KEYS = ("name", "type", "id", "function", "arguments", "parameters")


@dataclass(frozen=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """The `index`-th call of the answer begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of the `index`-th call's arguments (JSON text)."""

    index: int
    text: str


Delta = Union[Content, CallStart, CallArguments]


class JsonEnd:
    """Finds where a JSON value that begins with `{`, `[` or a quote ends, looking at every character once."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self.quoted = False
        self.escaped = False

    def scan(self, text: str) -> int | None:
        """Feed more text; the index after the value's last character, or None if it goes on."""
        for i, char in enumerate(text):
            if self.quoted:
                if self.escaped:
                    self.escaped = False
                elif char == "\\":
                    self.escaped = True
                elif char == '"':
                    self.quoted = False
                    if self.depth == 0:
                        return i + 1
            elif char == '"':
                self.quoted = True
            elif char in "{[":
                self.depth += 1
            elif char in "}]":
                self.depth -= 1
                if self.depth <= 0:
                    return i + 1
        return None


class ToolParser:
    """Splits an answer into content and tool calls, piece by piece."""

    def __init__(self, names: Iterable[str]) -> None:
        """`names`: the functions on offer; bare JSON is a call only if it names one of them."""
        self.names = set(names)
        self.calls = 0
        self._rest = ""  # not yet understood
        self._state: Callable[[list[Delta]], bool] = self._in_text
        self._began = False  # content or a call has come
        self._said = False  # content since the last call
        self._marker = ""  # what is content after all if no call follows
        self._bare = False  # no marker came before
        self._list = False
        self._end = JsonEnd()
        self._args = ""

    def feed(self, text: str) -> list[Delta]:
        """What `text` brings."""
        self._rest += text
        out: list[Delta] = []
        while self._state(out):
            pass
        return out

    def finish(self) -> list[Delta]:
        """What is left when the answer is over."""
        out = self.feed("")
        if self._state in (self._in_text, self._in_call, self._in_xml):
            left = self._marker + self._rest
            if left.strip() or not self.calls:
                self._content(out, left)
        self._rest = ""
        return out

    # Each state returns whether the next one has something to look at.

    def _in_text(self, out: list[Delta]) -> bool:
        text = self._rest.lstrip()
        if not self._began and text[:1] in ("{", "[") and not any(m.startswith(text[: len(m)]) for m in MARKERS):
            return self._maybe_call(len(self._rest) - len(text), "", bare=True)
        hits = [(at, marker) for marker in MARKERS if (at := self._rest.find(marker)) >= 0]
        if hits:
            at, marker = min(hits)
            before = self._rest[:at]
            if before.strip() or self._said:
                self._content(out, before)
                before = ""
            self._rest = before + self._rest[at:]
            return self._maybe_call(len(before), marker, bare=False)
        keep = max((n for m in MARKERS for n in range(1, len(m)) if self._rest.endswith(m[:n])), default=0)
        ready = self._rest[: len(self._rest) - keep]
        if ready.strip() or self._said:  # blank space before a call is nobody's
            self._content(out, ready)
            self._rest = self._rest[len(ready) :]
        return False

    def _maybe_call(self, blank: int, marker: str, bare: bool) -> bool:
        """A call may begin behind `blank` characters of space."""
        skip = blank + (0 if marker == "<function=" else len(marker))
        self._marker, self._rest = self._rest[:skip], self._rest[skip:]
        self._bare, self._list = bare, False
        self._state = self._in_xml if marker == "<function=" else self._in_call
        return True

    def _in_call(self, out: list[Delta]) -> bool:
        text, bare = self._rest.lstrip(), self._bare
        if not text:
            return False
        self._marker += self._rest[: len(self._rest) - len(text)]
        self._rest = text
        if text[0] == "[" and not self._list:
            self._list, self._marker = True, self._marker + "["
            self._rest = text[1:]
            return True
        if not bare and text.startswith("<"):
            if text.startswith("<function="):
                self._state = self._in_xml
                return True
            return False if "<function=".startswith(text) else self._no_call(out)
        named = NAMED_ARGS.match(text)
        head = HEAD.match(text)
        if named or (head and (not bare or head[1] in self.names)):
            match = named or head
            assert match is not None
            self._start(out, match[1])
            self._rest = text[match.end() :]
            # After the arguments a call as an object is still open.
            self._end, self._args, self._state = JsonEnd(), "", self._in_arguments
            self._after = JsonEnd(0 if named else 1)
            return True
        if text[0] != "{":
            waits = not bare and re.fullmatch(r"[\w.-]+(\[(A(R(G(S\]?)?)?)?)?)?", text)
            return False if waits else self._no_call(out)
        first = FIRST_KEY.match(text)
        if head or (bare and first and first[1] not in CALL_KEYS):
            return self._no_call(out)
        end = JsonEnd().scan(text)
        if end is None:
            return False
        name, arguments = _call_of(text[:end])
        if name is None or (bare and name not in self.names):
            return self._no_call(out)
        self._start(out, name)
        out.append(CallArguments(self.calls - 1, arguments))
        self._rest, self._state = text[end:], self._after_call
        return True

    def _in_arguments(self, out: list[Delta]) -> bool:
        if not self._rest:
            return False
        whole = (self._args or self._rest)[0] == "{"
        end = self._end.scan(self._rest)
        part = self._rest if end is None else self._rest[:end]
        self._args += part
        self._rest = self._rest[len(part) :]
        if whole and part:
            out.append(CallArguments(self.calls - 1, part))
        if end is None:
            return False
        if not whole:
            out.append(CallArguments(self.calls - 1, _unquoted(self._args)))
        self._state = self._closing if self._after.depth else self._after_call
        return True

    def _closing(self, out: list[Delta]) -> bool:
        """Up to the end of the call's object."""
        end = self._after.scan(self._rest)
        self._rest = "" if end is None else self._rest[end:]
        if end is not None:
            self._state = self._after_call
        return end is not None

    def _after_call(self, out: list[Delta]) -> bool:
        self._rest = self._rest.lstrip()
        if not self._rest or (CLOSING.startswith(self._rest) and self._rest != CLOSING):
            return False
        if self._rest.startswith(CLOSING):
            self._rest = self._rest[len(CLOSING) :]
        elif self._list and self._rest[0] in ",]":
            self._list = self._rest[0] == ","
            self._rest = self._rest[1:]
            if self._list:
                self._marker, self._bare, self._state = "", False, self._in_call
                return True
        self._marker, self._state = "", self._in_text
        return bool(self._rest)

    def _in_xml(self, out: list[Delta]) -> bool:
        match = XML_CALL.match(self._rest)
        if match is None:
            return False
        self._start(out, match[1].strip())
        arguments = {m[1].strip(): _value(m[2]) for m in XML_PARAMETER.finditer(match[2])}
        out.append(CallArguments(self.calls - 1, json.dumps(arguments, ensure_ascii=False)))
        self._rest, self._state = self._rest[match.end() :], self._after_call
        return True

    def _no_call(self, out: list[Delta]) -> bool:
        """It looked like a call and is none: the beginning is content after all, the rest is looked at again."""
        n = 0 if self._marker.strip() else 1
        self._content(out, self._marker + self._rest[:n])
        self._marker, self._rest, self._list, self._state = "", self._rest[n:], False, self._in_text
        return bool(self._rest)

    def _content(self, out: list[Delta], text: str) -> None:
        if text:
            self._began = self._said = True
            out.append(Content(text))

    def _start(self, out: list[Delta], name: str) -> None:
        self._began, self._said, self._marker = True, False, ""
        out.append(CallStart(self.calls, new_call_id(), name))
        self.calls += 1


def new_call_id() -> str:
    """An id for a call."""
    return f"call_{secrets.token_hex(12)}"


def _call_of(text: str) -> tuple[str | None, str]:
    """Name and arguments of a call object with its keys in any order; None if it is something else."""
    try:
        data = json.loads(text)
    except ValueError:
        return None, ""
    if isinstance(data, dict) and isinstance(data.get("function"), dict):
        data = data["function"]
    name = data.get("name") if isinstance(data, dict) else None
    if not isinstance(name, str) or not ("arguments" in data or "parameters" in data):
        return None, ""
    arguments = data.get("arguments", data.get("parameters"))
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _unquoted(text: str) -> str:
    """Arguments that were written as a string of JSON."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _value(text: str) -> Any:
    """A parameter between tags: JSON if it is, else a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text
