"""How answers are read as Markdown."""

from __future__ import annotations

from markdown_it import MarkdownIt


def parser() -> MarkdownIt:
    """GitHub's dialect, with HTML shown as the text it is: a model's tags must not vanish."""
    return MarkdownIt("gfm-like", {"html": False})


def code_blocks(text: str) -> list[str]:
    """Contents of the code blocks, in order."""
    return [t.content for t in parser().parse(text) if t.type in ("fence", "code_block")]
