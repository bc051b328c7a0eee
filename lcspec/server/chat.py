"""POST /v1/chat/completions."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any, AsyncGenerator, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from lcspec.answers.deltas import CallStart, Content, Delta, Reasoning
from lcspec.answers.reader import gathered
from lcspec.engine.events import Finished, TokenInfo, Tokens
from lcspec.engine.request import Request as EngineRequest
from lcspec.server import answer
from lcspec.server.answer import Text
from lcspec.server.drafted import Drafted
from lcspec.server.endpoint import check_stream_options, counted, respond
from lcspec.server.errors import invalid
from lcspec.server.job import Job
from lcspec.server.journal import note_answer, note_calls, note_prompt
from lcspec.server.progress import Progress
from lcspec.server.prompts import (
    Wanted,
    begun_with,
    bias,
    chat_ids,
    chat_prompt,
    continues,
    engine_requests,
    form_of,
    grammar_of,
    template_messages,
    tool_use,
)
from lcspec.server.reading import Reading, reading_of, template_arguments
from lcspec.server.schemas_answers import STREAM, ChatCompletion, InputTokens, answered
from lcspec.server.schemas_chat import ChatBody, TextFormat
from lcspec.server.service import Service
from lcspec.server.streaming import DONE, event
from lcspec.server.tools import ToolUse, call_opening

router = APIRouter()


@dataclass
class Chat:
    """A chat completion on its way."""

    service: Service
    body: ChatBody
    model: str
    use: ToolUse
    reading: Reading
    requests: list[EngineRequest]

    def __post_init__(self) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self.created = answer.now()

    def head(self, kind: str) -> dict[str, Any]:
        """What every object of the answer begins with."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.service.fingerprint,
        }

    def logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any] | None:
        """Those of some tokens, if they were asked for."""
        if not self.body.logprobs:
            return None
        return answer.chat_logprobs(self.service.vocab, infos, bool(self.body.post_sampling_probs))

    def text(self) -> Text:
        """For one of the answers."""
        return Text(self.reading.reader(), self.reading.functions)


@router.post("/v1/chat/completions", summary="Answer a conversation", responses=answered(ChatCompletion, STREAM))
@router.post("/chat/completions", include_in_schema=False)
async def chat_completions(body: ChatBody, http: Request) -> Response:
    """The next message of a conversation, at once or as server-sent events."""
    return await respond(body, http, check=check, prepare=prepare, whole=whole, streamed=streamed)


@router.post("/v1/chat/completions/input_tokens", summary="Tokens of a conversation", responses=answered(InputTokens))
@router.post("/chat/completions/input_tokens", include_in_schema=False)
async def input_tokens(body: ChatBody, http: Request) -> Response:
    """How many tokens the prompt would have."""
    n = await counted(body, http, check=check, prepare=prepare)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": n})


def check(body: ChatBody) -> None:
    """Refuse combinations that make no sense.

    Raises:
        ApiError: 400.
    """
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    check_stream_options(body)
    if body.max_completion_tokens is not None and body.max_tokens not in (None, body.max_completion_tokens):
        raise invalid("give max_tokens or max_completion_tokens, not both", "max_tokens")


def prepare(service: Service, body: ChatBody, model: str) -> Chat:
    """Render, tokenize and compile; runs beside the event loop.

    Raises:
        ApiError, LcspecError: something in the body cannot be used.
    """
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    grammar = grammar_of(service, body.grammar, form_of(body.response_format, body.json_schema), use)
    reading, text = rendered(service, body, use, grammar is not None)
    wanted = Wanted(
        body,
        body.speculation,
        body.prediction,
        bias(service, body.logit_bias),
        grammar,
        body.limit(),
        body.stops + service.template.stop,
        (body.top_logprobs or 0) if body.logprobs else None,
        body.n or 1,
        bool(body.ignore_eos),
        reading.limit(service.vocab),
        sampled_probs=bool(body.post_sampling_probs),
    )
    requests = engine_requests(service, [chat_ids(service, text)], wanted)
    note_prompt(service, text)
    return Chat(service, body, model, use, reading, requests)


def rendered(service: Service, body: ChatBody, use: ToolUse, constrained: bool) -> tuple[Reading, str]:
    """How to read the answers, and the prompt; `constrained`: a grammar holds the answers.

    Raises:
        ApiError, TemplateError: something in the body cannot be used.
    """
    messages = template_messages(body.messages)
    go_on = continues(body.messages, body.continue_final_message, body.add_generation_prompt, use)
    usual = service.settings.reasoning_budget
    told = template_arguments(body, constrained, usual)
    text = chat_prompt(service, messages, use, told, body.add_generation_prompt is not False, go_on)
    begun = begun_with(messages[-1]) if go_on else None
    reading, text = reading_of(service.template_text, text, use, constrained, body, usual, begun)
    return reading, text + call_opening(service.template_text, use)


