"""How answers are read as Markdown."""

from __future__ import annotations

from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from mdit_py_plugins.dollarmath import dollarmath_plugin

_CLOSING = {"\\(": "\\)", "\\[": "\\]"}


@cache
def parser() -> MarkdownIt:
    """GitHub's dialect with maths, and with HTML shown as the text it is: a model's tags must not vanish.

    Maths is `\\(x^2\\)`, `\\[x^2\\]`, `$x^2$` and `$$x^2$$`. Prices are not: no space inside, no digit behind.
    """
    found = MarkdownIt("gfm-like", {"html": False})
    found.use(dollarmath_plugin, allow_space=False, allow_digits=False, double_inline=True)
    found.inline.ruler.before("escape", "math_brackets", _inline_math)
    interrupts = ["paragraph", "reference", "blockquote", "list"]
    found.block.ruler.before("fence", "math_brackets", _block_math, {"alt": interrupts})
    return found


def code_blocks(text: str) -> list[str]:
    """Contents of the code blocks, in order."""
    return [t.content for t in parser().parse(text) if t.type in ("fence", "code_block")]


def _inline_math(state: StateInline, silent: bool) -> bool:
    """`\\(...\\)` and `\\[...\\]`. What opens and never closes keeps its backslash: it may still be coming."""
    mark = state.src[state.pos : state.pos + 2]
    if mark not in _CLOSING:
        return False
    end = state.src.find(_CLOSING[mark], state.pos + 2)
    if not silent:
        if end < 0:
            state.pending += mark
        else:
            token = state.push("math_inline" if mark == "\\(" else "math_inline_double", "math", 0)
            token.content = state.src[state.pos + 2 : end]
    state.pos = state.pos + 2 if end < 0 else end + 2
    return True


def _block_math(state: StateBlock, start: int, last: int, silent: bool) -> bool:
    """`\\[`, formula and `\\]` on lines of their own: nothing within is a list or a heading."""
    begin = state.bMarks[start] + state.tShift[start]
    if state.is_code_block(start) or not state.src.startswith("\\[", begin):
        return False
    for line in range(start, last):
        if line > start and state.sCount[line] < state.blkIndent:
            return False
        end = state.src.find("\\]", begin + 2 if line == start else state.bMarks[line], state.eMarks[line])
        if end < 0:
            continue
        if state.src[end + 2 : state.eMarks[line]].strip(" \t.,;"):
            return False  # text goes on behind it
        if not silent:
            token = state.push("math_block", "math", 0)
            token.content = state.src[begin + 2 : end] + state.src[end + 2 : state.eMarks[line]].strip()
            token.block, token.map = True, [start, line + 1]
            state.line = line + 1
        return True
    return False
