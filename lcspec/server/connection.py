"""A connection that does not wait for ever: for the headers of a request, or for a client to read its answer."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 with two time limits, which `limited` sets."""

    header_seconds = 30.0
    write_seconds = 60.0
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: its request should follow."""
        super().connection_made(transport)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._stop("_header_timer")
        self._stop("_write_timer")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Part of a request, or all of it; the time for headers is not extended by more of them."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE or self._idle:
            self._stop("_header_timer")
        elif self._header_timer is None:
            self._wait_for_headers()

    @property
    def _idle(self) -> bool:
        """Whether nothing of a further request has come; uvicorn's own keep-alive timer counts then."""
        return self.cycle is not None and not self.conn.trailing_data[0]

    def pause_writing(self) -> None:
        """The client does not read, and its buffers are full."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.write_seconds, self._give_up)

    def resume_writing(self) -> None:
        """It reads."""
        self._stop("_write_timer")
        super().resume_writing()

    def _wait_for_headers(self) -> None:
        self._header_timer = self.loop.call_later(self.header_seconds, self._give_up)

    def _give_up(self) -> None:
        # Not close(), which would wait until the client has read what is left.
        self.transport.abort()

    def _stop(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)


def limited(header_seconds: float, write_seconds: float) -> type[Connection]:
    """A connection class with these limits, in seconds."""

    class Limited(Connection):
        pass

    Limited.header_seconds, Limited.write_seconds = header_seconds, write_seconds
    return Limited