def prompt_of(service: Service, body: ChatBody) -> str:
    """The prompt alone; nothing is compiled for it.

    Raises:
        ApiError, TemplateError: something in the body cannot be used.
    """
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    form = form_of(body.response_format, body.json_schema)
    constrained = use.forced or bool(body.grammar) or not (form is None or isinstance(form, TextFormat))
    return rendered(service, body, use, constrained)[1]


async def whole(chat: Chat, job: Job) -> Response:
    """The answer in one piece."""
    texts = [chat.text() for _ in chat.requests]
    found: list[list[Delta]] = [[] for _ in texts]
    try:
        await job.start()
        async for index, item in job.events():
            texts[index].add(item)
            found[index] += texts[index].read(item)
    finally:
        job.cancel()
    choices = [_choice(chat, i, text, found[i]) for i, text in enumerate(texts)]
    for text in texts:
        note_answer(chat.service, text.text)
        await note_calls(chat.service, text)
    return JSONResponse(
        chat.head("chat.completion")
        | {
            "choices": choices,
            "usage": answer.usage(texts, len(texts)),
            "service_tier": "default",
            "timings": answer.timings(texts[0]),
        }
    )


def _choice(chat: Chat, index: int, text: Text, found: list[Delta]) -> dict[str, Any]:
    content, reasoning, calls = gathered(found)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    reason = text.reason
    if calls:
        message["tool_calls"] = calls
        message["content"] = content or None
        reason = "tool_calls" if reason == "stop" else reason
    logprobs = chat.logprobs(text.infos)
    choice = {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}
    if len(chat.requests) > 1:
        choice["timings"] = answer.timings(text)
    return choice


async def streamed(chat: Chat, job: Job) -> AsyncGenerator[str, None]:
    """The answer as chunks."""
    body = chat.body
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    head = json.dumps(chat.head("chat.completion.chunk"), ensure_ascii=False)[:-1]
    texts = [chat.text() for _ in chat.requests]
    named = body.speculation is not None and bool(body.speculation.name_drafters)
    drafted = [Drafted(chat.reading.form) for _ in texts] if named else []
    ways = [Progress(body, request) for request in chat.requests]

    def chunk(
        index: int,
        delta: dict[str, Any],
        logprobs: Any = None,
        reason: str | None = None,
        rest: str = "",
        drafter: str | None = None,
    ) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        if drafted:
            choice["drafter"] = drafter
        extra = ', "usage": null' if with_usage else ""
        return f'data: {head}, "choices": [{json.dumps(choice, ensure_ascii=False)}]{extra}{rest}}}\n\n'

    for i in range(len(texts)):
        yield chunk(i, {"role": "assistant", "content": "", "refusal": None})
    async for index, item in job.events():
        text, way = texts[index], ways[index]
        if (read := way.see(item)) is not None:
            told = f', "prompt_progress": {json.dumps(read)}'
            yield chunk(index, {"role": "assistant", "content": None}, rest=told)
        if drafted and isinstance(item, Tokens):
            drafted[index].add(item.pieces)
        found = text.read(item)
        parts = drafted[index].split(found) if drafted else [(delta, None) for delta in found]
        deltas = list(zip(_deltas([delta for delta, _ in parts]), [name for _, name in parts]))
        if isinstance(item, Tokens):
            if chat.service.settings.log_prompts:
                text.add(item)
            logprobs = chat.logprobs(item.tokens)
            if not deltas and logprobs:
                deltas = [({"content": ""}, None)]
            for i, (delta, name) in enumerate(deltas):
                yield chunk(index, delta, logprobs if i == 0 else None, rest=way.rest(), drafter=name)
            continue
        text.add(item)
        if isinstance(item, Finished):
            for delta, name in deltas:
                yield chunk(index, delta, drafter=name)
            called = text.called and text.reason == "stop"
            spent = f', "timings": {json.dumps(answer.timings(text))}'
            yield chunk(index, {}, None, "tool_calls" if called else text.reason, spent)
            note_answer(chat.service, text.text)
            await note_calls(chat.service, text)
    if with_usage:
        last = chat.head("chat.completion.chunk") | {"choices": [], "usage": answer.usage(texts, len(texts))}
        yield event(last)
    yield DONE


def _deltas(found: list[Delta]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for delta in found:
        if isinstance(delta, Content):
            out.append({"content": delta.text})
        elif isinstance(delta, Reasoning):
            out.append({"reasoning_content": delta.text})
        elif isinstance(delta, CallStart):
            function = {"name": delta.name, "arguments": ""}
            out.append(
                {"tool_calls": [{"index": delta.index, "id": delta.id, "type": "function", "function": function}]}
            )
        else:
            out.append({"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]})
    return out
