"""What may follow what stands before the cursor: commands, settings, paths (no Textual)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from lcspec.paths import printable
from lcspec.tui.slash import BY_NAME, COMMANDS, SETTINGS

MOST = 50
_MENTION = re.compile(r"(?:^|(?<=\s))@((?:\\.|[^\s\\@])*)$")
_MENTIONS = re.compile(r"(?:^|(?<=\s))@((?:\\.|[^\s\\@])+)")


@dataclass(frozen=True)
class Candidate:
    """Something to put in the place of what was typed.

    Attributes:
        text: what stands there afterwards.
        label: what the list shows.
        about: a few words.
        whole: nothing is to follow (a command without arguments).
    """

    text: str
    label: str
    about: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Completion:
    """Candidates for the end of the text before the cursor, from character `start` on."""

    start: int
    candidates: tuple[Candidate, ...] = ()
    kind: str = ""  # command | setting | path


NOTHING = Completion(0)


def complete(before: str, base: Path | None = None) -> Completion:
    """Candidates for `before`, the text up to the cursor; relative paths are below `base` (the current folder)."""
    if before.startswith("/") and not before.startswith("//") and "\n" not in before:
        name, blank, rest = before[1:].partition(" ")
        if not blank:
            found = [c for c in COMMANDS if c.name.startswith(name.lower())]
            return Completion(
                0,
                tuple(
                    Candidate(f"/{c.name}{' ' if c.takes else ''}", f"/{c.name} {c.takes}".strip(), c.help, not c.takes)
                    for c in found
                ),
                "command",
            )
        command = BY_NAME.get(name.lower())
        if command is not None and command.path:
            word = re.search(r"(?:\\.|[^\s\\])*$", rest)
            assert word is not None
            return _completion(len(before) - len(word[0]), word[0], base)
        if command is not None and command.name == "set" and " " not in rest.lstrip():
            wanted = rest.lstrip().lower()
            names = [n for n in sorted(SETTINGS) if n.startswith(wanted)]
            start = len(before) - len(rest.lstrip())
            return Completion(start, tuple(Candidate(f"{n} ", n) for n in names), "setting")
        return NOTHING
    match = _MENTION.search(before)
    if match is None:
        return NOTHING
    return _completion(match.start(1), match[1], base)


def mentions(text: str, base: Path | None = None) -> list[Path]:
    """Files that a message names as `@path`; what names no file is text."""
    found = []
    for match in _MENTIONS.finditer(text):
        for word in (match[1], match[1].rstrip(".,;:!?)")):  # the sentence may end behind it
            path = _below(_unescaped(word), base)
            if path.is_file():
                found.append(path)
                break
    return list(dict.fromkeys(found))


def missing(text: str, base: Path | None = None) -> list[str]:
    """What a message names as `@path` and looks like one (a folder, or an ending), though there is no such file."""
    words = [_unescaped(match[1]).rstrip(".,;:!?)") for match in _MENTIONS.finditer(text)]
    looks = [word for word in words if "/" in word or re.search(r"\w\.[A-Za-z]\w{0,4}$", word)]
    return [word for word in looks if not _below(word, base).is_file()]


def path_candidates(word: str, base: Path | None = None, suffixes: Sequence[str] = ()) -> list[str]:
    """Paths that begin with `word` as typed, folders first and with a slash; of files only those with `suffixes`."""
    head, name = os.path.split(word)
    folder = _below(head, base) if head else (base or Path("."))
    try:
        entries = sorted(os.scandir(folder), key=lambda e: (not _is_folder(e), e.name.lower()))
    except OSError:
        return []
    out = []
    for entry in entries:
        if not entry.name.startswith(name) or (entry.name.startswith(".") and not name.startswith(".")):
            continue
        if entry.name != printable(entry.name):
            continue
        if _is_folder(entry):
            out.append(os.path.join(head, entry.name) + "/")
        elif not suffixes or entry.name.lower().endswith(tuple(suffixes)):
            out.append(os.path.join(head, entry.name))
        if len(out) >= MOST:
            break
    return out


def _completion(start: int, word: str, base: Path | None) -> Completion:
    found = path_candidates(_unescaped(word), base)
    return Completion(start, tuple(Candidate(_escaped(path), path) for path in found), "path")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _below(path: str, base: Path | None) -> Path:
    try:
        found = Path(os.path.expanduser(path))
    except (RuntimeError, ValueError):
        found = Path(path)
    return found if base is None or found.is_absolute() else base / found


def _unescaped(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word)


def _escaped(path: str) -> str:
    return re.sub(r"([\s\\\"'])", r"\\\1", path)
