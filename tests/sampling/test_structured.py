"""Answers under a JSON schema validate, whatever the schema, the temperature, the vocabulary and the drafters."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest

from lcspec.llama.grammar import compile_grammar
from lcspec.sampling.json_schema import schema_to_lark
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session
from tests import tiny_gguf as tiny
from tests.running import answer, options, request, side_by_side

pytestmark = pytest.mark.model


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Node(pydantic.BaseModel):
    """Recursive."""

    value: int = pydantic.Field(ge=0, le=9)
    next: Node | None = None


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, pydantic.Field(ge=1, le=9)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    tricks: list[Colour] = pydantic.Field(max_length=2)


class Pets(pydantic.BaseModel):
    """Tagged and plain unions."""

    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    other: Cat | bool | None


class Code(pydantic.BaseModel):
    """Code in a string, in a list, in an object."""

    language: Literal["python", "c++"]
    files: list[File] = pydantic.Field(min_length=1, max_length=2)


class File(pydantic.BaseModel):
    path: str = pydantic.Field(pattern=r"^[a-z]{1,8}\.(py|cc)$")
    code: str = pydantic.Field(min_length=4, max_length=24)


class Order(pydantic.BaseModel):
    amount: float = pydantic.Field(gt=0, lt=100)
    by_colour: dict[Colour, Annotated[int, pydantic.Field(ge=0, le=3)]]
    pair: tuple[bool, Colour]
    note: str | None = pydantic.Field(default=None, max_length=6)


IS_SHOP: dict[str, Any] = {"properties": {"kind": {"const": "shop"}}, "required": ["kind"]}
NUMBER, STRING = {"type": "number"}, {"type": "string", "maxLength": 6}
OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": False}
TREE = {
    **OBJECT,
    "properties": {"name": STRING, "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#"}}},
    "required": ["name"],
}
SCHEMAS: dict[str, Any] = {
    "anything": {},
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": NUMBER,
    "string": {"type": "string"},
    "any object": {"type": "object"},
    "any array": {"type": "array"},
    "types": {"type": ["boolean", "null", "integer"]},
    "enum": {"enum": ["a", 1, None, True, 2.5, {"b": [1, "x"]}, 'quo"te\n']},
    "const": {"const": {"deep": ["tab\t", -3]}},
    "const text": {"const": "café ☕ \\ / \u0001"},
    "minimum": {"type": "integer", "minimum": 17, "maximum": 23},
    "negative": {"type": "integer", "minimum": -120, "exclusiveMaximum": -99},
    "between": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "half open": {"type": "number", "minimum": -0.5, "maximum": 2.25},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    "quarters": {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 10},
    "short text": {"type": "string", "maxLength": 3},
    "exact length": {"type": "string", "minLength": 5, "maxLength": 5},
    "long enough": {"type": "string", "minLength": 24, "maxLength": 30},
    "empty text": {"type": "string", "maxLength": 0},
    "digits": {"type": "string", "pattern": "^\\d{3}-\\d{2}$"},
    "words": {"type": "string", "pattern": "^\\w{2,6}( \\w{1,4}){0,2}$"},
    "unanchored": {"type": "string", "pattern": "ab", "maxLength": 8},
    "anchored in front": {"type": "string", "pattern": "^[A-Z]", "maxLength": 8},
    "anchored behind": {"type": "string", "pattern": "[.!]$", "maxLength": 8},
    "alternatives": {"type": "string", "pattern": "^(yes|no|(may){1,2}be)$"},
    "escapes": {"type": "string", "pattern": '^["\\\\\\n/]{2,4}$'},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration", "maxLength": 12},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "email": {"type": "string", "format": "email", "maxLength": 16},
    "hostname": {"type": "string", "format": "hostname", "maxLength": 12},
    "uri": {"type": "string", "format": "uri", "maxLength": 20},
    "some format": {"type": "string", "format": "password", "maxLength": 8},
    "items": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 2, "maxItems": 4},
    "texts": {"type": "array", "items": STRING, "minItems": 1, "maxItems": 3},
    "no items": {"type": "array", "maxItems": 0},
    "tuple": {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": ["x"]}], "items": False, "minItems": 2},
    "longer tuple": {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"}, "maxItems": 3},
    "nested arrays": {
        "type": "array",
        "maxItems": 2,
        "items": {"type": "array", "maxItems": 2, "items": {"type": "boolean"}},
    },
    "properties": {**OBJECT, "properties": {"a": {"type": "boolean"}, "b": STRING}, "required": ["b"]},
    "optional": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": {"const": 1}}},
    "required alone": {
        "type": "object",
        "required": ["a"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 2,
    },
    "escaped keys": {"type": "object", "properties": {'a"\\\n/': {"type": "null"}}, "required": ['a"\\\n/']},
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    "pattern keys": {
        "type": "object",
        "patternProperties": {
            "^n_[a-z]{1,3}$": {"type": "integer", "maximum": 5, "minimum": 0},
            "^s[0-9]$": {"const": "s"},
        },
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 3,
    },
    "any of": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    "one of": {
        "oneOf": [
            {"type": "object", "properties": {"t": {"const": "a"}, "n": {"type": "null"}}, "required": ["t", "n"]},
            {"type": "object", "properties": {"t": {"const": "b"}, "s": {"enum": ["x", "y"]}}, "required": ["t", "s"]},
        ]
    },
    "all of": {
        "type": "object",
        "allOf": [
            {"properties": {"a": {"type": "boolean"}}, "required": ["a"]},
            {"properties": {"b": {"enum": [1, 2]}}},
        ],
        "required": ["b"],
        "maxProperties": 2,
    },
    "narrowed": {"type": "integer", "minimum": 3, "allOf": [{"maximum": 5}]},
    "reference": {
        "$ref": "#/$defs/x",
        "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/y"}, "maxItems": 2}, "y": STRING},
    },
    "recursive": {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": 9},
            {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        ]
    },
    "tree": TREE,
    "old draft": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"p": {"type": "boolean"}},
        "type": "array",
        "items": [{"$ref": "#/definitions/p"}, {"type": "null"}],
        "additionalItems": False,
        "minItems": 2,
    },
    "property names": {
        "type": "object",
        "propertyNames": {"enum": ["x", "y"]},
        "additionalProperties": {"type": "null"},
    },
    "different": {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", "c", "d"]}, "minItems": 2},
    "condition": {
        "type": "object",
        "properties": {"kind": {"enum": ["shop", "house"]}, "rooms": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["kind"],
        "if": IS_SHOP,
        "then": {"properties": {"sells": STRING}, "required": ["sells"]},
        "else": {"required": ["rooms"]},
    },
    "ranges": {
        "oneOf": [{"type": "integer", "minimum": 90, "maximum": 99}, {"type": "number", "maximum": 1, "minimum": 0}]
    },
    "regular expression": {"type": "string", "format": "regex", "maxLength": 12},
    "annotated": {
        "title": "T",
        "description": "d",
        "default": 3,
        "examples": [1],
        "deprecated": True,
        "type": "boolean",
    },
    "unknown keywords": {"type": "boolean", "x-order": 3, "discriminator": {"propertyName": "a"}, "nullable": True},
    "names of keywords": {
        "type": "object",
        "properties": {"not": {"type": "null"}, "$ref": {"const": 1}},
        "required": ["not"],
    },
    "pydantic recursive": Node.model_json_schema(),
    "pydantic unions": Pets.model_json_schema(),
    "pydantic code": Code.model_json_schema(),
    "pydantic order": Order.model_json_schema(),
}
MODELS = {"recursive": Node, "unions": Pets, "code": Code, "order": Order}


def validate(name: str, text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMAS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    kind, _, model = name.partition(" ")
    if kind == "pydantic":
        MODELS[model].model_validate_json(text)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_finished_answer_validates(demo_session: Session, name: str) -> None:
    ids, _ = demo_session.chat_ids([{"role": "user", "content": "Hello, how are you today?"}])
    grammar = compile_grammar(demo_session.model.vocab, schema_to_lark(SCHEMAS[name]))
    finished = 0
    for temperature in (0.0, 0.5, 1.0, 1.5):
        sampling = SamplingParams(temperature, top_k=0, top_p=1.0, min_p=0.0, seed=5, grammar=grammar)
        found = answer(demo_session.engine, request(ids, "off", 120, sampling=sampling, ignore_end=False))
        assert found.reason in ("stop", "length")
        if found.reason == "stop":
            finished += 1
            validate(name, found.text)
    assert finished or name in ("anything", "any object", "any array", "string")  # may go on for ever


@pytest.mark.parametrize("name", ["pydantic code", "pydantic unions", "tree", "texts", "date-time", "anything"])
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_speculation_changes_nothing(tiny_session: Session, name: str, temperature: float) -> None:
    prompt = tiny_session.prompt_ids("answer: ")
    grammar = compile_grammar(tiny_session.model.vocab, schema_to_lark(SCHEMAS[name]))
    sampling = SamplingParams(temperature, seed=3, grammar=grammar)
    plain = answer(tiny_session.engine, request(prompt, "off", 100, sampling=sampling, ignore_end=False))
    if plain.reason == "stop":
        validate(name, plain.text)
    for strategy in ("forced", "ngram:min_n=1,forced", "model:p_min=0:branch=2", "auto"):
        wanted = request(prompt, strategy, 100, sampling=sampling, ignore_end=False, has_grammar=True)
        assert answer(tiny_session.engine, wanted).ids == plain.ids, strategy


VOCABULARIES = {
    "SentencePiece": lambda path: tiny.write_llama(path, vocab=tiny.spm_vocab()),
    "SentencePiece without some bytes": tiny.write_spm_missing_bytes,
    "byte-level BPE without some bytes": tiny.write_bpe_missing_bytes,
}


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_other_vocabularies(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    VOCABULARIES[kind](path)
    finished = 0
    with open_session(options(path)) as session:
        for name in ("words", "exact length", "uuid", "enum", "const text", "pydantic recursive", "pydantic code"):
            grammar = schema_to_lark(SCHEMAS[name])
            for temperature in (0.0, 1.0):
                sampling = SamplingParams(temperature, seed=2, grammar=grammar)
                wanted = request(session.prompt_ids("x"), "forced,ngram", 100, sampling=sampling, ignore_end=False)
                (found,) = side_by_side(session.engine, [wanted])
                if found.error is not None:
                    assert "without" in kind and "no token that fits" in str(found.error)
                elif found.reason == "stop":
                    finished += 1
                    validate(name, found.text)
    assert finished > 4
