"""Blocks of code as lines: a heading with the language and a way to copy, colours, a background of their own."""

from __future__ import annotations

import zlib

from pygments.token import Token
from textual.content import Content
from textual.highlight import HighlightTheme, highlight
from textual.style import Style

CODE_INDENT = "  "
COPY = "copy"
MIN_ROOM = 8


class CodeTheme(HighlightTheme):
    """Textual's colours without its underlined function names, on which underscores cannot be seen."""

    STYLES = {
        **HighlightTheme.STYLES,
        Token.Name.Function: "$text-warning",
        Token.Name.Function.Magic: "$text-warning",
        Token.Generic.Heading: "$text-primary bold",
    }


def code_key(code: str) -> int:
    """A number for a block's text, by which a click finds it again."""
    return zlib.crc32(code.encode("utf-8", "replace"))


def code_lines(code: str, language: str, width: int, plain: bool = False) -> list[Content]:
    """A block of exactly `width` cells; lines that are too long go on in the next. `plain`: without colours."""
    text = code.rstrip("\n").expandtabs(4)
    content = Content(text) if plain else highlight(text, language=language or "text", theme=CodeTheme)
    room = max(MIN_ROOM, width - 2 * len(CODE_INDENT))
    lines = [piece for line in content.split(allow_blank=True) for piece in line.fold(room)]
    return [
        # blanks of their own: what ends the line must not lend them its style. The background is below the colours.
        (Content(CODE_INDENT) + line + " " * max(0, width - len(CODE_INDENT) - line.cell_length)).stylize_before(
            ".code-block"
        )
        for line in (_heading(code, language, room), *lines, Content(""))
    ]


def _heading(code: str, language: str, room: int) -> Content:
    """The language at the left, what copies the block at the right; a click on that reaches `action_copy_block`."""
    name = language[: max(0, room - len(COPY) - 1)]
    copy = Style(dim=True) + Style.from_meta({"@click": f"copy_block({code_key(code)})"})
    return Content.assemble((name, "dim"), " " * (room - len(name) - len(COPY)), (COPY, copy))
