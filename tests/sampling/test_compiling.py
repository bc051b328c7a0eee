"""Grammars are compiled where a thread says; requests that have none never wait for those that have one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from lcspec.sampling import json_schema
from lcspec.sampling.compiling import compiled, compiling_at
from lcspec.server import service as module
from lcspec.server.lifecycle import Background
from tests import tiny_gguf as tiny
from tests.server.running import HELLO, WAIT, background, engine_of, service_of

GRAMMAR: dict[str, Any] = {"grammar": 'root ::= "yes" | "no"'}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
FORM: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
SLOTS, QUEUE = 2, 2


def test_a_thread_compiles_where_it_says() -> None:
    def place(make: Any) -> Any:
        return make().upper()

    assert compiled(lambda: "a") == "a"
    with compiling_at(place), ThreadPoolExecutor(1) as pool:
        assert compiled(lambda: "a") == "A"
        assert pool.submit(compiled, lambda: "a").result() == "a"  # what others say is nothing to it
    assert compiled(lambda: "a") == "a"


class Server:
    """A server that compiles when it is told."""

    def __init__(self, running: Background, patch: pytest.MonkeyPatch) -> None:
        self.url, self.go = running.url, threading.Event()
        self._in_line = threading.Semaphore(0)
        self._pool = ThreadPoolExecutor(SLOTS + QUEUE)
        compiler = service_of(running)._compiler
        submit = compiler.submit

        def counted(*args: Any) -> Any:
            future = submit(*args)
            self._in_line.release()
            return future

        patch.setattr(compiler, "submit", counted)
        for place, name in ((engine_of(running), "compile"), (json_schema, "_problem")):
            patch.setattr(place, name, self._later(getattr(place, name)))

    def _later(self, function: Any) -> Any:
        def later(*args: Any) -> Any:
            assert self.go.wait(WAIT)
            return function(*args)

        return later

    def ask(self, **more: Any) -> httpx.Response:
        body = {"messages": HELLO, "max_tokens": 12, **more}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=WAIT)

    def in_line(self, n: int, **more: Any) -> list[Future[httpx.Response]]:
        """`n` requests that wait for what they need compiled."""
        asked = [self._pool.submit(self.ask, **more) for _ in range(n)]
        for _ in range(n):
            assert self._in_line.acquire(timeout=WAIT)
        return asked

    def close(self) -> None:
        self.go.set()
        self._pool.shutdown()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    path = tmp_path_factory.mktemp("models") / "llama.gguf"
    tiny.write_llama(path, chat_template=tiny.CHATML_TEMPLATE)
    with background(path, slots=SLOTS, queue=QUEUE, here=True, warm=False) as running:
        yield running


@pytest.fixture
def server(running: Background, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server(running, monkeypatch)
    yield server
    server.close()


@pytest.mark.server
@pytest.mark.parametrize("more", [GRAMMAR, FORM], ids=["grammar", "schema"])
def test_a_request_without_a_grammar_does_not_wait_for_those_with_one(server: Server, more: dict[str, Any]) -> None:
    waiting = server.in_line(SLOTS + QUEUE, **more)
    for _ in range(3):
        assert server.ask().status_code == 200
    refused = server.ask(**more)
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "queue_full"
    assert not any(future.done() for future in waiting)
    server.go.set()
    assert [future.result().status_code for future in waiting] == [200] * len(waiting)


@pytest.mark.server
def test_a_grammar_has_a_time_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPILE_SECONDS", 0.2)
    first, second = server.in_line(1, **GRAMMAR)[0], server.in_line(1, **GRAMMAR)[0]
    told = first.result()
    assert told.status_code == 400 and "grammar: it takes more than 0.2 seconds" in told.json()["error"]["message"]
    assert second.result().status_code == 429  # it had no time at all
    server.go.set()
    monkeypatch.setattr(module, "COMPILE_SECONDS", WAIT)
    assert server.ask(**GRAMMAR).status_code == 200
