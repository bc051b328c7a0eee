"""The list above the input of what may follow."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from lcspec.tui.completing import NOTHING, Candidate, Completion


class CompletionList(OptionList, can_focus=False):
    """Hidden while there is nothing to say. The input drives it and keeps the focus."""

    def __init__(self) -> None:
        super().__init__(id="completion")
        self.completion = NOTHING

    def on_mount(self) -> None:
        """Nothing yet."""
        self.display = False

    @property
    def open(self) -> bool:
        """Whether it is shown."""
        return bool(self.completion.candidates)

    @property
    def chosen(self) -> Candidate | None:
        """The highlighted candidate."""
        if not self.open:
            return None
        return self.completion.candidates[self.highlighted or 0]

    def show(self, completion: Completion) -> None:
        """Show these, the first one highlighted."""
        if completion == self.completion:
            return
        self.completion = completion
        self.clear_options()
        width = max((len(c.label) for c in completion.candidates), default=0) + 2
        self.add_options(
            [Option(Content.assemble((f"{c.label:<{width}}", "bold"), (c.about, "dim"))) for c in completion.candidates]
        )
        self.highlighted = 0 if completion.candidates else None
        self.display = bool(completion.candidates)

    def move(self, by: int) -> None:
        """Highlight the one `by` places on, around the ends."""
        if self.open:
            self.highlighted = ((self.highlighted or 0) + by) % len(self.completion.candidates)
