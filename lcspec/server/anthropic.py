"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, for clients such as Claude Code."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any, AsyncGenerator, Mapping, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from lcspec.engine.request import Request as EngineRequest
from lcspec.server import chat
from lcspec.server.endpoint import respond
from lcspec.server.errors import ApiError, invalid, missing
from lcspec.server.job import Job, unless_gone
from lcspec.server.models import Models
from lcspec.server.prompts import content_text, unseen
from lcspec.server.schemas import Sampling
from lcspec.server.schemas_answers import STREAM, AnthropicMessageObject, TokenCount, answered
from lcspec.server.schemas_anthropic import (
    AnthropicBody,
    AnthropicMessage,
    Block,
    CountBody,
    OutputConfig,
    Source,
    Usage,
)
from lcspec.server.schemas_chat import ChatBody
from lcspec.server.service import Service
from lcspec.server.streaming import event
from lcspec.server.translated import FollowedJob, body_of, choices, whole_choice
from lcspec.server.turns import joined
from lcspec.server.unknown import chosen

router = APIRouter()
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
# Efforts that no template of an open model knows.
HIGHEST = {"xhigh": "high", "max": "high"}
# Claude Code begins its system prompt with a block that is different in every request, which would keep the rest of
# the prompt from being found in the cache.
ATTRIBUTION = "x-anthropic-billing-header:"


