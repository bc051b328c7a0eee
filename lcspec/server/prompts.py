"""From bodies to engine requests: rendering, tokenizing, grammars. All of it runs beside the event loop."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from lcspec.config import SpeculationParams
from lcspec.engine.request import Request
from lcspec.errors import GrammarError
from lcspec.sampling.json_schema import schema_to_lark
from lcspec.sampling.parameters import BIAS_LIMIT
from lcspec.server.errors import invalid, missing
from lcspec.server.parameters import sampling_params, speculation_params
from lcspec.server.schemas import Prediction, Sampling, Speculation
from lcspec.server.schemas_chat import (
    AllowedToolChoice,
    ContentPart,
    JsonSchemaFormat,
    Message,
    ResponseFormat,
    TextFormat,
    Tool,
    ToolCall,
    ToolChoice,
)
from lcspec.server.service import Service
from lcspec.server.tools import ToolUse, render

if TYPE_CHECKING:
    from lcspec.sampling.grammar import CompiledGrammar
    from lcspec.sampling.reasoning_budget import ReasoningBudget

OWN_NAMES = ("messages", "tools", "add_generation_prompt", "continue_final", "bos_token", "eos_token", "self")
ANY_OBJECT = {"type": "object"}
INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class Wanted:
    """What any generating endpoint wants of the engine, apart from the prompt."""

    sampling: Sampling
    speculation: Speculation | None = None
    prediction: Prediction | None = None
    bias: Mapping[str, float] | None = None
    grammar: str | CompiledGrammar | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    n: int = 1
    ignore_end: bool = False
    budget: ReasoningBudget | None = None
    warm: bool = True
    sampled_probs: bool = False


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
    n_vocab, usual = service.vocab.n_tokens, service.settings.sampling
    return [
        Request(
            prompt=ids,
            sampling=replace(
                sampling_params(wanted.sampling, wanted.grammar, wanted.bias, n_vocab, i, fixed, usual),
                reasoning_budget=wanted.budget,
            ),
            speculation=speculation,
            max_tokens=wanted.max_tokens,
            stop=wanted.stop,
            logprobs=wanted.logprobs,
            ignore_end=wanted.ignore_end,
            prediction=expected,
            warm=wanted.warm,
            sampled_probs=wanted.sampled_probs and wanted.logprobs is not None,
        )
        for ids in prompts
        for i in range(wanted.n)
    ]


def bias(service: Service, given: Any) -> dict[str, float] | None:
    """`logit_bias` in any of its forms: an object, or llama.cpp's pairs of a token or text and a number or false.

    Raises:
        ApiError: it is something else.
    """
    if given is None:
        return None
    pairs = list(given.items()) if isinstance(given, dict) else given
    out: dict[str, float] = {}
    problem = invalid("logit_bias must be pairs of a token (or text) and a number (or false)", "logit_bias")
    if not isinstance(pairs, list) or len(pairs) > 4096:
        raise problem
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise problem
        token, value = pair
        if value is False:
            value = float("-inf")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isinstance(token, (int, str)):
            raise problem
        ids: list[int | str] = [token]
        if isinstance(token, str) and not (isinstance(given, dict) and INTEGER.fullmatch(token)):
            ids = [*service.vocab.tokenize(token, special=False)]
        # What is so large outweighs every logit; only what forbids a token stays what it is.
        weight = float(value) if value == -math.inf else float(min(max(value, -BIAS_LIMIT), BIAS_LIMIT))
        out |= {str(i): weight for i in ids}
    return out


def content_text(content: str | Sequence[ContentPart] | None, where: str, result: bool = False) -> str:
    """A message's text; parts are joined by newlines, as llama.cpp joins them. `result`: a tool's (see `unseen`).

    Raises:
        ApiError: a part is something else than text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part_texts(content, where, result))


def unseen(kind: str) -> str:
    """What the model reads in place of an image that a tool gave back.

    Agents send their tools' results again with every request: refused, one would end the conversation for good.
    """
    return f"[{kind[:40]}: this model reads text only]"


def part_texts(content: Sequence[ContentPart], where: str, result: bool = False) -> list[str]:
    """The texts of a message's parts. `result`: a tool's (see `unseen`).

    Raises:
        ApiError: a part is something else than text, or has none.
    """
    texts = []
    for i, part in enumerate(content):
        text = part.text if part.text is not None else part.refusal
        if not part.readable and result:
            texts.append(unseen(part.type))
            continue
        if not part.readable:
            raise invalid(f"{where}[{i}]: this model reads text only, not {part.type[:40]!r}", f"{where}[{i}].type")
        if text is None:
            raise missing(f"{where}[{i}].text")
        texts.append(text)
    return texts


