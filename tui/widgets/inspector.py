"""The inspector: the speculation of the answer at hand."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from lcspec.tui.inspector_text import PieceOf, steps_content, totals_content
from lcspec.tui.speculation import SpeculationLog


class Inspector(VerticalScroll):
    """Beside the conversation on wide screens; below it, in two columns, on narrow ones."""

    BORDER_TITLE = "Inspector"

    def compose(self) -> ComposeResult:
        """Totals, then steps."""
        yield Static(id="inspector-totals")
        yield Static(id="inspector-steps")

    def show(self, log: SpeculationLog, piece_of: PieceOf, exact: bool | None = None) -> None:
        """Show the figures of `log`; `exact`: see Loaded."""
        if self.display:
            self.query_one("#inspector-totals", Static).update(totals_content(log, exact))
            self.query_one("#inspector-steps", Static).update(steps_content(log, piece_of, not self.app.no_color))
