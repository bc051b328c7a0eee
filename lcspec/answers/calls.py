"""Calls whose arguments are a JSON object: between tags, after a name, or on their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Protocol, Sequence

from lcspec.answers.arguments import Parameters
from lcspec.answers.deltas import CallArguments, CallStart, Delta, new_call_id
from lcspec.answers.json_text import JsonEnd, dumps, loads
from lcspec.answers.source import Source, Steps, compiled, escaped

# Keys of a call object. Bare JSON that begins with another key is content.
NAME, ARGUMENTS, ID = ("name", "tool_name"), ("arguments", "parameters"), ("id", "tool_call_id", "call_id")
CALL_KEYS = (*NAME, *ARGUMENTS, *ID, "type", "function")
HEAD = compiled(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?'
    r'(?:"(?:id|call_id|tool_call_id)"\s*:\s*"(?P<id>[^"\\]*)"\s*,\s*)?'
    r'"(?:name|tool_name)"\s*:\s*"(?P<name>[^"\\]+)"\s*,'
)
VALUE = compiled(r'\s*"(?:arguments|parameters)"\s*:\s*(?=[{"])')
NAME_AS_KEY = compiled(r'\{\s*"(?P<name>[^"\\]+)"\s*:\s*(?=\{)')
FIRST_KEY = compiled(r'\{\s*"(?P<key>[^"]*)"')
FENCE = "```"


class Writer:
    """Where call syntaxes put what they find.

    Attributes:
        source: the text; out: what was found and nobody has fetched; count: calls so far.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]], parallel: bool, short_ids: bool) -> None:
        self.source = Source()
        self.out: list[Delta] = []
        self.count = 0
        self._parameters = {str(tool.get("name")): Parameters(tool.get("parameters")) for tool in tools}
        self._parallel = parallel
        self._short_ids = short_ids
        self._muted = False

    @property
    def names(self) -> frozenset[str]:
        """Functions on offer."""
        return frozenset(self._parameters)

    def parameters(self, name: str) -> Parameters:
        """The parameters of a function; nothing is known of one that is not on offer."""
        return self._parameters.get(name) or Parameters(None)

    def start(self, name: str, identity: str = "") -> None:
        """A call begins. Without parallel calls those after the first are dropped."""
        self._muted = not self._parallel and self.count > 0
        if not self._muted:
            self.out.append(CallStart(self.count, identity or new_call_id(self._short_ids), name))
            self.count += 1

    def arguments(self, text: str) -> None:
        """More JSON text of the call's arguments."""
        if text and not self._muted:
            self.out.append(CallArguments(self.count - 1, text))


class Syntax(Protocol):
    """One way to write calls."""

    @property
    def opener(self) -> str:
        """A pattern: how it begins."""

    def read(self, to: Writer) -> Steps[bool]:
        """Read calls that begin here. False if there is none after all; then nothing has been read."""


def json_value(to: Writer) -> Steps[None]:
    """The JSON object that comes next becomes the arguments as it is being written; a string of JSON does when it is
    complete."""
    source = to.source
    whole, end, text = source.text[:1] == "{", JsonEnd(), ""
    while True:
        n = end.scan(source.text)
        text += source.take(len(source.text) if n is None else n)
        if whole:
            to.arguments(end.mended)
        if n is not None:
            break
        if source.ended:
            return
        yield
    if not whole:
        value = loads(text)
        to.arguments(value if isinstance(value, str) else text)


def json_end(source: Source, start: int) -> Steps[int | None]:
    """The index after the JSON value at `start`; None if the text ends before."""
    end = JsonEnd()
    while True:
        n = end.scan(source.text[start:])
        if n is not None:
            return start + n
        start = len(source.text)
        if source.ended:
            return None
        yield