def content_of(message: Message, where: str) -> str | list[dict[str, Any]]:
    """A message's text, or its text parts if there are several: some templates have their own way to join them.

    Raises:
        ApiError: a part is something else than text.
    """
    result = message.role in ("tool", "function")
    if isinstance(message.content, list) and len(message.content) > 1:
        return [{"type": "text", "text": text} for text in part_texts(message.content, where, result)]
    return content_text(message.content, where, result)


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as a chat template reads them.

    Raises:
        ApiError: a message is not text.
    """
    out = []
    for i, message in enumerate(messages):
        item: dict[str, Any] = {
            "role": message.role,
            "content": content_of(message, f"messages[{i}].content"),
        }
        for name in ("name", "tool_call_id", "reasoning_content"):
            if getattr(message, name) is not None:
                item[name] = getattr(message, name)
        calls = message.tool_calls or ()
        if message.function_call is not None and not calls:
            calls = [ToolCall(function=message.function_call)]
        if calls:
            item["tool_calls"] = [_call(call) for call in calls]
        out.append(item)
    return out


def _call(call: ToolCall) -> dict[str, Any]:
    given = call.function.arguments
    text = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
    return {"id": call.id or "", "type": "function", "function": call.function.model_dump() | {"arguments": text}}


def tool_use(
    tools: Sequence[Tool] | None, choice: str | ToolChoice | AllowedToolChoice | None, parallel: bool | None = None
) -> ToolUse:
    """The request's tools; without a choice the model decides, if there is anything to decide.

    Raises:
        ApiError: what must be called does not exist.
    """
    functions = [tool.function for tool in tools or () if tool.function is not None and not tool.left_out()]
    offered = tuple({"type": "function", "function": one.model_dump(exclude_none=True)} for one in functions)
    if isinstance(choice, AllowedToolChoice):
        allowed = [tool.function.name for tool in choice.allowed_tools.tools]
        for name in allowed:
            if name not in {one.name for one in functions}:
                raise invalid(f"tool_choice: there is no function {name[:80]!r} among the tools", "tool_choice")
        # The model sees no others: nothing else would keep it from calling them.
        offered = tuple(each for each, one in zip(offered, functions) if one.name in allowed)
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
    go_on: bool = False,
) -> str:
    """The prompt text of a conversation; with `go_on` the last message, the assistant's, is to be continued.

    Raises:
        ApiError: a template argument has a name of ours.
        TemplateError: the template refuses the messages.
    """
    for name in extra or {}:
        if name in OWN_NAMES:
            raise invalid(f"chat_template_kwargs: {name} is not yours to set", "chat_template_kwargs")
    given = {**service.settings.template_kwargs, **(extra or {})}
    if go_on:
        given["continue_final"] = True
    knows = "tools" in service.template_text
    taken = service.template.takes_parts if knows else ()
    # Where tools are described in words, messages are joined with them as texts.
    plain = [m if m["role"] in taken else dict(m, content=_joined(m["content"])) for m in messages]
    return render(service.template, service.template_text, plain, use, given, add_generation_prompt)


def _joined(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def continues(messages: Sequence[Message], asked: bool | str | None, opening: bool | None, use: ToolUse) -> bool:
    """Whether the answer is to continue the last message: it is the assistant's, and nothing says otherwise.

    Args:
        messages: the conversation.
        asked: the request's `continue_final_message`.
        opening: the request's `add_generation_prompt`.
        use: its tools.

    Raises:
        ApiError: it is asked for and cannot be done.
    """
    last = messages[-1]
    able = last.role == "assistant" and not last.tool_calls
    if not asked:
        return able and asked is None and opening is None and not use.forced
    if opening:
        raise invalid("continue_final_message and add_generation_prompt cannot both be true", "continue_final_message")
    if not able or use.forced:
        why = "there is a call that must be made" if able else "the last message is not the assistant's, or has calls"
        raise invalid(f"continue_final_message: {why}: leave it out", "continue_final_message")
    return True


def begun_with(message: Mapping[str, Any]) -> str:
    """What an assistant's message that is to be continued ends with: its text, or only reasoning so far."""
    return _joined(message["content"]) or str(message.get("reasoning_content") or "")


def chat_ids(service: Service, text: str) -> tuple[int, ...]:
    """Token ids of a rendered conversation."""
    service.check_length(text)
    return tuple(service.template.ids(service.vocab, text))


def form_of(form: ResponseFormat | None, schema: dict[str, Any] | None) -> ResponseFormat | None:
    """The response format, also if it is given as llama.cpp's `json_schema`.

    Raises:
        ApiError: it is given twice.
    """
    if schema is None:
        return form
    if form is not None and not isinstance(form, TextFormat):
        raise invalid("give response_format or json_schema, not both", "json_schema")
    # In llama.cpp an empty one is any object.
    return JsonSchemaFormat.model_validate({"type": "json_schema", "json_schema": {"schema": schema or ANY_OBJECT}})


def grammar_of(
    service: Service, raw: str | None, form: ResponseFormat | None, use: ToolUse
) -> str | CompiledGrammar | None:
    """The grammar a request asks for in one way or another, compiled (which may take a while).

    Raises:
        ApiError: it asks in two ways, a schema is missing or cannot be turned into a grammar, or it asks for too much.
    """
    compiled = service.compile
    if isinstance(form, TextFormat):
        form = None
    raw = raw or None  # some clients always send one
    if raw is not None and (form is not None or use.forced):
        raise invalid("a grammar cannot go with response_format or a forced tool", "grammar")
    if use.forced:
        return _guarded("tools", lambda: compiled(schema_to_lark(use.schema())))
    if form is not None:
        schema: dict[str, Any] | None = form.schema_ or ANY_OBJECT
        if isinstance(form, JsonSchemaFormat):
            schema = form.json_schema.schema_ if form.json_schema.schema_ is not None else form.schema_
        if schema is None:
            raise invalid("response_format: json_schema needs a schema", "response_format.json_schema.schema")
        whole = use.schema(schema) if use.active else schema  # a call, or an answer in the wanted form
        return _guarded("response_format", lambda: compiled(schema_to_lark(whole)))
    return _guarded("grammar", lambda: compiled(raw)) if raw is not None else None


def _guarded(param: str, make: Callable[[], str | CompiledGrammar]) -> str | CompiledGrammar:
    """A grammar; what is wrong with it is the fault of `param`."""
    try:
        return make()
    except GrammarError as error:
        code = "invalid_value" if param == "grammar" else "invalid_schema"
        raise invalid(f"{param}: {error}", param, code) from error
