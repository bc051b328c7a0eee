"""POST /completion and /infill, and GET /props and /slots: llama-server's own API, for llama.vim, llama.vscode and
others."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any, AsyncGenerator, AsyncIterator, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from lcspec.engine.events import Event, Finished, Tokens
from lcspec.engine.request import Request as EngineRequest
from lcspec.errors import UnsupportedModel
from lcspec.sampling.parameters import MADE, SamplingParams
from lcspec.server import answer
from lcspec.server.answer import Text
from lcspec.server.endpoint import respond
from lcspec.server.errors import ApiError, invalid
from lcspec.server.job import Job
from lcspec.server.journal import note_answer, note_prompt
from lcspec.server.models import Models
from lcspec.server.progress import Progress
from lcspec.server.prompts import Wanted, bias, engine_requests, form_of, grammar_of
from lcspec.server.schemas_answers import STREAM, answered
from lcspec.server.schemas_native import InfillBody, NativeBody, NativeCompletionBody, Quoted
from lcspec.server.schemas_native_answers import NativeAnswer, Props, SlotState
from lcspec.server.service import Service
from lcspec.server.streaming import event
from lcspec.server.tools import ToolUse
from lcspec.server.unknown import named, not_found, usual

router = APIRouter()
# Of an infill's context, what is kept before and after the gap when it does not fit: as in llama-server.
BEFORE, AFTER = 3, 1
FRAME = 24  # tokens at most for the marks of an infill, and for names that nobody gave


@dataclass
class Native:
    """An answer on its way."""

    service: Service
    body: NativeBody
    model: str
    requests: list[EngineRequest]

    def final(self, index: int, text: Text, streamed: bool) -> dict[str, Any]:
        """The answer to one prompt, or what ends its stream."""
        request, end = self.requests[index], text.finished
        assert end is not None
        content, indent = text.text, self.body.n_indent or 0
        kept = content if streamed or not indent else until_outdent(content, indent)
        kind = "word" if end.stop is not None else "eos"  # anything but `stop` is a limit: tokens, context, time
        ids = [info.id for info in text.infos]
        found = {
            "index": index,
            "content": "" if streamed else kept,
            "tokens": ids if self.body.return_tokens and not streamed else [],
            "id_slot": -1,
            "stop": True,
            "model": self.model,
            "tokens_predicted": end.completion_tokens,
            "tokens_evaluated": end.prompt_tokens,
            "generation_settings": settings_of(self.service, request, end.seed),
            "prompt": self.service.vocab.text(list(request.prompt), special=True),
            "has_new_line": "\n" in text.text,
            "truncated": end.reason == "context",
            "stop_type": kind if end.reason == "stop" and kept == content else "limit",
            "stopping_word": end.stop or "",
            "tokens_cached": end.prompt_tokens + end.completion_tokens,
            "timings": answer.timings(text),
        } | self.probabilities(text.infos if not streamed else [])
        return chosen_fields(found, self.body.response_fields) if self.body.response_fields else found

    async def events(self, job: Job) -> AsyncIterator[tuple[int, Event]]:
        """The job's events. A text ends with the first line that ends after `t_max_predict_ms`."""
        limit = max(0, self.body.t_max_predict_ms or 0)
        begun: dict[int, float] = {}
        over: set[int] = set()
        async for index, item in job.events():
            if limit and isinstance(item, Tokens):
                if index in over:
                    continue
                now = time.perf_counter()
                if (now - begun.setdefault(index, now)) * 1000 > limit and "\n" in item.text:
                    over.add(index)
                    job.end(index)
            yield index, item

    def probabilities(self, infos: Sequence[Any]) -> dict[str, Any]:
        """Log-probabilities of tokens, if they were asked for."""
        if not self.body.n_probs or not infos:
            return {}
        sampled = bool(self.body.post_sampling_probs)
        shown = answer.chat_logprobs(self.service.vocab, infos, sampled)["content"]
        for info, entry in zip(infos, shown):
            entry["id"] = info.id
            for (token, _), top in zip(info.top, entry["top_probs" if sampled else "top_logprobs"]):
                top["id"] = token
        return {"completion_probabilities": shown}


