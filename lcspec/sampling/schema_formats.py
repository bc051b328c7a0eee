"""Formats of strings in JSON schemas: which are held to while writing, and the patterns that hold to them."""

from __future__ import annotations

from typing import Any

from lcspec.errors import GrammarError

# Formats that are held to, and those of the standard that cannot be. Other names are annotations (int32, password).
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "regex")
OTHER_FORMATS = (
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "json-pointer",
    "relative-json-pointer",
    "uri-reference",
    "uri-template",
)
# llguidance's dates include the year 0, 31 April, the 60th second and endless fractions, at which most readers stop.
DATE = (
    r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29"
)
CLOCK = r"[0-9]{2}:[0-9]{2}:[0-5][0-9](?:\.[0-9]{1,6})?(?:[Zz]|[+-][0-9:]+)$"
CALENDAR = {
    "date": f"^(?:{DATE})$",
    "date-time": f"^(?:{DATE})[Tt]{CLOCK}",
    "time": f"^{CLOCK}",
}
# Regular expressions without nesting, which every reader knows.
_ESCAPED, _CLASS = r"\\[dDwWsSnrt.\\/^$*+?(){}|\[\]-]", r"\[\^?(?:[A-Za-z0-9_ .,:@]|a-z|A-Z|0-9|\\[dws.\]\[-])+\]"
_ATOM = rf"(?:[A-Za-z0-9 _,:;@#%&=!<>/'~.-]|{_ESCAPED}|{_CLASS})(?:[*+?]|\{{[0-9]{{1,2}}\}})?"
WRITTEN_OUT = {**CALENDAR, "regex": rf"^\^?(?:{_ATOM}|\((?:{_ATOM})+(?:\|(?:{_ATOM})+)*\)[*+?]?)*\$?$"}


def with_pattern(schema: dict[str, Any], path: str) -> None:
    """Write a format that the library knows too loosely into `schema` as a pattern, and take out what says nothing.

    Raises:
        GrammarError: the format at `path` cannot be held to.
    """
    name = schema.get("format")
    if name in OTHER_FORMATS:
        raise GrammarError(
            f"the JSON schema cannot be held to: format at {path}/format: {name} is not one of {', '.join(FORMATS)}"
        )
    if isinstance(name, str) and (name not in FORMATS or name == "regex"):
        del schema["format"]
    if name in WRITTEN_OUT and "pattern" in schema:
        schema["allOf"] = [*(schema.get("allOf") or ()), {"pattern": WRITTEN_OUT[str(name)]}]
    elif name in WRITTEN_OUT:
        schema["pattern"] = WRITTEN_OUT[str(name)]
