"""Help for where the user is: its keys first, then all others."""

from __future__ import annotations

import textwrap
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
# Columns of the keys, and of what the box takes beside the text.
KEYS, AROUND = 22, 28
WIDEST = 72


def _rows(rows: Sequence[tuple[str, str]], width: int) -> list[Content]:
    out = []
    for keys, text in rows:
        first, *rest = textwrap.wrap(text, width)
        if len(keys) > KEYS:  # the keys get a line of their own
            out.append(Content.assemble((keys, "bold")))
            keys = ""
        out.append(Content.assemble((f"{keys:<{KEYS}} ", "bold"), first))
        out += [Content(" " * (KEYS + 1) + line) for line in rest]
    return out


def help_content(place: Place, colour: bool = True, width: int = WIDEST) -> Content:
    """The text for a place; `width`: columns for the explanations."""

    def _actions(actions: Sequence[Action]) -> list[Content]:
        return _rows([(shown_keys(a), f"{a.title}. {a.help}") for a in actions], width)

    prompt = [Content.assemble(("In the input", "bold underline")), *_rows(PROMPT_HELP, width), Content("")]
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
            yield Static(
                help_content(self.place, not self.app.no_color, max(20, min(WIDEST, self.app.size.width - AROUND)))
            )
