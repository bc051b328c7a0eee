"""Arguments of calls, typed by the tool's JSON schema."""

from __future__ import annotations

import ast
import json
from typing import Any, Iterator, Mapping

from lcspec.answers.json_text import dumps, loads

NAMES = {"true": True, "false": False, "null": None, "none": None}
TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array",
                          dict: "object", type(None): "null"}  # fmt: skip
# References of schemas to themselves end somewhere.
MAX_HOPS = 8


class Parameters:
    """The parameters of one function.

    Attributes:
        schema: their JSON schema; {} if the function is not known.
    """

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self.schema: Mapping[str, Any] = schema or {}

    def of(self, key: str) -> Any:
        """The schema of the parameter `key`; {} if there is none."""
        found = self._resolved(self.schema).get("properties")
        return found.get(key, {}) if isinstance(found, Mapping) else {}

    def types(self, schema: Any) -> frozenset[str]:
        """JSON types that `schema` allows; empty if it says nothing."""
        return frozenset(self._types(schema, 0))

    def is_string(self, key: str) -> bool:
        """Whether the parameter can be nothing but a string."""
        return self.types(self.of(key)) == {"string"}

    @property
    def only_string(self) -> str | None:
        """The one parameter, if there is one only and it is a string."""
        keys = self._resolved(self.schema).get("properties")
        names = list(keys) if isinstance(keys, Mapping) else []
        return names[0] if len(names) == 1 and self.is_string(names[0]) else None

    def text(self, key: str, raw: str, is_string: bool | None = None) -> str:
        """JSON text for a value written as plain text; `is_string`: what the model says about it, None for nothing."""
        return typed(raw, frozenset({"string"}) if is_string else self.types(self.of(key)))

    def nested(self, schema: Any, key: str) -> Any:
        """The schema of a property below `schema`, of any of its alternatives; {} if there is none."""
        for part in self.alternatives(schema):
            found = part.get("properties")
            if isinstance(found, Mapping) and key in found:
                return found[key]
        return {}

    def items(self, schema: Any) -> Any:
        """The schema of an array's items."""
        return next((p["items"] for p in self.alternatives(schema) if isinstance(p.get("items"), Mapping)), {})

    def alternatives(self, schema: Any, hops: int = 0) -> Iterator[Mapping[str, Any]]:
        """`schema` and what stands below its anyOf, oneOf and allOf."""
        schema = self._resolved(schema)
        yield schema
        if hops < MAX_HOPS:
            for word in ("anyOf", "oneOf", "allOf"):
                for part in schema.get(word) or ():
                    yield from self.alternatives(part, hops + 1)

    def _types(self, schema: Any, hops: int) -> Iterator[str]:
        for part in self.alternatives(schema):
            word = part.get("type")
            if isinstance(word, str):
                yield word
            elif isinstance(word, list):
                yield from (w for w in word if isinstance(w, str))
            elif isinstance(part.get("enum"), list):
                yield from (TYPES[type(v)] for v in part["enum"] if type(v) in TYPES)
            elif "const" in part and type(part["const"]) in TYPES:
                yield TYPES[type(part["const"])]

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        for _ in range(MAX_HOPS):
            place = schema.get("$ref") if isinstance(schema, Mapping) else None
            if not isinstance(place, str) or not place.startswith("#"):
                break
            schema = self.schema
            for step in place[1:].strip("/").split("/"):
                step = step.replace("~1", "/").replace("~0", "~")
                schema = schema.get(step, {}) if isinstance(schema, Mapping) and step else schema
        return schema if isinstance(schema, Mapping) else {}


def typed(raw: str, types: frozenset[str]) -> str:
    """JSON text for `raw`: a string stays a string however much it looks like JSON, unless another type is allowed and
    it is a value of that."""
    if types == {"string"}:
        return dumps(raw)
    text = raw.strip()
    try:
        value = loads(text)
    except ValueError:
        try:
            value = python_value(text)
        except ValueError:
            return dumps(raw)
        if isinstance(value, str) and "string" in types:
            return dumps(raw)
        text = dumps(value)
    if "string" in types and (isinstance(value, str) or not allowed(value, types)):
        return dumps(raw)
    if types == {"integer"} and isinstance(value, float) and value.is_integer():
        return str(int(value))
    try:
        json.loads(text)
    except ValueError:  # its line breaks were forgiven
        return dumps(value)
    return text


def allowed(value: Any, types: frozenset[str]) -> bool:
    """Whether a value is of one of the types."""
    found = TYPES.get(type(value), "")
    return found in types or (found == "integer" and "number" in types)


def python_value(text: str) -> Any:
    """The value of a Python literal; `true`, `false` and `null` are known as well.

    Raises:
        ValueError: it is none.
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"not a literal: {text[:80]!r}") from error


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in TYPES:
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {str(_value(k)): _value(v) for k, v in zip(node.keys, node.values) if k is not None}
    if isinstance(node, ast.Name) and node.id.lower() in NAMES:
        return NAMES[node.id.lower()]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand)
        if type(value) in (int, float):
            return -value if isinstance(node.op, ast.USub) else value
    raise ValueError(f"not a literal: {ast.dump(node)[:80]}")
