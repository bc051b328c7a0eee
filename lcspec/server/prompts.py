"""From bodies to engine requests: rendering, tokenizing, grammars. All of it runs beside the event loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from lcspec.config import SpeculationParams
from lcspec.errors import GrammarError
from lcspec.grammars import check_grammar
from lcspec.server.errors import invalid
from lcspec.server.parameters import sampling_params, speculation_params
from lcspec.server.schemas import Prediction, Sampling, Speculation
from lcspec.server.schemas_chat import (
    AllowedToolChoice,
    ContentPart,
    Message,
    ResponseFormat,
    TextFormat,
    Tool,
    ToolChoice,
)
from lcspec.server.service import Service
from lcspec.server.tools import ToolUse, render
from lcspec.slot import Request

OWN_NAMES = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "self")
ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class Wanted:
    """What any generating endpoint wants of the engine, apart from the prompt."""

    sampling: Sampling
    speculation: Speculation | None = None
    prediction: Prediction | None = None
    bias: Mapping[str, float] | None = None
    grammar: str | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    n: int = 1
    ignore_end: bool = False


def engine_requests(service: Service, prompts: Sequence[tuple[int, ...]], wanted: Wanted) -> list[Request]:
    """`wanted.n` requests for every prompt, in the order of the answer's choices."""
    expected: tuple[int, ...] = ()
    if wanted.prediction is not None and wanted.prediction.text:
        service.check_length(wanted.prediction.text)
        expected = tuple(service.vocab.tokenize(wanted.prediction.text, special=False, parse_special=False))
    speculation: SpeculationParams = speculation_params(
        wanted.speculation,
        service.settings,
        service.draft,
        has_grammar=wanted.grammar is not None,
        has_prediction=bool(expected),
    )
    # As in llama-server: an end that is passed over leaves control tokens in the text. A grammar needs its end.
    fixed = service.vocab.no_end if wanted.ignore_end and wanted.grammar is None else ()
    n_vocab = service.vocab.n_tokens
    return [
        Request(
            prompt=ids,
            sampling=sampling_params(wanted.sampling, wanted.grammar, wanted.bias, n_vocab, i, fixed),
            speculation=speculation,
            max_tokens=wanted.max_tokens,
            stop=wanted.stop,
            logprobs=wanted.logprobs,
            ignore_end=wanted.ignore_end,
            prediction=expected,
        )
        for ids in prompts
        for i in range(wanted.n)
    ]


def content_text(content: str | Sequence[ContentPart] | None, where: str) -> str:
    """A message's text.

    Raises:
        ApiError: a part is something else than text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        text = part.text if part.text is not None else part.refusal
        if part.type not in ("text", "refusal", "input_text", "output_text") or text is None:
            raise invalid(f"{where}[{i}]: this model reads text only, not {part.type[:40]!r}", f"{where}[{i}].type")
        texts.append(text)
    return "".join(texts)


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as a chat template reads them.

    Raises:
        ApiError: a message is not text.
    """
    out = []
    for i, message in enumerate(messages):
        item: dict[str, Any] = {
            "role": message.role,
            "content": content_text(message.content, f"messages[{i}].content"),
        }
        for name in ("name", "tool_call_id", "reasoning_content"):
            if getattr(message, name) is not None:
                item[name] = getattr(message, name)
        if message.tool_calls:
            item["tool_calls"] = [
                {"id": c.id or "", "type": "function", "function": c.function.model_dump()} for c in message.tool_calls
            ]
        out.append(item)
    return out


def tool_use(
    tools: Sequence[Tool] | None, choice: str | ToolChoice | AllowedToolChoice | None, parallel: bool | None = None
) -> ToolUse:
    """The request's tools; without a choice the model decides, if there is anything to decide.

    Raises:
        ApiError: what must be called does not exist.
    """
    offered = tuple(
        {"type": "function", "function": tool.function.model_dump(exclude_none=True)} for tool in tools or ()
    )
    if isinstance(choice, AllowedToolChoice):
        allowed = [tool.function.name for tool in choice.allowed_tools.tools]
        known = {tool.function.name for tool in tools or ()}
        for name in allowed:
            if name not in known:
                raise invalid(f"tool_choice: there is no function {name[:80]!r} among the tools", "tool_choice")
        # The model sees no others: nothing else would keep it from calling them.
        offered = tuple(each for each, tool in zip(offered, tools or ()) if tool.function.name in allowed)
        return ToolUse(offered, choice.allowed_tools.mode, parallel)
    if isinstance(choice, ToolChoice):
        if choice.function.name in ("none", "auto", "required"):
            raise invalid(f"tool_choice: {choice.function.name!r} cannot be the name of a function", "tool_choice")
        return ToolUse(offered, choice.function.name, parallel)
    return ToolUse(offered, choice or ("auto" if offered else "none"), parallel)


def chat_prompt(
    service: Service,
    messages: Sequence[dict[str, Any]],
    use: ToolUse,
    extra: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
) -> str:
    """The prompt text of a conversation.

    Raises:
        ApiError: a template argument has a name of ours.
        TemplateError: the template refuses the messages.
    """
    for name in extra or {}:
        if name in OWN_NAMES:
            raise invalid(f"chat_template_kwargs: {name} is not yours to set", "chat_template_kwargs")
    return render(service.template, service.template_text, messages, use, extra or {}, add_generation_prompt)


def chat_ids(service: Service, text: str) -> tuple[int, ...]:
    """Token ids of a rendered conversation."""
    service.check_length(text)
    return tuple(service.vocab.tokenize(text, special=not service.template.has_bos(text)))


def grammar_of(raw: str | None, form: ResponseFormat | None, use: ToolUse) -> str | None:
    """The GBNF grammar a request asks for in one way or another.

    Raises:
        ApiError: it asks in two ways, a schema is missing or cannot be turned into a grammar, or it asks for too much.
    """
    from lcspec.llama.grammar import schema_to_gbnf

    if isinstance(form, TextFormat):
        form = None
    if raw is not None and (form is not None or use.forced):
        raise invalid("a grammar cannot go with response_format or a forced tool", "grammar")
    if use.forced:
        return _guarded("tools", lambda: schema_to_gbnf(use.schema()))
    if form is not None:
        schema = form.json_schema.schema_ if form.type == "json_schema" else form.schema_ or ANY_OBJECT
        if schema is None:
            raise invalid("response_format: json_schema needs a schema", "response_format.json_schema.schema")
        whole = use.schema(schema) if use.active else schema  # a call, or an answer in the wanted form
        return _guarded("response_format", lambda: schema_to_gbnf(whole))
    return _guarded("grammar", lambda: check_grammar(raw)) if raw is not None else None


def _guarded(param: str, make: Callable[[], str]) -> str:
    """A grammar; what is wrong with it is the fault of `param`."""
    try:
        return make()
    except GrammarError as error:
        code = "invalid_value" if param == "grammar" else "invalid_schema"
        raise invalid(f"{param}: {error}", param, code) from error
