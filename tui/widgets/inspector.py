"""The inspector: the speculation of the answer at hand."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from lcspec.tui.inspector_text import PieceOf, inspector_content
from lcspec.tui.speculation import SpeculationLog


class Inspector(VerticalScroll):
    """Beside the conversation on wide screens, above the input on narrow ones."""

    BORDER_TITLE = "Inspector"

    def compose(self) -> ComposeResult:
        """One static text."""
        yield Static(id="inspector-text")

    def show(self, log: SpeculationLog, piece_of: PieceOf) -> None:
        """Show the figures of `log`."""
        if self.display:
            content = inspector_content(log, piece_of, colour=not self.app.no_color)
            self.query_one("#inspector-text", Static).update(content)
