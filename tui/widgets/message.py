"""A message in the transcript: what users and answers have in common, and the user's."""

from __future__ import annotations

from typing import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.events import Click
from textual.message import Message as TextualMessage

from lcspec.tui import keys
from lcspec.tui.code import code_key
from lcspec.tui.document import MIN_WIDTH, wrapped
from lcspec.tui.markdown import code_blocks
from lcspec.tui.store import Message
from lcspec.tui.widgets.lines import LinesWidget
from lcspec.tui.wording import size

INDENT = "  "
# A message that was pasted is shown to this length; all of it is sent, copied and exported.
LONGEST_SHOWN = 40_000


class MessageView(LinesWidget, can_focus=True):
    """A focusable message. Its keys become messages to the screen, which knows what to do.

    It is one widget, styled by component classes of the transcript: a heading (who wrote it, and which branch this is:
    `‹ 2/3 ›`, to be clicked), body and foot.
    """

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
        self.text = message.text
        self._laid: tuple[int, list[Content]] | None = None  # a width, and its lines

    @property
    def who(self) -> str:
        """The heading."""
        return "You"

    def body(self, width: int) -> Sequence[Content]:
        """Lines of the message itself, `width` cells wide, indented."""
        return ()

    @property
    def foot(self) -> Content | None:
        """The line below the body."""
        return None

    def lines(self, width: int) -> Sequence[Content]:
        """Heading, body, foot."""
        if self._laid is None or self._laid[0] != width:
            self._laid = width, [self._head(), *self.body(width), *self._foot_lines(width)]
        return self._laid[1]

    def _head(self) -> Content:
        index, count = self.place
        mark = f"  ‹ {index}/{count} ›" if count > 1 else ""
        return Content.assemble((self.who, f".{self.message.role}-head"), (mark, ".message-place"))

    def _foot_lines(self, width: int) -> list[Content]:
        foot = self.foot
        return indented(wrapped(foot.stylize_before(".message-foot"), width - len(INDENT))) if foot else []

    def changed(self) -> None:
        """Lay it out anew."""
        self._laid = None
        super().changed()

    def show_place(self, place: tuple[int, int]) -> None:
        """Show which branch this is, if there are several."""
        if place != self.place:
            self.place = place
            self.changed()

    def on_click(self, event: Click) -> None:
        """A click on the right half of `‹ 2/3 ›` walks on, on the left half back."""
        at = event.get_content_offset(self)
        start, end = cell_len(self.who) + 2, self._head().cell_length
        if at is not None and not at.y and self.place[1] > 1 and start <= at.x < end:
            event.stop()
            self._want("older_branch" if at.x < (start + end) / 2 else "newer_branch")

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

    def action_retry(self) -> None:
        """Answer again with a new seed."""
        self._want("retry")

    def action_repeat(self) -> None:
        """Answer again with the same seed."""
        self._want("repeat")

    def action_go_on(self) -> None:
        """Go on with it."""
        self._want("go_on")

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

    def action_copy_block(self, key: int) -> None:
        """Copy the code block that was clicked."""
        code = next((code for code in code_blocks(self.text) if code_key(code) == key), None)
        if code is not None:
            self.app.copy_to_clipboard(code)
            self.notify("Copied the code block.", timeout=2)


class UserView(MessageView):
    """What the user wrote, as written."""

    def body(self, width: int) -> Sequence[Content]:
        """The text."""
        text = self.message.text
        lines = indented(wrapped(Content(text[:LONGEST_SHOWN]), max(MIN_WIDTH, width - len(INDENT))))
        if len(text) > LONGEST_SHOWN:
            rest = f"... and {len(text) - LONGEST_SHOWN:,} more characters, all of which the model gets"
            lines.append(Content(INDENT) + Content.styled(rest, ".message-foot"))
        return lines

    @property
    def foot(self) -> Content | None:
        """The attachments."""
        files = ", ".join(f"{a.name} ({size(a.n_bytes)})" for a in self.message.attachments)
        return Content(f"attached: {files}") if files else None


def indented(lines: Sequence[Content]) -> list[Content]:
    """The lines, two cells to the right."""
    return [Content(INDENT) + line for line in lines]
