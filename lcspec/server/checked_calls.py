"""Do the arguments of an answer's tool calls follow the tools' schemas?

Where no grammar forced them a model may write anything. The answer goes out as it was written, because the client can
tell the model what is wrong; here it is only found out, for the log and the metrics. Schemas come from strangers:
nothing is fetched for them, patterns have a time limit, and references are counted.
"""

from __future__ import annotations

import json
from typing import Any, Iterator, Mapping, Sequence

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Registry

PATTERN_SECONDS = 0.05
MAX_REFERENCES = 2_000
VALID, INVALID, MALFORMED, UNKNOWN, UNCHECKED = "valid", "invalid", "malformed", "unknown_function", "unchecked"
# They ask the standard library for patterns, which knows no time limit.
LEFT_OUT = ("unevaluatedProperties", "unevaluatedItems")

Errors = Iterator[ValidationError]


class TooMuch(Exception):
    """The schema takes too long."""


def check_call(tools: Sequence[Mapping[str, Any]], name: str, arguments: str) -> tuple[str, str]:
    """What is to be said of a call, one of the words above, and the keyword of the schema that it violates (or "").

    Args:
        tools: functions as the OpenAI API describes them ({"name", "parameters", ...}).
        name: the function that is called.
        arguments: JSON text.
    """
    function = next((tool for tool in tools if tool["name"] == name), None)
    if function is None:
        return UNKNOWN, ""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        return MALFORMED, ""
    try:
        error = next(_validator(function.get("parameters") or {}).iter_errors(given), None)
    except Exception:  # whatever the library trips over in a schema that is none
        return UNCHECKED, ""
    return (VALID, "") if error is None else (INVALID, str(error.validator))


def _validator(schema: Mapping[str, Any]) -> Any:
    base: Any = validator_for(schema, default=Draft202012Validator)
    left = MAX_REFERENCES
    references = {name: base.VALIDATORS[name] for name in ("$ref", "$dynamicRef") if name in base.VALIDATORS}

    def counted(name: str) -> Any:
        def follow(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
            nonlocal left
            left -= 1
            if left < 0:
                raise TooMuch
            yield from references[name](validator, value, instance, schema) or ()

        return follow

    own: dict[str, Any] = {"pattern": _pattern, "patternProperties": _pattern_properties}
    own |= {"additionalProperties": _additional} | {name: counted(name) for name in references}
    own |= {name: _nothing for name in LEFT_OUT}
    return extend(base, own)(schema, registry=Registry())


def _matches(pattern: str, text: str) -> bool:
    try:
        return regex.search(pattern, text, timeout=PATTERN_SECONDS, concurrent=True) is not None
    except TimeoutError as error:
        raise TooMuch from error


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError("does not match")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict):
        for pattern, inner in patterns.items():
            for key, value in instance.items():
                if _matches(pattern, key):
                    yield from validator.descend(value, inner, path=key, schema_path=pattern)


def _additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, dict):
        return
    for key, value in instance.items():
        if key in schema.get("properties", {}) or any(_matches(p, key) for p in schema.get("patternProperties", {})):
            continue
        if allowed is False:
            yield ValidationError("is not allowed")
        elif isinstance(allowed, dict):
            yield from validator.descend(value, allowed, path=key)


def _nothing(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
    yield from ()
