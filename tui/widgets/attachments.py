"""Files that go with the next message, with the tokens they take."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from textual.containers import Horizontal
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from lcspec.tui.attachments import Attachment
from lcspec.tui.wording import size


@dataclass(frozen=True)
class Pending:
    """A file and what it costs."""

    attachment: Attachment
    tokens: int


class Chip(Static):
    """A file; a click takes it away."""

    class Removed(Message):
        """The user does not want it."""

        def __init__(self, pending: Pending) -> None:
            super().__init__()
            self.pending = pending

    def __init__(self, pending: Pending, limit: int) -> None:
        a = pending.attachment
        over = pending.tokens >= limit
        text = f"{a.name} {size(a.n_bytes)}, {pending.tokens} tokens" + (", larger than the context" if over else "")
        super().__init__(Content(f"{text} ×"), classes="chip error" if over else "chip")
        self.pending = pending
        self.tooltip = a.path

    def on_click(self, event: Click) -> None:
        """Take it away."""
        event.stop()
        self.post_message(self.Removed(self.pending))


class AttachmentStrip(Horizontal):
    """The files, hidden while there are none."""

    def __init__(self) -> None:
        super().__init__(id="attachments")
        self.pending: list[Pending] = []
        self.limit = sys.maxsize  # tokens of the context

    def on_mount(self) -> None:
        """Nothing yet."""
        self.display = False

    async def set(self, pending: list[Pending]) -> None:
        """Show these."""
        self.pending = pending
        await self.remove_children()
        total = sum(p.tokens for p in pending)
        if pending:
            await self.mount(*(Chip(p, self.limit) for p in pending))
            if len(pending) > 1:
                await self.mount(Static(Content(f"{total} tokens in all"), classes="chip-total"))
        self.display = bool(pending)

    async def drop_last(self) -> None:
        """Take the last one away."""
        if self.pending:
            await self.set(self.pending[:-1])
