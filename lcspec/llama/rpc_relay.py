"""A relay between llama.cpp's RPC client in this process and a worker: a worker that dies does not end the process.

The library ends the whole process when a worker goes away (GGML_ABORT in ggml-rpc.cpp). It talks to this relay instead,
which passes everything on. Once the worker is gone the relay answers in its place, with zeros: the decode at hand comes
to its end, its result is thrown away, and nothing more is decoded with that model. Pure sockets, no library.

The protocol (ggml-rpc.cpp, version 7): a request is a byte (the command), eight bytes (the length) and so many bytes;
an answer is eight bytes and so many bytes. Some commands have no answer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass

from lcspec.placement import endpoint

VERSION = 7
HEADER, LENGTH = struct.Struct("<BQ"), struct.Struct("<Q")
ALLOC_BUFFER, GET_ALIGNMENT, GET_MAX_SIZE, BUFFER_GET_BASE, FREE_BUFFER, BUFFER_CLEAR, SET_TENSOR = range(7)
SET_TENSOR_HASH, GET_TENSOR, COPY_TENSOR, GRAPH_COMPUTE, GET_DEVICE_MEMORY, INIT_TENSOR, GET_ALLOC_SIZE = range(7, 14)
HELLO, DEVICE_COUNT, GRAPH_RECOMPUTE, MEMSET_TENSOR = range(14, 18)
CAPABILITIES = 24
# Bytes of the answers; a command that is not here has none. Of GET_TENSOR: what the request's last number says.
ANSWERS = {
    **{ALLOC_BUFFER: 16, GET_ALIGNMENT: 8, GET_MAX_SIZE: 8, BUFFER_GET_BASE: 8, SET_TENSOR_HASH: 1, COPY_TENSOR: 1},
    **{GET_DEVICE_MEMORY: 16, GET_ALLOC_SIZE: 8, HELLO: 4 + CAPABILITIES, DEVICE_COUNT: 4, GET_TENSOR: 0},
}
PIECE = 1 << 20
# Seconds to connect and to answer a greeting: a worker that serves somebody else does not answer at all.
PATIENCE = 5.0
# When a silent connection is taken for dead: the system asks after so many seconds, so often, and so many times.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}


class NoAnswer(Exception):
    """A worker cannot be used; the message says why."""


@dataclass(frozen=True)
class Greeting:
    """What a worker says of itself: its protocol and (free, total) bytes of each of its devices."""

    version: tuple[int, int, int]
    memory: tuple[tuple[int, int], ...]


def greet(address: str, patience: float = PATIENCE) -> Greeting:
    """Ask a worker who it is.

    Raises:
        NoAnswer: it is not there, serves somebody else, or is no worker.
    """
    try:
        with dial(address, patience) as worker:
            worker.settimeout(patience)
            hello = _ask(worker, HELLO, bytes(CAPABILITIES))
            if len(hello) != ANSWERS[HELLO]:
                raise NoAnswer(f"{address} is no lcspec worker")
            if hello[0] != VERSION:
                raise NoAnswer(
                    f"the worker {address} speaks version {hello[0]} of the protocol and this program {VERSION}: "
                    "install the same version of lcspec and llama-cpp-python on both machines"
                )
            (count,) = struct.unpack("<I", _ask(worker, DEVICE_COUNT, b""))
            memory = [struct.unpack("<QQ", _ask(worker, GET_DEVICE_MEMORY, struct.pack("<I", i))) for i in range(count)]
            return Greeting((hello[0], hello[1], hello[2]), tuple((free, total) for free, total in memory))
    except TimeoutError:
        raise NoAnswer(f"the worker {address} does not answer: a worker serves one program at a time") from None
    except (OSError, struct.error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it broke off"
        raise NoAnswer(f"no worker answers at {address} ({why}): start `lcspec worker` there") from error


def dial(address: str, patience: float = PATIENCE) -> socket.socket:
    """A connection to HOST:PORT.

    Raises:
        OSError: there is none.
    """
    sock = socket.create_connection(endpoint(address), timeout=patience)
    sock.settimeout(None)
    _prepare(sock)
    return sock


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _ask(sock: socket.socket, command: int, payload: bytes) -> bytes:
    sock.sendall(HEADER.pack(command, len(payload)) + payload)
    (size,) = LENGTH.unpack(_exactly(sock, LENGTH.size))
    if size > PIECE:
        raise OSError("it is no worker")
    return _exactly(sock, size)


def _exactly(sock: socket.socket, size: int) -> bytes:
    """So many bytes.

    Raises:
        OSError: the connection ended before.
    """
    found = bytearray(size)
    view, at = memoryview(found), 0
    while at < size:
        n = sock.recv_into(view[at:])
        if n == 0:
            raise ConnectionResetError("the connection was closed")
        at += n
    return bytes(found)


class Relay:
    """Listens on loopback for the library and passes on to one worker.

    Attributes:
        address: the worker.
        endpoint: where the library is to connect.
        lost: why the worker counts as gone; None while it is there.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.lost: str | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="lcspec-relay", daemon=True).start()

    def cut(self, why: str = "it was let go") -> None:
        """Leave the worker; whatever the library still asks is answered here."""
        with self._lock:
            self.lost = self.lost or why
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop. Only when the library has let go of everything it had on the worker."""
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                library, _ = self._listener.accept()
            except OSError:
                return
            _prepare(library)
            threading.Thread(target=self._serve, args=(library,), name="lcspec-relay", daemon=True).start()

    def _serve(self, library: socket.socket) -> None:
        """One connection of the library's, to its end."""
        worker = self._dial()
        buffer = bytearray(PIECE)
        with library, contextlib.suppress(OSError):
            while True:
                head = _exactly(library, HEADER.size)
                command, size = HEADER.unpack(head)
                tail = self._pass_on(library, worker, head, size, buffer)
                if command in ANSWERS and not self._answer(library, worker, buffer):
                    length = LENGTH.unpack(tail)[0] if command == GET_TENSOR else ANSWERS[command]
                    self._zeros(library, command, length)
        if worker is not None:
            with self._lock:
                self._open.discard(worker)
            worker.close()

    def _dial(self) -> socket.socket | None:
        try:
            worker = dial(self.address) if self.lost is None else None
        except OSError as error:
            self._gone(error)
            return None
        if worker is not None:
            with self._lock:
                self._open.add(worker)
        return worker

    def _gone(self, error: OSError) -> None:
        self.lost = self.lost or (error.strerror or str(error))

    def _pass_on(
        self, library: socket.socket, worker: socket.socket | None, head: bytes, size: int, buffer: bytearray
    ) -> bytes:
        """A request, to its end even if the worker is gone; returns its last eight bytes."""
        self._send(worker, head)
        view, left, tail = memoryview(buffer), size, b""
        while left:
            n = library.recv_into(view[: min(left, len(buffer))])
            if n == 0:
                raise ConnectionResetError("the library let go")
            self._send(worker, view[:n])
            tail = (tail + bytes(view[max(0, n - LENGTH.size) : n]))[-LENGTH.size :]
            left -= n
        return tail

    def _send(self, worker: socket.socket | None, data: bytes | memoryview) -> None:
        if worker is None or self.lost is not None:
            return
        try:
            worker.sendall(data)
        except OSError as error:
            self._gone(error)

    def _answer(self, library: socket.socket, worker: socket.socket | None, buffer: bytearray) -> bool:
        """Pass on the worker's answer; False if not all of it came. What is missing of one that began are zeros."""
        if worker is None or self.lost is not None:
            return False
        try:
            head = _exactly(worker, LENGTH.size)
        except OSError as error:
            self._gone(error)
            return False
        library.sendall(head)
        (left,) = LENGTH.unpack(head)
        view = memoryview(buffer)
        while left:
            n = 0
            if self.lost is None:
                try:
                    n = worker.recv_into(view[: min(left, len(buffer))])
                except OSError as error:
                    self._gone(error)
            if n == 0:
                self._gone(ConnectionResetError("the connection was closed"))
                n = min(left, len(buffer))
                view[:n] = bytes(n)
            library.sendall(view[:n])
            left -= n
        return True

    @staticmethod
    def _zeros(library: socket.socket, command: int, length: int) -> None:
        """An answer that does no harm: no memory was allocated, nothing is known, every number is 0."""
        found = bytes(length)
        if command == HELLO:
            found = bytes([VERSION]) + bytes(length - 1)
        elif command in (GET_ALIGNMENT, GET_MAX_SIZE):
            found = LENGTH.pack(128 if command == GET_ALIGNMENT else (1 << 62))
        library.sendall(LENGTH.pack(length) + found)
