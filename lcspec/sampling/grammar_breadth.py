"""How many parts of a grammar's terminals may be empty: the library's time to compile grows with their square."""

from __future__ import annotations

import math
import re
from collections import Counter

from lcspec.errors import GrammarError

# About a second.
MAX_OPTIONAL = 4_000
# What may hold anything, then what defines a rule or names one, then what makes a part optional.
TOKENS = re.compile(
    r'<[^<>\s]+>|""|"(?:[^"\\]|\\.)+"|(?P<regex>/(?:[^/\\]|\\.)+/)|(?:#|//)[^\n]*'
    r"|(?P<rule>[A-Za-z_][\w-]*)(?:\.-?\d+|\[[^\]\n]*\]|\{[^}\n]*\})?\s*:(?!:)"
    r"|(?P<name>[A-Za-z_][\w-]*)|(?P<optional>[?*~&{]|\|\s*(?=[|)])|\(\s*(?=\|))",
    re.DOTALL,
)
# The same inside a regular expression; `(?` begins a group, and brackets hold characters.
IN_REGEX = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|(?P<optional>(?<!\()\?|[*{&~]|\|(?=[|)/])|\((?=\|))", re.DOTALL)


class _Rule:
    """A rule: its own parts that may be empty, those of each regular expression in it, and the rules that it names."""

    def __init__(self) -> None:
        self.optional = 0
        self.regexes: list[int] = []
        self.names: Counter[str] = Counter()


def check_breadth(lark: str) -> None:
    """Refuse a grammar (Lark) with too many optional parts in its terminals, which hold all terminals they name.

    Raises:
        GrammarError: there are too many.
    """
    rules = _rules(lark)
    known: dict[str, int] = {}
    terminals: set[str] = set()
    squares = 0
    for name, rule in rules.items():
        if name.isupper():
            continue
        terminals.update(named for named in rule.names if named.isupper())
        squares += sum(count * count for count in rule.regexes)
    for name in terminals:
        squares += _optional(rules, name, known) ** 2
    if squares > MAX_OPTIONAL**2:
        raise GrammarError(
            f"the grammar has about {math.isqrt(squares)} optional parts in its terminals (with all that they name), "
            f'and the limit is {MAX_OPTIONAL}: write repetitions ("a"{{0,9}} for nine times "a"?), or split it up'
        )


def _rules(lark: str) -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}
    rule = _Rule()
    for found in TOKENS.finditer(lark):
        kind = found.lastgroup
        if kind == "rule":
            rule = rules.setdefault(found["rule"], _Rule())
        elif kind == "name":
            rule.names[found["name"]] += 1
        elif kind == "regex":
            rule.regexes.append(sum(inner.lastgroup is not None for inner in IN_REGEX.finditer(found[0])))
        elif kind == "optional" or found[0] == '""':
            rule.optional += 1
    return rules


def _optional(rules: dict[str, _Rule], name: str, known: dict[str, int]) -> int:
    """Optional parts of a terminal and of all that it names, as often as it does; 0 for what names itself."""
    way = [name]
    while way:
        here = rules.get(way[-1])
        if here is None or way[-1] in known:
            known.setdefault(way.pop(), 0)
            continue
        missing = [named for named in here.names if named not in known and named not in way]
        if missing:
            way.append(missing[0])
            continue
        inner = sum(times * known.get(named, 0) for named, times in here.names.items())
        known[way.pop()] = min(here.optional + sum(here.regexes) + inner, 2**62)
    return known[name]
