"""Reads an answer while it is being written: text, reasoning and tool calls, by the format of the model's family."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

from lcspec.answers.calls import JsonCalls, Syntax, Writer
from lcspec.answers.deltas import CallArguments, CallStart, Content, Delta, Reasoning
from lcspec.answers.formats import Format, Tags
from lcspec.answers.source import Steps, compiled, escaped
from lcspec.answers.text import Piece

BARE = JsonCalls("")


class AnswerReader:
    """Splits one answer. Feed it text as it comes, then `finish`.

    Attributes:
        calls: how many calls have begun; thinking: whether the model is still reasoning; writer: where calls go.
    """

    def __init__(
        self,
        form: Format,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        opened: Tags | None = None,
        continued: bool = False,
        forced: bool = False,
        parallel: bool = True,
        inline: bool = False,
    ) -> None:
        """A reader of one answer.

        Args:
            form: the format, from `formats.format_of`.
            tools: functions on offer, as the OpenAI API describes them inside `function`. Without any there are no
                calls.
            opened: tags of reasoning that the prompt has opened (see `openings.opened_by`).
            continued: the prompt has begun that reasoning as well, and the answer goes on with it.
            forced: a grammar makes the answer JSON: it has no reasoning, and calls are bare objects.
            parallel: whether calls after the first one are wanted.
            inline: leave reasoning in the text, with its tags.
        """
        self.form = form
        self.writer = Writer(tools, parallel, form.short_ids)
        self.opened = None if forced else opened
        self.begun = continued and self.opened is not None
        self.thinking = self.opened is not None
        self.forced = forced
        self.inline = inline
        self.tools = tools
        self.syntaxes: tuple[Syntax, ...] = () if forced or not self.writer.names else form.calls
        self._source = self.writer.source
        self._out = self.writer.out
        self._tokens: set[str] = set()  # control tokens that have come; nobody may see them
        self._said = False  # text since the last call
        self._blank = ("", 0)  # space that may turn out to stand before a call
        self._complete = True
        self._tag = ""  # with `inline`: the opening tag, until there is something to reason
        self._steps = form.channels.read(self) if form.channels and not forced else self._read()
        self._done = False

    @property
    def calls(self) -> int:
        """How many calls have begun."""
        return self.writer.count

    def feed(self, text: str) -> list[Delta]:
        """What more text brings."""
        self._source.text += text
        return self._advance()

    def feed_pieces(self, pieces: Iterable[Piece]) -> list[Delta]:
        """What pieces from the engine bring: those of control tokens go to the parsers and to nobody else."""
        for piece in pieces:
            if piece.control and self.form.knows(piece.control):
                self._tokens.add(piece.control)
                self._source.text += piece.control
            self._source.text += piece.text
        return self._advance()

    def finish(self, complete: bool = True) -> list[Delta]:
        """What is left when the answer is over; `complete`: it ended by itself."""
        self._source.ended = True
        self._complete = complete
        return self._advance()

    def _advance(self) -> list[Delta]:
        if not self._done:
            try:
                next(self._steps)
            except StopIteration:
                self._done = True
        found = list(self._out)
        self._out.clear()
        return found

    # ------------------------------------------------------------ the way through an answer with tags

    def _read(self) -> Steps[None]:
        """All of it."""
        if self.forced:
            yield from self._bare_call()
            yield from self._text()
            return
        if self.opened is None:
            yield from self._opening()
        else:
            yield from self._reasoning(self.opened, again=True)
        yield from self._text()

    def _opening(self) -> Steps[None]:
        """Reasoning may begin where the answer does, or where reasoning or a call has ended."""
        source, pairs = self._source, self.form.reasoning
        if pairs:
            # A closing tag without an opening one comes from models whose prompt has closed the reasoning already.
            tags = compiled(
                r"\s*(?:" + "|".join([f"(?P<o{i}>{tags.opening})|{tags.closing}" for i, tags in enumerate(pairs)]) + ")"
            )
            found = yield from source.match(tags)
            if found is not None and found.end():
                source.take(found.end())
                self._blank = ("", 0)
                opened = next((pairs[i] for i in range(len(pairs)) if found[f"o{i}"] is not None), None)
                if opened is not None:
                    yield from self._reasoning(opened, found[0])
                    return
                yield from self._skip_blank()
        if not self._said and self.calls == 0 and self.writer.names:
            yield from self._bare_call()

    def _bare_call(self) -> Steps[None]:
        """JSON on its own may be a call, where an answer begins."""
        found = yield from self._source.match(compiled(r"\s*(?=[\[{])"))
        if found is not None and self.writer.names:
            yield from BARE.read(self.writer)

    def _reasoning(self, tags: Tags, written: str = "", again: bool = False) -> Steps[None]:
        """Up to the tag that closes it. Calls in it are none, unless it never closes and they are all that follows."""
        source, self.thinking = self._source, True
        begun = again and self.begun
        self._tag = (written or tags.literal + "\n" * ("|" not in tags.literal)) if self.inline and not begun else ""
        if not self.inline and not begun:
            yield from self._skip_blank()
            if again:  # some models repeat the tag that the prompt has written
                found = yield from source.match(compiled(tags.opening + r"\s*"))
                source.take(found.end() if found is not None else 0)
        closing = compiled(tags.closing)
        either = compiled("|".join([f"(?P<close>{tags.closing})", *(s.opener for s in self.syntaxes)]))
        while True:
            found = either.search(source.text, partial=not source.ended)
            end = len(source.text) if found is None else found.start()
            self._think(source.take(end))
            if found is not None and not found.partial:
                break
            if source.ended:
                return
            yield
        if found["close"] is None:
            later = yield from source.search(closing)
            if later is None:
                self._calls_instead()
                return
            self._think(source.take(later.start()))
            found = later
        source.take(len(found[0]))
        self._blank = ("", 0)
        self.thinking = False
        if self.inline and not self._tag:
            self.content(found[0])
        else:
            yield from self._skip_blank()
        yield from self._opening()

    def _calls_instead(self) -> None:
        """The answer ended within reasoning that ends with what looks like calls: it forgot to close it."""
        source = self._source
        rest = source.take(len(source.text))
        reader = AnswerReader(self.form, self.tools, parallel=True)
        reader.writer.count = self.calls
        deltas = [*reader.feed(rest), *reader.finish()]
        if self._complete and any(isinstance(d, CallStart) for d in deltas) and not any(
            isinstance(d, (Content, Reasoning)) for d in deltas
        ):  # fmt: skip
            self.thinking = False
            self._blank = ("", 0)
            for delta in deltas:
                if isinstance(delta, CallStart):
                    self.writer.start(delta.name, delta.id)
                elif isinstance(delta, CallArguments):
                    self.writer.arguments(delta.text)
        else:
            self._think(rest)

    def _text(self) -> Steps[None]:
        """Content, and the calls in it."""
        source = self._source
        parts = [f"(?P<call>{'|'.join(f'(?:{s.opener})' for s in self.syntaxes)})"] if self.syntaxes else []
        parts += [f"(?P<think>{'|'.join(tags.opening for tags in self.form.reasoning if tags.anywhere)})"] * any(
            tags.anywhere for tags in self.form.reasoning
        )
        parts += [f"(?P<drop>{self.form.dropped})"] if self.form.dropped else []
        stops = compiled("|".join(parts)) if parts and not self.forced else None
        while True:
            found = None if stops is None else stops.search(source.text, partial=not source.ended)
            self.content(source.take(len(source.text) if found is None else found.start()))
            if found is None or found.partial:
                if source.ended:
                    self._flush()
                    return
                yield
                continue
            groups = found.groupdict()
            if groups.get("call") is not None:
                yield from self._call(len(found[0]))
            elif groups.get("think") is not None:
                tags = next(t for t in self.form.reasoning if compiled(t.opening).fullmatch(found[0]))
                source.take(len(found[0]))
                yield from self._reasoning(tags, found[0])
            else:
                source.take(len(found[0]))

    def _call(self, opener: int) -> Steps[None]:
        before = self.calls
        for syntax in self.syntaxes:
            if compiled(syntax.opener).match(self._source.text) and (yield from syntax.read(self.writer)):
                break
        else:  # it looked like a call and is none
            self.content(self._source.take(opener))
            return
        if self.calls > before or not self._said:
            self._blank, self._said = ("", 0), False
        yield from self._opening()

    def _skip_blank(self) -> Steps[None]:
        """Space after a tag belongs to nothing."""
        source = self._source
        while True:
            source.take(len(source.text) - len(source.text.lstrip()))
            if source.text or source.ended:
                return
            yield

    # ------------------------------------------------------------ what is found (for formats with channels as well)

    def content(self, text: str) -> None:
        """Text for the user that has just been taken from the source."""
        self._put(text, Content)

    def _think(self, text: str) -> None:
        """Reasoning that has just been taken from the source."""
        if self._tag and text.strip():
            self._out.append(Content(self._tag, self._source.at - len(text)))
            self._tag = ""
        self._put(text, Content if self.inline else Reasoning)

    def reasoning(self, text: str) -> None:
        """The same, for channels."""
        self._think(text)

    def tag(self, text: str) -> None:
        """What stands around reasoning in channels; seen only where reasoning is left in the text."""
        if self.inline:
            self._out.append(Content(text))

    def new_part(self) -> None:
        """Another part begins: space at the end of the last one is nobody's."""
        self._blank, self._said = ("", 0), False

    def _put(self, text: str, kind: type[Content] | type[Reasoning]) -> None:
        """Control tokens are left out; space at the end waits until it is known what follows it."""
        at = self._source.at - len(text)
        for part, start in self._visible(text):
            self._put_visible(part, at + start, kind)

    def _visible(self, text: str) -> list[tuple[str, int]]:
        if not self._tokens or not any(token in text for token in self._tokens):
            return [(text, 0)]
        parts, start = list[tuple[str, int]](), 0
        for found in compiled("|".join(map(escaped, sorted(self._tokens, key=len, reverse=True)))).finditer(text):
            parts.append((text[start : found.start()], start))
            start = found.end()
        return [*parts, (text[start:], start)]

    def _put_visible(self, text: str, at: int, kind: type[Content] | type[Reasoning]) -> None:
        if not text:
            return
        holds = kind is Reasoning or bool(self.writer.names)
        blank, blank_at = self._blank
        if blank and blank_at + len(blank) != at:
            if self._said or kind is Content:
                self._out.append(kind(blank, blank_at))
            blank = ""
        text, at = blank + text, at - len(blank)
        self._blank = ("", 0)
        if holds:
            kept = text.rstrip()
            if len(kept) < len(text):
                self._blank = (text[len(kept) :], at + len(kept))
            text = kept
        if text:
            self._said = self._said or kind is Content
            self._out.append(kind(text, at))

    def _flush(self) -> None:
        """Space at the end is content, unless a call came before it."""
        blank, at = self._blank
        if blank and (self._said or not self.calls):
            self._out.append(Content(blank, at))
        self._blank = ("", 0)


def gathered(deltas: Iterable[Delta]) -> tuple[str, str, list[dict[str, Any]]]:
    """Content, reasoning and calls as the OpenAI API writes them."""
    content, reasoning, calls = "", "", list[dict[str, Any]]()
    for delta in deltas:
        if isinstance(delta, Content):
            content += delta.text
        elif isinstance(delta, Reasoning):
            reasoning += delta.text
        elif isinstance(delta, CallStart):
            calls.append({"id": delta.id, "type": "function", "function": {"name": delta.name, "arguments": ""}})
        else:
            calls[delta.index]["function"]["arguments"] += delta.text
    return content, reasoning, calls
