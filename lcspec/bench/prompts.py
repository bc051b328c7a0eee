"""The prompts of a benchmark: reading files, choosing some evenly, fitting them into a context."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Sequence

from lcspec.errors import UsageError

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Prompt:
    """One prompt. `set` names the collection it comes from, and may be empty."""

    id: str
    category: str
    text: str
    set: str = ""


def read_prompts(path: Path) -> list[Prompt]:
    """Read a JSON-lines file: one object a line with `turns` (a list of texts; the first is used), `category`, and
    `id` with an optional `set` (our format) or `question_id` (Spec-Bench's question.jsonl). Blank lines are skipped.

    Raises:
        UsageError: the file cannot be read, a line is not such an object, or there is none.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UsageError(f"cannot read the prompts file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompts file {path} is not UTF-8 text") from error
    prompts = [_parse(line, n, path) for n, line in enumerate(lines, start=1) if line.strip()]
    if not prompts:
        raise UsageError(f"the prompts file {path} is empty: it needs one JSON object a line")
    return prompts


def _parse(line: str, number: int, path: Path) -> Prompt:
    where = f"{path}, line {number}"
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error}); the file needs one JSON object a line") from error
    if not isinstance(data, dict):
        raise UsageError(f"{where}: not a JSON object")
    turns = data.get("turns")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0].strip():
        raise UsageError(f'{where}: "turns" must be a list that begins with a text')
    category, collection = data.get("category") or "all", data.get("set") or ""
    if not isinstance(category, str) or not isinstance(collection, str):
        raise UsageError(f'{where}: "category" and "set" must be texts')
    identity = data.get("id", data.get("question_id", number))
    if isinstance(identity, bool) or not isinstance(identity, (str, int)):
        raise UsageError(f'{where}: "id" (or "question_id") must be a text or a number')
    return Prompt(str(identity), category, turns[0], collection)


def groups(prompts: Sequence[Prompt]) -> dict[str, list[int]]:
    """Indices of the prompts by category, in order of appearance; a category name that several sets use is told apart
    by the set."""
    sets: dict[str, set[str]] = {}
    for p in prompts:
        sets.setdefault(p.category, set()).add(p.set)
    out: dict[str, list[int]] = {}
    for i, p in enumerate(prompts):
        label = f"{p.set}/{p.category}" if p.set and len(sets[p.category]) > 1 else p.category
        out.setdefault(label, []).append(i)
    return out


def spread(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """At most `limit` prompts, shared out evenly over the categories and evenly spaced within each."""
    if limit is None or limit >= len(prompts):
        return list(prompts)
    by_group = list(groups(prompts).values())
    quota = [0] * len(by_group)
    left = limit
    while left > 0:
        for g, members in enumerate(by_group):
            if left > 0 and quota[g] < len(members):
                quota[g] += 1
                left -= 1
    chosen = [members[i * len(members) // q] for members, q in zip(by_group, quota) for i in range(q)]
    return [prompts[i] for i in sorted(chosen)]


def fit(text: str, room: int, encode: Encode) -> tuple[tuple[int, ...], int]:
    """Token ids of the longest end of `text` that takes at most `room` tokens, and how many characters were cut off
    its beginning. No ids: not even an empty text fits.

    `encode` may add to the text (a chat template), so the text is cut and not the ids.
    """
    ids = tuple(encode(text))
    if len(ids) <= room:
        return ids, 0
    low, high = 0, len(text)  # cutting `low` is not enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if len(encode(text[middle:])) <= room else (middle, high)
    ids = tuple(encode(text[high:]))
    return (ids, high) if ids and len(ids) <= room and high < len(text) else ((), len(text))
