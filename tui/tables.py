"""Tables of Markdown as lines: columns as wide as they need to be, narrowed evenly where there is no room."""

from __future__ import annotations

from itertools import zip_longest
from typing import Sequence

from textual.content import Content

GAP = " │ "
MIN_COLUMN = 4


def table_lines(rows: Sequence[Sequence[Content]], alignments: Sequence[str], width: int) -> list[Content]:
    """A table of at most `width` cells (of MIN_COLUMN a column, where even that is too much).

    Args:
        rows: the first is the heading; short ones are filled up.
        alignments: left, right or center for every column.
    """
    n = len(alignments)
    cells = [[*row[:n], *[Content("")] * (n - len(row))] for row in rows]
    natural = [max(row[i].cell_length for row in cells) for i in range(n)]
    widths = column_widths(natural, width - len(GAP) * (n - 1))
    lines: list[Content] = []
    for r, row in enumerate(cells):
        lines += _row(row, widths, alignments, heading=not r)
        if not r:
            lines.append(Content.styled("─┼─".join("─" * w for w in widths), ".rule"))
    return lines


def column_widths(natural: Sequence[int], room: int) -> list[int]:
    """Widths that add up to `room` at most: the widest columns give way first."""
    widths = [max(1, w) for w in natural]
    while sum(widths) > room:
        widest = max(widths)
        if widest <= MIN_COLUMN:
            break
        second = max((w for w in widths if w < widest), default=MIN_COLUMN)
        many = widths.count(widest)
        by = max(1, min(widest - max(second, MIN_COLUMN), (sum(widths) - room) // many))
        left = sum(widths) - room
        for i, w in enumerate(widths):
            if w == widest and left > 0:
                widths[i] -= min(by, left)
                left -= by
    return widths


def _row(row: Sequence[Content], widths: Sequence[int], alignments: Sequence[str], heading: bool) -> list[Content]:
    columns = [cell.wrap(max(2, width)) for cell, width in zip(row, widths)]
    lines = []
    for pieces in zip_longest(*columns, fillvalue=Content("")):
        line = Content("")
        for i, (piece, width, how) in enumerate(zip(pieces, widths, alignments)):
            piece = piece.rstrip()
            if heading:
                piece = piece.stylize(".table-head")
            space = max(0, width - piece.cell_length)
            left = space if how == "right" else space // 2 if how == "center" else 0
            line += piece.pad(left, space - left)
            if i < len(widths) - 1:
                line += Content.styled(GAP, ".rule")
        lines.append(line)
    return lines
