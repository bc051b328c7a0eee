"""Schemas in words that llguidance understands: the same texts, or fewer where it would let wrong ones through."""

from __future__ import annotations

import math
from itertools import combinations, permutations
from typing import Any, Hashable, Iterable, Mapping, TypeGuard

from lcspec.sampling.schema_values import Resolve, followed, listed, same

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
# Arrays without repetition are written out: in any order if there are so many at most, else in the list's order.
MAX_ORDERS = 400
MAX_CHOICES = 256
# Options without listed values, each of which is compared with each.
MAX_COMPARED = 256


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


def without_repetition(schema: dict[str, Any], resolve: Resolve) -> dict[str, Any]:
    """An array of different values (`uniqueItems`) written out, if its items are listed and few; else as it is.

    Args:
        schema: stays as it is.
        resolve: what a reference leads to, one step.
    """
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if schema.get("uniqueItems") is not True or not _is_count(least) or not (most is None or _is_count(most)):
        return schema
    rest = {key: value for key, value in schema.items() if key != "uniqueItems"}
    if most is not None and most <= 1:
        return rest
    values = listed(schema.get("items"), resolve)
    if values is None or schema.get("type") != "array" or {"anyOf", "prefixItems", "contains"} & set(schema):
        return schema
    values = [value for i, value in enumerate(values) if not any(same(value, other) for other in values[:i])]
    lengths = range(least, min(len(values), len(values) if most is None else most) + 1)
    if sum(math.perm(len(values), n) for n in lengths) <= MAX_ORDERS:
        found = [choice for n in lengths for choice in permutations(values, n)]
    elif sum(math.comb(len(values), n) for n in lengths) <= MAX_CHOICES:
        found = [choice for n in lengths for choice in combinations(values, n)]
    else:
        return schema
    for key in ("items", "minItems", "maxItems"):
        rest.pop(key, None)
    return {**rest, "anyOf": [_exactly(choice) for choice in found]} if found else schema


def _exactly(values: Iterable[Any]) -> dict[str, Any]:
    consts = [{"const": value} for value in values]
    return {"type": "array", "prefixItems": consts, "items": False, "minItems": len(consts)}


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _exclude_each_other(options: list[Any], resolve: Resolve) -> bool:
    """Whether no value follows two of the options, as far as can be seen; the library does not look behind
    references."""
    known = [followed(option, resolve) for option in options]
    values = [listed(option, resolve) for option in known]
    told = [one for one in values if one is not None]
    if len(told) == len(known):
        return _without_common(told)
    if len(known) > MAX_COMPARED:
        return False
    return all(_differ(a, b, resolve) for i, a in enumerate(known) for b in known[:i])


def _without_common(lists: list[list[Any]]) -> bool:
    """Whether no value is in two of the lists; where in doubt, as with 1 and true, it is."""
    seen: set[Hashable] = set()
    for values in lists:
        these = {_hashable(value) for value in values}
        if these & seen:
            return False
        seen |= these
    return True


def _hashable(value: Any) -> Hashable:
    """The same for equal JSON values."""
    if isinstance(value, dict):
        return frozenset((key, _hashable(inner)) for key, inner in value.items())
    return tuple(_hashable(inner) for inner in value) if isinstance(value, list) else value


def _differ(a: Mapping[str, Any], b: Mapping[str, Any], resolve: Resolve) -> bool:
    """By their types, listed values, ranges of numbers, a constant that both require, or a property that one requires
    and the other does not allow."""
    first, second = _types(a), _types(b)
    if first and second and not first & second or _share_no_value(a, b, resolve):
        return True
    if first == second == {"number"}:
        return _below(a, b) or _below(b, a)
    if first != {"object"} or second != {"object"}:
        return False
    both = set(_strings(a.get("required"))) & set(_strings(b.get("required")))
    if any(_share_no_value(_property(a, key), _property(b, key), resolve) for key in both):
        return True
    return _requires_more(a, b) or _requires_more(b, a)


def _share_no_value(a: Any, b: Any, resolve: Resolve) -> bool:
    one, other = listed(a, resolve), listed(b, resolve)
    # 1 and true are the same for some readers: where in doubt, they are shared.
    return one is not None and other is not None and not any(x == y for x in one for y in other)


def _below(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether all numbers of `a` are less than those of `b`."""
    most = [(a[key], key == "maximum") for key in ("maximum", "exclusiveMaximum") if _is_number(a.get(key))]
    least = [(b[key], key == "minimum") for key in ("minimum", "exclusiveMinimum") if _is_number(b.get(key))]
    return any(x < y or (x == y and not (closed and shut)) for x, closed in most for y, shut in least)


def _requires_more(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if (
        b.get("additionalProperties") is not False
        or "patternProperties" in b
        or not isinstance(b.get("properties", {}), Mapping)
    ):
        return False
    return bool(set(_strings(a.get("required"))) - set(b.get("properties", {})))


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
