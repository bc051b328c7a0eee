"""JSON schemas as grammars. What cannot be held to while writing is refused, with its keyword and place.

An object whose properties are listed gets no others, unless the schema asks for them: a weak model would never stop.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from typing import Any, Iterator

from llguidance import LLMatcher

from lcspec.errors import GrammarError
from lcspec.sampling.compiling import compiled
from lcspec.sampling.grammar import EXCEEDED, HEADER, LIMITS, MAX_TEXT, TOO_BIG
from lcspec.sampling.grammar_depth import MAX_LEVELS, pointed_at, schema_levels
from lcspec.sampling.schema_conditions import without_conditions
from lcspec.sampling.schema_formats import with_pattern
from lcspec.sampling.schema_rewriting import rewritten, without_repetition

MAX_NESTING = 64
# One blank, or a line break with its indentation: a weak model would write blanks for ever.
WHITESPACE = r" |\r?\n[ \t]{0,20}"
SCHEMAS = ("items", "additionalProperties", "additionalItems")
LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
# Keywords of the standard that need more than the text so far, or that llguidance does not know. True: whatever the
# value; else the value with which they say nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "not": (False,),
    "if": (),
    "contains": (),
    "propertyNames": (True, {}),
    "uniqueItems": (False,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
# Keywords that say nothing without one of those above.
IDLE = ("then", "else", "minContains", "maxContains")
# Words for readers: beside a recursive `$ref` the library takes them for conditions.
ANNOTATIONS = (
    "title",
    "description",
    "default",
    "example",
    "examples",
    "discriminator",
    "deprecated",
    "readOnly",
    "writeOnly",
    "nullable",
    "$comment",
)
# Keywords by which a schema takes in others, and all that say something of an object.
REFERRING = ("allOf", "anyOf", "oneOf", "$ref")
ABOUT_OBJECTS = (
    *REFERRING,
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
)
TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
EXCLUSIVE = "its options must exclude each other, by a constant in a property, say; else use anyOf"
TOO_LONG = f"the JSON schema is longer than {MAX_TEXT} bytes with what has to be written out for it: shorten it"
# Parts of so many characters altogether are compiled alone to find the one at fault.
MAX_TRIED = 2 * MAX_TEXT


@dataclass(frozen=True)
class _Part:
    """A schema inside a schema, and where it stands."""

    schema: Any
    path: str
    depth: int


def schema_to_lark(schema: str | bool | dict[str, Any]) -> str:
    """The grammar (Lark) of the JSON texts that follow a schema; properties come in the order the schema has them in.

    Raises:
        GrammarError: not JSON, not a schema, or something in it cannot be held to; the message names the keyword and
            its path.
    """
    return compiled(lambda: _lark_of(schema))


def _lark_of(schema: str | bool | dict[str, Any]) -> str:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise GrammarError(f"the JSON schema is not JSON: {error}") from error
        except RecursionError:
            raise GrammarError("the JSON schema is nested too deeply") from None
    if not isinstance(schema, (dict, bool)):
        raise GrammarError('the JSON schema must be an object such as {"type": "object", ...}')
    checked = _Checker(schema).checked(_Part(schema, "#", 0))
    whole = dict(_object(checked), **{"x-guidance": {"whitespace_pattern": WHITESPACE}})
    text = _json(whole)
    if (levels := schema_levels(whole)) > MAX_LEVELS:
        raise GrammarError(
            f"the JSON schema may lead {levels} levels deep with all that its references name, and the limit is "
            f"{MAX_LEVELS}: write it with fewer definitions"
        )
    problem = _problem(text)
    if EXCEEDED.search(problem):
        raise GrammarError(f"the JSON schema is too large: {TOO_BIG}")
    if problem:
        path, keyword = _at_fault(checked, problem)
        raise GrammarError(f"the JSON schema cannot be held to: {keyword}{path}: {problem}")
    return f"start: %json {text}\n"


class _Checker:
    """Makes of a schema the one for the library, refusing what cannot be held to."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._composed = _is_composed(root)
        self._straight: dict[int, Any] = {}  # schemas that lead to no circle, by id
        self._left = MAX_TEXT // 2  # parts that there may be: none is written with fewer than two bytes

    def checked(self, part: _Part) -> Any:
        """The same schema without what says nothing."""
        schema, path = part.schema, part.path
        self._left -= 1
        if self._left < 0:
            raise GrammarError(TOO_LONG)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarError(
                f"the JSON schema is wrong at {path}: a schema is an object or true, not {_shown(schema)}"
            )
        if part.depth > MAX_NESTING:
            raise GrammarError(f"the JSON schema is nested more than {MAX_NESTING} deep")
        if schema.get("not", False) in (True, {}):  # nothing follows it
            return False
        self._check_circles(schema, path)
        out: dict[str, Any] = {}
        schema = without_conditions(self._with_named_properties(schema), self._resolved)
        for key, value in without_repetition(schema, self._resolved).items():
            if key in IDLE or key in ANNOTATIONS or key.startswith("x-"):
                continue
            if key in UNSUPPORTED:
                if any(value is idle or (value == idle and not isinstance(idle, bool)) for idle in UNSUPPORTED[key]):
                    continue
                raise GrammarError(
                    f"the JSON schema cannot be held to: {key} at {path}/{_escaped(key)} cannot be checked while the "
                    "text is written; leave it out and check the answer"
                )
            out[key] = value
        out = rewritten(out, self._resolved)
        _check_type(out, path)
        with_pattern(out, path)
        _check_count(out, path)
        if not self._composed and _lists_properties(out):
            out["additionalProperties"] = False
        for key in {*SCHEMAS, *LISTS_OF_SCHEMAS, *MAPS_OF_SCHEMAS} & set(out):
            out[key] = copy.copy(out[key])  # the caller's own stays as it is
        for (key, at), inner in _parts(_Part(out, path, part.depth)):
            if at is None:
                out[key] = self.checked(inner)
            else:
                out[key][at] = self.checked(inner)
        return out

    def _check_circles(self, schema: dict[str, Any], path: str) -> None:
        """Refuse references that come back to where they stand and tell of nothing to write on the way."""
        way = {id(schema): (schema, self._as_told(schema, path))}
        while way:
            here, (there, steps) = next(reversed(way.items()))
            step = next(steps, None)
            if step is None:
                self._straight[here] = there
                del way[here]
                continue
            keyword, inner, path = step
            if id(inner) in way:
                where = f"$ref at {keyword[:200]}"
                raise GrammarError(f"the JSON schema cannot be held to: {where} refers to itself: no text follows it")
            if isinstance(inner, dict) and id(inner) not in self._straight:
                way[id(inner)] = inner, self._as_told(inner, path)

    def _as_told(self, schema: dict[str, Any], path: str) -> Iterator[tuple[str, Any, str]]:
        """Schemas that the same text must follow: the path of the keyword that says so, the schema and its path."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield f"{path}/$ref", pointed_at(self._root, reference), reference
        for key in ("allOf", "anyOf", "oneOf"):
            parts = schema.get(key)
            if isinstance(parts, list) and (key == "allOf" or len(parts) == 1):
                for i, part in enumerate(parts):
                    yield f"{path}/{key}/{i}", part, f"{path}/{key}/{i}"

    def _with_named_properties(self, schema: dict[str, Any]) -> dict[str, Any]:
        """`propertyNames` that list or describe the keys of a map, as the properties they stand for."""
        names = self._resolved(schema.get("propertyNames"))
        if not isinstance(names, dict):
            return schema
        told = {key: names[key] for key in names if key not in ("type", "title", "description")}
        if not told and names.get("type") == "string":  # as all names are
            return {k: v for k, v in schema.items() if k != "propertyNames"}
        if "properties" in schema or "patternProperties" in schema:
            return schema
        if told and set(told) <= {"minLength", "maxLength"}:
            told = {"pattern": _of_length(told.get("minLength", 0), told.get("maxLength", ""))}
        value = schema.get("additionalProperties", True)
        listed = told.get("enum", [told["const"]] if "const" in told else None)
        if len(told) != 1 or (listed is None and "pattern" not in told):
            return schema
        rest = {k: v for k, v in schema.items() if k not in ("propertyNames", "additionalProperties")}
        if listed is None:
            return {**rest, "patternProperties": {told["pattern"]: value}, "additionalProperties": False}
        keys = [key for key in listed if isinstance(key, str)] if isinstance(listed, list) else []
        return {**rest, "properties": {key: value for key in keys}, "additionalProperties": False}

    def _resolved(self, schema: Any) -> Any:
        """What a reference to another part of the document leads to, one step."""
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        local = isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))
        return pointed_at(self._root, str(reference)) if local else schema


def _of_length(least: Any, most: Any) -> str:
    return rf"^[\s\S]{{{least},{most}}}$"


def _is_composed(root: Any) -> bool:
    """Whether a document puts schemas for one object together: then none of them lists all its properties."""
    left = [root]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        if not isinstance(part, dict):
            continue
        left += part.values()
        if "if" in part and {"then", "else"} & set(part):
            return True
        others = [key for key in part if key in ABOUT_OBJECTS]
        several = isinstance(part.get("allOf"), list) and len(part["allOf"]) > 1
        if several or (len(others) > 1 and any(key in REFERRING for key in others)):
            return True
    return False


def _lists_properties(schema: dict[str, Any]) -> bool:
    """Whether an object's properties are all there: it says nothing of others."""
    named, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list) or not all(isinstance(k, str) for k in required):
        return False
    return set(required) <= set(named) and not {"additionalProperties", "patternProperties"} & set(schema)


