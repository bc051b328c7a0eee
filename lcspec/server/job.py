"""One HTTP request's texts on the engine: queued, followed, cancelled together."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import AsyncIterator, Awaitable, Sequence, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.types import Receive

from lcspec.engine.events import Event, Failed, Finished, Step, Tokens
from lcspec.engine.request import Request
from lcspec.engine_host import Ticket
from lcspec.errors import LcspecError
from lcspec.server.errors import ApiError, ClientGone, from_engine
from lcspec.server.service import Service

T = TypeVar("T")
# How long a stream waits for a sign of life before it answers 200: errors found later go into the stream.
FIRST_SECONDS = 1.0


class Job:
    """Requests of one HTTP request. Used on the event loop's thread only.

    However it ends, `cancel` must be called: it does nothing to what has finished.
    """

    def __init__(self, service: Service, requests: Sequence[Request], details: bool = False) -> None:
        """`details`: its events have the account of steps as well (see EngineHost.submit)."""
        self.service = service
        self._details = details
        self.requests = list(requests)
        self._events: asyncio.Queue[tuple[int, list[Event]]] = asyncio.Queue()
        self._head: list[tuple[int, list[Event]]] = []
        self._tickets: dict[int, Ticket] = {}
        self._open: set[int] = set()  # texts whose last event has not come
        self._ended: set[int] = set()  # texts that were ended from here
        self._cancelled = False
        self.read = self.written = 0  # tokens of the prompts, and of the answers that have ended
        self._start = time.perf_counter()
        self._first: float | None = None

    async def start(self) -> None:
        """Queue everything.

        Raises:
            ApiError: there is no room, or the engine refused a request.
        """
        self.service.check_open()
        self.service.capacity.take(len(self.requests))
        outbox = self.service.outbox()
        futures: list[Future[Ticket]] = []
        for i, request in enumerate(self.requests):
            self._open.add(i)
            futures.append(self.service.worker.submit(request, outbox.sink(self, i), details=self._details))
        problem: BaseException | None = None
        for i, future in enumerate(futures):
            try:
                self._tickets[i] = await asyncio.wrap_future(future)
            except BaseException as error:
                problem = problem or error
                self._give_up(i, future)
        if problem is None:
            return
        self.cancel()
        raise from_engine(problem) if isinstance(problem, LcspecError) else problem

    def _give_up(self, index: int, future: Future[Ticket]) -> None:
        """This text was refused, or its caller went away while it was being queued."""
        if future.cancel():
            self._closed(index)
            return
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda f: loop.call_soon_threadsafe(self._late, index, f))

    def _late(self, index: int, future: Future[Ticket]) -> None:
        if future.exception() is not None:
            self._closed(index)
        else:
            future.result().cancel()

    def deliver(self, index: int, events: list[Event]) -> None:
        """What the engine had to say; called on the event loop."""
        if self._first is None and any(isinstance(e, Tokens) for e in events):
            self._first = time.perf_counter() - self._start
            self.service.metrics.first_token(self._first)
        last = events[-1]
        if self._details:
            events = _accounts_first(events)
        if isinstance(last, (Finished, Failed)):
            seconds = time.perf_counter() - self._start
            if isinstance(last, Finished):
                self.read += last.prompt_tokens
                self.written += last.completion_tokens
                self.service.look_at_speed()
            self._closed(index, None if self._cancelled else seconds)
            self.service.metrics.ended(last, seconds)
        if not self._cancelled:
            self._events.put_nowait((index, events))

    def _closed(self, index: int, seconds: float | None = None) -> None:
        """The engine is done with this text: its place is free."""
        if index in self._open:
            self._open.discard(index)
            self._tickets.pop(index, None)
            self.service.capacity.give_back(seconds)

    async def first(self) -> None:
        """Wait a moment for the first event, so that what fails at once fails with a status of its own.

        Raises:
            ApiError: it failed.
        """
        try:
            item = await asyncio.wait_for(self._events.get(), FIRST_SECONDS)
        except asyncio.TimeoutError:
            return
        self._head.append(item)
        for event in item[1]:
            if isinstance(event, Failed):
                self.cancel()
                raise from_engine(event.error)

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Every event with the number of its text, until all have ended.

        Raises:
            ApiError: one failed, or the time is over; the others are cancelled.
        """
        left = len(self.requests)
        while left:
            index, events = self._head.pop(0) if self._head else await self._next()
            for event in events:
                if isinstance(event, Failed):
                    self.cancel()
                    raise from_engine(event.error)
                if isinstance(event, Finished):
                    left -= 1
                    if event.reason == "cancelled" and index not in self._ended:
                        raise ApiError(503, "the server is shutting down", code="shutting_down")
                yield index, event

    async def _next(self) -> tuple[int, list[Event]]:
        """The next events.

        Raises:
            ApiError: 504, the time that a request may take is over.
        """
        limit = self.service.settings.request_seconds
        if not limit:
            return await self._events.get()
        try:
            return await asyncio.wait_for(self._events.get(), max(0.0, self._start + limit - time.perf_counter()))
        except asyncio.TimeoutError:
            self.cancel()
            message = f"the answer was not finished within {limit:g} seconds: ask for fewer tokens, or raise --timeout"
            raise ApiError(504, message, code="timeout") from None

    def end(self, index: int) -> None:
        """End a text where it is; the others go on."""
        self._ended.add(index)
        if index in self._tickets:
            self._tickets[index].cancel()

    def cancel(self) -> None:
        """End what still runs or waits."""
        self._cancelled = True
        for ticket in self._tickets.values():
            ticket.cancel()


def _accounts_first(events: Sequence[Event]) -> list[Event]:
    """The same events, each step's account before the step's tokens."""
    ordered: list[Event] = []
    for event in events:
        if isinstance(event, Step) and ordered and isinstance(ordered[-1], Tokens):
            ordered.insert(-1, event)
        else:
            ordered.append(event)
    return ordered


async def gone(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(http: HttpRequest, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client goes away.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(gone(http.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for t in (task, watch):
            t.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def begin(http: HttpRequest, job: Job) -> None:
    """Queue a job whose answer will be streamed; what fails within a moment raises here.

    Raises:
        ApiError: it failed.
        ClientGone: nobody waits for it.
    """

    async def started() -> None:
        await job.start()
        await job.first()

    try:
        await unless_gone(http, started())
    except BaseException:
        job.cancel()
        raise
