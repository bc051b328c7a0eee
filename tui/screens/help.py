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
from lcspec.tui.slash import COMMANDS

Place = Literal["prompt", "message", "picker"]
PICKER_HELP = (
    ("Letters", "Show only the models that have them in their names; several words may stand in any order."),
    ("/ ~ ./", "Begin the path of a GGUF file that is elsewhere; Tab completes it."),
    ("Enter", "Load the model with the draft model named below the table."),
    ("Ctrl+D", "Take the next draft model that matches, or none."),
    ("Esc", "Show all models again; then back to the conversation."),
    ("Ctrl+Q", "Quit."),
)
PICKER_ABOUT = (
    "GGUF files are looked for here, in ~/models, Downloads, the folders of chat.toml, --folder and LCSPEC_MODELS, and "
    "where `lcspec pull`, Hugging Face, LM Studio, Ollama and llama.cpp keep them. A draft model is a small model that "
    "guesses ahead for a large one with the same vocabulary; the text stays the large one's."
)
LENS_NAMES = ("model", "ngram", "suffix", "lookahead")
LENS_HELP = "Coloured words were guessed by a drafter and accepted by the model; the others are the model's own."
INSPECTOR_HELP = (
    "How the answer was made. A step is a run of the model: it checks the words guessed and adds one of its own. "
    "Expected is what lcspec counted on, measured what happened. A width of 5>8 means that a step of 5 tokens was "
    "padded to 8, because 8 cost less here. Saved seconds are against plain steps of the same answer (one token each), "
    "and are shown only when they are more than noise and more than 2 % of the answer's time."
)
# Columns of the keys, and of what the box takes beside the text.
KEYS, AROUND = 22, 28
WIDEST = 72
# Narrower explanations stand below their keys.
BESIDE, BELOW = 30, 2


def _rows(rows: Sequence[tuple[str, str]], width: int) -> list[Content]:
    out = []
    column, width = (KEYS, width) if width >= BESIDE else (BELOW, width + KEYS - BELOW)
    for keys, text in rows:
        first, *rest = textwrap.wrap(text, width)
        if len(keys) > column:  # the keys get a line of their own
            out.append(Content.assemble((keys, "bold")))
            keys = ""
        out.append(Content.assemble((f"{keys:<{column}} ", "bold"), first))
        out += [Content(" " * (column + 1) + line) for line in rest]
    return out


def help_content(place: Place, colour: bool = True, width: int = WIDEST) -> Content:
    """The text for a place; `width`: columns for the explanations."""

    def _actions(actions: Sequence[Action]) -> list[Content]:
        return _rows([(shown_keys(a), f"{a.title}. {a.help}") for a in actions], width)

    if place == "picker":
        about = [Content(""), *map(Content, textwrap.wrap(PICKER_ABOUT, width + KEYS))]
        return Content("\n").join([*_rows(PICKER_HELP, width), *about])
    prompt = [Content.assemble(("In the input", "bold underline")), *_rows(PROMPT_HELP, width), Content("")]
    message = [Content.assemble(("On a message", "bold underline")), *_actions(MESSAGE), Content("")]
    commands = [
        Content.assemble(("Commands", "bold underline")),
        *_rows([(f"/{c.name} {c.takes}".strip(), c.help) for c in COMMANDS], width),
        Content(""),
    ]
    everywhere = [Content.assemble(("Everywhere", "bold underline")), *_actions(CHAT), Content("")]
    lens = [
        Content.assemble(("The lens", "bold underline")),
        *map(Content, textwrap.wrap(LENS_HELP, width + KEYS)),
        legend(LENS_NAMES, colour),
        Content(""),
        Content.assemble(("The inspector", "bold underline")),
        *map(Content, textwrap.wrap(INSPECTOR_HELP, width + KEYS)),
    ]
    keys = (
        [*message, *prompt, *commands, *everywhere]
        if place == "message"
        else [*prompt, *commands, *everywhere, *message]
    )
    return Content("\n").join([*keys, *lens])


class HelpScreen(ModalScreen[None]):
    """A box to scroll; Escape or F1 leaves."""

    BINDINGS = [Binding("escape,f1,q", "app.pop_screen", "Close")]

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def compose(self) -> ComposeResult:
        """The text."""
        with VerticalScroll(classes=f"dialog wide{' tall' * (self.place != 'picker')}") as box:
            box.border_title = "Help"
            box.border_subtitle = "Esc closes"
            yield Static(
                help_content(self.place, not self.app.no_color, max(10, min(WIDEST, self.app.size.width - AROUND)))
            )
