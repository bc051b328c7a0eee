"""POST /api/chat, /api/generate and /api/embed: Ollama's API over the same endpoints. Streams are JSON lines."""

from __future__ import annotations

import datetime
import json
import time
from dataclasses import dataclass, field
from typing import Any, AsyncGenerator, Mapping, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from lcspec.engine.request import Request as EngineRequest
from lcspec.server import chat, completions, embeddings
from lcspec.server.anthropic import HIGHEST, arguments_of
from lcspec.server.endpoint import respond
from lcspec.server.errors import ApiError, invalid
from lcspec.server.job import Job, unless_gone
from lcspec.server.models import Models
from lcspec.server.prompts import ANY_OBJECT
from lcspec.server.schemas import CompletionBody, EmbeddingBody, Sampling
from lcspec.server.schemas_answers import OllamaChatAnswer, OllamaEmbedAnswer, OllamaGenerateAnswer, answered
from lcspec.server.schemas_chat import ChatBody, ToolChoice
from lcspec.server.schemas_ollama import OllamaAsking, OllamaChatBody, OllamaEmbedBody, OllamaGenerateBody
from lcspec.server.service import Service
from lcspec.server.translated import FollowedJob, body_of, choices, read, whole_choice
from lcspec.server.unknown import chosen

router = APIRouter()
LINES = "application/x-ndjson"


