"""A PNG of what a terminal shows: ANSI text on a grid of cells, drawn with Pillow and any monospaced font."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from rich.cells import cell_len
from rich.color import Color, ColorTriplet
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

Rgb = tuple[int, int, int]

FONT = "DejaVu Sans Mono"
SIZE = 18
MARGIN = 10
THEME = TerminalTheme(
    (18, 18, 18),
    (224, 224, 224),
    [(0, 0, 0), (205, 49, 49), (13, 188, 121), (229, 229, 16), (36, 114, 200), (188, 63, 188), (17, 168, 205)]
    + [(229, 229, 229)],
)
# Parts of a cell that must meet their neighbours without a seam: left, top, right, bottom in eighths.
BLOCKS = {
    "█": (0, 0, 8, 8),
    "▀": (0, 0, 8, 4),
    "▐": (4, 0, 8, 8),
    "▔": (0, 0, 8, 1),
    "▕": (7, 0, 8, 8),
    **{chr(0x2580 + n): (0, 8 - n, 8, 8) for n in range(1, 8)},
    **{chr(0x2590 - n): (0, 0, n, 8) for n in range(1, 8)},
}
SHADES = {"░": 0.25, "▒": 0.5, "▓": 0.75}
# Lines from the middle of a cell to its sides: left, up, right, down.
LINES = {
    "─": "lr",
    "│": "ud",
    "┌": "rd",
    "╭": "rd",
    "┐": "ld",
    "╮": "ld",
    "└": "ru",
    "╰": "ru",
    "┘": "lu",
    "╯": "lu",
    "├": "udr",
    "┤": "udl",
}

_CONSOLE = Console(width=400, force_terminal=True)


@cache
def font(style: str, size: int = SIZE) -> ImageFont.FreeTypeFont:
    """The font in a style ("", "Bold", "Oblique"), as fontconfig finds it.

    Raises:
        FileNotFoundError: there is no fontconfig.
    """
    if shutil.which("fc-match") is None:
        raise FileNotFoundError("pictures need fontconfig (fc-match) and a monospaced font")
    name = f"{FONT}:style={style or 'Book'}"
    found = subprocess.run(["fc-match", "-f", "%{file}", name], capture_output=True, text=True, check=True)
    return ImageFont.truetype(found.stdout, size)


def draw(ansi: str, columns: int, path: Path) -> None:
    """Write what `ansi` shows on a terminal of `columns` cells a line to `path`."""
    rows = Text.from_ansi(ansi.rstrip("\n")).split("\n", allow_blank=True)  # a style may go on in the next line
    width = round(font("").getlength("M"))
    ascent, descent = font("").getmetrics()
    height = ascent + descent
    picture = Image.new("RGB", (columns * width + 2 * MARGIN, len(rows) * height + 2 * MARGIN), THEME.background_color)
    pen = ImageDraw.Draw(picture)
    for y, row in enumerate(rows):
        x = 0
        for segment in row.render(_CONSOLE):
            for letter in re.findall(r".[\u0300-\u036f\ufe0f]*", segment.text, re.DOTALL):
                cells = cell_len(letter)
                box = (MARGIN + x * width, MARGIN + y * height, cells * width, height)
                _cell(pen, box, letter, segment.style or Style())
                x += cells
    # few colours: a third of the bytes, and nobody sees it
    picture.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def _cell(pen: ImageDraw.ImageDraw, box: tuple[int, int, int, int], letter: str, style: Style) -> None:
    x, y, width, height = box
    front, back = _rgb(style.color, True), _rgb(style.bgcolor, False)
    if style.reverse:
        front, back = back, front
    if style.dim:
        front = _mixed(front, back, 0.6)
    pen.rectangle((x, y, x + width - 1, y + height - 1), fill=back)
    if letter in BLOCKS:
        left, top, right, bottom = BLOCKS[letter]
        ends = (x + width * left // 8, y + height * top // 8, x + width * right // 8 - 1, y + height * bottom // 8 - 1)
        pen.rectangle((*ends[:2], max(ends[0], ends[2]), max(ends[1], ends[3])), fill=front)
    elif letter in SHADES:
        pen.rectangle((x, y, x + width - 1, y + height - 1), fill=_mixed(front, back, SHADES[letter]))
    elif letter in LINES:
        middle = (x + width // 2, y + height // 2)
        sides = {"l": (x, middle[1]), "r": (x + width - 1, middle[1]), "u": (middle[0], y)}
        sides["d"] = (middle[0], y + height - 1)
        for side in LINES[letter]:
            pen.line((middle, sides[side]), fill=front)
    elif not letter.isspace():
        kind = "Bold" if style.bold else "Oblique" if style.italic else ""
        pen.text((x, y), letter, fill=front, font=font(kind))
    if style.underline:
        pen.line((x, y + height - 3, x + width - 1, y + height - 3), fill=front)


def _rgb(colour: Color | None, front: bool) -> Rgb:
    found: ColorTriplet = (colour or Color.default()).get_truecolor(THEME, foreground=front)
    return found.red, found.green, found.blue


def _mixed(front: Rgb, back: Rgb, share: float) -> Rgb:
    red, green, blue = (round(a * share + b * (1 - share)) for a, b in zip(front, back))
    return red, green, blue
