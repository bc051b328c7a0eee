"""An answer while it streams."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from lcspec.answers.text import Piece
from lcspec.tui.store.records import Message, Span, State, clean, extend_spans, now

if TYPE_CHECKING:
    from lcspec.tui.store.writer import Writer


class Answer:
    """A message that grows. All methods may be called from any thread; `append` costs what the new text costs and
    never waits for the disk.

    Attributes:
        id: the message's id.
    """

    def __init__(self, message: Message, writer: Writer, on_finish: Callable[[Message], None]) -> None:
        self.id = message.id
        self._base = message
        self._writer = writer
        self._on_finish = on_finish
        self._lock = threading.Lock()
        self._parts: list[str] = [message.text]
        self._length = len(message.text)
        self._spans: list[Span] = list(message.spans)
        self._tokens = message.tokens or 0

    def append(self, pieces: Sequence[Piece], tokens: int = 0) -> None:
        """Add text with its drafters, and the number of tokens it came from. Nothing happens once it is finished."""
        with self._lock:
            if self._base.state != "streaming":
                return
            self._parts += [piece.text for piece in pieces]
            self._length = extend_spans(self._spans, self._length, pieces)
            self._tokens += tokens
        self._writer.put_live(self.id, self)

    def update(
        self,
        *,
        seed: int | None = None,
        stats: Mapping[str, Any] | None = None,
        speculation: str | None = None,
    ) -> None:
        """Fill in what is known only after the start (the seed that the engine drew, other drafters)."""
        with self._lock:
            self._change(seed=seed, stats=stats, speculation=speculation)
        self._writer.put_live(self.id, self)

    def finish(
        self,
        state: State = "done",
        *,
        stop_reason: str | None = None,
        tokens: int | None = None,
        seed: int | None = None,
        stats: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> Message:
        """End it as done, stopped or failed; written at once. A second call changes nothing. Returns the message."""
        with self._lock:
            if self._base.state == "streaming":
                if tokens is not None:
                    self._tokens = tokens
                self._change(state=state, stop_reason=stop_reason, seed=seed, stats=stats, error=error)
            message = self._snapshot()
        self._writer.put_message(message)
        self._on_finish(message)
        return message

    def mark_deleted(self, deleted: bool) -> Message:
        """For Chat.remove and restore; returns the message."""
        with self._lock:
            self._change(deleted=deleted)
            return self._snapshot()

    @property
    def message(self) -> Message:
        """What it is now."""
        with self._lock:
            return self._snapshot()

    @property
    def text(self) -> str:
        """The text so far."""
        return self.message.text

    @property
    def finished(self) -> bool:
        """Whether `finish` was called."""
        return self._base.state != "streaming"

    def _change(self, **changes: Any) -> None:
        self._base = replace(self._base, **{k: v for k, v in changes.items() if v is not None}, updated=now())

    def _snapshot(self) -> Message:
        text = clean("".join(self._parts))
        self._parts = [text]
        return replace(self._base, text=text, spans=tuple(self._spans), tokens=self._tokens)
