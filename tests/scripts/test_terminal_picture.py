"""Pictures of a terminal: cells on a grid, in the colours that were asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

Image = pytest.importorskip("PIL.Image")

from scripts.terminal_picture import MARGIN, THEME, draw  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("fc-match") is None, reason="needs fontconfig")


def cells(path: Path, columns: int, rows: int) -> tuple[object, float, float]:
    picture = Image.open(path).convert("RGB")
    return picture, (picture.width - 2 * MARGIN) / columns, (picture.height - 2 * MARGIN) / rows


def test_every_cell_is_where_the_terminal_has_it(tmp_path: Path) -> None:
    draw(
        "\x1b[48;2;200;0;0m  \x1b[0mx\x1b[38;2;0;200;0m\n日\x1b[0m█\x1b[38;2;0;0;200m▌\x1b[0m",
        4,
        tmp_path / "picture.png",
    )
    picture, width, height = cells(tmp_path / "picture.png", 4, 2)
    assert width == int(width) and height == int(height)

    def colour(x: float, y: float) -> tuple[int, ...]:
        found: tuple[int, ...] = picture.getpixel((int(MARGIN + x * width), int(MARGIN + y * height)))  # type: ignore[attr-defined]
        return found

    background, front = tuple(THEME.background_color), tuple(THEME.foreground_color)
    assert colour(0.5, 0.5) == colour(1.5, 0.9) == (200, 0, 0) and colour(3.5, 0.5) == background
    assert colour(2.5, 1.1) == front, "a wide letter takes two cells"
    assert colour(3.2, 1.5) == (0, 0, 200) and colour(3.8, 1.5) == background, "half a block"
    letters = {colour(2 + x / 10, y / 10) for x in range(10) for y in range(10)}
    assert len(letters) > 1, "an x is drawn"
    second = {colour(x / 10, 1 + y / 10) for x in range(20) for y in range(10)}
    assert any(green > red + 50 for red, green, _ in second), "a colour goes on in the next line"