@dataclass
class Answer:
    """An answer on its way."""

    body: AnthropicBody
    made: chat.Chat

    def __post_init__(self) -> None:
        self.id = f"msg_{secrets.token_hex(12)}"

    @property
    def requests(self) -> Sequence[EngineRequest]:
        """What the engine is to do: one text."""
        return self.made.requests

    def message(self, content: list[dict[str, Any]], usage: Usage, ended: Mapping[str, Any] | None = None) -> Any:
        """The message object."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.made.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage.model_dump(),
        } | dict(ended or {})

    def usage(self, job: FollowedJob) -> Usage:
        """Tokens so far; what was in the cache is counted apart."""
        n = job.finished.completion_tokens if job.finished is not None else 0
        return Usage(
            input_tokens=len(self.requests[0].prompt) - job.cached, output_tokens=n, cache_read_input_tokens=job.cached
        )

    def ended(self, job: FollowedJob, reason: str) -> dict[str, Any]:
        """Why the answer ended."""
        found = job.finished.stop if job.finished is not None else None
        if reason == "stop" and found is not None and found in stops_of(self.body):
            return {"stop_reason": "stop_sequence", "stop_sequence": found}
        return {"stop_reason": REASONS.get(reason, "end_turn"), "stop_sequence": None}


@router.post(
    "/v1/messages",
    summary="Answer a conversation (Anthropic's API)",
    responses=answered(AnthropicMessageObject, STREAM),
)
async def messages(body: AnthropicBody, http: Request) -> Response:
    """The next message of a conversation, at once or as server-sent events."""
    return await respond(
        body, http, check=_check, prepare=prepare, whole=_whole, streamed=_streamed, on_error=_error_event
    )


@router.post(
    "/v1/messages/count_tokens", summary="Tokens of a conversation (Anthropic's API)", responses=answered(TokenCount)
)
async def count_tokens(body: CountBody, http: Request) -> Response:
    """How many tokens the prompt would have."""
    models: Models = http.app.state.models
    entry, model = chosen(body, http, body.model)
    service = await unless_gone(http, models.use(entry, http))
    made = await unless_gone(http, service.in_thread(_chat, service, body, model, {}))
    return JSONResponse({"input_tokens": len(made.requests[0].prompt)})


def _error_event(error: ApiError) -> str:
    return event(error.body_for("/v1/messages"), "error")


def _check(body: AnthropicBody) -> None:
    if body.tool_choice is not None and body.tool_choice.type == "tool" and not body.tool_choice.name:
        raise invalid("tool_choice of type `tool` needs a name", "tool_choice.name")


def stops_of(body: AnthropicBody) -> list[str]:
    """The stop strings, under this API's name for them and the others'."""
    return list(dict.fromkeys((*(body.stop_sequences or ()), *body.stops)))


def prepare(service: Service, body: AnthropicBody, model: str) -> Answer:
    """Render and tokenize; runs beside the event loop.

    Raises:
        ApiError, LcspecError: something in the body cannot be used.
    """
    given = {"max_tokens": body.max_tokens, "stop": stops_of(body) or None}
    return Answer(body, _chat(service, body, model, given))


def _chat(service: Service, body: CountBody, model: str, given: Mapping[str, Any]) -> chat.Chat:
    translated = chat_body(body, given)
    chat.check(translated)
    return chat.prepare(service, translated, model)


def chat_body(body: CountBody, given: Mapping[str, Any]) -> ChatBody:
    """The same request in the OpenAI API's form, with these fields besides.

    Raises:
        ApiError: something in it cannot be used.
    """
    tools, choice = [], body.tool_choice
    for i, tool in enumerate(body.tools or ()):
        if tool.left_out():
            continue
        if tool.input_schema is None:
            raise invalid(f"tools[{i}]: a tool needs an input_schema", f"tools[{i}].input_schema")
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        tools.append({"type": "function", "function": {k: v for k, v in function.items() if v is not None}})
    names = (*Sampling.model_fields, "logit_bias", "grammar", "ignore_eos", "chat_template_kwargs")
    fields = {name: getattr(body, name) for name in names}
    fields |= {"prediction": body.prediction and body.prediction.model_dump(exclude_none=True)}
    fields |= {"speculation": body.speculation and body.speculation.model_dump(exclude_none=True)}
    fields |= {"messages": _messages(body), "tools": tools or None}
    if choice is not None:
        alone = choice.disable_parallel_tool_use
        fields["tool_choice"] = {"type": choice.type, "name": choice.name}
        fields["parallel_tool_calls"] = None if alone is None else not alone
    if body.thinking is not None:
        fields["think"] = body.thinking.type != "disabled"
        fields["reasoning_budget_tokens"] = body.thinking.budget_tokens
    wanted = body.output_config or OutputConfig()
    if wanted.effort is not None:
        fields["reasoning_effort"] = HIGHEST.get(wanted.effort, wanted.effort)
    form = wanted.format or body.output_format
    if form is not None:
        fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": form.schema_}}
    return body_of(ChatBody, fields | dict(given))


def _messages(body: CountBody) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if body.system:
        blocks = [Block(type="text", text=body.system)] if isinstance(body.system, str) else body.system
        texts = [_text(block, f"system[{i}]") for i, block in enumerate(blocks)]
        kept = [text for text in texts if not text.startswith(ATTRIBUTION)]
        if kept:
            out.append({"role": "system", "content": "\n".join(kept)})
    for i, message in enumerate(body.messages):
        for turn in _assistant(message, i) if message.role == "assistant" else _others(message, i):
            # Neighbours of one role are one turn in this API.
            if out and turn["role"] == out[-1]["role"] in ("user", "assistant"):
                out[-1] = joined(out[-1], turn)
            else:
                out.append(turn)
    return out


def _blocks(message: AnthropicMessage) -> list[Block]:
    return [Block(type="text", text=message.content)] if isinstance(message.content, str) else message.content


def _assistant(message: AnthropicMessage, i: int) -> list[dict[str, Any]]:
    texts, thoughts, calls = [], [], []
    for j, block in enumerate(_blocks(message)):
        if block.type == "tool_use":
            function = {"name": block.name or "", "arguments": json.dumps(block.input or {}, ensure_ascii=False)}
            calls.append({"id": block.id or "", "type": "function", "function": function})
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            texts.append(_text(block, f"messages[{i}].content[{j}]"))
    out: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        out["reasoning_content"] = "\n".join(thoughts)
    if calls:
        out["tool_calls"] = calls
    return [out]


def _others(message: AnthropicMessage, i: int) -> list[dict[str, Any]]:
    """What tools gave back comes first, as messages of its own."""
    out: list[dict[str, Any]] = []
    texts: list[str] = []
    for j, block in enumerate(_blocks(message)):
        where = f"messages[{i}].content[{j}]"
        if block.type != "tool_result":
            texts.append(_text(block, where) if block.readable or not message.has_results else unseen(block.type))
            continue
        inner = block.content or ""
        if not isinstance(inner, str):
            inner = "\n".join(
                _text(part, f"{where}.content[{k}]") if part.readable else unseen(part.type)
                for k, part in enumerate(inner)
            )
        out.append({"role": "tool", "tool_call_id": block.tool_use_id or "", "content": inner})
    if texts or not out:
        out.append({"role": message.role, "content": [{"type": "text", "text": text} for text in texts]})
    return out


def _text(block: Block, where: str) -> str:
    if block.type == "text":
        if block.text is None:
            raise missing(f"{where}.text")
        return block.text
    text = _quoted(block, where)
    if text is not None:
        head = (block.title, block.source if isinstance(block.source, str) else None, block.context)
        return "\n".join(part for part in (*head, text) if part)
    raise invalid(f"{where}: this model reads text only, not {block.type[:40]!r}", f"{where}.type")


def _quoted(block: Block, where: str) -> str | None:
    """The text of a document, or of what a search found, if it has any."""
    if block.type == "search_result" and isinstance(block.content, list):
        return "\n".join(_text(part, f"{where}.content[{i}]") for i, part in enumerate(block.content))
    if block.type != "document" or not isinstance(block.source, Source):
        return None
    if block.source.type == "content":
        return content_text(block.source.content, f"{where}.source.content")
    return block.source.data if block.source.type == "text" else None


async def _whole(answer: Answer, job: Job) -> Response:
    followed = FollowedJob.over(job)
    choice = await whole_choice(answer.made, followed)
    message, content = choice["message"], list[dict[str, Any]]()
    if message.get("reasoning_content"):
        content.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
    if message.get("content"):
        content.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        content.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments_of(function)}
        )
    ended = answer.ended(followed, choice["finish_reason"])
    return JSONResponse(answer.message(content, answer.usage(followed), ended))


def arguments_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments as an object; an answer that was cut may have none that can be read."""
    try:
        found = json.loads(function["arguments"])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Writer:
    """Opens and closes the blocks of a streamed message."""

    def __init__(self) -> None:
        self.index = -1
        self.kind = ""

    def open(self, kind: str, block: Mapping[str, Any]) -> list[str]:
        """A new block of this kind."""
        out = self.close()
        self.index, self.kind = self.index + 1, kind
        start = {"type": "content_block_start", "index": self.index, "content_block": {"type": kind, **block}}
        return [*out, event(start, "content_block_start")]

    def delta(self, kind: str, field: str, text: str) -> str:
        """More of the block."""
        data = {"type": "content_block_delta", "index": self.index, "delta": {"type": kind, field: text}}
        return event(data, "content_block_delta")

    def close(self) -> list[str]:
        """The block's end."""
        if not self.kind:
            return []
        self.kind = ""
        return [event({"type": "content_block_stop", "index": self.index}, "content_block_stop")]

    def feed(self, delta: Mapping[str, Any]) -> list[str]:
        """Events for a piece of the answer."""
        out: list[str] = []
        if delta.get("reasoning_content"):
            if self.kind != "thinking":
                out += self.open("thinking", {"thinking": "", "signature": ""})
            out.append(self.delta("thinking_delta", "thinking", delta["reasoning_content"]))
        if delta.get("content"):
            if self.kind != "text":
                out += self.open("text", {"text": ""})
            out.append(self.delta("text_delta", "text", delta["content"]))
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            if call.get("id"):
                out += self.open("tool_use", {"id": call["id"], "name": function.get("name", ""), "input": {}})
            if function.get("arguments"):
                out.append(self.delta("input_json_delta", "partial_json", function["arguments"]))
        return out


async def _streamed(answer: Answer, job: Job) -> AsyncGenerator[str, None]:
    followed, writer, reason = FollowedJob.over(job), Writer(), "stop"
    begin = {"type": "message_start", "message": answer.message([], answer.usage(followed))}
    yield event(begin, "message_start")
    async for choice in choices(answer.made, followed):
        for line in writer.feed(choice["delta"]):
            yield line
        reason = choice["finish_reason"] or reason
    for line in writer.close():
        yield line
    usage = answer.usage(followed).model_dump()
    yield event({"type": "message_delta", "delta": answer.ended(followed, reason), "usage": usage}, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")
