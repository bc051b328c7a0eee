"""How ambiguous a grammar (GBNF) is, found from its text.

The library's matcher follows every way on from a place in the text at once. Two figures tell what that costs: the ways
to the next character, and those of them that leave something out to get to a character class. Such ways multiply from
character to character (`[a-z]? [a-z]? [a-z]?` ...), while literals soon tell which way the text has gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|!?<[^>\n]*>|\{[^}]*\}|::=|[A-Za-z0-9-]+|[|().*+?]|#[^\n]*|\S', re.DOTALL
)
COUNTS = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
WORD = re.compile(r"[A-Za-z0-9-]+$")
# Figures stop growing here.
MANY = 10**9
# An endless repetition of something that may be empty counts as so many.
ENDLESS = 4


@dataclass(frozen=True)
class Ways:
    """Of a piece of a grammar.

    Attributes:
        first: ways to its first character.
        empty: ways for it to be empty.
        loose: those of `first` that lead to a character class.
        skipping: those of `loose` that leave something out.
    """

    first: int
    empty: int
    loose: int = 0
    skipping: int = 0

    def then(self, rest: Ways) -> Ways:
        """Of this piece with `rest` behind it."""
        first, loose, empty = self.empty * rest.first, self.empty * rest.loose, self.empty * rest.empty
        return _bounded(self.first + first, empty, self.loose + loose, self.skipping + loose)

    def beside(self, other: Ways) -> Ways:
        """Of either."""
        empty, loose = self.empty + other.empty, self.loose + other.loose
        return _bounded(self.first + other.first, empty, loose, self.skipping + other.skipping)

    def repeated(self, low: int, high: int | None) -> Ways:
        """Of so many in a row."""
        if not self.empty:
            return Ways(self.first, int(low == 0), self.loose, self.skipping) if high != 0 else NOTHING
        out = NOTHING
        for i in range(ENDLESS if high is None else high):
            optional = high is None or i < high - low
            out = self.then(out).beside(NOTHING) if optional else self.then(out)
            if out.first >= MANY:
                break
        return out


def _bounded(*figures: int) -> Ways:
    return Ways(*(min(n, MANY) for n in figures))


NOTHING = Ways(0, 1)
LITERAL = Ways(1, 0)
CLASS = Ways(1, 0, 1)


@dataclass
class _Item:
    what: str | Ways  # the name of a rule, or what it comes to
    low: int = 1
    high: int | None = 1


@dataclass
class _Rule:
    alternatives: list[list[_Item]] = field(default_factory=lambda: [[]])


def ambiguity(text: str) -> tuple[int, int]:
    """The most ways to a next character that a grammar has at any place, and the most that leave something out.

    Both at most MANY. What is no grammar gets any figures: the library will say what is wrong with it.
    """
    rules = _read(text)
    known: dict[str, Ways] = {}
    most = skipping = 0
    for name in _bottom_up(rules):
        total = Ways(0, 0)
        for items in rules[name].alternatives:
            rest = NOTHING
            for item in reversed(items):
                ways = item.what if isinstance(item.what, Ways) else known.get(item.what, Ways(0, 0))
                rest = ways.repeated(item.low, item.high).then(rest)
                most, skipping = max(most, rest.first), max(skipping, rest.skipping)
            total = total.beside(rest)
        known[name] = total
        most, skipping = max(most, total.first), max(skipping, total.skipping)
    return most, skipping


def _read(text: str) -> dict[str, _Rule]:
    """A grammar's rules; every group is a rule of its own."""
    tokens = [t for t in TOKEN.findall(text) if not t.startswith("#")]
    rules: dict[str, _Rule] = {"": _Rule()}
    open_rules = [""]
    for i, token in enumerate(tokens):
        rule = rules[open_rules[-1]]
        items = rule.alternatives[-1]
        if token == "::=":
            continue
        if i + 1 < len(tokens) and tokens[i + 1] == "::=":
            rules[token], open_rules = _Rule(), [token]
        elif token == "|":
            rule.alternatives.append([])
        elif token == "(":
            name = f"({i}"
            rules[name] = _Rule()
            items.append(_Item(name))
            open_rules.append(name)
        elif token == ")":
            if len(open_rules) > 1:
                open_rules.pop()
        elif token in ("*", "+", "?") or token.startswith("{"):
            if items:
                items[-1].low, items[-1].high = _counts(token)
        elif WORD.match(token):
            items.append(_Item(token))
        elif token != '""':
            items.append(_Item(CLASS if token[0] in "[." else LITERAL))
    return rules


def _counts(token: str) -> tuple[int, int | None]:
    if token in ("*", "+", "?"):
        return int(token == "+"), 1 if token == "?" else None
    found = COUNTS.match(token)
    if found is None:
        return 1, 1
    low, comma, high = found.groups()
    least = int(low[:9] or 0)
    return least, (int(high[:9]) if high else None) if comma else least


def _bottom_up(rules: dict[str, _Rule]) -> list[str]:
    """The rules' names, each after those it refers to (but for circles)."""
    order: list[str] = []
    seen: set[str] = set()
    for root in rules:
        stack = [(root, False)]
        while stack:
            name, done = stack.pop()
            if done:
                order.append(name)
            elif name in rules and name not in seen:
                seen.add(name)
                stack.append((name, True))
                stack += [
                    (item.what, False)
                    for items in rules[name].alternatives
                    for item in items
                    if isinstance(item.what, str)
                ]
    return order
