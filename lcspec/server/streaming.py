"""Server-sent events: an answer that is written while it is made, and stops when nobody reads it.

sse-starlette does not serve for this: it takes over uvicorn's handling of signals to end streams as soon as the server
is told to stop, and here what was accepted is finished first. Ollama's JSON lines and the errors of each API would be
ours all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from typing import Any, AsyncGenerator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lcspec.errors import LcspecError
from lcspec.server.errors import ApiError, from_engine
from lcspec.server.job import gone

log = logging.getLogger("lcspec.server")
# A proxy must hand on every event as it comes.
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
DONE = "data: [DONE]\n\n"


def event(data: Any, name: str | None = None) -> str:
    """One event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n"


def error_event(error: ApiError) -> str:
    """An error inside a stream, where the `openai` client looks for it."""
    return event(error.body())


class EventStream(Response):
    """An ASGI response that sends what a generator yields.

    `close` is called however it ends: finished, failed, or the client went away.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[str, None],
        close: Callable[[], None],
        keep_alive: float,
        on_error: Callable[[ApiError], str] = error_event,
        media_type: str = "text/event-stream",
    ) -> None:
        super().__init__(media_type=media_type, headers=HEADERS)
        del self.headers["content-length"]
        self.chunks = chunks
        self.close = close
        self.keep_alive = keep_alive
        self.on_error = on_error
        self._latest = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, with a comment now and then while there is nothing to say."""
        tasks = [asyncio.ensure_future(work) for work in (self._send_all(send), gone(receive), self._pulse(send))]
        try:
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.close()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self.chunks.aclose()
        if isinstance(results[0], Exception):
            raise results[0]

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with contextlib.aclosing(self.chunks) as chunks:
                async for chunk in chunks:
                    await self._write(send, chunk)
        except ApiError as error:
            await self._write(send, self.on_error(error))
        except LcspecError as error:
            await self._write(send, self.on_error(from_engine(error)))
        except Exception:
            log.exception("a stream failed")
            await self._write(send, self.on_error(ApiError(500, "internal error: the server's log says more")))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, text: str) -> None:
        self._latest = time.monotonic()
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def _pulse(self, send: Send) -> None:
        while self.media_type == "text/event-stream":  # others have no comments
            await asyncio.sleep(self.keep_alive)
            if time.monotonic() - self._latest >= self.keep_alive:
                await self._write(send, ": waiting\n\n")
