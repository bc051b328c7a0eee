"""A widget that is nothing but lines: however long a message is, it is one widget, and draws only what changed."""

from __future__ import annotations

from typing import Callable, Sequence

from rich.segment import Segment
from textual.content import Content
from textual.css.styles import RulesMap
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual
from textual.widget import Widget

Source = Callable[[int], Sequence[Content]]


class LinesVisual(Visual):
    """Draws the lines that `source` gives for a width; those that are the same objects as before are not drawn anew."""

    def __init__(self, source: Source) -> None:
        self.source = source
        # (id of a line, its place) -> the line (kept, so that its id stays its own), and how it looked
        self._drawn: dict[tuple[int, int], tuple[Content, Strip]] = {}
        self._drawn_for: tuple[int, Style] | None = None

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        """All there is: text fills it."""
        return container_width

    def get_height(self, rules: RulesMap, width: int) -> int:
        """In lines."""
        return len(self.source(width))

    def forget(self) -> None:
        """The colours have changed."""
        self._drawn_for = None

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        """The lines, at most `height` of them."""
        if self._drawn_for != (width, style):
            self._drawn, self._drawn_for = {}, (width, style)
        before, self._drawn = self._drawn, {}
        strips = []
        for y, line in enumerate(self.source(width)[:height]):
            span = options.selection.get_span(y) if options.selection is not None else None
            if span is not None and options.selection_style is not None:
                start, end = span
                marked = line.stylize(options.selection_style, start, len(line) if end == -1 else end)
                strips.append(_strip(marked, y, style, options))
                continue
            known = before.get((id(line), y)) or (line, _strip(line, y, style, options))
            self._drawn[id(line), y] = known
            strips.append(known[1])
        return strips


def _strip(line: Content, y: int, style: Style, options: RenderOptions) -> Strip:
    """A line with the offsets that a selection with the mouse needs."""
    segments, x = [], 0
    for text, own in line.render(style, end="", parse_style=options.get_style):
        segments.append(Segment(text, (style + own).rich_style_with_offset(x, y)))
        x += len(text)
    return Strip(segments, line.cell_length)


class LinesWidget(Widget):
    """Shows `lines(width)`; call `changed` when they are others."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines_visual = LinesVisual(self.lines)
        self._shown_lines = -1

    def lines(self, width: int) -> Sequence[Content]:
        """What to show, each line at most `width` cells."""
        return ()

    def render(self) -> Visual:
        """The lines."""
        self._shown_lines = self.content_size.height
        return self._lines_visual

    def changed(self) -> None:
        """Draw again. The layout of what is around changes only with the number of lines."""
        width = self.content_size.width
        self.refresh(layout=not width or len(self.lines(width)) != self._shown_lines)

    def notify_style_update(self) -> None:
        """Another theme."""
        self._lines_visual.forget()
        super().notify_style_update()

    @property
    def shown(self) -> str:
        """The text as it stands on the screen, without blanks at the ends of lines."""
        return "\n".join(line.plain.rstrip() for line in self.lines(self.content_size.width))

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """What the mouse has marked, without the blanks that fill code blocks."""
        text = "\n".join(line.plain for line in self.lines(self.content_size.width))
        return "\n".join(line.rstrip() for line in selection.extract(text).split("\n")), "\n"

    def action_link(self, target: str) -> None:
        """Open a link in the browser."""
        self.app.open_url(target)
