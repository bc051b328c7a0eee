"""Something the user must know, in place, with ways on."""

from __future__ import annotations

from typing import Literal, Sequence

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Static

from lcspec.tui.wording import sentence

Kind = Literal["info", "warning", "error"]
Way = tuple[str, str]  # a name for the program, a label for the user


class Notice(Vertical):
    """A sentence and buttons; Left and Right move between them."""

    BINDINGS = [
        Binding("left", "move(-1)", "Way before", show=False),
        Binding("right", "move(1)", "Next way", show=False),
    ]

    class Chosen(Message):
        """The user chose a way on."""

        def __init__(self, notice: Notice, way: str) -> None:
            super().__init__()
            self.notice = notice
            self.way = way

    def __init__(self, text: str, kind: Kind = "info", ways: Sequence[Way] = ()) -> None:
        super().__init__(classes=f"notice {kind}")
        self.text = sentence(text) if kind == "error" else text
        self.ways = tuple(ways)

    def compose(self) -> ComposeResult:
        """The sentence, then the ways on in a row."""
        yield Static(Content(self.text), classes="notice-text")
        if self.ways:
            with Horizontal(classes="notice-ways"):
                for name, label in self.ways:
                    yield Button(Content(label), name=name, compact=True)
                yield Static(Content("Shift+Tab chooses"), classes="notice-keys")

    def focus_ways(self) -> bool:
        """Focus the first way on; False if there is none, or one has the focus."""
        buttons = list(self.query(Button))
        if not buttons or any(button.has_focus for button in buttons):
            return False
        buttons[0].focus()
        return True

    def action_move(self, by: int) -> None:
        """To the way beside the one with the focus."""
        buttons = list(self.query(Button))
        at = next((i for i, button in enumerate(buttons) if button.has_focus), 0)
        buttons[(at + by) % len(buttons)].focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.post_message(self.Chosen(self, event.button.name or ""))
