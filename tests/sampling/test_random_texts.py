"""Random texts of the grammars that schemas become validate: tokens are drawn from the masks alone, which goes where no
model would. The schemas are of the kinds that clients send."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import random
import uuid
from typing import Annotated, Any, Literal, Union

import jsonschema
import pydantic
import pytest

from lcspec.errors import GrammarError
from lcspec.sampling.grammar import CompiledGrammar, GrammarTokenizer
from lcspec.sampling.json_schema import schema_to_lark

PIECES = [
    *[
        '": ',
        '", ',
        '"}',
        "}]",
        '{"',
        ' "',
        '""',
        "\\n",
        '\\"',
        "true",
        "null",
        "12",
        "-",
        "é",
        "abc",
        "   ",
        "\n",
        "],",
        "e+1",
        ".5",
        "00",
        "日",
    ]
]
TOKENS = [*(bytes([i]) for i in range(256)), *(piece.encode() for piece in PIECES), b"<end>"]
END = len(TOKENS) - 1
TOKENIZER = GrammarTokenizer(TOKENS, [], [END])
TEXTS, LONGEST = 9, 2000

INTEGER: dict[str, Any] = {"type": "integer"}
POINT = {"type": "object", "properties": {"x": INTEGER}, "required": ["x"]}
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)  # fmt: skip
COUNT = {"minimum": -(2**63), "maximum": 2**63 - 1}


def kind(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": {"const": name}}, "required": ["k"]}


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Leaf(pydantic.BaseModel):
    kind: Literal["leaf"]
    value: int | None


class Branch(pydantic.BaseModel):
    kind: Literal["branch", "twig"]
    parts: list[Annotated[Union[Leaf, Branch], pydantic.Field(discriminator="kind")]] = pydantic.Field(max_length=2)


class Order(pydantic.BaseModel):
    number: str = pydantic.Field(pattern=r"^ORD-\d{4}$")
    id: uuid.UUID
    due: datetime.date
    paid: datetime.datetime | None = None
    total: decimal.Decimal
    sizes: dict[Size, list[int]]
    place: tuple[float, float, bool]
    code: Literal[1, "x", None, True]
    weight: Annotated[float, pydantic.Field(gt=0, le=0.01)]


SCHEMAS: dict[str, Any] = {
    "pydantic tree": Branch.model_json_schema(),
    "pydantic order": Order.model_json_schema(),
    "decimal": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": DECIMAL}]},
    "decimal text": {"type": "string", "pattern": DECIMAL},
    "decimal with places": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?=[\d.]{1,6}0*$)\d+$"}]},
    "nullable reference": {"$defs": {"p": POINT}, "oneOf": [{"$ref": "#/$defs/p"}, {"type": "null"}]},
    "one or many": {
        "$defs": {"p": POINT},
        "oneOf": [{"$ref": "#/$defs/p"}, {"type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 2}],
    },
    "referred kinds": {
        "$defs": {"a": kind("a"), "b": kind("b")},
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"type": "null"}],
    },
    "tree of oneOf": {
        "type": "object",
        "properties": {"next": {"oneOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
    },
    "described tree": {
        "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n", "description": "x"}}}},
        "$ref": "#/$defs/n",
    },
    "record": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": INTEGER},
    "record of short names": {
        "type": "object",
        "propertyNames": {"type": "string", "minLength": 1, "maxLength": 4},
        "additionalProperties": INTEGER,
    },
    "never": {
        "type": "object",
        "properties": {"a": {"anyOf": [{"not": {}}, INTEGER]}, "b": INTEGER},
        "required": ["a"],
        "additionalProperties": {"not": {}},
    },
    "address": {"type": "string", "format": "email", "pattern": ZOD_EMAIL},
    "date and pattern": {"type": "string", "format": "date", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
    "64 bits": {"type": "integer", **COUNT},
    "64 bits, open": {"type": "integer", "exclusiveMinimum": -(2**63), "exclusiveMaximum": 2**63 - 1},
    "beyond floats": {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 7},
    "beyond floats, negative": {"type": "integer", "minimum": -(2**53) - 7, "maximum": -(2**53) - 1},
    "barely more": {"type": "number", "exclusiveMinimum": 1, "maximum": 1.001},
    "barely less": {"type": "number", "minimum": -1.005, "exclusiveMaximum": -1},
    "escaped names": {
        "type": "object",
        "properties": {'a"b\\c\n': {"type": "null"}, "ключ": INTEGER, "$ref": {"type": "string", "maxLength": 2}},
        "required": ['a"b\\c\n', "ключ"],
    },
    "composed": {
        "allOf": [{"$ref": "#/$defs/p"}, {"properties": {"n": {"enum": ["x", "y"]}}, "required": ["n"]}],
        "$defs": {"p": POINT},
    },
    "alternatives of required": {
        "type": "object",
        "properties": {"a": INTEGER, "b": INTEGER},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "patterns of names": {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 2}},
        "patternProperties": {"^n": INTEGER},
        "additionalProperties": {"type": "boolean"},
        "required": ["a"],
    },
    "telephone": {"type": "string", "pattern": r"^\+?[1-9]\d{1,14}$"},
    "unanchored": {"type": "string", "pattern": r"\d{3}-\d{4}", "maxLength": 20},
    "mixed constants": {"enum": ["a", 1, None, True, {"x": [1, 2]}, [], 'é"\\\n']},
    "steps of": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
}


def walk(grammar: CompiledGrammar, seed: int) -> str | None:
    """A random text; None if it does not end."""
    draw, place, text = random.Random(seed), grammar.start(), b""
    patience = (5, 20, 60)[seed % 3]
    for n in range(LONGEST):
        allowed = [int(token) for token in place.mask().nonzero()[0]]
        ending = 6.0 if n > patience else 1.0
        weights = [5 * ending if t == END else ending if TOKENS[t][:1] in b'"}],' else 1.0 for t in allowed]
        token = draw.choices(allowed, weights)[0]
        if token == END:
            return text.decode()
        text += TOKENS[token]
        place.accept(token)
    return None


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_texts_validate(name: str) -> None:
    schema = SCHEMAS[name]
    grammar = TOKENIZER.compile(schema_to_lark(schema))
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    texts = [text for seed in range(TEXTS) if (text := walk(grammar, seed)) is not None]
    assert len(texts) > TEXTS // 2
    for text in texts:
        error = next(validator.iter_errors(json.loads(text)), None)
        assert error is None, f"{text}: {error.message}"


@pytest.mark.parametrize("options", [[INTEGER, {"type": "number"}], [POINT, {"type": "object"}], [{}, INTEGER]])
def test_options_that_overlap_are_refused(options: list[Any]) -> None:
    with pytest.raises(GrammarError, match="oneOf at #/oneOf"):
        schema_to_lark({"oneOf": options})