@dataclass(frozen=True)
class JsonCalls:
    """Call objects, one or a list: `{"name": ..., "arguments": {...}}` after `opener` and before `closer`.

    Attributes:
        opener, closer: patterns and literals around them. An empty opener is bare JSON, which is a call only if it
            names a function on offer.
        name_as_key: the objects are `{name: arguments}`.
        id_after: an id may come after the arguments, so a call is read as a whole.
    """

    opener: str
    closer: tuple[str, ...] = ()
    name_as_key: bool = False
    id_after: bool = False

    def read(self, to: Writer) -> Steps[bool]:
        """As in Syntax."""
        source = to.source
        begin = yield from source.match(compiled(self.opener + r"\s*(?:```(?:json)?\s*)?(?P<list>\[\s*)?(?=\{)"))
        if begin is None:
            return False
        if not (yield from self._object(to, begin.end())):
            return False
        while True:
            yield from source.skip(",", ";") if begin["list"] or not self.opener else source.skip(",")
            if (yield from source.ahead("{", *self.closer, "]", FENCE)) != "{":
                break
            blank = len(source.text) - len(source.text.lstrip())
            if not (yield from self._object(to, blank)):
                if source.ended and JsonEnd().scan(source.text[blank:]) is None:
                    source.take(len(source.text))  # the answer was cut off within another call
                break
        if begin["list"]:
            yield from source.skip("]")
        if FENCE in begin[0]:
            yield from source.skip(FENCE)
        yield from source.skip(*self.closer)
        return True

    def _object(self, to: Writer, start: int) -> Steps[bool]:
        source, bare = to.source, not self.opener
        if not self.id_after:
            head = yield from source.match(NAME_AS_KEY if self.name_as_key else HEAD, start)
            if head is not None and bare and head["name"] not in to.names:
                return False
            if head is not None and not (bare or self.name_as_key):
                to.start(head["name"], head["id"] or "")  # the name is known before the arguments come
            value = head if head is None or self.name_as_key else (yield from source.match(VALUE, head.end()))
            if head is not None and value is not None:
                source.take(value.end())
                if bare or self.name_as_key:
                    to.start(head["name"], "" if self.name_as_key else head["id"] or "")
                yield from json_value(to)
                if (end := (yield from _closing(source))) is not None:
                    source.take(end)
                return True
            if head is not None and not bare:  # the arguments are not where they should be
                end = yield from json_end(source, start)
                found = call_of(source.text[start:end])
                source.take(len(source.text) if end is None else end)
                to.arguments(found[1] if found is not None else "{}" if end is not None else "")
                return True
        first = yield from source.match(FIRST_KEY, start)
        if self.name_as_key or (bare and (first is None or first["key"] not in CALL_KEYS)):
            return False
        end = yield from json_end(source, start)
        found = call_of(source.text[start:end]) if end is not None else None
        if end is None or found is None or (bare and found[0] not in to.names):
            return False
        source.take(end)
        to.start(found[0], found[2])
        to.arguments(found[1])
        return True


def _closing(source: Source) -> Steps[int | None]:
    """The end of the call's object after its arguments."""
    end, start = JsonEnd(1), 0
    while True:
        n = end.scan(source.text[start:])
        if n is not None or source.ended:
            return start + n if n is not None else len(source.text)
        start = len(source.text)
        yield


def call_of(text: str) -> tuple[str, str, str] | None:
    """Name, arguments and id of a call object with its keys in any order; None if it is something else."""
    try:
        data = loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    inner = data["function"] if isinstance(data.get("function"), dict) else data
    name = next((inner[key] for key in NAME if isinstance(inner.get(key), str)), None)
    given = [inner[key] for key in ARGUMENTS if key in inner]
    if name is None or not given:
        return None
    arguments = given[0] if isinstance(given[0], str) else dumps(given[0] if given[0] is not None else {})
    return name, arguments, next((str(data[key]) for key in ID if isinstance(data.get(key), (str, int))), "")


@dataclass(frozen=True)
class NamedCalls:
    """A name, then its arguments as JSON: `opener` finds it, `head` reads up to the arguments, with groups `name` and
    perhaps `id`; `closer` may follow."""

    opener: str
    head: str
    closer: tuple[str, ...] = ()

    def read(self, to: Writer) -> Steps[bool]:
        """As in Syntax."""
        source = to.source
        head = yield from source.match(compiled(self.head + r"(?=\{)"))
        if head is None:
            return False
        source.take(head.end())
        groups = head.groupdict()
        to.start(groups["name"], groups.get("id") or "")
        yield from json_value(to)
        while (yield from source.skip(*self.closer)) is not None:
            pass
        return True


@dataclass(frozen=True)
class CodeCalls:
    """Llama's `<|python_tag|>` with code after it: a call of the function that takes code."""

    opener: str = escaped("<|python_tag|>")
    functions: tuple[str, ...] = ("python", "code_interpreter", "ipython")

    def read(self, to: Writer) -> Steps[bool]:
        """As in Syntax."""
        source = to.source
        name = next((n for n in self.functions if n in to.names), None)
        if name is None or (yield from source.match(compiled(self.opener + r"\s*(?=[^\s{])"))) is None:
            return False
        while not source.ended:
            yield
        code = source.take(len(source.text))[len("<|python_tag|>") :].strip()
        to.start(name)
        to.arguments(dumps({to.parameters(name).only_string or "code": code}))
        return True
