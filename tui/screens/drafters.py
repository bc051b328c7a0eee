"""Choosing the drafters, also in the middle of an answer."""

from __future__ import annotations

from typing import Sequence

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

ABOUT = {
    "auto": "the planner decides step by step which of them to ask, and whether to draft at all",
    "off": "plain decoding",
    "ngram": "continues what stood in this conversation before",
    "suffix": "the same with a suffix automaton, also over earlier answers",
    "model": "asks the draft model",
    "lookahead": "guesses n-grams in parallel (Jacobi iteration)",
}
# They need something that only a request can bring along.
NOT_HERE = {"prediction", "forced"}


def offered(names: Sequence[str], has_draft: bool) -> list[str]:
    """What can be chosen, as `--speculate` takes it."""
    single = [n for n in names if n not in NOT_HERE and (n != "model" or has_draft)]
    together = ",".join(n for n in ("ngram", "suffix", "model") if n in single)
    return ["auto", "off", *single, *([together] if together.count(",") else [])]


class DraftersScreen(ModalScreen[str | None]):
    """Gives a strategy as `--speculate` takes it, or None."""

    BINDINGS = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, now: str, names: Sequence[str], has_draft: bool, answering: bool) -> None:
        super().__init__()
        self.now = now
        self.choices = offered(names, has_draft)
        self.answering = answering

    def compose(self) -> ComposeResult:
        """The choices, and a line for names with options."""
        with Vertical(classes="dialog") as box:
            box.border_title = "Drafters"
            yield OptionList(*(Option(self._line(c), id=f"d{i}") for i, c in enumerate(self.choices)))
            yield Input(placeholder="or names with options: model:branch=3,ngram")
            now = "From the next step on" if self.answering else "For the next answers"
            yield Static(Content(f"{now}; the text does not change. Esc leaves it as it is."), classes="hint")

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
