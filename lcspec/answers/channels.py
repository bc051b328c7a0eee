"""Formats in which every message names whom it is for: gpt-oss (harmony), Muse, Functionary 3.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lcspec.answers.calls import Syntax, Writer, json_value
from lcspec.answers.json_text import dumps
from lcspec.answers.source import Pattern, Source, Steps, compiled, escaped


class Reader(Protocol):
    """What channels need of a reader."""

    writer: Writer
    thinking: bool
    begun: bool  # the answer goes on with reasoning that the prompt has begun

    def content(self, text: str) -> None:
        """Text for the user, just taken from the source."""

    def reasoning(self, text: str) -> None:
        """Reasoning, just taken from the source."""

    def tag(self, text: str) -> None:
        """What stands around reasoning, for those who want to see it."""

    def new_part(self) -> None:
        """Another message begins."""


class Channels(Protocol):
    """A whole format."""

    @property
    def literals(self) -> str:
        """What it is made of, escaped (see Format.knows)."""

    def read(self, reader: Reader) -> Steps[None]:
        """Read an answer from its beginning to its end."""


def body(reader: Reader, end: Pattern, reasoning: bool, drop: bool = False) -> Steps[None]:
    """A message up to `end`, which is not read."""
    source, reader.thinking = reader.writer.source, reasoning
    while True:
        found = end.search(source.text, partial=not source.ended)
        text = source.take(len(source.text) if found is None else found.start())
        if reasoning:
            reader.reasoning(text)
        elif not drop:
            reader.content(text)
        if (found is not None and not found.partial) or source.ended:
            reader.thinking = reasoning and found is None
            return
        yield


@dataclass(frozen=True)
class Messages:
    """`<|start|>assistant to=... <|channel|>...<|message|>body<|end|>`. The prompt ends after `assistant`.

    Attributes:
        ends: what ends a message.
        calls: how calls are written in messages to a function; None is JSON.
        reasoning: recipient or channel of reasoning; spoken: of text for the user.
    """

    ends: tuple[str, ...]
    reasoning: str
    spoken: tuple[str, ...]
    calls: Syntax | None = None

    @property
    def literals(self) -> str:
        """As in Channels."""
        return "".join(map(escaped, ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", *self.ends)))

    def read(self, reader: Reader) -> Steps[None]:
        """As in Channels."""
        source = reader.writer.source
        end = compiled("|".join(map(escaped, (*self.ends, "<|start|>"))))
        header = compiled(r"\s*(?:assistant\b)?\s*(?:to=|<\|channel\|>|<\|message\|>|<\|start\|>)")
        begun = reader.begun
        while True:
            found = None if begun else (yield from source.match(header))
            if begun:
                yield from body(reader, end, reasoning=True)
                begun = False
            elif found is None:
                # No header: a model that was made to write something else, or one that goes on where it was cut off.
                yield from body(reader, end, reasoning=False)
            else:
                begin = yield from source.search(compiled(escaped("<|message|>")))
                if begin is None:
                    source.take(len(source.text))
                    return
                head = source.text[: begin.start()]
                source.take(begin.end())
                reader.new_part()
                yield from self._message(reader, head, end)
            if source.ended and not source.text:
                return
            skipped = None
            while (tag := (yield from source.skip(*self.ends, "<|start|>"))) is not None:
                skipped = tag
            if skipped == "<|start|>" and (role := (yield from source.match(compiled(r"assistant\b")))) is not None:
                source.take(role.end())
            if source.ended and not source.text.strip():
                return

    def _message(self, reader: Reader, head: str, end: Pattern) -> Steps[None]:
        # What stands before another channel is void: `commentary to=assistant<|channel|>final`.
        recipients = [r for r in compiled(r"to=([^\s<]+)").findall(head) if r != "assistant"]
        channels = compiled(r"<\|channel\|>(\w+)").findall(head)
        to = recipients[-1] if recipients else channels[-1] if channels else self.spoken[0]
        name = to.removeprefix("functions.")
        if to == self.reasoning:
            reader.tag(head.lstrip() + "<|message|>")
            yield from body(reader, end, reasoning=True)
            reader.tag(self.ends[0])
        elif to in self.spoken:
            yield from body(reader, end, reasoning=False)
        elif name in reader.writer.names or (to != name and reader.writer.names):
            yield from self._call(reader, name, end)
        else:  # a tool that nobody offered
            yield from body(reader, end, reasoning=False, drop=True)

    def _call(self, reader: Reader, name: str, end: Pattern) -> Steps[None]:
        to = reader.writer
        source = to.source
        blank = yield from source.match(compiled(r"\s*(?=\S)"))
        source.take(blank.end() if blank is not None else 0)
        if self.calls is not None:
            if (yield from self.calls.read(to)):
                while (yield from source.skip("</atem:function_calls>")) is not None:
                    pass
                return
            yield from body(reader, end, reasoning=False)
        elif source.text[:1] == "{" or not source.text:
            to.start(name)
            if source.text:
                yield from json_value(to)
            else:
                to.arguments("{}")
            yield from body(reader, end, reasoning=False, drop=True)
        else:  # code for a function that takes nothing else
            found = yield from source.search(end)
            text = source.take(len(source.text) if found is None else found.start())
            to.start(name)
            to.arguments(dumps({to.parameters(name).only_string or "code": text}))


@dataclass(frozen=True)
class Recipients:
    """Functionary 3.2: `>>>all` before text, `>>>name` before a call's JSON. The prompt ends after `>>>`."""

    literals: str = ">>>"

    def read(self, reader: Reader) -> Steps[None]:
        """As in Channels."""
        to = reader.writer
        source: Source = to.source
        names = "|".join(map(escaped, sorted({"all", *to.names}, key=len, reverse=True)))
        recipient, end = compiled(rf"\s*(?P<to>{names})\n"), compiled(rf">>>(?=(?:{names})\n)")
        while True:
            found = yield from source.match(recipient)
            source.take(found.end() if found is not None else 0)
            reader.new_part()
            if found is not None and found["to"] != "all":
                yield from source.fill(1)
                to.start(found["to"])
                if source.text[:1] == "{":
                    yield from json_value(to)
                    yield from body(reader, end, reasoning=False, drop=True)
                else:
                    stop = yield from source.search(end)
                    code = source.take(len(source.text) if stop is None else stop.start())
                    to.arguments(dumps({to.parameters(found["to"]).only_string or "code": code}))
            else:
                yield from body(reader, end, reasoning=False)
            if source.ended and not source.text:
                return
            source.take(len(">>>"))