def chosen_fields(found: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """The fields named by `paths`, under these names (a/b: the b in a); what is not there is left out."""
    out: dict[str, Any] = {}
    for path in paths:
        value: Any = found
        for step in path.split("/"):
            value = value.get(step, ...) if isinstance(value, dict) else ...
        if value is not ...:
            out[path] = value
    return out


def until_outdent(text: str, indent: int) -> str:
    """`text` up to the first line after its first that is indented less than `indent`; blank lines do not count."""
    lines = text.split("\n")
    for i, line in enumerate(lines[1:], 1):
        if line.strip() and len(line) - len(line.lstrip(" \t")) < indent:
            return "\n".join(lines[:i])
    return text


def settings_of(service: Service, request: EngineRequest, seed: int | None = None) -> dict[str, Any]:
    """How a request samples; `seed` is the one that was drawn for it."""
    sampling = request.sampling
    shown = {field.name: getattr(sampling, field.name) for field in fields(sampling) if field.name not in MADE}
    limit = -1 if request.max_tokens is None else request.max_tokens
    shown |= {"n_ctx": service.n_ctx, "n_predict": limit, "max_tokens": limit, "stop": list(request.stop)}
    drawn = -1 if sampling.seed is None else sampling.seed
    return shown | {"seed": drawn if seed is None else seed}


# With `response_fields` an answer is any of its fields; with `n_cmpl`, or several prompts, there are several answers.
ANSWERS = NativeAnswer | dict[str, Any] | list[NativeAnswer | dict[str, Any]]


@router.post(
    "/completion",
    summary="Continue a text (llama-server's API)",
    responses=answered(ANSWERS, STREAM),
)
async def completion(body: NativeCompletionBody, http: Request) -> Response:
    """The continuation of one or more prompts, at once or as server-sent events."""
    return await respond(body, http, prepare=prepare, whole=_whole, streamed=_streamed)


@router.post("/infill", summary="Fill in a gap (llama-server's API)", responses=answered(ANSWERS, STREAM))
async def infill(body: InfillBody, http: Request) -> Response:
    """The text between a prefix and a suffix, at once or as server-sent events."""
    return await respond(body, http, prepare=prepare_infill, whole=_whole, streamed=_streamed)


def prepare(service: Service, body: NativeCompletionBody, model: str) -> Native:
    """Tokenize and compile; runs beside the event loop.

    Raises:
        ApiError, LcspecError: something in the body cannot be used.
    """
    prompt: Any = body.prompt
    many = isinstance(prompt, list) and not any(isinstance(part, int) for part in prompt) and len(prompt) != 0
    if isinstance(prompt, list) and not prompt:
        raise invalid("the prompt is an empty list", "prompt")
    return _made(service, body, model, [_ids(service, p) for p in (prompt if many else [prompt])])


def _ids(service: Service, prompt: str | Quoted | list[Any]) -> tuple[int, ...]:
    """A prompt as text, as ids, or as a mixture of both."""
    if isinstance(prompt, Quoted):
        prompt = prompt.prompt_string
    if isinstance(prompt, str):
        return service.tokenize(prompt)
    if not prompt:
        raise invalid("a prompt of token ids is empty", "prompt")
    for part in prompt:
        if isinstance(part, str):
            service.check_length(part)
    return service.mixed_ids(prompt)


def prepare_infill(service: Service, body: InfillBody, model: str) -> Native:
    """Tokenize; runs beside the event loop. What is furthest from the gap is left out if it does not fit.

    Raises:
        ApiError, LcspecError: something in the body cannot be used.
    """
    marks = service.vocab.fill_in_middle
    if marks is None:
        raise UnsupportedModel(
            f"{service.vocab.path.name} has no fill-in-the-middle tokens, so it cannot fill in: use a model for code"
        )

    def plain(text: str) -> list[int]:
        return service.vocab.tokenize(text, special=False, parse_special=False)

    # Few texts get as long as they may: half of the context is for what is around the gap in any case.
    limit = body.limit()
    room = max(16, service.n_ctx // 2, 0 if limit is None else service.n_ctx - limit - 8)
    share = room // (BEFORE + AFTER)
    before = plain(body.input_prefix + (body.prompt or ""))[-BEFORE * share :]
    after = plain(body.input_suffix)[: AFTER * share]
    room -= len(before) + len(after) + FRAME
    others: list[int] = []
    for extra in reversed(body.input_extra or []):  # the last ones are the nearest
        name = extra.filename or "snippet"
        if marks.file >= 0:
            piece = [marks.file, *plain(f"{name}\n{extra.text}")]
        else:
            piece = plain(f"--- {name} ---\n{extra.text}\n\n")
        if len(piece) + len(others) > room:
            break
        others = piece + others
    if others and marks.file >= 0:  # as models learn repositories; nobody says what this file is called
        repository = [marks.repository, *plain("project\n")] if marks.repository >= 0 else []
        others = [*repository, *others, marks.file, *plain("file\n")]
    begin = [service.vocab.bos] if service.vocab.add_bos else []
    ids = (*begin, *others, marks.prefix, *before, marks.suffix, *after, marks.middle)
    return _made(service, body, model, [ids])


def _made(service: Service, body: NativeBody, model: str, prompts: list[tuple[int, ...]]) -> Native:
    wanted = Wanted(
        body,
        body.speculation,
        body.prediction,
        bias(service, body.logit_bias),
        grammar_of(service, body.grammar, form_of(None, body.json_schema), ToolUse(choice="none")),
        body.limit(-1),
        body.stops,
        body.n_probs or None,
        body.n_cmpl or body.n or 1,
        bool(body.ignore_eos),
        sampled_probs=bool(body.post_sampling_probs),
    )
    requests = engine_requests(service, prompts, wanted)
    if service.settings.log_prompts:
        for ids in prompts:
            note_prompt(service, service.vocab.text(list(ids)))
    return Native(service, body, model, requests)


async def _whole(made: Native, job: Job) -> Response:
    texts = [Text() for _ in made.requests]
    try:
        await job.start()
        async for index, item in made.events(job):
            texts[index].add(item)
    finally:
        job.cancel()
    for text in texts:
        note_answer(made.service, text.text)
    found = [made.final(i, text, streamed=False) for i, text in enumerate(texts)]
    return JSONResponse(found if len(found) > 1 else found[0])


async def _streamed(made: Native, job: Job) -> AsyncGenerator[str, None]:
    texts = [Text() for _ in made.requests]
    ways = [Progress(made.body, request) for request in made.requests]

    def part(index: int, content: str, ids: Sequence[int]) -> dict[str, Any]:
        counts = {"tokens_predicted": len(texts[index].infos), "tokens_evaluated": len(made.requests[index].prompt)}
        return {"index": index, "content": content, "tokens": ids, "stop": False, "id_slot": -1} | counts

    async for index, item in made.events(job):
        text, way = texts[index], ways[index]
        text.add(item)
        if (read := way.see(item)) is not None:
            yield event(part(index, "", []) | {"prompt_progress": read})
        if isinstance(item, Tokens):
            ids = [info.id for info in item.tokens]
            yield event(part(index, item.text, ids) | way.said() | made.probabilities(item.tokens))
        elif isinstance(item, Finished):
            note_answer(made.service, text.text)
            yield event(made.final(index, text, streamed=True))


async def service_for(http: Request, model: str | None) -> Service:
    """The model of that name, or the usual one.

    Raises:
        ApiError: there is none.
    """
    models: Models = http.app.state.models
    entry = named(models, model)
    if entry is None and model:
        raise not_found(models, model)
    return await models.use(entry or usual(models), http)


@router.get("/props", summary="What is served (llama-server's API)", responses=answered(Props))
async def props(http: Request, model: str | None = None) -> Response:
    """The model, its template, defaults; `model` names one of several."""
    service = await service_for(http, model)
    tokens = service.template.tokens
    return JSONResponse(
        {
            "default_generation_settings": {
                "n_ctx": service.n_ctx,
                "params": settings_of(service, EngineRequest((0,), SamplingParams(**service.settings.sampling))),
            },
            "total_slots": service.slots,
            "model_alias": service.settings.models[0],
            "model_path": service.facts.options.path.name,
            "chat_template": service.template.text,
            "modalities": {"vision": False, "audio": False},
            "bos_token": tokens["bos_token"],
            "eos_token": tokens["eos_token"],
            "build_info": service.fingerprint,
            "is_sleeping": False,
        }
    )


@router.get("/slots", summary="What the slots do (llama-server's API)", responses=answered(list[SlotState]))
async def slots(http: Request, model: str | None = None, fail_on_no_slot: str = "") -> Response:
    """Every slot, without anybody's text; `model` names one of several. With `fail_on_no_slot` 503 if none is free."""
    service = await service_for(http, model)
    running = service.capacity.running
    if fail_on_no_slot and running == service.slots:
        raise ApiError(503, "no slot is free", code="no_slot", headers={"Retry-After": "1"})
    return JSONResponse(
        [
            {"id": i, "n_ctx": service.n_ctx, "speculative": service.settings.speculate != "off"}
            | {"is_processing": i < running}
            for i in range(service.slots)
        ]
    )
