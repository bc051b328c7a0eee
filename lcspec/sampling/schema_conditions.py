"""`if`, `then` and `else` in a JSON schema as alternatives, where the opposite of the `if` can be written down.

It can where the `if` names properties whose values the object lists, or which properties there must be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from lcspec.sampling.schema_values import Resolve, listed, same

CONDITION = ("if", "then", "else")
# What makes of listed properties not all of them.
OPEN = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref")


@dataclass
class _Condition:
    """Alternatives, each a list of schemas that hold together; `names`: the properties each one tells of."""

    branches: list[list[Any]]
    names: list[set[str]]


def without_conditions(schema: dict[str, Any], resolve: Resolve) -> dict[str, Any]:
    """The schema with its conditions, also those under its `allOf`, as alternatives; as it is if one cannot be.

    Args:
        schema: stays as it is.
        resolve: what a reference leads to, one step.
    """
    parts = schema["allOf"] if isinstance(schema.get("allOf"), list) else []
    alone = [part for part in parts if isinstance(part, dict) and "if" in part and set(part) <= set(CONDITION)]
    told = [part for part in (schema, *alone) if "if" in part]
    if not told:
        return schema
    base = {key: value for key, value in schema.items() if key not in (*CONDITION, "allOf")}
    rest = [part for part in parts if not any(part is one for one in alone)]
    if rest:
        base["allOf"] = rest
    found: list[_Condition] = []
    for part in told:
        if {"then", "else"} & set(part):  # else it says nothing
            condition = _alternatives(part, base, resolve)
            if condition is None:
                return schema
            found.append(condition)
    _close(base, found)
    options = [{"anyOf": [{"allOf": branch} for branch in condition.branches]} for condition in found]
    return {**base, "allOf": [*rest, *options]} if options else base


def _alternatives(part: Mapping[str, Any], base: Mapping[str, Any], resolve: Resolve) -> _Condition | None:
    opposites = _opposites(part["if"], base, resolve)
    if opposites is None:
        return None
    pairs = [(part["if"], part.get("then", True)), *((other, part.get("else", True)) for other in opposites)]
    branches = [[schema for schema in pair if schema is not True] for pair in pairs]
    names: list[set[str]] = []
    for branch in branches:
        names.append(set())
        for schema in branch:
            if schema is not False and not isinstance(schema, dict):
                return None
            for key in ("properties", "required"):
                names[-1] |= set(schema.get(key, ()) if isinstance(schema, dict) else ())
    return _Condition(branches, names)


def _opposites(condition: Any, base: Mapping[str, Any], resolve: Resolve) -> list[dict[str, Any]] | None:
    """Schemas of which one holds wherever the condition does not; None: they cannot be written down."""
    if not isinstance(condition, Mapping) or set(condition) - {"properties", "required", "type"}:
        return None
    named, required = condition.get("properties", {}), condition.get("required", [])
    if base.get("type") != "object" or condition.get("type", "object") != "object":
        return None
    if not isinstance(named, Mapping) or not isinstance(required, list) or not (named or required):
        return None
    known = base.get("properties")
    found: list[dict[str, Any]] = []
    for key, wanted in named.items():
        every = listed(known.get(key), resolve) if isinstance(known, Mapping) else None
        values = listed(wanted, resolve)
        if every is None or values is None:
            return None
        rest = [value for value in every if not any(same(value, other) for other in values)]
        # Without the property the condition holds, unless it requires it.
        found.append({"properties": {key: {"enum": rest} if rest else False}})
        if key not in required:
            found[-1]["required"] = [key]
    return found + [{"properties": {key: False}} for key in required if key not in named]


def _close(base: dict[str, Any], conditions: list[_Condition]) -> None:
    """An object that lists its properties gets no others but those that a condition names, where it names them."""
    if not isinstance(base.get("properties"), Mapping) or set(OPEN) & set(base):
        return
    properties = dict(base["properties"])
    together = [set[str]().union(*condition.names) for condition in conditions]
    for i, condition in enumerate(conditions):
        more = together[i] - set(base["properties"])
        properties |= {key: True for key in sorted(more)}
        # What several conditions name is for none of them to forbid.
        more -= set[str]().union(*together[:i], *together[i + 1 :])
        for branch, names in zip(condition.branches, condition.names):
            absent = sorted(more - names)
            if absent:
                branch.append({"properties": {key: False for key in absent}})
    base["properties"], base["additionalProperties"] = properties, False
