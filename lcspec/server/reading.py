"""How a request wants its answer read: reasoning on or off, or in the text, and calls of which tools."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Mapping

from lcspec.answers.formats import GENERIC, Format, Tags, format_of
from lcspec.answers.openings import SWITCHES, closed, continued_by, opened_by
from lcspec.answers.reader import AnswerReader
from lcspec.sampling.reasoning_budget import ReasoningBudget, ReasoningTags
from lcspec.server.errors import invalid
from lcspec.server.schemas_chat import ChatBody
from lcspec.server.tools import ToolUse

if TYPE_CHECKING:
    from lcspec.engine_host import TextVocab


@dataclass(frozen=True)
class Reading:
    """How to read the answers to one prompt.

    Attributes:
        form: the model's format; opened: tags of reasoning that the prompt has opened.
        use: the tools; forced: a grammar makes the answer JSON.
        inline: reasoning stays in the text; continued: the prompt has begun the reasoning.
        budget: tokens that it may reason for; None = no limit, or no reasoning.
        raw_calls: calls stay in the text.
    """

    form: Format = GENERIC
    opened: Tags | None = None
    use: ToolUse = ToolUse()
    forced: bool = False
    inline: bool = False
    continued: bool = False
    budget: int | None = None
    raw_calls: bool = False

    def limit(self, vocab: TextVocab) -> ReasoningBudget | None:
        """The budget as the sampler keeps it."""
        if self.budget is None or not self.form.reasoning:
            return None

        def known(tags: Tags) -> ReasoningTags:
            closing = tuple(vocab.tokenize(tags.end, special=False))
            return ReasoningTags(tags.literal.strip().encode(), tags.end.strip().encode(), closing)

        return ReasoningBudget(
            self.budget,
            tuple(known(tags) for tags in self.form.reasoning),
            partial(vocab.piece, special=True),
            vocab.n_tokens,
            known(self.opened) if self.opened is not None else None,
        )

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The tools whose calls are read."""
        read = self.use.active and not self.raw_calls
        return [tool["function"] for tool in self.use.tools] if read else []

    def reader(self) -> AnswerReader:
        """For one text."""
        return AnswerReader(
            self.form,
            self.functions,
            opened=self.opened,
            continued=self.continued,
            forced=self.forced,
            parallel=self.use.parallel is not False,
            inline=self.inline,
        )


def reading_of(
    template: str,
    prompt: str,
    use: ToolUse,
    constrained: bool,
    body: ChatBody | None = None,
    usual: int = -1,
    begun: str | None = None,
) -> tuple[Reading, str]:
    """How to read what follows `prompt`, and the prompt: with a grammar (`constrained`) or a budget of nothing its
    reasoning is closed. `usual`: the budget of requests that name none; `begun`: how the answer begins in the prompt,
    if it does."""
    form = format_of(template)
    budget = budget_of(body, usual) if body is not None else None if usual < 0 else usual
    off = constrained or budget == 0 or (body is not None and switched_off(body))
    opened = opened_by(form, prompt) if begun is None else continued_by(form, prompt, begun)
    if off:
        prompt, opened = closed(prompt, opened) + (form.answer if begun is None else ""), None
    inline = body is not None and body.reasoning_format == "none"
    forced = constrained and (body is None or body.grammar is None)  # a grammar of the user's may ask for anything
    limit = None if off else budget
    raw_calls = body is not None and body.parse_tool_calls is False
    return Reading(form, opened, use, forced, inline, begun is not None, limit, raw_calls), prompt


def budget_of(body: ChatBody, usual: int = -1) -> int | None:
    """Tokens that the model may reason for: what the request says, else `usual`; None for no limit.

    Raises:
        ApiError: it says two different things.
    """
    names = ("reasoning_budget_tokens", "thinking_budget_tokens", "reasoning_budget", "thinking_budget")
    given = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
    if len(set(given.values())) > 1:
        first, second = list(given)[:2]
        raise invalid(f"give {first} or {second}, not both", second)
    budget: int = next(iter(given.values()), usual)
    return None if budget < 0 else budget


def switched_off(body: ChatBody) -> bool:
    """Whether the request wants no reasoning."""
    if body.think is not None and body.enable_thinking is None:
        return body.think is False
    return body.enable_thinking is False or (body.enable_thinking is None and body.reasoning_effort == "none")


def template_arguments(body: ChatBody, constrained: bool, usual: int = -1) -> dict[str, Any]:
    """What the template is told about reasoning; `chat_template_kwargs` comes first."""
    budget = budget_of(body, usual)
    return thinking_arguments(body.template_kwargs, body.reasoning_effort, body.enable_thinking, constrained, budget)


def thinking_arguments(
    given: Mapping[str, Any] | None,
    effort: str | None,
    enable: bool | None,
    constrained: bool,
    budget: int | None = None,
) -> dict[str, Any]:
    """The same, for any endpoint. Where nothing is said about it, the template's own switch is on (see
    ChatTemplate.render)."""
    if enable is None and (constrained or budget == 0 or effort is not None):
        enable = not (constrained or budget == 0 or effort == "none")
    found: dict[str, Any] = {}
    if enable is not None:
        found |= dict.fromkeys(SWITCHES, enable)
    if effort is not None and effort != "none":
        found["reasoning_effort"] = effort
    return found | dict(given or {})
