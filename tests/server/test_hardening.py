"""Clients that mean no good, or are only slow: other sites' pages, half-open connections, readers that never read."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lcspec.commands.serving import names_of
from lcspec.server.hosts import LOCAL
from lcspec.server.lifecycle import Background
from tests.server.running import HELLO, MODEL, background

pytestmark = pytest.mark.server

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Background]:
    with background(
        tiny_model,
        warm=False,
        hosts=(*LOCAL, "my.box", "*.lan"),
        cors=("https://page.example",),
        header_seconds=0.5,
        write_seconds=0.5,
    ) as running:
        yield running


@pytest.mark.parametrize(
    "host, status",
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("app.localhost:1", 200),
        ("127.0.0.1:9", 200),
        ("[::1]:8080", 200),
        ("192.168.1.7", 200),
        ("my.box.", 200),
        ("a.lan", 200),
        ("lan", 403),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
def test_only_its_own_names(guarded: Background, host: str, status: int) -> None:
    got = httpx.get(f"{guarded.url}/health", headers={"host": host})
    assert got.status_code == status
    if status == 403:
        assert "--allowed-host" in got.json()["error"]["message"]


@pytest.mark.parametrize(
    "given, local, names",
    [
        ((), True, (*LOCAL, "127.0.0.1")),
        (("box",), True, (*LOCAL, "127.0.0.1", "box")),
        ((), False, ()),
        (("box",), False, (*LOCAL, "127.0.0.1", "box")),
        (("*",), True, ()),
    ],
)
def test_which_names_those_are(given: tuple[str, ...], local: bool, names: tuple[str, ...]) -> None:
    assert names_of({"allowed_host": given, "host": "127.0.0.1"}, local) == names


def _closed(sock: socket.socket, seconds: float = 300.0) -> bool:
    sock.settimeout(seconds)
    with contextlib.suppress(ConnectionError):
        while sock.recv(65536):
            pass
    return True


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: "])
def test_headers_that_never_come_are_not_waited_for(guarded: Background, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port)) as sock:
        sock.sendall(sent)
        assert _closed(sock)


def test_not_after_a_first_request_either(guarded: Background) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port)) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        sock.settimeout(300)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        sock.sendall(b"GET /health HT")
        assert _closed(sock)


def test_a_kept_connection_is_kept(guarded: Background) -> None:
    with httpx.Client(base_url=guarded.url, timeout=300) as http:
        for _ in range(2):
            assert http.get("/health").status_code == 200
            time.sleep(0.8)  # longer than headers may take
        assert http.get("/health").status_code == 200
        assert len(guarded.server.server_state.connections) >= 1


def test_a_reader_that_never_reads_is_left(guarded: Background) -> None:
    big = b'{"content": "' + b"a" * 900_000 + b'", "with_pieces": true}'
    head = f"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(big)}"
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", guarded.port))
        sock.sendall(head.encode() + b"\r\n\r\n" + big)
        for _ in range(3000):
            if not any(c.client == sock.getsockname() for c in guarded.server.server_state.connections):
                break
            time.sleep(0.1)
        else:
            pytest.fail("the connection is still there")


def test_a_reader_that_never_reads_does_not_stop_the_end(tiny_model: Path) -> None:
    with background(tiny_model, warm=False, write_seconds=600, drain_seconds=1) as running:
        big = b'{"content": "' + b"a" * 900_000 + b'", "with_pieces": true}'
        head = f"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(big)}"
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", running.port))
            sock.sendall(head.encode() + b"\r\n\r\n" + big)
            sock.recv(1)  # the answer has begun
            ending = threading.Thread(target=running.close)
            ending.start()
            ending.join(300)
            assert not ending.is_alive()


def test_a_page_may_ask_for_a_private_network(guarded: Background) -> None:
    asks = {
        "origin": "https://page.example",
        "access-control-request-method": "POST",
        "access-control-request-private-network": "true",
    }
    got = httpx.options(guarded.url + CHAT, headers=asks)
    assert got.status_code == 200 and got.headers["access-control-allow-private-network"] == "true"


def test_head_of_health(http: httpx.Client) -> None:
    got = http.head("/health")
    assert (got.status_code, got.content) == (200, b"")


def test_an_alias_with_a_slash_and_one_model(tiny_model: Path) -> None:
    worker_names = ("org/model:7b", MODEL)
    with (
        background(tiny_model, warm=False, models=worker_names) as running,
        httpx.Client(base_url=running.url, timeout=300) as http,
    ):
        listed = http.get("/v1/models").json()["data"]
        assert [m["id"] for m in listed] == ["org/model:7b"]
        assert listed[0]["meta"]["aliases"] == [MODEL]
        for name in ("org/model:7b", "org%2Fmodel:7b", MODEL):
            assert http.get(f"/v1/models/{name}").status_code == 200
        assert http.get("/v1/models/org/other").status_code == 404
        got = http.post(CHAT, json={"messages": HELLO, "max_tokens": 1, "model": "org/model:7b"})
        assert got.json()["model"] == "org/model:7b"


def test_a_body_without_a_type_is_json_unless_a_page_sends_it(http: httpx.Client) -> None:
    body = b'{"content": "abc"}'
    assert http.post("/tokenize", content=body).status_code == 200
    for headers in (
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"referer": "http://elsewhere.example/"},
        {"content-type": "text/plain"},
    ):
        assert http.post("/tokenize", content=body, headers=headers).status_code == 400
