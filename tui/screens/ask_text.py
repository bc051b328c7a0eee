"""A question answered with text: a title, a file name, the system prompt."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea


class AskText(ModalScreen[str | None]):
    """Gives the text, or None when it was left with Escape."""

    BINDINGS = [
        Binding("escape", "cancel", "Cancel"),
        Binding("ctrl+s", "accept", "Save"),
    ]

    def __init__(self, title: str, value: str = "", *, hint: str = "", lines: bool = False) -> None:
        """Ask; `lines` gives room for several of them."""
        super().__init__()
        self.question = title
        self.value = value
        self.hint = hint
        self.lines = lines

    def compose(self) -> ComposeResult:
        """A box with the title, the field and a hint."""
        with Vertical(classes="dialog" + (" tall" if self.lines else "")) as box:
            box.border_title = self.question
            if self.lines:
                yield TextArea(self.value, soft_wrap=True, show_line_numbers=False, tab_behavior="focus")
            else:
                yield Input(self.value)
            keys = "Ctrl+S saves, Esc leaves it as it was." if self.lines else "Enter accepts, Esc cancels."
            yield Static(Content(f"{self.hint} {keys}".strip()), classes="hint")

    @on(Input.Submitted)
    def action_accept(self) -> None:
        """Give the text."""
        self.dismiss(self.query_one(TextArea).text if self.lines else self.query_one(Input).value)

    def action_cancel(self) -> None:
        """Give nothing."""
        self.dismiss(None)
