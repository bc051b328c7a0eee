"""What is optional in terminals is counted before it is compiled, and schemas of an ordinary size are not affected."""

from __future__ import annotations

from typing import Any

import pytest

from lcspec.errors import GrammarError
from lcspec.sampling import grammar_breadth
from lcspec.sampling.grammar import MAX_GBNF, GrammarTokenizer
from lcspec.sampling.json_schema import schema_to_lark

TOKENIZER = GrammarTokenizer([b"</s>", *(bytes([i]) for i in range(256))], special=(), ends=(0,))


def doubled(n: int) -> str:
    """A terminal of 2^n optional parts."""
    return f'start: A{n}\nA0: "a"?\n' + "\n".join(f"A{i}: A{i - 1} A{i - 1}" for i in range(1, n + 1))


# Each took the compiler a minute, or for ever.
SLOW = {
    "options": "root ::= " + '"a"?' * 15_000,
    "empty alternatives": "root ::= " + '("a"|)' * 10_000,
    "empty texts": "start: A\nA: " + '("a"|"")' * 30_000,
    "a regular expression": "start: /" + "a?" * 100_000 + "/",
    "empty alternatives in it": "start: /" + "(a|)" * 50_000 + "/",
    "classes": "root ::= " + "[a-z]*" * 15_000,
    "terminals": doubled(13),
    "endless terminals": doubled(1000 - 2),
}


@pytest.mark.parametrize("name", SLOW)
def test_what_would_take_long_is_refused_with_advice(name: str) -> None:
    with pytest.raises(GrammarError, match=r"optional parts .* the limit is 4000: write repetitions"):
        TOKENIZER.compile(SLOW[name])


@pytest.mark.parametrize(
    "lark",
    ["start: " + '"a" ' * 50_000, "start: A\nA: " + "|".join(f'"a{i}"' for i in range(27_000))],
    ids=["symbols", "alternatives"],
)
def test_what_the_library_counts_is_refused_with_advice(lark: str) -> None:
    with pytest.raises(GrammarError, match="more steps to compile than there are for it: make it smaller"):
        TOKENIZER.compile(lark)


def test_gbnf_is_shorter_than_lark() -> None:
    text = "root ::= " + '"a" ' * (MAX_GBNF // 4)
    with pytest.raises(GrammarError, match=f"GBNF may have {MAX_GBNF} bytes .* write it in Lark"):
        TOKENIZER.compile(text)


def schema_of(n: int) -> dict[str, Any]:
    """A schema of `n` properties of many kinds, half of them required."""
    kinds: list[dict[str, Any]] = [
        {"type": "string", "maxLength": 80},
        {"type": ["string", "null"]},
        {"type": "integer", "minimum": 0, "maximum": 1_000},
        {"type": "string", "format": "date-time"},
        {"enum": ["small", "medium", "large"]},
        {"type": "array", "items": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"}, "maxItems": 9},
        {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "boolean"}}},
        {"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]},
    ]
    properties = {f"property_{i}": kinds[i % len(kinds)] for i in range(n)}
    return {"type": "object", "properties": properties, "required": list(properties)[::2]}


def test_schemas_of_some_hundred_properties_are_compiled() -> None:
    constraint = TOKENIZER.compile(schema_to_lark(schema_of(500))).start()
    assert constraint.allows(1 + ord("{"))
    values = {"enum": [f"value {i}" for i in range(5_000)]}
    assert TOKENIZER.compile(schema_to_lark(values)).start().allows(1 + ord('"'))


def test_a_schema_that_is_too_large_is_refused_with_advice() -> None:
    with pytest.raises(GrammarError, match="the JSON schema is too large: .* make it smaller"):
        schema_to_lark({"type": "object", "properties": {f"property_{i}": {} for i in range(5_000)}})


def test_what_counts_as_optional() -> None:
    for lark, count in {
        'start: A\nA: "a?*"? B{2} (|"b") C\nB: "c"*\nC: ("a"|"")\nD: "x"?': 5,
        "start: /a?[?*]\\?(?:b|)c*/ x\nx: X?\nX: /y/": 3,
        "start: A A\nA.2: B\nB: A? // x?\n": 1,
        'start: <x?> "\\"?" # a?\n': 0,
    }.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grammar_breadth, "MAX_OPTIONAL", count)
            grammar_breadth.check_breadth(lark)
            patch.setattr(grammar_breadth, "MAX_OPTIONAL", count - 0.5)
            if count:
                with pytest.raises(GrammarError, match=f"about {count} optional"):
                    grammar_breadth.check_breadth(lark)