def _check_type(schema: dict[str, Any], path: str) -> None:
    if "type" not in schema:
        return
    named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    for name in named:
        if name not in TYPES:
            raise GrammarError(f"the JSON schema is wrong: type at {path}/type is none of {', '.join(TYPES)}")


def _check_count(schema: dict[str, Any], path: str) -> None:
    """Refuse counts of properties that the same key written twice would satisfy: the library does not see that."""
    least, required = schema.get("minProperties"), schema.get("required")
    certain = len(set(required)) if isinstance(required, list) and all(isinstance(k, str) for k in required) else 0
    if isinstance(least, int) and least > max(1, certain + (certain == 0)):
        raise GrammarError(
            f"the JSON schema cannot be held to: minProperties at {path}/minProperties counts keys that may be written "
            "twice; name them in required"
        )


def _parts(part: _Part) -> Iterator[tuple[tuple[str, str | int | None], _Part]]:
    """The schemas directly inside one, each with its key in it."""

    def inner(schema: Any, *steps: str | int) -> _Part:
        path = "/".join([part.path, *(_escaped(str(step)) for step in steps)])
        return _Part(schema, path, part.depth + 1)

    for key, value in list(part.schema.items()):
        if key in SCHEMAS and not isinstance(value, list):
            yield (key, None), inner(value, key)
        elif key in (*LISTS_OF_SCHEMAS, *SCHEMAS) and isinstance(value, list):
            for i, item in enumerate(value):
                yield (key, i), inner(item, key, i)
        elif key in MAPS_OF_SCHEMAS and isinstance(value, dict):
            for name, item in value.items():
                yield (key, name), inner(item, key, name)


