"""What the store keeps: chats, messages, and who drafted which characters."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal, Mapping, NamedTuple, Sequence

from lcspec.answers.text import Piece
from lcspec.tui.attachments import Attachment

Role = Literal["user", "assistant"]
State = Literal["streaming", "done", "stopped", "failed"]
ProblemKind = Literal["newer", "corrupt", "read-only", "full", "busy", "io"]

TITLE_LENGTH = 60


class Span(NamedTuple):
    """Characters [start, end) of a message's text that `drafter` proposed. What no span covers is the target's own."""

    start: int
    end: int
    drafter: str


@dataclass(frozen=True)
class Message:
    """One message of a chat's tree. Times are seconds since the epoch, for people; order never depends on them.

    Attributes:
        id: unique everywhere.
        chat: its chat's id.
        parent: the message before it; None for a first message.
        role: who wrote it.
        text: as typed or generated, reasoning included.
        attachments: files sent along (a user's message).
        model: file name of the model that answered.
        seed: seed of the answer.
        sampling: the answer's sampling parameters by name.
        speculation: the answer's drafters as `--speculate` takes them.
        stop_reason: stop | length | context | cancelled | interrupted (the program died while it streamed) | edited
            (the user wrote it).
        tokens: tokens of the answer.
        stats: RequestStats.as_dict() and whatever else the interface wants to keep.
        spans: who drafted what, in order, not overlapping.
        state: streaming until the answer ended; a user's message is done.
        error: why it failed, one sentence.
    """

    id: str
    chat: str
    parent: str | None
    role: Role
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    model: str | None = None
    seed: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    speculation: str | None = None
    stop_reason: str | None = None
    tokens: int | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    state: State = "done"
    error: str | None = None
    created: float = 0.0
    updated: float = 0.0
    deleted: bool = False


@dataclass(frozen=True)
class ChatInfo:
    """A chat without its messages.

    Attributes:
        title: from the first message until it is renamed; "" while there is none.
        leaf: the last message of the branch shown; None = empty.
        system: the system prompt, "" for none.
        model: path of the model last used in it.
        preset: name of the settings' preset it was begun with.
        deleted: when it was deleted; None = it was not.
        pinned: it stands above those that are not, in the list.
    """

    id: str
    title: str = ""
    leaf: str | None = None
    system: str = ""
    model: str | None = None
    preset: str | None = None
    created: float = 0.0
    updated: float = 0.0
    deleted: float | None = None
    pinned: bool = False


@dataclass(frozen=True)
class ChatSummary:
    """A line of the list of chats; `preview` is the beginning of the newest message, on one line."""

    info: ChatInfo
    n_messages: int
    preview: str


@dataclass(frozen=True)
class SearchHit:
    """A message (or a title: `message` None) that has the text; `excerpt[start:end]` is where."""

    chat: ChatInfo
    message: str | None
    excerpt: str
    start: int
    end: int


@dataclass(frozen=True)
class StoreProblem:
    """Why nothing is saved now. The chats stay in memory; `message` says what is wrong and what to do.

    `lasting` problems (newer, corrupt) stay until the program is started again; others are tried again.
    """

    kind: ProblemKind
    message: str

    @property
    def lasting(self) -> bool:
        """Whether trying again is pointless."""
        return self.kind in ("newer", "corrupt")


def new_id() -> str:
    """An id that no other process makes."""
    return uuid.uuid4().hex


def now() -> float:
    """Seconds since the epoch."""
    return time.time()


def title_of(text: str) -> str:
    """A title from a message: its first line that says something, cut at a word."""
    line = next((" ".join(line.split()) for line in text.splitlines() if line.strip(" \t#>*-`\"'")), "")
    if len(line) <= TITLE_LENGTH:
        return line
    head = line[: TITLE_LENGTH - 1]
    return (head.rsplit(" ", 1)[0] if " " in head[TITLE_LENGTH // 2 :] else head).rstrip(" ,;:.") + "…"


def clean(text: str) -> str:
    """`text` without half characters (lone surrogates become "?"), which no file can hold; the length stays."""
    return text.encode("utf-8", "replace").decode("utf-8")


def extend_spans(spans: list[Span], offset: int, pieces: Sequence[Piece]) -> int:
    """Append the pieces' spans, the first piece beginning at character `offset`; returns where the last one ends."""
    for text, drafter, _ in pieces:
        end = offset + len(text)
        if drafter is not None and text:
            if spans and spans[-1].drafter == drafter and spans[-1].end == offset:
                spans[-1] = Span(spans[-1].start, end, drafter)
            else:
                spans.append(Span(offset, end, drafter))
        offset = end
    return offset


def pieces_of(text: str, spans: Sequence[Span]) -> list[Piece]:
    """The text cut at its spans, for the lens: every character once, in order."""
    out: list[Piece] = []
    at = 0
    for start, end, drafter in spans:
        start, end = max(start, at), min(end, len(text))
        if start >= end:
            continue
        if start > at:
            out.append(Piece(text[at:start], None))
        out.append(Piece(text[start:end], drafter))
        at = end
    if at < len(text):
        out.append(Piece(text[at:], None))
    return out
