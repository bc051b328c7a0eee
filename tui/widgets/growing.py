"""Markdown that grows. A long code block is coloured when it is complete, not anew with every token."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from lcspec.tui.markdown import parser

# Characters of an answer from which code that still grows is left plain.
LONG = 2000


class PlainFence(MarkdownFence):
    """A code block without colours."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """The code as it is."""
        return Content(code)


class GrowingMarkdown(Markdown):
    """Set `growing` while text is appended; the last full update is made without it."""

    def __init__(self) -> None:
        super().__init__(classes="answer-markdown", parser_factory=parser)
        self.growing = False

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        """As Markdown's, but for long code that grows."""
        if self.growing and block_name in ("fence", "code_block") and len(self.source) > LONG:
            return PlainFence
        return super().get_block_class(block_name)
