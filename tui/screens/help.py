"""Help for where the user is: its keys first, then all others."""

from __future__ import annotations

from typing import Literal, Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from lcspec.tui.keys import CHAT, MESSAGE, PROMPT_HELP, Action, shown_keys
from lcspec.tui.lens import legend

Place = Literal["prompt", "message"]
LENS_NAMES = ("model", "ngram", "suffix", "lookahead")
WIDTH = 22


def _rows(rows: Sequence[tuple[str, str]]) -> list[Content]:
    out = []
    for keys, text in rows:
        out.append(Content.assemble((f"{keys:<{WIDTH}} ", "bold"), text))
    return out


def _actions(actions: Sequence[Action]) -> list[Content]:
    return _rows([(shown_keys(a), f"{a.title}. {a.help}") for a in actions])


def help_content(place: Place, colour: bool = True) -> Content:
    """The text for a place."""
    prompt = [Content.assemble(("In the input", "bold underline")), *_rows(PROMPT_HELP), Content("")]
    message = [Content.assemble(("On a message", "bold underline")), *_actions(MESSAGE), Content("")]
    everywhere = [Content.assemble(("Everywhere", "bold underline")), *_actions(CHAT), Content("")]
    lens = [
        Content.assemble(("The lens", "bold underline")),
        Content("Text in a tint was proposed by a drafter and accepted by the model; the rest is the model's own."),
        legend(LENS_NAMES, colour),
        Content(""),
        Content.assemble(("The inspector", "bold underline")),
        Content(
            "est. and exp. are what the planner expected, seen and target what happened. A width of 5>8 means that a "
            "step of 5 tokens was padded to 8, because 8 cost less here. Seconds saved are against plain decoding at "
            "the measured cost of one token."
        ),
    ]
    first = [*message, *prompt] if place == "message" else [*prompt, *message]
    return Content("\n").join([*first, *everywhere, *lens])


class HelpScreen(ModalScreen[None]):
    """A box to scroll; Escape or F1 leaves."""

    BINDINGS = [Binding("escape,f1,q", "app.pop_screen", "Close")]

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def compose(self) -> ComposeResult:
        """The text."""
        with VerticalScroll(classes="dialog wide tall") as box:
            box.border_title = "Help"
            box.border_subtitle = "Esc closes"
            yield Static(help_content(self.place, colour=not self.app.no_color))
