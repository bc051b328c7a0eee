"""POST /v1/completions: raw text to continue, or to fill in."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from functools import partial
from typing import Any, AsyncGenerator

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from lcspec.engine.events import Finished, TokenInfo, Tokens
from lcspec.engine.request import Request as EngineRequest
from lcspec.engine_host import score
from lcspec.errors import UnsupportedModel
from lcspec.server import answer
from lcspec.server.answer import Text
from lcspec.server.endpoint import check_stream_options, respond
from lcspec.server.errors import invalid
from lcspec.server.job import Job
from lcspec.server.journal import note_answer, note_prompt
from lcspec.server.progress import Progress
from lcspec.server.prompts import Wanted, bias, engine_requests, form_of, grammar_of
from lcspec.server.schemas import CompletionBody
from lcspec.server.schemas_answers import STREAM, TextCompletion, answered
from lcspec.server.service import Service
from lcspec.server.streaming import DONE, event
from lcspec.server.tools import ToolUse

router = APIRouter()
# As in the OpenAI API.
DEFAULT_TOKENS = 16


@dataclass
class Completion:
    """A completion on its way; `prefixes` is what `echo` puts before each text."""

    service: Service
    body: CompletionBody
    model: str
    requests: list[EngineRequest]
    prefixes: list[str]

    def __post_init__(self) -> None:
        self.id = f"cmpl-{secrets.token_hex(12)}"
        self.created = answer.now()

    @property
    def head(self) -> dict[str, Any]:
        """What every object of the answer begins with."""
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.service.fingerprint,
        }


@router.post("/v1/completions", summary="Continue a text", responses=answered(TextCompletion, STREAM))
@router.post("/completions", include_in_schema=False)
async def completions(body: CompletionBody, http: Request) -> Response:
    """The continuation of one or more prompts, at once or as server-sent events."""
    return await respond(body, http, check=check, prepare=prepare, whole=whole, streamed=streamed)


def check(body: CompletionBody) -> None:
    """Refuse combinations that make no sense.

    Raises:
        ApiError: 400.
    """
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise invalid("best_of must equal n: texts are not ranked here", "best_of")
    check_stream_options(body)
    if body.echo and body.suffix:
        raise invalid("echo cannot go with suffix", "echo")


def prepare(service: Service, body: CompletionBody, model: str) -> Completion:
    """Tokenize and compile; runs beside the event loop.

    Raises:
        ApiError, LcspecError: something in the body cannot be used.
    """
    given = split_prompts(body.prompt)
    prompts = [_ids(service, prompt, body.suffix or None) for prompt in given]
    wanted = Wanted(
        body,
        body.speculation,
        body.prediction,
        bias(service, body.logit_bias),
        grammar_of(service, body.grammar, form_of(None, body.json_schema), ToolUse(choice="none")),
        body.limit(DEFAULT_TOKENS),
        body.stops,
        body.logprobs,
        body.n or 1,
        bool(body.ignore_eos),
        warm=not body.echo,  # with log-probabilities its prompts are evaluated apart, and often that is all
    )
    requests = engine_requests(service, prompts, wanted)
    texts = [p if isinstance(p, str) else service.vocab.text(p, special=True) for p in given] if body.echo else []
    prefixes = [text for text in texts for _ in range(wanted.n)] or [""] * len(requests)
    for prompt in prompts:
        if service.settings.log_prompts:
            note_prompt(service, service.vocab.text(list(prompt)))
    return Completion(service, body, model, requests, prefixes)


def split_prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """The prompts in any of the forms the API takes: a text, ids, texts, lists of ids.

    Raises:
        ApiError: the list is empty.
    """
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    if not prompt:
        raise invalid("the prompt is an empty list", "prompt")
    return list(prompt)


def _ids(service: Service, prompt: str | list[int], suffix: str | None) -> tuple[int, ...]:
    if not isinstance(prompt, str):
        if not prompt:
            raise invalid("a prompt of token ids is empty", "prompt")
        if suffix is not None:
            raise invalid("suffix needs a prompt that is text", "suffix")
        return service.check_ids(prompt)
    if suffix is None:
        return service.tokenize(prompt)
    marks = service.vocab.fill_in_middle
    if marks is None:
        raise UnsupportedModel(
            f"{service.vocab.path.name} has no fill-in-the-middle tokens, so it cannot fill in before a suffix: "
            "leave suffix out"
        )
    service.check_length(prompt + suffix)

    def plain(text: str) -> list[int]:
        return service.vocab.tokenize(text, special=False)

    begin = [service.vocab.bos] if service.vocab.add_bos else []
    return (*begin, marks.prefix, *plain(prompt), marks.suffix, *plain(suffix), marks.middle)


async def prompt_logprobs(made: Completion) -> list[dict[str, Any] | None]:
    """Log-probabilities of each prompt's own tokens, if `echo` and `logprobs` ask for them.

    Raises:
        LcspecError: they cannot be had.
    """
    if not made.body.echo or made.body.logprobs is None:
        return [None] * len(made.requests)
    vocab = made.service.vocab
    found: dict[tuple[int, ...], list[TokenInfo]] = {}
    async with made.service.embedding:  # one such context at a time
        for ids in dict.fromkeys(request.prompt for request in made.requests):
            found[ids] = await made.service.in_pieces(partial(score, ids, made.service.n_ctx, made.body.logprobs))
    scored: list[dict[str, Any] | None] = []
    for request, prefix in zip(made.requests, made.prefixes):
        where = answer.TextOffsets.of_prompt(vocab, request.prompt, prefix)
        shown = answer.text_logprobs(vocab, found[request.prompt], where)
        shown["token_logprobs"][0] = shown["top_logprobs"][0] = None  # nothing is before it
        scored.append(shown)
    return scored


async def whole(made: Completion, job: Job) -> Response:
    """The answer in one piece."""
    texts = [Text() for _ in made.requests]
    scored = await prompt_logprobs(made)
    try:
        await job.start()
        async for index, item in job.events():
            texts[index].add(item)
    finally:
        job.cancel()
    choices = []
    for i, text in enumerate(texts):
        logprobs = None
        if made.body.logprobs is not None:
            where = answer.TextOffsets(len(made.prefixes[i]))
            logprobs = answer.text_logprobs(made.service.vocab, text.infos, where)
            logprobs = {name: before[name] + logprobs[name] for name in before} if (before := scored[i]) else logprobs
        choice = {
            "index": i,
            "text": made.prefixes[i] + text.text,
            "logprobs": logprobs,
            "finish_reason": text.reason,
        }
        if len(texts) > 1:
            choice["timings"] = answer.timings(text)
        choices.append(choice)
        note_answer(made.service, text.text)
    spent = {"usage": answer.usage(texts, made.body.n or 1), "timings": answer.timings(texts[0])}
    return JSONResponse(made.head | {"choices": choices} | spent)


async def streamed(made: Completion, job: Job) -> AsyncGenerator[str, None]:
    """The answer as chunks."""
    body, vocab = made.body, made.service.vocab
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    head = json.dumps(made.head, ensure_ascii=False)[:-1]
    texts, offsets = [Text() for _ in made.requests], [answer.TextOffsets(len(p)) for p in made.prefixes]
    ways = [Progress(body, request) for request in made.requests]

    def chunk(index: int, new: str, logprobs: Any = None, reason: str | None = None, rest: str = "") -> str:
        choice = {"index": index, "text": new, "logprobs": logprobs, "finish_reason": reason}
        extra = ', "usage": null' if with_usage else ""
        return f'data: {head}, "choices": [{json.dumps(choice, ensure_ascii=False)}]{extra}{rest}}}\n\n'

    scored = await prompt_logprobs(made)
    for i, (prefix, before) in enumerate(zip(made.prefixes, scored)):
        if prefix or before:
            yield chunk(i, prefix, before)
    async for index, item in job.events():
        text, way = texts[index], ways[index]
        if (read := way.see(item)) is not None:
            yield chunk(index, "", rest=f', "prompt_progress": {json.dumps(read)}')
        if isinstance(item, Tokens):
            if made.service.settings.log_prompts:
                text.add(item)
            logprobs, new = None, item.text
            if body.logprobs is not None:
                logprobs = answer.text_logprobs(vocab, item.tokens, offsets[index])
            if new or logprobs:
                yield chunk(index, new, logprobs, rest=way.rest())
            continue
        text.add(item)
        if isinstance(item, Finished):
            yield chunk(index, "", None, text.reason, f', "timings": {json.dumps(answer.timings(text))}')
            note_answer(made.service, text.text)
    if with_usage:
        yield event(made.head | {"choices": [], "usage": answer.usage(texts, body.n or 1)})
    yield DONE
