"""Tables of a TOML text renamed and taken away line by line, so that the comments around and in them stay.

These are attempts: whoever calls them reads the result as TOML and checks that it says what was meant.
"""

from __future__ import annotations

import re

import tomlkit

_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)


def rename_section(text: str, path: tuple[str, str], name: str) -> str | None:
    """The text with the header [a.b] written [a.name]; None if there is no such header."""
    found = _header(text, path)
    if found is None:
        return None
    start, end = found.span("name")
    return text[:start] + quoted(name) + text[end:]


def drop_section(text: str, path: tuple[str, str]) -> str | None:
    """The text without the table [a.b]; comments behind its last line stay, as they may belong to what follows."""
    found = _header(text, path)
    if found is None:
        return None
    after = _HEADER.search(text, found.end())
    while after and _in_string(text[found.end() : after.start()]):
        after = _HEADER.search(text, after.end())
    section = text[found.start() : after.start() if after else len(text)].splitlines(keepends=True)
    while len(section) > 1 and (not section[-1].strip() or section[-1].lstrip().startswith("#")):
        section.pop()
    return text[: found.start()] + text[found.start() + len("".join(section)) :].lstrip("\n")


def quoted(name: str) -> str:
    """A key as TOML writes it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else tomlkit.string(name).as_string()


def _in_string(text: str) -> bool:
    """Whether a string of several lines is open at the end of the text."""
    return any(text.count(mark) % 2 for mark in ('"""', "'''"))


def _header(text: str, path: tuple[str, str]) -> re.Match[str] | None:
    spellings = "|".join(re.escape(s) for s in {quoted(path[1]), tomlkit.string(path[1]).as_string(), f"'{path[1]}'"})
    pattern = rf"^[ \t]*\[[ \t]*{re.escape(path[0])}[ \t]*\.[ \t]*(?P<name>{spellings})[ \t]*\][ \t]*(?:#.*)?$"
    return re.search(pattern, text, re.MULTILINE)
