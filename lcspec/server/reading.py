"""How a request wants its answer read: reasoning on or off, or in the text, and calls of which tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from lcspec.answers.formats import GENERIC, Format, Tags, format_of, opened_by
from lcspec.answers.reader import AnswerReader
from lcspec.server.errors import invalid
from lcspec.server.schemas_chat import ChatBody
from lcspec.server.tools import ToolUse

# What templates call the switch.
SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True)
class Reading:
    """How to read the answers to one prompt.

    Attributes:
        form: the model's format; opened: tags of reasoning that the prompt has opened.
        use: the tools; forced: a grammar makes the answer JSON.
        inline: reasoning stays in the text.
    """

    form: Format = GENERIC
    opened: Tags | None = None
    use: ToolUse = ToolUse()
    forced: bool = False
    inline: bool = False

    def reader(self) -> AnswerReader:
        """For one text."""
        tools = [tool["function"] for tool in self.use.tools] if self.use.active else []
        return AnswerReader(
            self.form,
            tools,
            opened=self.opened,
            forced=self.forced,
            parallel=self.use.parallel is not False,
            inline=self.inline,
        )


def reading_of(
    template: str, prompt: str, use: ToolUse, constrained: bool, body: ChatBody | None = None
) -> tuple[Reading, str]:
    """How to read what follows `prompt`, and the prompt: with a grammar (`constrained`) or a budget of nothing its
    reasoning is closed."""
    form = format_of(template)
    budget = budget_of(body) if body is not None else None
    off = budget == 0 or (body is not None and switched_off(body))
    opened = opened_by(form, prompt)
    if opened is not None and (constrained or off):
        prompt, opened = f"{prompt.rstrip()}{_blank(opened)}{opened.end}{_blank(opened)}", None
    if constrained or (off and form.channels is not None):
        prompt += form.answer
    inline = body is not None and body.reasoning_format == "none"
    forced = constrained and (body is None or body.grammar is None)  # a grammar of the user's may ask for anything
    return Reading(form, opened, use, forced, inline), prompt


def _blank(tags: Tags) -> str:
    return "\n\n" if tags.literal.startswith("<") and "|" not in tags.literal else ""


def budget_of(body: ChatBody) -> int | None:
    """Tokens that the model may think: 0, or None for no limit.

    Raises:
        ApiError: two different ones are given, or one in between.
    """
    given = {b for b in (body.reasoning_budget_tokens, body.thinking_budget_tokens) if b is not None}
    if len(given) > 1:
        raise invalid("give reasoning_budget_tokens or thinking_budget_tokens, not both", "thinking_budget_tokens")
    budget = next(iter(given), -1)
    if budget > 0:
        raise invalid(
            "a budget for reasoning can be 0 (no reasoning) or -1 (no limit) here: max_tokens bounds the whole answer",
            "reasoning_budget_tokens",
        )
    return None if budget < 0 else budget


def switched_off(body: ChatBody) -> bool:
    """Whether the request wants no reasoning."""
    if body.think is not None and body.enable_thinking is None:
        return body.think is False
    return body.enable_thinking is False or (body.enable_thinking is None and body.reasoning_effort == "none")


def template_arguments(body: ChatBody) -> dict[str, Any]:
    """What the template is told about reasoning; `chat_template_kwargs` comes first."""
    return thinking_arguments(body.template_kwargs, body.reasoning_effort, body.enable_thinking, budget_of(body))


def thinking_arguments(
    given: Mapping[str, Any] | None, effort: str | None, enable: bool | None, budget: int | None = None
) -> dict[str, Any]:
    """The same, for any endpoint."""
    if enable is None and (effort == "none" or budget == 0):
        enable = False
    found: dict[str, Any] = {}
    if enable is not None:
        found |= dict.fromkeys(SWITCHES, enable)
    if effort is not None and effort != "none":
        found["reasoning_effort"] = effort
    return found | dict(given or {})
