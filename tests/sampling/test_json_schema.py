"""What a JSON schema cannot be held to is refused with its keyword and path; the rest is a grammar."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from lcspec.errors import GrammarError
from lcspec.sampling import schema_rewriting
from lcspec.sampling.grammar import MAX_TEXT, CompiledGrammar, GrammarTokenizer
from lcspec.sampling.grammar_depth import MAX_LEVELS
from lcspec.sampling.json_schema import schema_to_lark

TOKENIZER = GrammarTokenizer([b"</s>", *(bytes([i]) for i in range(256))], special=(), ends=(0,))


def accepts(schema: Any, text: str) -> bool:
    return follows(TOKENIZER.compile(schema_to_lark(schema)), text)


def follows(grammar: CompiledGrammar, text: str) -> bool:
    constraint = grammar.start()
    for byte in text.encode():
        if not constraint.allows(byte + 1):
            return False
        constraint.accept(byte + 1)
    return constraint.allows(0)


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
IS_A = {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}
KINDS = {"kind": {"enum": ["a", "b", "c"]}, "n": INTEGER}
COLOUR = {"enum": ["red", "green"], "type": "string", "title": "Colour"}


@pytest.mark.parametrize(
    "schema, right, wrong",
    [
        ({}, ["1", '{"a":[null]}', '""'], ["", "x"]),
        (True, ["[]"], ["]"]),
        ({"type": "object"}, ["{}", '{"x": 1}'], ["[]"]),
        # listed properties are all there are
        ({"properties": {"a": INTEGER}, "type": "object"}, ['{"a": 1}', "{}"], ['{"a": 1, "b": 2}']),
        ({"properties": {"a": INTEGER}, "additionalProperties": True, "type": "object"}, ['{"a": 1, "b": 2}'], []),
        ({"required": ["b"], "properties": {"a": INTEGER}, "type": "object"}, ['{"a": 1, "b": 2}'], ["{}"]),
        # ... unless schemas are put together
        (
            {
                "allOf": [{"properties": {"a": INTEGER}, "required": ["a"]}, {"properties": {"b": STRING}}],
                "type": "object",
            },
            ['{"a": 1, "b": "x"}'],
            ['{"b": "x"}'],
        ),
        (
            {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INTEGER},
            ['{"b":1}'],
            ['{"c":1}'],
        ),
        (
            {
                "type": "object",
                "propertyNames": {"$ref": "#/$defs/Colour"},
                "additionalProperties": INTEGER,
                "$defs": {"Colour": COLOUR},
            },
            ['{"red":1}', "{}"],
            ['{"blue":1}', '{"red":"x"}'],
        ),
        ({"type": "object", "propertyNames": {"pattern": "^x"}}, ['{"xy": []}'], ['{"y": []}']),
        ({"type": "string", "pattern": "\\d"}, ['"a1b"'], ['"ab"']),
        ({"type": "integer", "minimum": 5, "maximum": 120}, ["5", "120", "77"], ["4", "121", "1.5"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"é\\n"'], ['"a"', '"abcd"', '"a\nb"']),
        ({"type": "string", "maxLength": 1_000_000_000}, ['"abc"'], ["abc"]),
        (
            {"type": "string", "format": "date"},
            ['"2024-02-03"', '"2024-02-29"', '"2000-02-29"', '"0001-12-31"', '"1990-10-30"'],
            ['"2024-13-03"', '"0000-01-01"', '"2023-02-29"', '"1900-02-29"', '"2024-04-31"', '"2024-01-00"'],
        ),
        (
            {"type": "string", "format": "date-time"},
            ['"2024-02-29T23:59:59Z"', '"2024-02-03t00:00:00.25+01:00"'],
            [
                '"2024-02-30T00:00:00Z"',
                '"2024-02-03T00:00:00.1234567Z"',
                '"2024-02-03T00:00:60Z"',
                '"2024-02-03T24:00:00Z"',
            ],
        ),
        ({"type": "string", "format": "password"}, ['"anything"'], []),
        ({"format": "int32", "type": "integer", "uniqueItems": False}, ["12"], []),
        (
            {"patternProperties": {"^n_": INTEGER}, "additionalProperties": False, "type": "object"},
            ['{"n_a":1}'],
            ['{"a":1}'],
        ),
        (
            {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [INTEGER, {"items": {"$ref": "#"}, "type": "array"}]}}},
            ["[1,[2]]"],
            ["{}"],
        ),
        ({"enum": ['a"b\n', None, 1.5, {"x": []}]}, ['"a\\"b\\n"', "null", "1.5", '{"x":[]}'], ["2"]),
        ({"properties": {"not": STRING, "if": INTEGER}, "type": "object"}, ['{"not": "", "if": 3}'], []),
        ({"const": {"not": 1}, "default": {"uniqueItems": True}}, ['{"not":1}'], []),
        (
            {"x-guidance": {"whitespace_pattern": "x"}, "type": "array", "items": INTEGER},
            ["[1, 2]", "[\n  1\n]"],
            ["[x1]"],
        ),
    ],
)
def test_texts(schema: Any, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert accepts(schema, text), text
    for text in wrong:
        assert not accepts(schema, text), text


def test_the_schema_stays_as_it_is() -> None:
    schema = {
        "properties": {"a": {"properties": {"b": {"format": "int32"}}}},
        "anyOf": [{"items": {"uniqueItems": False}}],
    }
    before = json.dumps(schema)
    schema_to_lark(schema)
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    "schema, keyword, path",
    [
        ({"items": {"not": {"type": "null"}}}, "not", "#/items/not"),
        (
            {"properties": {"tags": {"type": "array", "uniqueItems": True}}},
            "uniqueItems",
            "#/properties/tags/uniqueItems",
        ),
        (
            {"properties": {"a/b": {"anyOf": [{"if": {"type": "null"}, "then": {}}]}}},
            "if",
            "#/properties/a~1b/anyOf/0/if",
        ),
        ({"type": "object", "properties": {"a": STRING}, "if": IS_A, "then": {"required": ["n"]}}, "if", "#/if"),
        ({"type": "array", "items": STRING, "uniqueItems": True}, "uniqueItems", "#/uniqueItems"),
        ({"type": "array", "items": {"enum": [*range(9)]}, "uniqueItems": True}, "uniqueItems", "#/uniqueItems"),
        ({"$defs": {"x": {"contains": {}}}}, "contains", "#/$defs/x/contains"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired", "#/dependentRequired"),
        ({"properties": {"a": {}}, "propertyNames": {"maxLength": 3}}, "propertyNames", "#/propertyNames"),
        ({"items": {"format": "uri-template"}}, "format", "#/items/format"),
        ({"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 3}]}, "oneOf", "#/oneOf"),
        ({"oneOf": [{"const": 1}, {"enum": [2, 1]}]}, "oneOf", "#/oneOf"),
        ({"items": {"pattern": "(?=a)b"}}, "pattern", "#/items/pattern"),
        ({"prefixItems": [{}, {"type": "text"}]}, "type", "#/prefixItems/1/type"),
        ({"properties": {"p": {"type": "string", "minLength": -1}}}, "minLength", "#/properties/p/minLength"),
        (
            {"properties": {"p": {"$ref": "#/$defs/m"}}, "$defs": {"m": {"multipleOf": 0}}},
            "multipleOf",
            "#/$defs/m/multipleOf",
        ),
        ({"properties": {"p": {"oneOf": [INTEGER, {"type": "number"}]}}}, "oneOf", "#/properties/p/oneOf"),
        (
            {"properties": {"p": {"minProperties": 2, "type": "object"}}},
            "minProperties",
            "#/properties/p/minProperties",
        ),
        ({"$ref": "#/nope"}, "\\$ref", "#/$ref"),
        ({"$ref": "https://example.com/schema"}, "\\$ref", "#/$ref"),
        ({"items": 5}, "wrong", "#/items"),
        ({"properties": {"a": {"enum": []}}, "required": ["a"], "type": "object"}, "enum", "#/properties/a"),
    ],
)
def test_what_cannot_be_held_to_is_named(schema: Any, keyword: str, path: str) -> None:
    with pytest.raises(GrammarError, match=keyword) as error:
        schema_to_lark(schema)
    assert path in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[1]",
        '"text"',
        "5",
        "false",
        '{"type": 5}',
        '{"items": ' * 9000 + "{}" + "}" * 9000,
        '{"items": ' * 80 + "{}" + "}" * 80,
    ],
    ids=lambda text: text[:12],
)
def test_what_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(GrammarError, match="schema") as error:
        schema_to_lark(schema)
    assert "\n" not in str(error.value)


def _defined(**definitions: Any) -> dict[str, Any]:
    return {"properties": {"p": {"$ref": "#/$defs/a"}}, "$defs": definitions}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"$ref": "#"}, "#/$ref"),
        (_defined(a={"$ref": "#/$defs/a"}), "#/$defs/a/$ref"),
        (_defined(a={"$ref": "#/$defs/b"}, b={"$ref": "#/$defs/a"}), "#/$defs/b/$ref"),
        (_defined(a={"allOf": [INTEGER, {"$ref": "#/$defs/a", "maximum": 3}]}), "#/$defs/a/allOf/1/$ref"),
        (_defined(a={"anyOf": [{"$ref": "#/$defs/a"}]}), "#/$defs/a/anyOf/0/$ref"),
        ({"items": {"$ref": "#/else/a~1b"}, "else": {"a/b": {"$ref": "#/else/a~1b"}}}, "#/else/a~1b/$ref"),
    ],
)
def test_a_reference_to_itself_alone_has_no_text(schema: Any, path: str) -> None:
    with pytest.raises(GrammarError, match="refers to itself") as error:
        schema_to_lark(schema)
    assert f"$ref at {path} " in str(error.value)


def test_a_reference_to_itself_with_something_to_write_has_texts() -> None:
    option = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}
    assert accepts(_defined(a=option, b={"$ref": "#/$defs/a"}), '{"p": null}')
    assert accepts({"type": "array", "items": {"$ref": "#"}}, "[[], [[]]]")
    twice = {"allOf": [{"$ref": "#/$defs/t"}, {"$ref": "#/$defs/t"}], "$defs": {"t": INTEGER}}
    assert accepts(twice, "1")


CHAINS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda inner: inner,
    "property": lambda inner: {"type": "object", "properties": {"a": inner}},
    "items": lambda inner: {"items": {"items": {"items": {"items": inner}}}},
    "allOf": lambda inner: {"allOf": [inner, {"type": "object"}]},
}


@pytest.mark.parametrize("name", CHAINS)
def test_references_one_below_the_other_end_before_the_stack_does(name: str) -> None:
    """The library calls itself for each: a few thousand of them ended the process."""

    def chain(n: int) -> dict[str, Any]:
        below = {f"a{i}": CHAINS[name]({"$ref": f"#/$defs/a{i + 1}"}) for i in range(n)}
        return {"$ref": "#/$defs/a0", "$defs": {**below, f"a{n}": {"type": "object"}}}

    assert accepts(chain(100), {"property": '{"a": {}}', "items": "[[[[[]]]]]"}.get(name, "{}"))
    with pytest.raises(GrammarError, match=f"the limit is {MAX_LEVELS}"):
        schema_to_lark(chain(2_000))
    # Nor by way of a grammar that has the schema in it.
    with pytest.raises(GrammarError, match=f"the limit is {MAX_LEVELS}"):
        TOKENIZER.compile(f"start: %json {json.dumps(chain(2_000))}")


def test_what_is_written_out_has_a_bound() -> None:
    letters = {"enum": [letter * 200 for letter in "abcde"]}
    array = {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/e"}}
    schema = {"$defs": {"e": letters}, "properties": {f"p{i}": array for i in range(9)}}
    with pytest.raises(GrammarError, match=f"longer than {MAX_TEXT} bytes"):
        schema_to_lark(schema)


def test_many_options_need_no_comparison_of_each_with_each() -> None:
    options: list[Any] = [{"const": f"x{i}"} for i in range(300)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_rewriting, "_differ", None)
        assert accepts({"oneOf": options}, '"x299"')
        for value in ("x7", ["x7"], {"a": ["x7"]}):
            with pytest.raises(GrammarError, match="exclude each other"):
                schema_to_lark({"oneOf": [*options, {"const": value}, {"enum": ["y", value]}]})


def _conditional(**more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": KINDS, **more}


def _thing(key: str) -> dict[str, Any]:
    return {"type": "object", "properties": {key: {"type": "null"}}, "required": [key], "additionalProperties": False}


NEEDS_N: dict[str, Any] = {"required": ["n"]}
TEXT_X = {"properties": {"x": STRING}, "required": ["x"]}
IS_B = {"properties": {"kind": {"enum": ["b"]}}, "required": ["kind"]}
# With how many of VALUES each must accept at least: what is accepted must be right, not all that is right accepted.
REWRITTEN: dict[str, tuple[dict[str, Any], int]] = {
    "then": (_conditional(**{"if": IS_A, "then": NEEDS_N}), 6),
    "else": (_conditional(**{"if": IS_A, "then": NEEDS_N, "else": {"properties": {"n": False}}}), 4),
    "else alone": (_conditional(**{"if": IS_A, "else": NEEDS_N}), 5),
    "another property": (_conditional(**{"if": IS_A, "then": TEXT_X}), 7),
    "no others": (_conditional(**{"if": IS_A, "then": NEEDS_N, "additionalProperties": False}), 6),
    "if there is": (_conditional(**{"if": NEEDS_N, "then": {"required": ["kind"]}}), 7),
    "if it is or is not there": (_conditional(**{"if": {"properties": IS_A["properties"]}, "then": NEEDS_N}), 6),
    "one of several": (_conditional(**{"if": {**IS_A, **NEEDS_N, "required": ["kind", "n"]}, "then": TEXT_X}), 7),
    "several": (
        _conditional(
            required=["kind"],
            allOf=[
                {"if": IS_A, "then": TEXT_X},
                {"if": IS_B, "then": {**TEXT_X, "properties": {"x": {"type": "null"}}}},
            ],
        ),
        5,
    ),
    "says nothing": (_conditional(**{"if": IS_A}), 7),
    "different": ({"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", "c"]}, "minItems": 1}, 3),
    "different and few": ({"type": "array", "uniqueItems": True, "items": {"enum": [*range(6)]}, "maxItems": 2}, 2),
    "in order": ({"type": "array", "uniqueItems": True, "items": {"enum": [*"abcdefgh"]}}, 3),
    "different booleans": ({"type": "array", "uniqueItems": True, "items": {"type": "boolean"}}, 3),
    "one item": ({"type": "array", "uniqueItems": True, "items": STRING, "maxItems": 1}, 2),
    "constants": ({"oneOf": [{"const": 1, "title": "one"}, {"const": 2}, {"const": "a"}]}, 3),
    "ranges": ({"oneOf": [{"type": "integer", "maximum": 1}, {"type": "integer", "minimum": 2}]}, 4),
    "open ranges": ({"oneOf": [{"type": "number", "exclusiveMaximum": 2}, {"type": "number", "minimum": 2}]}, 5),
    "closed objects": ({"oneOf": [_thing("a"), _thing("b")]}, 2),
    "pattern": ({"type": "string", "format": "regex"}, 5),
}
TEXTS = ("a", "^a+$", "(a|b)*[a-z0-9.]{2}", "\\\\d\\.", "", "(", "a**", "[z-a]", "*")
VALUES: list[Any] = [None, True, 1, 2, 3, -1, 0.5, *TEXTS]
VALUES += [[], [1, 0], [True], [True, False], [0, 0], ["a"], ["a", "c"], ["c", "a"], ["a", "a"], ["b", "a", "c", "b"]]
VALUES += [
    {key: value for key, value in (("kind", kind), ("n", n), ("x", x), ("a", a), ("b", b)) if value != ""}
    for kind in ("", "a", "b", "c", "z")
    for n in ("", 1, "s")
    for x in ("", "t", None, True)
    for a, b in (("", ""), (None, ""), ("", None), (None, None))
]


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten_schemas_let_nothing_wrong_through(name: str) -> None:
    schema, least = REWRITTEN[name]
    right = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    constraint = TOKENIZER.compile(schema_to_lark(schema))
    accepted = [value for value in VALUES if follows(constraint, json.dumps(value))]
    assert all(right.is_valid(value) for value in accepted)
    assert len(accepted) >= least, accepted
