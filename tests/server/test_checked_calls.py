"""Whether the arguments of a call follow its tool's schema, and that no schema can do harm."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lcspec.server.checked_calls import check_call

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"type": "string", "pattern": "^[A-Z]"}},
}


def verdict(schema: Any, arguments: str) -> tuple[str, str]:
    return check_call([{"name": "f", "parameters": schema}], "f", arguments)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ('{"city": "Oslo", "days": 2}', ("valid", "")),
        ('{"days": 2}', ("invalid", "required")),
        ('{"city": "oslo"}', ("invalid", "pattern")),
        ('{"city": "Oslo", "days": 0}', ("invalid", "minimum")),
        ('{"city": "Oslo", "x": 0}', ("invalid", "additionalProperties")),
        ('{"city": "Oslo"', ("malformed", "")),
        ("[" * 100_000, ("malformed", "")),
    ],
)
def test_what_follows_the_schema(arguments: str, expected: tuple[str, str]) -> None:
    assert verdict(CITY, arguments) == expected


def test_a_function_nobody_offered() -> None:
    assert check_call([{"name": "f"}], "g", "{}") == ("unknown_function", "")
    assert check_call([{"name": "f"}], "f", '{"anything": 1}') == ("valid", "")


def test_patterns_of_names() -> None:
    schema = {"patternProperties": {"^n_": {"type": "number"}}, "additionalProperties": {"type": "string"}}
    assert verdict(schema, '{"n_a": 1, "b": "x"}') == ("valid", "")
    assert verdict(schema, '{"n_a": "x"}')[0] == "invalid"
    assert verdict(schema, '{"b": 1}')[0] == "invalid"


@pytest.mark.parametrize(
    "schema, arguments",
    [
        ({"properties": {"a": {"pattern": "^(x+x+)+y$"}}}, '{"a": "' + "x" * 5000 + '"}'),
        ({"patternProperties": {"^(x+x+)+y$": {}}}, '{"' + "x" * 5000 + '": 1}'),
        ({"additionalProperties": False, "patternProperties": {"^(x+x+)+y$": {}}}, '{"' + "x" * 5000 + '": 1}'),
        ({"$ref": "#"}, "{}"),
        ({"anyOf": [{"$ref": "#/anyOf/1"}, {"$ref": "#/anyOf/0"}]}, "{}"),
        (
            {"$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)} | {"d60": {}}}
            | {"$ref": "#/$defs/d0"},
            "{}",
        ),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "{}"),
        ({"type": 17}, "{}"),
        ({"pattern": "("}, '"x"'),
        ({"$schema": "http://nowhere.example/none", "type": "object"}, "[]"),
    ],
)
def test_schemas_that_mean_harm(schema: Any, arguments: str) -> None:
    start = time.process_time()
    assert verdict(schema, arguments)[0] in ("unchecked", "invalid")
    assert time.process_time() - start < 20  # not for ever
