"""The way of every text request: checked, prepared beside the event loop, queued, answered at once or streamed."""

from __future__ import annotations

from typing import AsyncGenerator, Awaitable, Callable, Protocol, Sequence, TypeVar

from fastapi import Request as HttpRequest
from fastapi.responses import Response

from lcspec.engine.request import Request
from lcspec.server.errors import ApiError, invalid
from lcspec.server.job import Job, begin, unless_gone
from lcspec.server.schemas import Asking, Generating
from lcspec.server.service import Service
from lcspec.server.streaming import EventStream, error_event
from lcspec.server.unknown import model_and_rest


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
    check: Callable[[B], None],
    prepare: Callable[[Service, B, str], P],
    whole: Callable[[P, Job], Awaitable[Response]],
    streamed: Callable[[P, Job], AsyncGenerator[str, None]],
    on_error: Callable[[ApiError], str] = error_event,
    media_type: str = "text/event-stream",
) -> Response:
    """Answer `body`.

    Args:
        check: refuses combinations that make no sense; cheap, on the event loop.
        prepare: renders, tokenizes and compiles, given the model's name for the answer; runs on another thread.
        whole: the answer in one piece.
        streamed: the answer as server-sent events.
        on_error: the event for what fails after a stream has begun.
        media_type: what kind of stream it is.

    Raises:
        ApiError, LcspecError: the request cannot be answered.
        ClientGone: nobody waits for the answer.
    """
    service: Service = http.app.state.service
    model = model_and_rest(body, http, body.model)
    check(body)
    service.check_open()
    prepared = await service.in_thread(prepare, service, body, model)
    job = Job(service, prepared.requests)
    if not body.stream:
        return await unless_gone(http, whole(prepared, job))
    await begin(http, job)
    return EventStream(streamed(prepared, job), job.cancel, service.settings.keep_alive_seconds, on_error, media_type)


def check_stream_options(body: Generating) -> None:
    """Refuse options for a stream without one.

    Raises:
        ApiError: 400.
    """
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options is only allowed when stream is true", "stream_options")
