"""Bounds on grammars and JSON schemas: the library's converter, parser and matcher trust whoever wrote them.

What goes beyond them would take the library gigabytes, or minutes for a token, and nobody can interrupt it.
"""

from __future__ import annotations

import re
from typing import Any

from lcspec.errors import GrammarError
from lcspec.gbnf import ambiguity

# Deeper grammars are refused: the library reads them with a recursive parser.
MAX_NESTING = 64
# The schema converter writes an optional repetition as so many parentheses.
MAX_WRITTEN_NESTING = 2200
# More repetitions take the library's matcher seconds for every token, on the engine's thread.
MAX_REPEAT = 2000
MAX_GROUPS = 128
# The matcher looks at every way that is open, for every token of the vocabulary.
MAX_WAYS = 10_000
# ... and these multiply with every character: twice as many take not twice, but thousands of times as long.
MAX_SKIPPING = 16
QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\]|\\.)*\]', re.DOTALL)
REPEATED = re.compile(r"(\)?)[ \t]*\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def check_grammar(text: str, written: bool = False) -> str:
    """A grammar (GBNF), as it is; `written` by the schema converter, whose ways are less harmful.

    Raises:
        GrammarError: it is nested too deeply, repeats too much, or is too ambiguous.
    """
    bare = QUOTED.sub("x", text)  # what stands in quotes and brackets is only text
    depth, deepest = 0, MAX_WRITTEN_NESTING if written else MAX_NESTING
    for char in bare:
        depth += (char == "(") - (char == ")")
        if depth > deepest:
            raise GrammarError(f"the grammar has parentheses more than {deepest} deep")
    _check_counts(bare, groups=not written)
    ways, skipping = ambiguity(text)
    if ways > MAX_WAYS:
        raise GrammarError(f"the grammar has more than {MAX_WAYS} ways to go on at one place")
    if skipping > MAX_SKIPPING:
        raise GrammarError(
            f"the grammar has more than {MAX_SKIPPING} optional parts in a row, and too many ways to read a text: "
            "write x{0,9} for x? x? x? ..."
        )
    return text


def _check_counts(text: str, groups: bool) -> None:
    """Refuse `{m,n}` that is too much or backwards, and with `groups` too many repetitions of groups altogether."""
    total = 1
    for group, low, comma, high in REPEATED.findall(text):
        least, most = int(low[:9] or 0), int((high if comma else low)[:9] or 0)
        if max(least, most) > MAX_REPEAT:
            raise GrammarError(f"the grammar repeats something more than {MAX_REPEAT} times")
        if high and most < least:
            raise GrammarError(f"{{{low},{high}}} in the grammar ends before it begins")
        total *= max(1, least, most) if group else 1
    if groups and total > MAX_GROUPS:
        raise GrammarError(f"the grammar repeats groups more than {MAX_GROUPS} times altogether")


def check_schema(schema: Any) -> None:
    """Refuse counts that the converter would write out one by one.

    Raises:
        GrammarError: there is one, or the schema is nested too deeply.
    """
    left = [(schema, 0)]
    while left:
        part, depth = left.pop()
        if depth > MAX_NESTING:
            raise GrammarError(f"the JSON schema is nested more than {MAX_NESTING} deep")
        if isinstance(part, list):
            left += [(item, depth + 1) for item in part]
        if not isinstance(part, dict):
            continue
        left += [(item, depth + 1) for item in part.values()]
        counts = [part[name] for name in COUNTS if isinstance(part.get(name), (int, float))]
        if isinstance(part.get("pattern"), str):
            _check_counts(part["pattern"], groups=True)
        if any(n > MAX_REPEAT for n in counts):
            raise GrammarError(f"the JSON schema repeats something more than {MAX_REPEAT} times")
