"""The relay before a worker, with a worker of our own that speaks the protocol: nothing of the library is needed."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from lcspec.llama import rpc_relay as rpc
from lcspec.llama.rpc_relay import NoAnswer, Relay, greet

pytestmark = pytest.mark.slow


class Worker:
    """Answers GET_TENSOR with as many 7s as asked for, and every other question with 1s; notes what it was sent."""

    def __init__(self, version: int = rpc.VERSION, silent: bool = False, cut_after: int | None = None) -> None:
        self.version, self.silent, self.cut_after = version, silent, cut_after
        self.got: list[tuple[int, bytes]] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.connection: socket.socket | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.connection, _ = self.listener.accept()
                with self.connection, contextlib.suppress(OSError):
                    while not self.silent:
                        command, size = rpc.HEADER.unpack(rpc._exactly(self.connection, rpc.HEADER.size))
                        self.got.append((command, rpc._exactly(self.connection, size)))
                        self._answer(self.connection, command)
                    time.sleep(60)

    def _answer(self, sock: socket.socket, command: int) -> None:
        if command not in rpc.ANSWERS:
            return
        data = b"\1" * rpc.ANSWERS[command]
        if command == rpc.HELLO:
            data = bytes([self.version, 0, 3]) + bytes(25)
        elif command == rpc.DEVICE_COUNT:
            data = struct.pack("<I", 2)
        elif command == rpc.GET_DEVICE_MEMORY:
            data = struct.pack("<QQ", 5, 9)
        elif command == rpc.GET_TENSOR:
            data = b"\7" * rpc.LENGTH.unpack(self.got[-1][1][-8:])[0]
        sock.sendall(rpc.LENGTH.pack(len(data)) + data[: self.cut_after])
        if self.cut_after is not None:
            self.die()

    def die(self) -> None:
        self.listener.close()
        if self.connection is not None:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def worker() -> Iterator[Worker]:
    there = Worker()
    yield there
    there.die()


class Library:
    """The library's side of a connection."""

    def __init__(self, relay: Relay) -> None:
        self.sock = rpc.dial(relay.endpoint)
        self.sock.settimeout(300)

    def tell(self, command: int, payload: bytes = b"") -> None:
        self.sock.sendall(rpc.HEADER.pack(command, len(payload)) + payload)

    def ask(self, command: int, payload: bytes = b"") -> bytes:
        self.tell(command, payload)
        return rpc._exactly(self.sock, rpc.LENGTH.unpack(rpc._exactly(self.sock, 8))[0])


def get_tensor(size: int) -> bytes:
    return bytes(300) + struct.pack("<QQ", 0, size)


def test_a_greeting(worker: Worker) -> None:
    found = greet(worker.address)
    assert found.version == (rpc.VERSION, 0, 3) and found.memory == ((5, 9), (5, 9))


def test_everything_is_passed_on(worker: Worker) -> None:
    relay = Relay(worker.address)
    library = Library(relay)
    large = bytes(range(256)) * 20_000  # more than the relay takes at a time
    library.tell(rpc.SET_TENSOR, large)
    assert library.ask(rpc.GET_TENSOR, get_tensor(3_000_000)) == b"\7" * 3_000_000
    library.tell(rpc.GRAPH_COMPUTE, b"graph")
    assert library.ask(rpc.ALLOC_BUFFER, bytes(12)) == b"\1" * 16
    assert [c for c, _ in worker.got] == [rpc.SET_TENSOR, rpc.GET_TENSOR, rpc.GRAPH_COMPUTE, rpc.ALLOC_BUFFER]
    assert worker.got[0][1] == large and relay.lost is None
    relay.close()


def test_a_worker_that_dies_is_answered_for(worker: Worker) -> None:
    relay = Relay(worker.address)
    library = Library(relay)
    assert library.ask(rpc.GET_TENSOR, get_tensor(4)) == b"\7" * 4
    worker.die()
    library.tell(rpc.GRAPH_COMPUTE, bytes(5_000_000))
    assert library.ask(rpc.GET_TENSOR, get_tensor(1000)) == bytes(1000)
    assert relay.lost
    for command, size in rpc.ANSWERS.items():
        payload = get_tensor(12) if command == rpc.GET_TENSOR else b""
        assert len(library.ask(command, payload)) == (12 if command == rpc.GET_TENSOR else size)
    library.tell(rpc.FREE_BUFFER, bytes(8))
    assert library.ask(rpc.ALLOC_BUFFER, bytes(12)) == bytes(16), "no memory was allocated"
    again = Library(relay)  # the library may connect anew
    assert again.ask(rpc.HELLO, bytes(24))[0] == rpc.VERSION and again.ask(rpc.DEVICE_COUNT) == bytes(4)
    relay.close()


def test_a_worker_that_dies_in_the_middle_of_an_answer() -> None:
    relay = Relay(Worker(cut_after=10).address)
    found = Library(relay).ask(rpc.GET_TENSOR, get_tensor(5000))
    assert found == b"\7" * 10 + bytes(4990) and relay.lost
    relay.close()


def test_a_worker_that_is_let_go_is_not_asked_again(worker: Worker) -> None:
    relay = Relay(worker.address)
    library = Library(relay)
    library.ask(rpc.GET_TENSOR, get_tensor(4))
    relay.cut()
    assert library.ask(rpc.GET_TENSOR, get_tensor(4)) == bytes(4)
    assert greet(worker.address).memory, "another connection has it now"
    relay.close()


def test_a_relay_that_is_closed_takes_nobody(worker: Worker) -> None:
    relay = Relay(worker.address)
    relay.close()
    with pytest.raises(OSError):
        rpc.dial(relay.endpoint, 2)


def test_nobody_there() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        with pytest.raises(NoAnswer, match=r"no worker answers.*lcspec worker"):
            greet(f"127.0.0.1:{sock.getsockname()[1]}")


def test_somebody_else_is_served() -> None:
    busy = Worker(silent=True)
    with pytest.raises(NoAnswer, match="one program at a time"):
        greet(busy.address, patience=0.3)


def test_another_version() -> None:
    with pytest.raises(NoAnswer, match="version 99.*same version"):
        greet(Worker(version=99).address)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0" * 8, struct.pack("<Q", 1 << 40)])
def test_no_worker_at_all(answer: bytes) -> None:
    def reply() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(64)
            sock.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=reply, daemon=True).start()
        with pytest.raises(NoAnswer):
            greet(f"127.0.0.1:{listener.getsockname()[1]}", patience=2)
