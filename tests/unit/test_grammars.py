"""What a grammar costs the library's matcher is found from its text; what nobody could wait for is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lcspec.errors import GrammarError
from lcspec.gbnf import MANY, ambiguity
from lcspec.grammars import MAX_SKIPPING, MAX_WAYS, check_grammar, check_schema
from lcspec.llama.grammar import schema_to_gbnf

DOUBLING = "root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1} a{i + 1} | a{i + 1}?" for i in range(40)) + "\na40 ::= [x]?"


@pytest.mark.parametrize(
    "grammar, ways, skipping",
    [
        ('root ::= "a"', 1, 0),
        ('root ::= "a" | "b" | [c-f]', 3, 0),
        ('root ::= "a"? "b"', 2, 0),
        ("root ::= [a]? [b]", 2, 1),
        ("root ::= [a]? [b]? [c]? [d]?", 4, 3),
        ("root ::= ([a]? [b]?){3}", 6, 5),
        ("root ::= [a]{0,500}", 1, 0),
        ("root ::= [a]* [b]* .", 3, 2),
        ('root ::= "x" ("y" | [a]? [b]? [c]?) "z"', 5, 2),
        ("root ::= a a\na ::= [x]? # [y]? [y]? [y]?", 2, 1),
        ('root ::= "]" [\\]"(] ")" item*\nitem ::= "\\"?" root', 1, 0),
        ("root ::= a{0,60}\na ::= b{0,60}\nb ::= [c]{0,9}", None, None),
        (DOUBLING, MANY, MANY),
    ],
)
def test_ways(grammar: str, ways: int | None, skipping: int | None) -> None:
    found = ambiguity(grammar)
    if ways is None:
        assert found[1] > MAX_SKIPPING
    else:
        assert found == (ways, skipping)


@pytest.mark.parametrize("text", ["", "root", "root ::=", "::= ::=", "root ::= )))|||???", "a ::= a a a", "\x00{", '"'])
def test_no_grammar_at_all_is_left_to_the_library(text: str) -> None:
    ambiguity(text)
    check_grammar(text)


@pytest.mark.parametrize(
    "grammar, problem",
    [
        ("root ::= " + "(" * 100 + "x" + ")" * 100, "deep"),
        ("root ::= [a-z]{1,10000}", "repeats something"),
        ("root ::= [a-z]{,99999999999999999999}", "repeats something"),
        ('root ::= ("a" [b]){500}', "groups"),
        ('root ::= "a"{5,2}', "before it begins"),
        ("root ::= " + " ".join(["[a-z]?"] * (MAX_SKIPPING + 2)), "optional parts"),
        ("root ::= x*\nx ::= " + "[a-z]* " * 6, "optional parts"),
        (DOUBLING, "ways"),
        ("root ::= " + " | ".join(f'"v{i}"' for i in range(MAX_WAYS + 1)), "ways"),
    ],
)
def test_grammars_that_explode_are_refused(grammar: str, problem: str) -> None:
    with pytest.raises(GrammarError, match=problem):
        check_grammar(grammar)


@pytest.mark.parametrize(
    "schema, problem",
    [
        ({"type": "string", "maxLength": 100_000}, "repeats"),
        ({"type": "array", "minItems": 5000}, "repeats"),
        ({"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}, "groups"),
        ({"enum": [f"v{i}" for i in range(20_000)]}, "ways"),
        ({"type": "string", "pattern": "^" + "[a-z]?" * 40 + "$"}, "optional parts"),
    ],
    ids=["string", "array", "pattern", "enum", "optional"],
)
def test_schemas_that_explode_are_refused(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(GrammarError, match=problem):
        schema_to_gbnf(schema)


def test_a_schema_nested_too_deeply_is_refused_however_it_comes() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"items": deep}
    with pytest.raises(GrammarError, match="nested"):
        check_schema(deep)
    with pytest.raises(GrammarError, match="nested"):
        schema_to_gbnf('{"items": ' * 9000 + "{}" + "}" * 9000)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 200} for i in range(200)}},
        {"type": "array", "maxItems": 100, "items": {"type": "string", "enum": [f"v{i}" for i in range(500)]}},
        {"type": "object", "properties": {"when": {"type": "string", "format": "date-time"}, "n": {"type": "integer"}}},
    ],
    ids=["any object", "many properties", "list", "formats"],
)
def test_schemas_of_everyday_pass(schema: dict[str, Any]) -> None:
    assert "root ::=" in schema_to_gbnf(json.dumps(schema))
