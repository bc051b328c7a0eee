"""Calls whose arguments stand between tags, one by one: the values are plain text, typed by the tool's schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lcspec.answers.arguments import Parameters, typed
from lcspec.answers.calls import Writer, json_value
from lcspec.answers.json_text import dumps
from lcspec.answers.source import Steps, compiled, escaped

CDATA = compiled(r"\s*<!\[CDATA\[(.*?)\]\]>\s*")


class ObjectWriter:
    """Writes a call's arguments as a JSON object, key by key."""

    def __init__(self, to: Writer) -> None:
        self.to = to
        self._keys = 0

    def key(self, key: str) -> None:
        """The next one."""
        self.to.arguments(("{" if not self._keys else ", ") + f"{dumps(key)}: ")
        self._keys += 1

    def close(self) -> None:
        """All have come."""
        self.to.arguments("}" if self._keys else "{}")


@dataclass(frozen=True)
class TaggedCalls:
    """`<function=name><parameter=key>value</parameter></function>` and its kin.

    Attributes:
        opener: a pattern that finds the beginning of a call.
        head: a pattern from there to the end of the name, with a group `name`.
        parameter: a pattern for what stands before a value, with a group `key`; a group `string` says in words whether
            the value is text (`true` or `string`).
        value_end: what follows a value.
        call_end: what ends the call. Only before it or the next parameter does `value_end` end a value, so that code
            may contain it.
        section_end: what ends a group of calls.
    """

    opener: str
    head: str
    parameter: str
    value_end: str
    call_end: tuple[str, ...]
    section_end: tuple[str, ...] = ()

    def read(self, to: Writer) -> Steps[bool]:
        """As in calls.Syntax."""
        source = to.source
        head = yield from source.match(compiled(self.head))
        if head is None:
            return False
        source.take(head.end())
        name = head["name"].strip()
        to.start(name)
        writer, known = ObjectWriter(to), to.parameters(name)
        parameter = compiled(r"\s*" + self.parameter)
        while (found := (yield from source.match(parameter))) is not None:
            source.take(found.end())
            groups = found.groupdict()
            writer.key(groups["key"])
            said = groups.get("string")
            is_string = None if said is None else said in ("true", "string")
            if not (yield from self._value(to, known, groups["key"], is_string)):
                return True  # cut off within a value
        if source.ended and not source.text.strip():
            return True
        if (yield from source.skip(*self.call_end)) is None and not source.ended:
            yield from source.skip(*self.section_end)
        writer.close()
        yield from source.skip(*self.section_end)
        return True

    def _value(self, to: Writer, known: Parameters, key: str, is_string: bool | None) -> Steps[bool]:
        """Read one value and write it; False if the text ends before it does."""
        source, end = to.source, escaped(self.value_end)
        yield from source.fill(1)
        lines = source.text[:1] == "\n"  # the value stands on lines of its own
        if lines:
            source.take(1)
            end = r"\n?" + end
        ends = "|".join([self.parameter, *map(escaped, (*self.call_end, *self.section_end))])
        pattern = compiled(f"{end}(?=\\s*(?:{ends}))")
        begun = yield from source.fill(1)
        if (is_string or (is_string is None and known.is_string(key))) and begun and source.text[0] != "<":
            return (yield from self._string(to, pattern, end))
        found = yield from source.search(pattern)
        if found is None:
            found = compiled(end).search(source.text)
        if found is None:
            return False
        raw = source.take(found.start())
        source.take(found.end() - found.start())
        if (data := CDATA.fullmatch(raw)) is not None:
            raw = data[1]
        to.arguments(known.text(key, raw, is_string))
        return True

    def _string(self, to: Writer, pattern: Any, end: str) -> Steps[bool]:
        """A string is written as it comes."""
        source, closed = to.source, False
        to.arguments('"')
        while True:
            found = pattern.search(source.text, partial=not source.ended)
            if found is None and source.ended:
                found = compiled(end).search(source.text)
            ready = len(source.text) if found is None else found.start()
            to.arguments(json.dumps(source.take(ready), ensure_ascii=False)[1:-1])
            if found is not None and not found.partial:
                source.take(found.end() - found.start())
                to.arguments('"')
                closed = True
            if closed or source.ended:
                return closed
            yield


@dataclass(frozen=True)
class KimiCalls(TaggedCalls):
    """Kimi K3's tags. A call may also hold its arguments as one JSON object."""

    def read(self, to: Writer) -> Steps[bool]:
        """As in calls.Syntax."""
        source = to.source
        head = yield from source.match(compiled(self.head + r'\s*<\|open\|>json type="object"<\|sep\|>\s*(?=\{)'))
        if head is None:
            return (yield from super().read(to))
        source.take(head.end())
        to.start(head["name"])
        yield from json_value(to)
        while (yield from source.skip("<|close|>json<|sep|>", *self.call_end, *self.section_end)) is not None:
            pass
        return True


MARK = "]<]minimax[>["


@dataclass(frozen=True)
class ElementCalls:
    """MiniMax M3: every tag has a mark before it, the parameter's name is the tag, and objects and arrays are written
    as elements."""

    opener: str = escaped(MARK) + r"<(?:tool_call>|invoke )"
    head: str = rf'(?:{escaped(MARK)}<tool_call>\s*)?{escaped(MARK)}<invoke name="(?P<name>[^"]+)">'

    def read(self, to: Writer) -> Steps[bool]:
        """As in calls.Syntax."""
        source = to.source
        head = yield from source.match(compiled(self.head))
        if head is None:
            return False
        source.take(head.end())
        to.start(head["name"])
        writer, known = ObjectWriter(to), to.parameters(head["name"])
        while (found := (yield from source.match(compiled(rf"\s*{escaped(MARK)}<(?P<key>[^/>]+)>")))) is not None:
            key, start = found["key"], found.end()
            end = yield from source.search(compiled(escaped(f"{MARK}</{key}>")), start)
            if end is None:
                return True
            raw = source.text[start : end.start()]
            source.take(end.end())
            writer.key(key)
            to.arguments(element(raw, known, known.of(key)))
        if (yield from source.skip(f"{MARK}</invoke>")) is not None:
            writer.close()
        yield from source.skip(f"{MARK}</tool_call>")
        return True


def element(raw: str, known: Parameters, schema: Any) -> str:
    """JSON text for the inside of an element: `<item>`s are an array, other elements an object."""
    types = known.types(schema)
    if MARK not in raw or "string" in types:
        return typed(raw, types)
    keys: list[str] = []
    values: list[str] = []
    rest = raw.strip()
    while (begin := compiled(rf"{escaped(MARK)}<([^/>]+)>").match(rest)) is not None:
        key = begin[1]
        end = rest.find(f"{MARK}</{key}>", begin.end())
        if end < 0:
            return typed(raw, types)
        inner = known.items(schema) if key == "item" else known.nested(schema, key)
        keys.append(key)
        values.append(element(rest[begin.end() : end], known, inner))
        rest = rest[end + len(f"{MARK}</{key}>") :].lstrip()
    if set(keys) == {"item"} and "item" not in _properties(known, schema):
        return f"[{', '.join(values)}]"
    return "{" + ", ".join(f"{dumps(k)}: {v}" for k, v in zip(keys, values)) + "}"


def _properties(known: Parameters, schema: Any) -> set[str]:
    return {key for part in known.alternatives(schema) for key in part.get("properties") or ()}
