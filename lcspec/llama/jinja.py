"""The Jinja dialect that chat templates are written in, in a sandbox.

It is what Hugging Face's renderer and llama.cpp's take together: loop controls, `{% generation %}` blocks (a mark for
training that changes no text), `tojson` with its keywords, `strftime_now`, `raise_exception`, and `append` and `pop` on
lists, which a stricter sandbox would refuse.
"""

from __future__ import annotations

import datetime
import json
from typing import Any, Callable, Iterator

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

Clock = Callable[[], datetime.datetime]
# What a template may do to a list. Lists are copies, and never longer than the sandbox's ranges.
LIST_METHODS = ("append", "pop")


class Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`: what is inside, as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Missing(jinja2.Undefined):
    """A value that is not there. Written beside text it is empty, as in llama.cpp; what reads its parts fails."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return other if isinstance(other, str) else self._fail_with_undefined_error()

    def __radd__(self, other: Any) -> Any:
        return other if isinstance(other, str) else self._fail_with_undefined_error()


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox for templates out of model files. `clock` says what time it is."""

    def __init__(self, clock: Clock = datetime.datetime.now) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", Generation],
            undefined=Missing,
            cache_size=0,
        )
        self.filters["tojson"] = to_json
        self.filters["safe"] = str  # there is no HTML here, and Jinja's mark would have other texts escaped
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = lambda form: clock().strftime(form)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """As the sandbox, and a list's `append` and `pop`."""
        return (type(obj) is list and attr in LIST_METHODS) or super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """As the sandbox; lists do not grow without end."""
        owner = getattr(__obj, "__self__", None)
        if type(owner) is list and len(owner) >= MAX_RANGE:
            raise SecurityError(f"a list grew beyond {MAX_RANGE} entries")
        return super().call(__context, __obj, *args, **kwargs)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
    **_: Any,
) -> str:
    """JSON of a value. Jinja's own filter escapes HTML, which templates for models do not expect."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_plain
    )


def _plain(value: Any) -> Any:
    """What JSON does not know: results of `map` and `select` are lists, and what is missing is null."""
    if isinstance(value, jinja2.Undefined):
        return None
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def raise_exception(message: str) -> None:
    """A template's way to refuse a conversation.

    Raises:
        jinja2.TemplateError: always.
    """
    raise jinja2.TemplateError(message)


def variables(text: str) -> frozenset[str]:
    """Names that a template reads from outside; none if it is not valid."""
    try:
        return frozenset(meta.find_undeclared_variables(TemplateEnvironment().parse(text)))
    except jinja2.TemplateError:
        return frozenset()
