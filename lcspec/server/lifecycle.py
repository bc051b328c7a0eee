"""Listening, serving, and coming to an end: the first signal drains, the second one exits now."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from lcspec.errors import LcspecError, UsageError
from lcspec.server.connection import limited
from lcspec.server.models import Models
from lcspec.server.service import Service, log

# How often it is looked whether the engine still lives, seconds.
WATCH = 1.0
BACKLOG = 256
UNIX = "unix:"


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; taken before the model is loaded, so that a port in use is said at once.

    Raises:
        LcspecError: it cannot be had.
    """
    if host.startswith(UNIX):
        return listen_on_file(Path(host[len(UNIX) :]))
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, address = found[0]
        sock = socket.socket(family, kind, proto)
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(f"there is no host {host!r} on this machine: use 127.0.0.1 or another of its names") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise LcspecError(f"cannot listen on {host} port {port} ({error.strerror}): choose another --port") from error
    return sock


def listen_on_file(path: Path) -> socket.socket:
    """A bound Unix socket that its owner alone may use. One that a server has left behind is replaced.

    Raises:
        LcspecError: it cannot be had.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise UsageError("this system has no Unix sockets: use --host and --port")
    if path.is_dir():
        raise UsageError(f"--uds {path} is a directory: name a file in it")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            try:
                sock.connect(str(path))
            except OSError:
                path.unlink()  # nobody listens
            else:
                raise LcspecError(f"another server listens on {path}: choose another --uds")
            finally:
                sock.close()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        sock.close()
        raise LcspecError(f"cannot listen on {path} ({error.strerror or error}): choose another --uds") from error
    return sock


def leave(sock: socket.socket, host: str) -> None:
    """Close what `listen` gave (the server may have done that), and remove its file."""
    sock.close()
    if host.startswith(UNIX):
        Path(host[len(UNIX) :]).unlink(missing_ok=True)


def is_loopback(sock: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    if sock.family == getattr(socket, "AF_UNIX", None):
        return True
    address = str(sock.getsockname()[0])
    return address.startswith("127.") or address == "::1"


class Server(uvicorn.Server):
    """uvicorn, with our way to stop: a drained stop exits 0, whichever signal asked for it."""

    def __init__(self, app: FastAPI) -> None:
        self.models: Models = app.state.models
        settings = self.models.settings
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            ws="none",
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            http=limited(settings.header_seconds, settings.write_seconds),
            timeout_keep_alive=75,
            timeout_graceful_shutdown=settings.drain_seconds,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First: take no new work and finish what was accepted. Second: exit now."""
        if self.should_exit:
            os._exit(128 + sig)
        self.models.draining = True
        self.should_exit = True
        n = self.models.at_hand
        print(f"lcspec: finishing {n} requests; a second signal exits now", file=sys.stderr, flush=True)

    @property
    def service(self) -> Service:
        """Of a server with a single model."""
        return self.models.only

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and to watch the engine."""
        await super().startup(sockets)
        self._watch = asyncio.ensure_future(self._watch_engine())

    async def _watch_engine(self) -> None:
        while self.models.alive:
            await asyncio.sleep(WATCH)
        if not self.should_exit:
            log.error("the engine has stopped, so the server does as well")
            self.should_exit = True


def serve(app: FastAPI, sock: socket.socket, draining_seconds: float | None = None) -> int:
    """Serve until a signal or the engine's end; returns the exit code."""
    models: Models = app.state.models
    server = Server(app)
    sock.listen(BACKLOG)
    server.run(sockets=[sock])
    failed = not models.alive
    models.close_engines(draining_seconds)
    return 1 if failed else 0


class Background:
    """The same server on a thread of this process, on a port of its own choosing; for tests and notebooks."""

    def __init__(self, app: FastAPI, host: str = "127.0.0.1", port: int = 0) -> None:
        self.socket = listen(host, port)
        self.socket.listen(BACKLOG)
        self.port = int(self.socket.getsockname()[1])
        self.server = Server(app)
        self._thread = threading.Thread(target=self._run, name="lcspec-http", daemon=True)
        self._thread.start()
        while not self.server.started and self._thread.is_alive():
            self._thread.join(0.01)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.run(self.server.serve(sockets=[self.socket]))

    def close(self) -> None:
        """Finish what was accepted, then stop."""
        self.server.models.draining = True
        self.server.should_exit = True
        self._thread.join()
