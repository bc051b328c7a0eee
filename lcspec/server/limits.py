"""Bounds: how long a request body may be, and how many requests may be at hand."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lcspec.server.errors import ApiError

# What is read and thrown away of a body nobody wants, so that the client gets to read the answer: an answer to a
# client that is still sending would be lost when the connection is closed.
DISCARD_BYTES = 64 * 1024 * 1024
DISCARD_SECONDS = 1.0


class BodyLimit:
    """Middleware: reads the whole body, answers 413 if it is longer than `limit` bytes and 408 if it takes too long."""

    def __init__(self, app: ASGIApp, limit: int, seconds: float) -> None:
        self.app = app
        self.limit = limit
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and hand it on in one piece."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(scope, receive), self.seconds)
        except asyncio.TimeoutError:
            error = ApiError(408, f"the request body did not arrive within {self.seconds:g} seconds")
            await error.response(scope["path"])(scope, receive, send)
            return
        except ApiError as error:
            await discard_body(scope, receive)
            await error.response(scope["path"])(scope, receive, send)
            return
        if body is None:  # the client went away while sending
            return
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        if body:
            declare(scope)
        await self.app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None if the client has gone.

        Raises:
            ApiError: it is too long.
        """
        length = _header(scope, b"content-length")
        if length.isdigit() and int(length) > self.limit:
            raise self._too_long()
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > self.limit:
                raise self._too_long()
            parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts)

    def _too_long(self) -> ApiError:
        return ApiError(413, f"the request body is longer than {self.limit} bytes: shorten it or raise --max-body")


def declare(scope: Scope) -> None:
    """A body without a content type is JSON if a program sends it (some do): browsers say where their pages come from,
    and a page may send such a body to any server without asking."""
    names = {bytes(name) for name, _ in scope["headers"]}
    if not names & {b"content-type", b"origin", b"referer", b"sec-fetch-site"}:
        scope["headers"] = [*scope["headers"], (b"content-type", b"application/json")]


async def discard_body(scope: Scope, receive: Receive) -> None:
    """Read what is left of a body and forget it, within bounds."""
    if _header(scope, b"expect"):  # the client waits to be asked for its body
        return

    async def read() -> None:
        size = 0
        while size < DISCARD_BYTES:
            message = await receive()
            size += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return

    try:
        await asyncio.wait_for(read(), DISCARD_SECONDS)
    except asyncio.TimeoutError:
        return


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((bytes(value) for name, value in scope["headers"] if name == wanted), b"")


class Capacity:
    """Counts the requests at hand: as many run as there are slots, the others wait.

    Only used on the event loop's thread.
    """

    def __init__(self, slots: int, queue: int) -> None:
        self.slots = slots
        self.queue = queue
        self.at_hand = 0
        self._mean_seconds = 1.0

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return max(0, self.at_hand - self.slots)

    @property
    def running(self) -> int:
        """Requests in slots."""
        return min(self.at_hand, self.slots)

    def take(self, n: int) -> None:
        """Make room for `n` requests.

        Raises:
            ApiError: 400 if there never is as much room, 429 if there is none now.
        """
        if n > self.slots + self.queue:
            raise ApiError(
                400, f"this asks for {n} texts at once and the server takes {self.slots + self.queue}", param="n"
            )
        if self.at_hand + n > self.slots + self.queue:
            raise ApiError(
                429,
                f"the queue is full ({self.waiting} requests wait for {self.slots} slots): try again later",
                code="queue_full",
                headers={"Retry-After": str(self.retry_after())},
            )
        self.at_hand += n

    def give_back(self, seconds: float | None = None) -> None:
        """One request is over; `seconds` it took, if it ran to its end."""
        self.at_hand -= 1
        if seconds is not None:
            self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def retry_after(self) -> int:
        """Whole seconds until the queue should have moved on: the time of a request over the slots, 1 to 60."""
        return int(min(60.0, max(1.0, self._mean_seconds * (1 + self.waiting) / self.slots)))
