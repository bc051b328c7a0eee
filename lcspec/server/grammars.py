"""Bounds on grammars and JSON schemas: the library's converter, parser and matcher trust whoever wrote them."""

from __future__ import annotations

import re
from typing import Any

from lcspec.server.errors import invalid

# Deeper grammars are refused: the library reads them with a recursive parser.
MAX_NESTING = 64
# The schema converter writes an optional repetition as so many parentheses.
MAX_WRITTEN_NESTING = 2200
# More repetitions take the library's matcher seconds for every token, on the engine's thread.
MAX_REPEAT = 2000
MAX_GROUPS = 128
QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\]|\\.)*\]', re.DOTALL)
REPEATED = re.compile(r"(\)?)[ \t]*\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def check_grammar(text: str, param: str = "grammar") -> str:
    """A grammar (GBNF), as it is.

    Raises:
        ApiError: it is nested too deeply, or repeats too much.
    """
    bare = QUOTED.sub("x", text)  # what stands in quotes and brackets is only text
    depth, deepest = 0, MAX_NESTING if param == "grammar" else MAX_WRITTEN_NESTING
    for char in bare:
        depth += (char == "(") - (char == ")")
        if depth > deepest:
            raise invalid(f"{param}: parentheses are nested more than {deepest} deep", param)
    _check_counts(bare, param, groups=param == "grammar")
    return text


def _check_counts(text: str, param: str, groups: bool) -> None:
    """Refuse `{m,n}` that is too much or backwards, and with `groups` too many repetitions of groups altogether."""
    total = 1
    for group, low, comma, high in REPEATED.findall(text):
        least, most = int(low[:9] or 0), int((high if comma else low)[:9] or 0)
        if max(least, most) > MAX_REPEAT:
            raise invalid(f"{param}: nothing can be repeated more than {MAX_REPEAT} times", param)
        if high and most < least:
            raise invalid(f"{param}: {{{low},{high}}} ends before it begins", param)
        total *= max(1, least, most) if group else 1
    if groups and total > MAX_GROUPS:
        raise invalid(f"{param}: groups are repeated more than {MAX_GROUPS} times altogether", param)


def check_schema(schema: Any, param: str) -> None:
    """Refuse counts that the converter would write out one by one.

    Raises:
        ApiError: there is one, or the schema is nested too deeply.
    """
    left = [(schema, 0)]
    while left:
        part, depth = left.pop()
        if depth > MAX_NESTING:
            raise invalid(f"{param}: the schema is nested more than {MAX_NESTING} deep", param)
        if isinstance(part, list):
            left += [(item, depth + 1) for item in part]
        if not isinstance(part, dict):
            continue
        left += [(item, depth + 1) for item in part.values()]
        counts = [part[name] for name in COUNTS if isinstance(part.get(name), (int, float))]
        if isinstance(part.get("pattern"), str):
            _check_counts(part["pattern"], param, groups=True)
        if any(n > MAX_REPEAT for n in counts):
            raise invalid(f"{param}: nothing can be repeated more than {MAX_REPEAT} times", param)
