"""A message in the transcript: what users and answers have in common, and the user's."""

from __future__ import annotations

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.message import Message as TextualMessage
from textual.widgets import Static

from lcspec.tui import keys
from lcspec.tui.store import Message
from lcspec.tui.wording import size


class MessageHead(Static):
    """Who wrote it and `‹ 2/3 ›`, which branch this is; a click on the right half walks on, on the left half back."""

    class Walked(TextualMessage):
        """The user wants the sibling `by` places on."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    def __init__(self, who: str, place: tuple[int, int]) -> None:
        super().__init__(classes="message-head")
        self.who = who
        self.show(place)

    def show(self, place: tuple[int, int]) -> None:
        """Show which branch this is, if there are several."""
        index, count = place
        self.walkable = count > 1
        mark = f"  ‹ {index}/{count} ›" if self.walkable else ""
        self.update(Content.assemble((self.who, "bold"), (mark, "bold $text-accent")))

    def on_click(self, event: Click) -> None:
        """Walk."""
        start, end = cell_len(self.who) + 2, cell_len(str(self.content))
        if self.walkable and start <= event.x < end:
            event.stop()
            self.post_message(self.Walked(-1 if event.x < (start + end) / 2 else 1))


class MessageView(Vertical, can_focus=True):
    """A focusable message. Its keys become messages to the screen, which knows what to do."""

    BINDINGS = keys.bindings(keys.MESSAGE)

    class Wanted(TextualMessage):
        """The user wants something done with a message: `action` is a name from `keys.MESSAGE`."""

        def __init__(self, view: MessageView, action: str) -> None:
            super().__init__()
            self.view = view
            self.action = action

    def __init__(self, message: Message, place: tuple[int, int] = (1, 1)) -> None:
        super().__init__(id=f"m-{message.id}", classes=message.role)
        self.message = message
        self.place = place

    @property
    def who(self) -> str:
        """The heading."""
        return "You"

    def compose(self) -> ComposeResult:
        """Heading, body, foot."""
        yield MessageHead(self.who, self.place)
        yield from self.body()
        if self.foot is not None:
            yield Static(self.foot, classes="message-foot")

    def body(self) -> ComposeResult:
        """The message itself."""
        yield from ()

    @property
    def foot(self) -> Content | None:
        """The line below the body."""
        return None

    def show_place(self, place: tuple[int, int]) -> None:
        """Show which branch this is, if there are several."""
        if place != self.place:
            self.place = place
            self.query_one(MessageHead).show(place)

    @on(MessageHead.Walked)
    def _walked(self, event: MessageHead.Walked) -> None:
        event.stop()
        self.post_message(self.Wanted(self, "older_branch" if event.by < 0 else "newer_branch"))

    def _want(self, action: str) -> None:
        self.post_message(self.Wanted(self, action))

    def action_previous(self) -> None:
        """Focus the message above."""
        self._want("previous")

    def action_next(self) -> None:
        """Focus the message below."""
        self._want("next")

    def action_older_branch(self) -> None:
        """Walk to the sibling before."""
        self._want("older_branch")

    def action_newer_branch(self) -> None:
        """Walk to the sibling after."""
        self._want("newer_branch")

    def action_edit(self) -> None:
        """Write it anew."""
        self._want("edit")

    def action_regenerate(self) -> None:
        """Answer again."""
        self._want("regenerate")

    def action_retry(self) -> None:
        """Answer again with a new seed."""
        self._want("retry")

    def action_copy(self) -> None:
        """Copy it."""
        self._want("copy")

    def action_copy_code(self) -> None:
        """Copy a code block of it."""
        self._want("copy_code")

    def action_thinking(self) -> None:
        """Fold or unfold the reasoning."""
        self._want("thinking")

    def action_leave(self) -> None:
        """Back to the input."""
        self._want("leave")


class UserView(MessageView):
    """What the user wrote, as written."""

    def body(self) -> ComposeResult:
        """The text, and the names of the files sent along."""
        yield Static(Content(self.message.text), classes="message-text")

    @property
    def foot(self) -> Content | None:
        """The attachments."""
        files = ", ".join(f"{a.name} ({size(a.n_bytes)})" for a in self.message.attachments)
        return Content(f"attached: {files}") if files else None
