"""How deep a grammar leads the library's compiler: it is recursive, and ends the process where its stack ends."""

from __future__ import annotations

import json
import re
from typing import Any

from lcspec.errors import GrammarError

# A thread has a stack of 8 MB, and a level takes up to 5 KB of it.
MAX_LEVELS = 1_000
# What may hold anything (names of tokens, texts, regular expressions, comments), and then what is looked for.
MARKS = re.compile(
    r'<[^<>\s]+>|"(?:[^"\\]|\\.)*"|/(?:[^/\\]|\\.)+/|(?:#|//)[^\n]*'
    r"|(?P<json>%(?:json|llguidance|regex)\b\s*)|(?P<rule>[\w\-\]}]\s*:)|(?P<open>[(\[])|(?P<close>[)\]])",
    re.DOTALL,
)


def check_depth(lark: str) -> None:
    """Refuse a grammar (Lark) that may lead too deep.

    In which order the compiler goes through the rules is not known: each may lie below all the others.

    Raises:
        GrammarError: it may, or what should be JSON in it is none.
    """
    at = rules = levels = depth = deepest = 0
    while found := MARKS.search(lark, at):
        at, kind = found.end(), found.lastgroup
        if kind == "json":
            value, at = _json_at(lark, at)
            levels += schema_levels(value)
        elif kind == "rule":
            rules, levels = rules + 1, levels + 1 + deepest
            depth = deepest = 0
        elif kind is not None:
            depth += 1 if kind == "open" else -1
            deepest = max(deepest, depth)
    levels += deepest
    if levels > MAX_LEVELS:
        raise GrammarError(
            f"the grammar has {rules} rules, which with the brackets and schemas in them may lie {levels} deep in each "
            f"other, and the limit is {MAX_LEVELS}: write fewer rules"
        )


def _json_at(text: str, at: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except ValueError as error:
        raise GrammarError(f"the grammar is not valid: JSON was expected in it ({error})") from None
    except RecursionError:
        raise GrammarError("the grammar has JSON in it that is nested too deeply") from None


def schema_levels(root: Any) -> int:
    """Levels of a JSON schema: its own, and those of all that references in it lead to, each below the others.

    Raises:
        GrammarError: it is nested too deeply to say.
    """
    depths: dict[int, int] = {}
    references: set[str] = set()

    def depth(part: Any) -> int:
        if isinstance(part, dict) and isinstance(part.get("$ref"), str):
            references.add(part["$ref"])
        if isinstance(part, (dict, list)):
            inner = part.values() if isinstance(part, dict) else part
            depths[id(part)] = 1 + max(map(depth, inner), default=0)
        return depths.get(id(part), 0)

    try:
        whole = depth(root)
    except RecursionError:
        raise GrammarError("the JSON schema is nested too deeply") from None
    targets = [pointed_at(root, reference) for reference in references]
    # What leads nowhere as far as can be seen may lead to anything.
    return whole + sum(whole if target is None else depths.get(id(target), 0) for target in targets)


def pointed_at(root: Any, reference: str) -> Any:
    """What a reference such as `#` or `#/$defs/a` leads to; None if there is nothing, or not in this document."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found = root
    for step in reference.split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found
