"""For terminals and locales that have ASCII only (`LC_ALL=C`): everything drawn is put into it, cell by cell."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Mapping

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_LOOKS = {
    "-": "─━═╌╍┄┅▔▁▀▄▂▃–—‐‑−·⎯╶╴▬",
    "|": "│┃║▏▎▍▌▐▕▊▋▉╎╏",
    "+": "┼├┤┬┴┌┐└┘╭╮╰╯╔╗╚╝╠╣╦╩╬┏┓┗┛┣┫┳┻╋◦",
    "#": "█▓■",
    ".": "░▒…",
    "*": "●•▪★◆",
    "o": "○◌◯",
    ">": "▸▶›»→⮞❯",
    "<": "◂◀‹«←❮",
    "^": "▲▴↑⬆",
    "v": "▼▾↓√⬇",
    "x": "×✕✖✗",
    '"': "“”„‟",
    "'": "‘’‚‛′",
    " ": "\u00a0\u2009\u202f⏎",
}
_TABLE = {ord(char): plain for plain, chars in _LOOKS.items() for char in chars}


def ascii_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the locale says that the terminal shows ASCII only: the first of LC_ALL, LC_CTYPE and LANG that is set
    is C, POSIX or of another encoding than UTF-8. None set: it is not asked for."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        value = environ.get(name, "")
        if value:
            return "utf-8" not in value.lower() and "utf8" not in value.lower()
    return False


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """`text` in ASCII, as many cells wide."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() else _plain(char) for char in text.translate(_TABLE))


def _plain(char: str) -> str:
    width = cell_len(char)
    letters = unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode()
    return letters if letters and len(letters) == width else "?" * width


class AsciiFilter(LineFilter):
    """The last thing that happens to a line before it is drawn."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments in ASCII."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
