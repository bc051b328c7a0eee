"""Values that a JSON schema lists."""

from __future__ import annotations

from typing import Any, Callable, Mapping

Resolve = Callable[[Any], Any]
WORDS = ("$ref", "title", "description")


def followed(schema: Any, resolve: Resolve) -> Mapping[str, Any]:
    """What a reference alone leads to; any other schema is itself.

    Args:
        schema: anything; what is no object becomes an empty one.
        resolve: what a reference leads to, one step.
    """
    for _ in range(8):
        if not isinstance(schema, Mapping) or "$ref" not in schema or set(schema) - set(WORDS):
            break
        schema = resolve(schema)
    return schema if isinstance(schema, Mapping) else {}


def listed(schema: Any, resolve: Resolve) -> list[Any] | None:
    """The values that a schema allows; None if it does not list them."""
    known = followed(schema, resolve)
    if "const" in known:
        return [known["const"]]
    if isinstance(known.get("enum"), list):
        return list(known["enum"])
    few: dict[str, list[Any]] = {"boolean": [False, True], "null": [None]}
    return few.get(str(known.get("type")))


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal: true is not 1."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
