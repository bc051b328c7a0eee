"""Markdown as lines of a given width: one widget shows a whole answer, so that a long conversation is cheap.

A `Document` holds the blocks of a text (paragraphs, lists, code, tables) and lays each out once for a width. Text that
is appended costs the last block only. Styles are names of component classes (`.code-block`), resolved when drawn.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Iterator, Sequence

from markdown_it.tree import SyntaxTreeNode
from textual.content import Content, Span
from textual.style import Style

from lcspec.tui.ascii import ascii_wanted
from lcspec.tui.code import code_lines
from lcspec.tui.markdown import parser
from lcspec.tui.math_text import math_text
from lcspec.tui.tables import table_lines

# Characters of an answer from which code that still grows is left plain: it is coloured when it is complete.
LONG = 2000
FORMULA_INDENT = "    "
QUOTE_BAR = "▎ "
MIN_WIDTH = 8
BULLETS = ("•", "◦", "▪")
BLANK = Content("")
_TAGS = {"em": ".em", "strong": ".strong", "s": ".s"}


@dataclass
class Block:
    """A top-level block, and its lines by width once they are wanted. `start`: where its text begins."""

    node: SyntaxTreeNode
    start: int
    plain_code: bool = False
    _lines: dict[int, list[Content]] = field(default_factory=dict)

    def lines(self, width: int, indent: str) -> list[Content]:
        """The block, `width` cells wide with its indent."""
        if width not in self._lines:
            lines = Layout(self.plain_code).block(self.node, max(MIN_WIDTH, width - len(indent)))
            self._lines = {width: [Content(indent) + line for line in lines]}
        return self._lines[width]


class Document:
    """The blocks of a text.

    Attributes:
        indent: stands before every line.
        text: the Markdown.
        blocks: its top-level blocks, in order.
    """

    def __init__(self, indent: str = "") -> None:
        self.indent = indent
        self.text = ""
        self.blocks: list[Block] = []
        self._complete = True

    def update(self, text: str, *, growing: bool = False) -> None:
        """Show `text`; while it is `growing`, and only appended to, all blocks but the last stay as they are."""
        if text == self.text and (growing or self._complete):
            return
        start = 0
        if growing and self.blocks and text.startswith(self.text):
            start = self.blocks[-1].start
            self.blocks.pop()
        else:
            self.blocks.clear()
        self.text, self._complete = text, not growing
        self.blocks += _parse(text, start, plain_code=growing and len(text) > LONG)

    def lines(self, width: int) -> Iterator[Content]:
        """All lines, a blank one between two blocks."""
        for i, block in enumerate(self.blocks):
            if i:
                yield BLANK
            yield from block.lines(width, self.indent)


def _parse(text: str, start: int, plain_code: bool) -> list[Block]:
    """Blocks of `text[start:]`."""
    rest = text[start:]
    root = SyntaxTreeNode(parser().parse(rest))
    begins = [0]
    for match in re.finditer("\n", rest):
        begins.append(match.end())
    return [Block(n, start + begins[n.map[0] if n.map else 0], plain_code) for n in root.children]


class Layout:
    """Turns nodes into lines. `plain_code`: leave code without colours."""

    def __init__(self, plain_code: bool = False) -> None:
        self.plain_code = plain_code
        self.depth = 0  # of lists

    def block(self, node: SyntaxTreeNode, width: int) -> list[Content]:
        """Lines of a block, each at most `width` cells (code blocks: exactly)."""
        if node.type == "heading":
            level = "1" if node.tag == "h1" else "2" if node.tag == "h2" else "3"
            return wrapped(Content.join(Content(""), map(inline, node.children)).stylize(f".heading-{level}"), width)
        if node.type in ("fence", "code_block"):
            return code_lines(node.content, node.info.split()[0] if node.info.strip() else "", width, self.plain_code)
        if node.type in ("bullet_list", "ordered_list"):
            return self._list(node, width)
        if node.type == "blockquote":
            bar = Content.styled(QUOTE_BAR, ".quote")
            return [bar + line.stylize_before(".quote-text") for line in self._blocks(node.children, width - 2)]
        if node.type in ("math_block", "math_block_label"):
            return wrapped(Content.styled(_formula(node.content), ".math"), width)
        if node.type == "hr":
            return [Content.styled("─" * width, ".rule")]
        if node.type == "table":
            rows = [[_cell(cell) for cell in row.children] for part in node.children for row in part.children]
            return table_lines(rows, [_alignment(cell) for cell in node.children[0].children[0].children], width)
        if node.type == "inline":
            return wrapped(inline(node), width)
        if node.children:
            return self._blocks(node.children, width)
        return wrapped(Content(node.content), width)

    def _blocks(self, nodes: Sequence[SyntaxTreeNode], width: int) -> list[Content]:
        """Blocks below each other; those of a tight list without blank lines between."""
        lines: list[Content] = []
        width = max(MIN_WIDTH, width)
        for i, node in enumerate(nodes):
            tight = node.hidden or (self.depth and node.type in ("bullet_list", "ordered_list"))
            if i and not tight:
                lines.append(Content(""))
            lines += self.block(node, width)
        return lines

    def _list(self, node: SyntaxTreeNode, width: int) -> list[Content]:
        ordered = node.type == "ordered_list"
        first = int(node.attrs.get("start", 1)) if ordered else 0
        bullet = BULLETS[min(self.depth, len(BULLETS) - 1)]
        marks = [f"{first + i}." if ordered else bullet for i in range(len(node.children))]
        room = max(map(len, marks)) + 1
        self.depth += 1
        lines: list[Content] = []
        for mark, item in zip(marks, node.children):
            inner = self._blocks(item.children, width - room) or [Content("")]
            head = Content.styled(mark.rjust(room - 1) + " ", ".bullet")
            lines += [(head if not i else Content(" " * room)) + line for i, line in enumerate(inner)]
        self.depth -= 1
        return lines


def inline(node: SyntaxTreeNode) -> Content:
    """Text with emphasis, code and links."""
    parts: list[str] = []
    spans: list[Span] = []
    at = 0

    def add(text: str) -> None:
        nonlocal at
        parts.append(text)
        at += len(text)

    def walk(nodes: Sequence[SyntaxTreeNode]) -> None:
        for child in nodes:
            start, style = at, None
            if child.type == "text":
                text = re.sub(r"\s+", " ", child.content)
                add(text.lstrip() if parts and parts[-1].endswith("\n") else text)
            elif child.type == "softbreak":
                if not (parts and parts[-1].endswith("\n")):
                    add(" ")
            elif child.type == "hardbreak":
                add("\n")
            elif child.type == "math_inline":
                add(_maths(child.content).replace("\n", " "))
                spans.append(Span(start, at, ".math"))
            elif child.type == "math_inline_double":  # a formula on lines of its own within a paragraph
                add(("\n" if parts and not parts[-1].endswith("\n") else "") + _formula(child.content) + "\n")
                spans.append(Span(start, at, ".math"))
            elif child.type == "code_inline":
                add(child.content)
                spans.append(Span(start, at, ".code_inline"))
            elif child.type in ("link", "image"):
                target = str(child.attrs.get("href" if child.type == "link" else "src", ""))
                if child.type == "image":
                    add("[image] ")
                walk(child.children)
                style = Style(underline=True) + Style.from_meta({"@click": f"link({target!r})"})
                spans.append(Span(start, at, style))
            else:
                walk(child.children)
                if not child.children:
                    add(child.content)
                if child.type in _TAGS:
                    spans.append(Span(start, at, _TAGS[child.type]))

    walk(node.children)
    text = "".join(parts)
    whole = len(text.rstrip("\n"))  # a paragraph that ends with a formula
    return Content(text[:whole], spans=[Span(s.start, min(s.end, whole), s.style) for s in spans if s.start < whole])


def _maths(latex: str) -> str:
    """Readable maths; as it was written where only ASCII is drawn, which has no signs and no raised letters."""
    return latex.strip() if ascii_wanted(os.environ) else math_text(latex)


def _formula(latex: str) -> str:
    """Maths on lines of its own, indented."""
    return "\n".join(FORMULA_INDENT + line for line in _maths(latex).split("\n"))


def wrapped(content: Content, width: int) -> list[Content]:
    """Lines of at most `width` cells; at least one."""
    return content.wrap(max(2, width)) or [Content("")]


def _cell(node: SyntaxTreeNode) -> Content:
    return Content("").join([inline(child) for child in node.children])


def _alignment(node: SyntaxTreeNode) -> str:
    style = str(node.attrs.get("style", ""))
    return style.removeprefix("text-align:") if style.startswith("text-align:") else "left"
