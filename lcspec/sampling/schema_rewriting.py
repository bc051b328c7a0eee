"""Schemas in words that llguidance understands: the same texts, or fewer where it would let wrong ones through."""

from __future__ import annotations

import math
from typing import Any, Callable, Iterable, Mapping, TypeGuard

# Every number from here on has neighbours that floats cannot tell apart, and the library counts in floats.
EXACT = 2**53
# It overflows beyond.
LARGEST = 2**63 - 1024
# Patterns that clients write with look-around, which no automaton has, and the same without.
PLAIN = {
    # pydantic's numbers in text
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)$",
    # zod's addresses
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        r"^([A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+\-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
    ),
}
LOOK_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
Resolve = Callable[[Any], Any]


def rewritten(schema: dict[str, Any], resolve: Resolve) -> dict[str, Any]:
    """The schema, not looking into those inside it.

    Args:
        schema: a copy that may be changed.
        resolve: what a reference leads to, one step.
    """
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        schema["pattern"] = PLAIN.get(pattern, pattern)
    if isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = _without_numbers_in_text(schema["anyOf"])
    options = schema.get("oneOf")
    if isinstance(options, list) and "anyOf" not in schema and _exclude_each_other(options, resolve):
        schema = {"anyOf" if key == "oneOf" else key: value for key, value in schema.items()}
    _exact_bounds(schema)
    _open_bounds(schema)
    return schema


def _without_numbers_in_text(options: list[Any]) -> list[Any]:
    """Older pydantic allows decimal numbers as numbers or in strings of a pattern with look-around."""
    if not any(isinstance(option, Mapping) and option.get("type") == "number" for option in options):
        return options
    return [option for option in options if not _looks_around(option)]


def _looks_around(option: Any) -> bool:
    pattern = option.get("pattern") if isinstance(option, Mapping) else None
    return isinstance(pattern, str) and pattern not in PLAIN and any(mark in pattern for mark in LOOK_AROUND)


def _exclude_each_other(options: list[Any], resolve: Resolve) -> bool:
    """Whether no value follows two of the options, as their types say or a constant that both require; the library
    does not look behind references."""
    known = [_followed(option, resolve) for option in options]
    return all(_differ(a, b, resolve) for i, a in enumerate(known) for b in known[:i])


def _followed(schema: Any, resolve: Resolve) -> Mapping[str, Any]:
    for _ in range(8):
        if not isinstance(schema, Mapping) or set(schema) - {"$ref", "title", "description"}:
            break
        schema = resolve(schema)
    return schema if isinstance(schema, Mapping) else {}


def _differ(a: Mapping[str, Any], b: Mapping[str, Any], resolve: Resolve) -> bool:
    first, second = _types(a), _types(b)
    if first and second and not first & second:
        return True
    if first != {"object"} or second != {"object"}:
        return False
    for key in set(_strings(a.get("required"))) & set(_strings(b.get("required"))):
        one, other = (_values(_property(schema, key), resolve) for schema in (a, b))
        if one and other and not set(one) & set(other):
            return True
    return False


def _types(schema: Mapping[str, Any]) -> set[str]:
    """JSON types; an integer is a number. Empty if it says nothing."""
    named = schema.get("type")
    found = set(_strings([named] if isinstance(named, str) else named))
    return {"number" if name == "integer" else name for name in found}


def _strings(value: Any) -> Iterable[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _property(schema: Mapping[str, Any], key: str) -> Any:
    named = schema.get("properties")
    return named.get(key) if isinstance(named, Mapping) else None


def _values(schema: Any, resolve: Resolve) -> list[str]:
    """The strings that a schema allows, if it lists them."""
    known = _followed(schema, resolve)
    listed = known.get("enum", [known["const"]] if "const" in known else None)
    return listed if isinstance(listed, list) and all(isinstance(value, str) for value in listed) else []


def _exact_bounds(schema: dict[str, Any]) -> None:
    """Bounds that floats cannot hold are moved inwards to ones that they can."""
    for key, sign in (("minimum", 1), ("exclusiveMinimum", 1), ("maximum", -1), ("exclusiveMaximum", -1)):
        value = schema.get(key)
        if type(value) is not int or abs(value) < EXACT:
            continue
        if -(2**63) <= value < -LARGEST and sign > 0 or LARGEST < value < 2**63 and sign < 0:
            value = -sign * LARGEST
        if abs(value) < 2**1000 and int(float(value)) * sign < value * sign:
            value = int(math.nextafter(float(value), sign * math.inf))
        schema[key] = value


def _open_bounds(schema: dict[str, Any]) -> None:
    """The library lets an excluded whole number through where the other bound is less than one away from it."""
    for key, closed, other, sign in (
        ("exclusiveMinimum", "minimum", "maximum", 1),
        ("exclusiveMaximum", "maximum", "minimum", -1),
    ):
        edge, far = schema.get(key), schema.get(other, schema.get("exclusive" + other.title()))
        if not _is_number(edge) or not _is_number(far) or edge != int(edge) or abs(edge) >= EXACT:
            continue
        width = (far - edge) * sign
        if 0 < width < 1 and closed not in schema:
            step = 10.0 ** (math.floor(math.log10(width)) - 3)
            del schema[key]
            schema[closed] = edge + sign * step


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
