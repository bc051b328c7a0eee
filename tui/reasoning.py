"""Telling reasoning (`<think>...</think>` and its kin) from the answer, also while it streams."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from lcspec.answers.text import Piece

PartKind = Literal["reasoning", "answer"]

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
)
_CLOSING = dict(TAGS)
_OPEN = "|".join(re.escape(opening) for opening in _CLOSING)
# At the beginning of a line: a code fence, or a tag that opens (blanks may stand before both).
_MARK = re.compile(rf"^[ \t]*(?:(?P<fence>`{{3,}}|~{{3,}})(?P<info>[^\n]*)|(?P<tag>{_OPEN}))", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """`text[start:end]` of a message without its tags. An open part (`closed` False) may still grow."""

    kind: PartKind
    start: int
    end: int
    closed: bool


def split_reasoning(text: str, *, streaming: bool = False) -> tuple[Part, ...]:
    """The parts of a message in order, empty ones left out.

    A tag opens at the beginning of a line outside code fences; its first closing tag ends it; without one the rest is
    reasoning. While `streaming`, an end that may become a tag is held back, so that what was shown never turns out to
    have been something else.
    """
    parts: list[Part] = []
    at = 0  # the beginning of the part at hand
    search = 0
    fence = ""
    while True:
        mark = _MARK.search(text, search)
        if mark is None:
            _add(parts, "answer", at, _held_back(text, at) if streaming and not fence else len(text), False)
            return tuple(parts)
        if mark["fence"]:
            fence = _after(fence, mark["fence"], mark["info"])
            search = mark.end()
        elif fence:
            search = mark.end()
        else:
            _add(parts, "answer", at, mark.start("tag"), True)
            closing = _CLOSING[mark["tag"]]
            start = mark.end()
            end = text.find(closing, start)
            if end < 0:
                end = len(text) - (_beginning_of(closing, text, start) if streaming else 0)
                _add(parts, "reasoning", start, end, False)
                return tuple(parts)
            _add(parts, "reasoning", start, end, True)
            at = search = end + len(closing)


def answer_text(text: str) -> str:
    """The text without reasoning and the blank lines around it."""
    parts = split_reasoning(text)
    if all(part.kind == "answer" for part in parts):
        return text
    return "".join(text[p.start : p.end] for p in parts if p.kind == "answer").strip()


def opened_by_prompt(prompt_tail: str) -> Piece | None:
    """Some templates open the reasoning themselves, and the answer then lacks the tag: a piece to begin the answer
    with (`answer.append([piece])`), or None. `prompt_tail`: text of the last prompt ids, special tokens included."""
    tail = prompt_tail.rstrip()
    tag = next((opening for opening in _CLOSING if tail.endswith(opening)), None)
    return Piece(tag + "\n", None) if tag else None


def _add(parts: list[Part], kind: PartKind, start: int, end: int, closed: bool) -> None:
    if end > start:
        parts.append(Part(kind, start, end, closed))


def _after(fence: str, mark: str, info: str) -> str:
    """The open fence ("" for none) after a line that begins with `mark`, as CommonMark has it."""
    if not fence:
        return "" if mark[0] == "`" and "`" in info else mark
    closes = mark[0] == fence[0] and len(mark) >= len(fence) and not info.strip()
    return "" if closes else fence


def _held_back(text: str, at: int) -> int:
    """Where the part that may be shown ends: before a last line that may still become a tag."""
    start = max(text.rfind("\n") + 1, at)
    line = text[start:]
    begun = line.lstrip(" \t")
    return start if any(opening.startswith(begun) for opening in _CLOSING) else len(text)


def _beginning_of(tag: str, text: str, start: int) -> int:
    """Length of the longest end of `text[start:]` that begins `tag`."""
    for n in range(min(len(tag) - 1, len(text) - start), 0, -1):
        if text.endswith(tag[:n]):
            return n
    return 0
