"""Plots as inline SVG. Colours are CSS classes (s0, s1, ... for the series), so a page's style can switch them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Sequence

WIDTH = 760
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 40


@dataclass(frozen=True)
class Series:
    """Points of one colour; `colour` is the index of the class."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int


@dataclass(frozen=True)
class Bar:
    """A bar with its interval, if there is one."""

    value: float
    low: float | None
    high: float | None
    colour: int
    title: str


def ticks(top: float, wanted: int = 5) -> list[float]:
    """Round numbers from 0 up to at least `top`."""
    if not math.isfinite(top) or top <= 0:
        top = 1.0
    raw = top / wanted
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(m * scale for m in (1, 2, 2.5, 5, 10) if m * scale >= raw * 0.999)
    count = math.ceil(top / step - 1e-9)
    return [round(i * step, 12) for i in range(count + 1)]


class Plot:
    """Axes from 0, and what is drawn on them."""

    def __init__(self, x_top: float, y_top: float, *, height: int = 280, x_label: str = "", y_label: str = "") -> None:
        self.height = height
        self.y_ticks = ticks(y_top)
        self.x_top, self.y_top = x_top, self.y_ticks[-1]
        self.parts: list[str] = []
        for tick in self.y_ticks:
            y = self.y(tick)
            self.parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.text(LEFT - 6, y + 4, f"{tick:g}", "end")
        if x_label:
            self.text((LEFT + WIDTH - RIGHT) / 2, height - 4, x_label, "middle")
        if y_label:
            middle = (TOP + height - BOTTOM) / 2
            self.parts.append(
                f'<text x="12" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 12 {middle:.1f})">'
                f"{escape(y_label)}</text>"
            )

    def x(self, value: float) -> float:
        """Pixels of an x value."""
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.x_top

    def y(self, value: float) -> float:
        """Pixels of a y value."""
        return self.height - BOTTOM - (self.height - TOP - BOTTOM) * value / self.y_top

    def text(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        """A label at pixels."""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def x_ticks(self, values: Sequence[float]) -> None:
        """Numbers below the x axis."""
        for value in values:
            self.text(self.x(value), self.height - BOTTOM + 16, f"{value:g}", "middle")

    def line(self, series: Series, unit: str = "") -> None:
        """A line with a dot at every point; the dots say their values."""
        path = " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in series.points)
        self.parts.append(f'<polyline class="line s{series.colour}" points="{path}"/>')
        for a, b in series.points:
            self.dot(a, b, series.colour, f"{series.name}: {a:g}, {b:.3g}{unit}")

    def dot(self, a: float, b: float, colour: int, title: str) -> None:
        """A point."""
        self.parts.append(
            f'<circle class="dot s{colour}" cx="{self.x(a):.1f}" cy="{self.y(b):.1f}" r="3.5">'
            f"<title>{escape(title)}</title></circle>"
        )

    def rule(self, a: tuple[float, float], b: tuple[float, float]) -> None:
        """A reference line between two points."""
        self.parts.append(
            f'<line class="rule" x1="{self.x(a[0]):.1f}" y1="{self.y(a[1]):.1f}" '
            f'x2="{self.x(b[0]):.1f}" y2="{self.y(b[1]):.1f}"/>'
        )

    def bar(self, centre: float, width: float, bar: Bar) -> None:
        """A bar around an x value; `width` in x units."""
        left, right = self.x(centre - width / 2), self.x(centre + width / 2)
        top, bottom = self.y(bar.value), self.y(0)
        self.parts.append(
            f'<rect class="bar s{bar.colour}" x="{left:.1f}" y="{top:.1f}" width="{max(1.0, right - left - 2):.1f}" '
            f'height="{max(0.0, bottom - top):.1f}"><title>{escape(bar.title)}</title></rect>'
        )
        if bar.low is not None and bar.high is not None:
            x = (left + right - 2) / 2
            low, high = self.y(bar.low), self.y(bar.high)
            self.parts.append(
                f'<path class="whisker" d="M{x:.1f} {low:.1f}V{high:.1f}M{x - 3:.1f} {low:.1f}h6'
                f'M{x - 3:.1f} {high:.1f}h6"/>'
            )

    def svg(self, title: str) -> str:
        """The whole plot."""
        return (
            f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(title, quote=True)}">'
            + "".join(self.parts)
            + "</svg>"
        )
