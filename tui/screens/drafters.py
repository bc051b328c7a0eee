"""Choosing the drafters, also in the middle of an answer."""

from __future__ import annotations

from typing import Callable, Sequence

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from lcspec.config import DraftFiles, model_drafter

ABOUT = {
    "auto": "lcspec decides at every step who guesses, and whether guessing pays at all",
    "off": "no guessing: the model writes plainly",
    "ngram": "continues what stood in this conversation before",
    "suffix": "the same with matches of any length, also in earlier answers",
    "model": "asks the draft model",
    "cascade": "the draft model, which speculates with n-grams itself",
    "mtp": "the model's own layers for the tokens after the next",
    "eagle": "a head that reads what the model thinks",
    "store": "continues what stands in your datastore",
    "medusa": "heads trained on the model's own answers, as a tree",
    "blockwise": "the same heads, as a chain",
    "lookahead": "lets the model guess n-grams while it decodes",
    "jacobi": "lets the model guess the next tokens while it decodes",
}
# They need something that only a request can bring along.
NOT_HERE = {"prediction", "forced"}
# What has to be there before a drafter can be chosen.
NEEDS: dict[str, Callable[[DraftFiles], bool]] = {
    "model": lambda files: bool(files.models),
    "cascade": lambda files: bool(files.models),
    "store": lambda files: files.store is not None,
    "mtp": lambda files: files.mtp is not None,
    "eagle": lambda files: files.eagle is not None,
    "medusa": lambda files: files.heads is not None,
    "blockwise": lambda files: files.heads is not None,
}


def offered(names: Sequence[str], files: DraftFiles) -> list[str]:
    """What can be chosen, as `--speculate` takes it."""
    missing = {name for name, there in NEEDS.items() if not there(files)}
    models = [model_drafter(i) for i in range(1, len(files.models))]
    single = sorted([n for n in names if n not in NOT_HERE | missing] + models)
    together = ",".join(n for n in ("ngram", "suffix", "model") if n in single)
    return ["auto", "off", *single, *([together] if together.count(",") else [])]


class DraftersScreen(ModalScreen[str | None]):
    """Gives a strategy as `--speculate` takes it, or None."""

    BINDINGS = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, now: str, names: Sequence[str], files: DraftFiles, answering: bool) -> None:
        super().__init__()
        self.now = now
        self.choices = offered(names, files)
        self.answering = answering

    def compose(self) -> ComposeResult:
        """The choices, and a line for names with options."""
        with Vertical(classes="dialog") as box:
            box.border_title = "Drafters"
            box.border_subtitle = "Esc leaves it as it is"
            yield OptionList(*(Option(self._line(c), id=f"d{i}") for i, c in enumerate(self.choices)))
            yield Input(placeholder="or names with options: model:branch=3,ngram")
            now = "This counts from the next step on" if self.answering else "This counts from the next answer on"
            yield Static(
                Content(f"They guess the next words, and the model checks them, so the text stays the same. {now}."),
                classes="hint",
            )

    def on_mount(self) -> None:
        """Begin at what is in force."""
        options = self.query_one(OptionList)
        options.focus()
        if self.now in self.choices:
            options.highlighted = self.choices.index(self.now)

    def _line(self, choice: str) -> Content:
        mark = "● " if choice == self.now else "  "
        about = ABOUT.get(choice, "all of them, every step" if "," in choice else "")
        return Content.assemble((mark, ""), (choice, "bold"), (f"  {about}", "dim"))

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.choices[event.option_index])

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        """Leave it as it is."""
        self.dismiss(None)
