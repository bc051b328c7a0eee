"""The way of every text request: checked, prepared beside the event loop, queued, answered at once or streamed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import AsyncGenerator, Awaitable, Callable, Protocol, Sequence, TypeVar

from fastapi import Request as HttpRequest
from fastapi.responses import Response

from lcspec.engine.request import Request
from lcspec.server.errors import ApiError, invalid
from lcspec.server.job import FIRST_SECONDS, Job, begin, unless_gone
from lcspec.server.journal import JOB
from lcspec.server.model_entry import Entry
from lcspec.server.models import Models
from lcspec.server.schemas import Asking, Generating
from lcspec.server.service import Service
from lcspec.server.streaming import EventStream, error_event
from lcspec.server.unknown import chosen

# How often a stream says how far the loading of its model is.
PROGRESS_SECONDS = 1.0


class Prepared(Protocol):
    """An answer on its way."""

    @property
    def requests(self) -> Sequence[Request]:
        """What the engine is to do for it, one for every text."""


B = TypeVar("B", bound=Asking)
P = TypeVar("P", bound=Prepared)


async def respond(
    body: B,
    http: HttpRequest,
    *,
    prepare: Callable[[Service, B, str], P],
    whole: Callable[[P, Job], Awaitable[Response]],
    streamed: Callable[[P, Job], AsyncGenerator[str, None]],
    check: Callable[[B], None] | None = None,
    on_error: Callable[[ApiError], str] = error_event,
    media_type: str = "text/event-stream",
) -> Response:
    """Answer `body`.

    Args:
        prepare: renders, tokenizes and compiles, given the model's name for the answer; runs on another thread.
        whole: the answer in one piece.
        streamed: the answer as server-sent events.
        check: refuses combinations that make no sense; cheap, on the event loop.
        on_error: the event for what fails after a stream has begun.
        media_type: what kind of stream it is.

    Raises:
        ApiError, LcspecError: the request cannot be answered.
        ClientGone: nobody waits for the answer.
    """
    models: Models = http.app.state.models
    entry, model = chosen(body, http, body.model)
    if check is not None:
        check(body)
    models.check_open()
    if not body.stream:
        service = await unless_gone(http, models.use(entry, http))
        service.check_open()
        prepared = await service.in_thread(prepare, service, body, model)
        return await unless_gone(http, whole(prepared, job_of(service, prepared, http, body)))
    using = asyncio.ensure_future(models.use(entry, http))
    try:
        done = await unless_gone(http, asyncio.wait({using}, timeout=FIRST_SECONDS))
    except BaseException:
        using.cancel()
        raise
    keep_alive = models.settings.keep_alive_seconds
    if not done[0]:
        late = Late(entry, using, comments=media_type == "text/event-stream")

        def start(service: Service) -> AsyncGenerator[str, None]:
            prepared = prepare(service, body, model)
            late.job = job_of(service, prepared, http, body)
            return streamed(prepared, late.job)

        return EventStream(late.streamed(start), late.close, keep_alive, on_error, media_type)
    service = using.result()
    service.check_open()
    prepared = await service.in_thread(prepare, service, body, model)
    job = job_of(service, prepared, http, body)
    await begin(http, job)
    return EventStream(streamed(prepared, job), job.cancel, keep_alive, on_error, media_type)


async def counted(
    body: B, http: HttpRequest, *, check: Callable[[B], None], prepare: Callable[[Service, B, str], Prepared]
) -> int:
    """How many tokens the prompt of `body` has.

    Raises:
        ApiError, LcspecError: the request could not be answered.
        ClientGone: nobody waits for the answer.
    """
    models: Models = http.app.state.models
    entry, model = chosen(body, http, body.model)
    check(body)
    service = await unless_gone(http, models.use(entry, http))
    prepared = await unless_gone(http, service.in_thread(prepare, service, body, model))
    return len(prepared.requests[0].prompt)


def job_of(service: Service, prepared: Prepared, http: HttpRequest, body: Asking) -> Job:
    """A job, which the log hears of."""
    job: Job = Job(service, prepared.requests, details=body.followed)
    http.scope[JOB] = job
    return job


class Late:
    """A stream that begins before its model is loaded, so that the client sees that something happens."""

    def __init__(self, entry: Entry, using: asyncio.Future[Service], comments: bool) -> None:
        self.entry = entry
        self.using = using
        self.comments = comments
        self.job: Job | None = None

    async def streamed(self, start: Callable[[Service], AsyncGenerator[str, None]]) -> AsyncGenerator[str, None]:
        """Comments while the model is loaded, then what `start` makes (beside the event loop)."""
        while not (await asyncio.wait({self.using}, timeout=PROGRESS_SECONDS))[0]:
            if self.comments:
                yield f": {self.entry.state} {self.entry.name} {self.entry.progress:.0%}\n\n"
        service = self.using.result()
        chunks = await service.in_thread(start, service)
        assert self.job is not None
        await self.job.start()
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    def close(self) -> None:
        """Nobody reads it any more."""
        self.using.cancel()
        if self.job is not None:
            self.job.cancel()


def check_stream_options(body: Generating) -> None:
    """Refuse options for a stream without one.

    Raises:
        ApiError: 400.
    """
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options is only allowed when stream is true", "stream_options")