@dataclass
class Reply:
    """An answer on its way: over a chat completion, or over a raw one."""

    body: OllamaAsking
    made: chat.Chat | completions.Completion
    start: float = field(default_factory=time.perf_counter)

    @property
    def requests(self) -> Sequence[EngineRequest]:
        """What the engine is to do: one text."""
        return self.made.requests

    def line(self, content: str = "", thinking: str = "", calls: Sequence[Any] = (), **rest: Any) -> dict[str, Any]:
        """A part of the answer, or all of it."""
        head = {"model": self.made.model, "created_at": now()}
        if isinstance(self.body, OllamaGenerateBody):
            return head | {"response": content} | ({"thinking": thinking} if thinking else {}) | {"done": False} | rest
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = list(calls)
        return head | {"message": message, "done": False} | rest

    def ended(self, job: FollowedJob, reason: str) -> dict[str, Any]:
        """What the last line says: why it ended, tokens, nanoseconds."""
        stats = job.finished.stats if job.finished is not None else None
        return {
            "done": True,
            "done_reason": "length" if reason == "length" else "stop",
            "total_duration": int((time.perf_counter() - self.start) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": len(self.requests[0].prompt),
            "prompt_eval_duration": int(stats.prefill_seconds * 1e9) if stats else 0,
            "eval_count": job.finished.completion_tokens if job.finished is not None else 0,
            "eval_duration": int(stats.decode_seconds * 1e9) if stats else 0,
        }


def now() -> str:
    """The time as this API writes it."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")


@router.post("/api/chat", summary="Answer a conversation (Ollama's API)", responses=answered(OllamaChatAnswer, LINES))
async def ollama_chat(body: OllamaChatBody, http: Request) -> Response:
    """The next message of a conversation, as JSON lines or at once."""
    if not body.messages:  # asks to load the model
        return await _loaded(body, http, {"message": {"role": "assistant", "content": ""}})
    return await respond(
        body, http, check=_check_chat, prepare=prepare_chat, whole=_whole, streamed=_streamed, on_error=_error_line,
        media_type=LINES,
    )  # fmt: skip


@router.post("/api/generate", summary="Answer a prompt (Ollama's API)", responses=answered(OllamaGenerateAnswer, LINES))
async def ollama_generate(body: OllamaGenerateBody, http: Request) -> Response:
    """The answer to a prompt, or what comes after a raw text, as JSON lines or at once."""
    if not body.prompt and not body.suffix:
        return await _loaded(body, http, {"response": ""})
    return await respond(
        body, http, check=_check_generate, prepare=prepare_generate, whole=_whole, streamed=_streamed,
        on_error=_error_line, media_type=LINES,
    )  # fmt: skip


async def _loaded(body: OllamaAsking, http: Request, empty: Mapping[str, Any]) -> Response:
    """Load a model, or with `keep_alive` 0 unload it."""
    models: Models = http.app.state.models
    goes = body.unloads and models.loader is not None
    entry, name = chosen(body.model_copy(update={"keep_alive": None}) if goes else body, http, body.model)
    models.check_open()
    head = {"model": name, "created_at": now(), **empty, "done": True}
    if body.unloads:
        await models.unload_idle(entry)
        return JSONResponse(head | {"done_reason": "unload"})
    (await unless_gone(http, models.use(entry, http))).check_open()
    return JSONResponse(head | {"done_reason": "load"})


def _error_line(error: ApiError) -> str:
    return json.dumps(error.body_for("/api/"), ensure_ascii=False) + "\n"


def _check_chat(body: OllamaChatBody) -> None:
    for i, message in enumerate(body.messages):
        if message.images:
            raise invalid(f"messages[{i}]: this model reads text only, not images", f"messages[{i}].images")


def _check_generate(body: OllamaGenerateBody) -> None:
    if body.images:
        raise invalid("this model reads text only, not images", "images")
    if body.template:
        raise invalid("template: a request cannot bring its own; start the server with --chat-template", "template")
    if body.context:
        raise invalid("context: send the text itself; what is in the cache is found by itself", "context")
    if (body.raw or body.suffix) and body.system:
        raise invalid("raw and suffix do not go with system", "raw")


def _common(body: OllamaAsking) -> dict[str, Any]:
    """Fields that all of our endpoints share; `options` win over the same names beside them."""
    options = body.options
    given = {name: getattr(body, name) for name in Sampling.model_fields}
    for name in Sampling.model_fields:
        value = getattr(options, name, None)
        given[name] = given[name] if value is None else value
    limit = body.limit() if options is None or options.num_predict is None else options.num_predict
    given["max_tokens"] = -1 if limit is None or limit < 0 else limit
    given["stop"] = body.stop if options is None or options.stop is None else options.stop
    for name in ("logit_bias", "grammar", "ignore_eos"):
        given[name] = getattr(body, name)
    for name in ("prediction", "speculation"):
        value = getattr(body, name)
        given[name] = value and value.model_dump(exclude_none=True)
    return given


def _form(body: OllamaAsking) -> dict[str, Any] | None:
    if not body.format:
        return None
    if body.format == "json":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"schema": body.format}}


def prepare_chat(service: Service, body: OllamaChatBody, model: str) -> Reply:
    """Render and tokenize; runs beside the event loop.

    Raises:
        ApiError, LcspecError: something in the body cannot be used.
    """
    messages = []
    for message in body.messages:
        item: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            item["reasoning_content"] = message.thinking
        if message.tool_name:
            item["name"] = message.tool_name
        if message.tool_call_id:
            item["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            item["tool_calls"] = [
                {
                    "id": call.id or "",
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": _json(call.function.arguments)},
                }
                for call in message.tool_calls
            ]
        messages.append(item)
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()] or None
    choice = body.tool_choice
    fields: dict[str, Any] = {"messages": messages, "tools": tools}
    fields["tool_choice"] = choice.model_dump() if isinstance(choice, ToolChoice) else choice
    return Reply(body, chat.prepare(service, _chat_body(body, fields), model))


def _chat_body(body: OllamaAsking, fields: Mapping[str, Any]) -> ChatBody:
    think = HIGHEST.get(body.think, body.think) if isinstance(body.think, str) else body.think
    common = _common(body) | {"think": think, "response_format": _form(body)}
    common |= {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs if body.logprobs else None}
    return body_of(ChatBody, common | {"chat_template_kwargs": body.chat_template_kwargs, **fields})


def prepare_generate(service: Service, body: OllamaGenerateBody, model: str) -> Reply:
    """Render and tokenize; runs beside the event loop.

    Raises:
        ApiError, LcspecError: something in the body cannot be used.
    """
    if body.raw or body.suffix:
        given = _common(body) | {"prompt": body.prompt, "suffix": body.suffix or None}
        given["json_schema"] = ANY_OBJECT if body.format == "json" else body.format or None
        given["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
        return Reply(body, completions.prepare(service, body_of(CompletionBody, given), model))
    messages = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": body.prompt})
    return Reply(body, chat.prepare(service, _chat_body(body, {"messages": messages}), model))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _call(function: Mapping[str, Any], identity: str) -> dict[str, Any]:
    return {"id": identity, "function": {"name": function["name"], "arguments": arguments_of(function)}}


def _probabilities(choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice's log-probabilities in this API's form, if they were asked for."""
    given = choice["logprobs"]
    if not given:
        return {}
    if "content" in given:
        keys = ("token", "logprob", "bytes")
        shown = [
            {key: entry[key] for key in keys}
            | {"top_logprobs": [{key: top[key] for key in keys} for top in entry["top_logprobs"]]}
            for entry in given["content"]
        ]
    else:
        shown = [
            {"token": token, "logprob": value, "top_logprobs": [{"token": t, "logprob": p} for t, p in top.items()]}
            for token, value, top in zip(given["tokens"], given["token_logprobs"], given["top_logprobs"])
        ]
    return {"logprobs": shown}


async def _whole(reply: Reply, job: Job) -> Response:
    followed = FollowedJob.over(job)
    if isinstance(reply.made, completions.Completion):
        choice = read(await completions.whole(reply.made, followed))["choices"][0]
        ended = _probabilities(choice) | reply.ended(followed, choice["finish_reason"])
        return JSONResponse(reply.line(choice["text"], **ended))
    choice = await whole_choice(reply.made, followed)
    message = choice["message"]
    calls = [_call(call["function"], call["id"]) for call in message.get("tool_calls") or ()]
    ended = _probabilities(choice) | reply.ended(followed, choice["finish_reason"])
    thinking = message.get("reasoning_content") or ""
    return JSONResponse(reply.line(message.get("content") or "", thinking, calls, **ended))


async def _streamed(reply: Reply, job: Job) -> AsyncGenerator[str, None]:
    followed, reason = FollowedJob.over(job), "stop"
    calls: list[dict[str, Any]] = []  # written whole: their arguments are objects here
    if isinstance(reply.made, completions.Completion):
        async for line in completions.streamed(reply.made, followed):
            if line.startswith("data: {"):
                for choice in json.loads(line[len("data: ") :])["choices"]:
                    reason = choice["finish_reason"] or reason
                    if choice["text"] or choice["logprobs"]:
                        yield _json(reply.line(choice["text"], **_probabilities(choice))) + "\n"
    else:
        async for choice in choices(reply.made, followed):
            delta, reason = choice["delta"], choice["finish_reason"] or reason
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                if call.get("id"):
                    calls.append({"id": call["id"], "name": function.get("name", ""), "arguments": ""})
                calls[-1]["arguments"] += function.get("arguments") or ""
            content, thinking = delta.get("content") or "", delta.get("reasoning_content") or ""
            if content or thinking or choice["logprobs"]:
                yield _json(reply.line(content, thinking, **_probabilities(choice))) + "\n"
    if calls:
        yield _json(reply.line(calls=[_call(call, call["id"]) for call in calls])) + "\n"
    yield _json(reply.line(**reply.ended(followed, reason))) + "\n"


@router.post("/api/embed", summary="Embed texts (Ollama's API)", responses=answered(OllamaEmbedAnswer))
async def ollama_embed(body: OllamaEmbedBody, http: Request) -> Response:
    """A vector of unit length for every text."""
    start = time.perf_counter()
    _, name = chosen(body, http, body.model)
    if not body.input and body.input is not None:  # no text at all
        counts = {"total_duration": 0, "load_duration": 0, "prompt_eval_count": 0}
        return JSONResponse({"model": name, "embeddings": []} | counts)
    if body.input is None:
        raise invalid("input: a text, or a list of texts, is needed", "input", "missing_required_parameter")
    found = await _embedded(body, body.input, http)
    return JSONResponse(
        {
            "model": found["model"],
            "embeddings": [row["embedding"] for row in found["data"]],
            "total_duration": int((time.perf_counter() - start) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": found["usage"]["prompt_tokens"],
        }
    )


@router.post("/api/embeddings", include_in_schema=False)
async def ollama_embeddings(body: OllamaEmbedBody, http: Request) -> Response:
    """The older form: one text."""
    chosen(body, http, body.model)
    if body.prompt is None:
        raise invalid("prompt: a text is needed", "prompt", "missing_required_parameter")
    return JSONResponse({"embedding": (await _embedded(body, body.prompt, http))["data"][0]["embedding"]})


async def _embedded(body: OllamaEmbedBody, texts: str | list[str], http: Request) -> dict[str, Any]:
    async def made(service: Service, given: EmbeddingBody, model: str) -> Response:
        if body.truncate is not False:
            each = [texts] if isinstance(texts, str) else texts
            given.input = [await service.in_thread(_cut, service, text) for text in each]
        return await embeddings.embedded(service, given, model)

    given = EmbeddingBody(model=body.model, input=texts, dimensions=body.dimensions)
    return read(await embeddings.answer(given, body.model, http, made))


def _cut(service: Service, text: str) -> list[int]:
    """A text's ids, without what the context has no room for; what the model wants at a text's end stays."""
    vocab, room = service.vocab, min(service.n_ctx, service.facts.n_ctx_train or service.n_ctx)
    text = text[: room * service.longest_piece]
    ids = vocab.tokenize(text)
    if len(ids) <= room:
        return ids
    end = ids[-1:] if ids[-1:] != vocab.tokenize(text, special=False)[-1:] else []
    return ids[: room - len(end)] + end
