"""POST /v1/responses: the stateless core of OpenAI's newer endpoint. Only items of late answers can be referred to."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from typing import Any, Mapping

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from lcspec.answers.deltas import Delta
from lcspec.answers.reader import gathered
from lcspec.engine.request import Request as EngineRequest
from lcspec.server import answer
from lcspec.server.answer import Text
from lcspec.server.endpoint import counted, respond
from lcspec.server.errors import ApiError, invalid
from lcspec.server.job import Job
from lcspec.server.journal import note_answer, note_calls, note_prompt
from lcspec.server.prompts import (
    Wanted,
    bias,
    chat_ids,
    chat_prompt,
    content_text,
    engine_requests,
    grammar_of,
    tool_use,
)
from lcspec.server.reading import Reading, reading_of, thinking_arguments
from lcspec.server.remembered import Remembered
from lcspec.server.response_items import call_item, ended, message_item, new_id, reasoning_item
from lcspec.server.schemas_answers import STREAM, InputTokens, ResponseObject, answered
from lcspec.server.schemas_chat import (
    AllowedToolChoice,
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    Tool,
    ToolChoice,
)
from lcspec.server.schemas_responses import (
    CALLS,
    RESULTS,
    FlatAllowedTools,
    FlatJsonObject,
    FlatJsonSchema,
    FlatToolChoice,
    Item,
    ResponseBody,
)
from lcspec.server.service import Service
from lcspec.server.streaming import event
from lcspec.server.tools import ToolUse, call_opening

router = APIRouter()
LOGPROBS = "message.output_text.logprobs"


@dataclass
class Reply:
    """A response on its way."""

    service: Service
    body: ResponseBody
    model: str
    use: ToolUse
    reading: Reading
    request: EngineRequest
    remembered: Remembered | None = None

    def __post_init__(self) -> None:
        self.id = f"resp_{secrets.token_hex(16)}"
        self.created = answer.now()

    @property
    def requests(self) -> list[EngineRequest]:
        """What the engine is to do: one text."""
        return [self.request]

    def text(self) -> Text:
        """For the answer."""
        return Text(self.reading.reader(), self.reading.functions)

    def keep(self, output: list[dict[str, Any]]) -> None:
        """Let later requests refer to these items."""
        if self.remembered is not None and self.body.store is not False:
            self.remembered.add(output)

    def logprobs(self, text: Text) -> list[Any]:
        """Log-probabilities, if they were asked for."""
        if self.request.logprobs is None:
            return []
        found: list[Any] = answer.chat_logprobs(self.service.vocab, text.infos)["content"]
        return found

    def envelope(self, status: str, output: list[dict[str, Any]], text: Text | None = None) -> dict[str, Any]:
        """The response object."""
        body, cut = self.body, text is not None and text.reason == "length"
        form = body.text.format.model_dump(by_alias=True) if body.text and body.text.format else {"type": "text"}
        given = body.tool_choice
        choice = given.model_dump() if isinstance(given, (FlatToolChoice, FlatAllowedTools)) else given
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "incomplete" if cut else status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.limit(),
            "model": self.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": _effort(body), "summary": body.summary},
            "store": False,
            "temperature": self.request.sampling.temperature,
            "text": {"format": form},
            "tool_choice": choice or "auto",
            "tools": [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
            "top_p": self.request.sampling.top_p,
            "truncation": "disabled",
            "usage": _usage(text) if text is not None else None,
            "user": body.user,
            "metadata": body.metadata or {},
        } | ({"timings": answer.timings(text)} if text is not None else {})


@router.post(
    "/v1/responses", summary="Answer a conversation (Responses API)", responses=answered(ResponseObject, STREAM)
)
@router.post("/responses", include_in_schema=False)
async def responses(body: ResponseBody, http: Request) -> Response:
    """The answer to an input, at once or as server-sent events."""
    from lcspec.server.responses_stream import streamed

    known: Remembered = http.app.state.remembered
    _resolve(body, known)

    def made(service: Service, body: ResponseBody, model: str) -> Reply:
        return replace(prepare(service, body, model), remembered=known)

    return await respond(body, http, check=check, prepare=made, whole=whole, streamed=streamed, on_error=_error_event)


@router.post(
    "/v1/responses/input_tokens", summary="Tokens of an input (Responses API)", responses=answered(InputTokens)
)
@router.post("/responses/input_tokens", include_in_schema=False)
async def input_tokens(body: ResponseBody, http: Request) -> Response:
    """How many tokens the prompt would have."""
    _resolve(body, http.app.state.remembered)
    n = await counted(body, http, check=check, prepare=prepare)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": n})


def _resolve(body: ResponseBody, known: Remembered) -> None:
    if isinstance(body.input, list):
        body.input = known.resolved(body.input)


def _error_event(error: ApiError) -> str:
    return event({"type": "error"} | error.body()["error"], "error")


def check(body: ResponseBody) -> None:
    """Refuse what needs a memory of earlier responses, and functions without a name.

    Raises:
        ApiError: 400.
    """
    if body.previous_response_id is not None or body.conversation is not None:
        name = "conversation" if body.conversation is not None else "previous_response_id"
        raise invalid(f"{name}: nothing is stored here, so send the whole conversation as input", name)
    if body.prompt:
        raise invalid("prompt: prompts are not stored here: send its text as instructions and input", "prompt")
    if body.background:
        raise invalid("background responses are not supported: nothing is stored here", "background")
    if any(function.tool.name is None for function in body.functions):
        raise invalid("tools: a function needs a name", "tools")


def prepare(service: Service, body: ResponseBody, model: str) -> Reply:
    """Render, tokenize and compile; runs beside the event loop.

    Raises:
        ApiError, LcspecError: something in the body cannot be used.
    """
    tools = [
        Tool.model_validate({"type": "function", "function": fields | {"name": function.told}})
        for function in body.functions
        for fields in [function.tool.model_dump(exclude={"type"}, exclude_none=True)]
    ]
    use = tool_use(tools, _choice(body), body.parallel_tool_calls)
    grammar = grammar_of(service, body.grammar, _format(body), use)
    messages = input_messages(body)
    if not messages:
        raise invalid("the input is empty", "input")
    effort = _effort(body)
    usual = service.settings.reasoning_budget
    constrained = grammar is not None or effort == "none"
    told = thinking_arguments(body.chat_template_kwargs, effort, None, constrained, usual)
    text = chat_prompt(service, messages, use, told)
    reading, text = reading_of(service.template_text, text, use, constrained, usual=usual)
    if grammar is None or body.grammar:  # the user's may ask for anything
        reading = replace(reading, forced=False)
    text += call_opening(service.template_text, use)
    wanted = Wanted(
        body,
        body.speculation,
        body.prediction,
        bias(service, body.logit_bias),
        grammar,
        body.limit(),
        body.stops + service.template.stop,
        (body.top_logprobs or 0) if body.top_logprobs or LOGPROBS in (body.include or ()) else None,
        ignore_end=bool(body.ignore_eos),
        budget=reading.limit(service.vocab),
    )
    request = engine_requests(service, [chat_ids(service, text)], wanted)[0]
    note_prompt(service, text)
    return Reply(service, body, model, use, reading, request)


def _effort(body: ResponseBody) -> str | None:
    effort = (body.reasoning or {}).get("effort")
    if effort is not None and not isinstance(effort, str):
        raise invalid("reasoning: the effort must be a word, `low` say", "reasoning.effort")
    return effort


def _choice(body: ResponseBody) -> str | ToolChoice | AllowedToolChoice | None:
    choice = body.tool_choice
    if isinstance(choice, FlatToolChoice):
        return _named(choice)
    if isinstance(choice, FlatAllowedTools):
        tools = [_named(tool).model_dump() for tool in choice.tools]
        return AllowedToolChoice.model_validate(
            {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": tools}}
        )
    return choice


def _named(choice: FlatToolChoice) -> ToolChoice:
    return ToolChoice.model_validate({"type": "function", "function": {"name": choice.name}})


def _format(body: ResponseBody) -> ResponseFormat | None:
    form = body.text.format if body.text is not None else None
    if isinstance(form, FlatJsonObject):
        return JsonObjectFormat(type="json_object", schema=None)
    if isinstance(form, FlatJsonSchema):
        return JsonSchemaFormat.model_validate({"type": "json_schema", "json_schema": {"schema": form.schema_}})
    return None


def input_messages(body: ResponseBody) -> list[dict[str, Any]]:
    """The input's items as messages for a chat template.

    Raises:
        ApiError: an item refers to another one, or lacks something.
    """
    out: list[dict[str, Any]] = []
    if body.instructions is not None:
        out.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*out, {"role": "user", "content": body.input}]
    told = {(function.namespace, function.tool.name): function.told for function in body.functions}
    for i, item in enumerate(body.input):
        out_of(item, i, out, told)
    return [message for message in out if not _only_thought(message)]


def _only_thought(message: dict[str, Any]) -> bool:
    """Whether a message is what the model thought before it says or calls something."""
    return "reasoning_content" in message and not message["content"] and "tool_calls" not in message


def out_of(item: Item, i: int, out: list[dict[str, Any]], told: Mapping[tuple[str | None, str | None], str]) -> None:
    """Add an item to the messages: calls go to the assistant's message before them, by the names in `told`."""
    place, kind = f"input[{i}]", item.kind
    if kind == "message":
        if item.role is None:
            raise invalid(f"{place}: a message needs a role", f"{place}.role")
        content = content_text(item.content, f"{place}.content")
        if item.role == "assistant" and out and _only_thought(out[-1]):
            out[-1]["content"] = content
        else:
            out.append({"role": item.role, "content": content})
    elif kind in CALLS:
        arguments = item.arguments if item.input is None else json.dumps({"input": item.input}, ensure_ascii=False)
        if item.name is None or arguments is None:
            raise invalid(f"{place}: a call needs a name and arguments", place)
        call = {
            "id": item.call_id or "",
            "type": "function",
            "function": {"name": told.get((item.namespace, item.name), item.name), "arguments": arguments},
        }
        if not out or out[-1]["role"] != "assistant":
            out.append({"role": "assistant", "content": ""})
        out[-1].setdefault("tool_calls", []).append(call)
    elif kind in RESULTS:
        content = content_text(item.output, f"{place}.output", result=True)
        out.append({"role": "tool", "tool_call_id": item.call_id or "", "content": content})
    elif kind == "reasoning":
        # As in chats: the template decides what of earlier reasoning is shown to the model.
        parts = item.content if item.content and isinstance(item.content, list) else item.summary or []
        thought = "".join(part.text or "" for part in parts if part.type in ("reasoning_text", "summary_text"))
        if thought:
            out.append({"role": "assistant", "content": "", "reasoning_content": thought})
    elif kind == "item_reference":
        raise invalid(f"{place}: that item is not known here (any more), so send the item itself", f"{place}.type")


async def whole(reply: Reply, job: Job) -> Response:
    """The answer in one piece."""
    text, found = reply.text(), list[Delta]()
    try:
        await job.start()
        async for _, item in job.events():
            text.add(item)
            found += text.read(item)
    finally:
        job.cancel()
    content, reasoning, calls = gathered(found)
    output = [reasoning_item(reply.body, new_id("rs"), reasoning)] if reasoning else []
    output += [message_item(new_id("msg"), content, reply.logprobs(text))] if content or not calls else []
    output += [call_item(reply.body, new_id("fc"), call) for call in calls]
    output[-1]["status"] = ended(text)
    reply.keep(output)
    note_answer(reply.service, text.text)
    await note_calls(reply.service, text)
    return JSONResponse(reply.envelope("completed", output, text))


def _usage(text: Text) -> dict[str, Any]:
    spent = answer.usage([text])
    return {
        "input_tokens": spent["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": spent["prompt_tokens_details"]["cached_tokens"]},
        "output_tokens": spent["completion_tokens"],
        "output_tokens_details": spent["completion_tokens_details"],
        "total_tokens": spent["total_tokens"],
    }