def _problem(text: str) -> str:
    """What the library has against a schema; empty if nothing."""
    failed, said = LLMatcher.validate_grammar_with_warnings(f"{HEADER}start: %json {text}\n", limits=LIMITS)
    if not failed:
        return ""
    lines = [line.strip() for line in str(said[0]).partition("\n<")[0].splitlines()]
    kept = [line for line in lines if line and not re.match(r"\d+ \||\^+$", line)]
    text = re.sub(r"^(at )?(\d+\(\d+\): )?(failed to compile JSON schema: )?", "", " ".join(kept))[:300]
    return EXCLUSIVE if text.startswith("oneOf constraints") else text


def _at_fault(schema: Any, problem: str) -> tuple[str, str]:
    """Where the library's problem lies: the path of the innermost schema that has it, and the keyword to blame."""
    left = MAX_TRIED
    definitions = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, dict) and key in schema}

    def fails(part: Any) -> bool:
        nonlocal left
        if left < 0 or not isinstance(part, (dict, bool)):
            return False
        text = _json({**definitions, **_object(part)}, 2 * MAX_TEXT)
        left -= len(text)
        return bool(_problem(text))

    def search(part: _Part) -> tuple[str, str] | None:
        if not isinstance(part.schema, dict):
            return (part.path, "") if fails(part.schema) else None
        for _, inner in sorted(_parts(part), key=lambda found: found[0][0] not in ("$defs", "definitions")):
            found = search(inner) if fails(inner.schema) else None
            if found:
                return found
        for key in part.schema:
            rest = {k: v for k, v in part.schema.items() if k != key}
            if key not in ("$defs", "definitions") and not fails(rest):
                return f"{part.path}/{_escaped(key)}", f"{key} at "
        return part.path, ""

    return search(_Part(schema, "#", 0)) or ("#", "")


def _object(schema: Any) -> dict[str, Any]:
    """A schema as an object."""
    if isinstance(schema, dict):
        return schema
    return {} if schema else {"anyOf": []}


def _json(value: Any, limit: int = MAX_TEXT) -> str:
    """A schema as text of `limit` bytes at most; what is too long is not written to its end."""
    written, left = list[str](), limit
    try:
        for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            written.append(piece)
            left -= len(piece.encode("utf-8", "surrogatepass"))
            if left < 0:
                raise GrammarError(TOO_LONG)
    except RecursionError:
        raise GrammarError("the JSON schema is nested too deeply") from None
    return "".join(written)


def _escaped(step: str) -> str:
    """A step of a JSON pointer (RFC 6901), shortened."""
    return step[:80].replace("~", "~0").replace("/", "~1")


def _shown(value: Any) -> str:
    return json.dumps(value)[:60]
