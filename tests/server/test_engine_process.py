"""`lcspec serve` when its engine's process dies: nothing is lost that need not be, and it is said."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from lcspec.engine_process import parent
from lcspec.server.lifecycle import Background
from tests import engine_faults
from tests import tiny_gguf as tiny
from tests.running import until
from tests.server.process import Process
from tests.server.running import HELLO, background, options, service_of, several

pytestmark = [pytest.mark.server, pytest.mark.slow]

WAIT = 120


@pytest.fixture()
def server(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(parent, "WAIT", 0.2)
    with background(tiny_model, ctx=512, here=False, prelude=engine_faults.abort_on_poison, warm=False) as running:
        yield running


def body(tokens: int, **more: Any) -> dict[str, Any]:
    asked = {"messages": HELLO, "max_tokens": tokens, "ignore_eos": True, "temperature": 0.8, "seed": 3, "stream": True}
    return asked | more


def kill(pid: int | None, number: int = signal.SIGKILL) -> None:
    assert pid is not None
    os.kill(pid, number)


class Stream(threading.Thread):
    """Reads an answer; `began` is set when some of it has come."""

    def __init__(self, url: str, tokens: int, **more: Any) -> None:
        super().__init__(daemon=True)
        self.url, self.body = url, body(tokens, **more)
        self.began = threading.Event()
        self.text, self.error, self.done = "", "", False
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=self.body, timeout=WAIT) as answer:
            rest = ""
            for piece in answer.iter_text():
                *lines, rest = (rest + piece).split("\n")
                for line in lines:
                    self._line(line)
        self.began.set()

    def _line(self, line: str) -> None:
        if line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            if "error" in event:
                self.error = event["error"]["message"]
                return
            self.text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if len(self.text) > 10:
                self.began.set()

    def end(self) -> str:
        self.join(WAIT)
        assert not self.is_alive()
        return self.text


def health(url: str) -> httpx.Response:
    return httpx.get(f"{url}/health", timeout=WAIT)


def until_ok(url: str) -> set[str]:
    """Wait for health; what was said on the way there."""
    said, end = set(), time.monotonic() + WAIT
    while (got := health(url)).status_code != 200:
        said.add(got.json()["status"])
        assert time.monotonic() < end, got.text
        time.sleep(0.01)
    return said


def test_a_stream_goes_on_after_a_kill(server: Background) -> None:
    whole = Stream(server.url, 300).end()
    stream = Stream(server.url, 300)
    assert stream.began.wait(WAIT)
    kill(service_of(server).worker.life.pid)
    said = until_ok(server.url) if health(server.url).status_code == 503 else set()
    assert stream.end() == whole and stream.done and not stream.error
    assert said <= {"restarting"}
    assert whole.startswith(Stream(server.url, 30).end())
    told = health(server.url).json()
    assert told["status"] == "ok" and told["restarts"] == 1 and told["running"] == 0
    assert "SIGKILL" in told["last_restart"]
    metrics = httpx.get(f"{server.url}/metrics").text
    assert "lcspec_engine_restarts_total 1.0" in metrics and "lcspec_engine_up 1.0" in metrics
    assert "lcspec_requests_resumed_total 1.0" in metrics


def test_health_says_that_it_restarts(server: Background, tiny_model: Path) -> None:
    away = tiny_model.with_suffix(".away")
    tiny_model.rename(away)
    try:
        kill(service_of(server).worker.life.pid)
        end = time.monotonic() + WAIT
        while (got := health(server.url)).status_code == 200 or "does not exist" not in got.json()["error"]:
            assert time.monotonic() < end, got.text
            time.sleep(0.01)
        assert got.status_code == 503 and got.json()["status"] == "restarting"
        refused = httpx.post(f"{server.url}/v1/chat/completions", json=body(4, stream=False), timeout=WAIT)
        assert refused.status_code == 503 and "try again later" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"]
        assert "lcspec_engine_up 0.0" in httpx.get(f"{server.url}/metrics", timeout=WAIT).text
        data = httpx.get(f"{server.url}/v1/models", timeout=WAIT).json()["data"]
        assert data[0]["status"]["value"] == "restarting"
    finally:
        away.rename(tiny_model)
    assert until_ok(server.url) <= {"restarting"}
    assert Stream(server.url, 30).end()


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_kills_twice_is_refused(server: Background, stream: bool) -> None:
    asked = {"prompt": [5, *engine_faults.POISON], "max_tokens": 4, "stream": stream}
    got = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=WAIT)
    if got.status_code == 200:  # the stream had begun
        assert stream and "died twice" in got.text and "[DONE]" not in got.text
    else:
        assert got.status_code == 500 and got.json()["error"]["code"] == "engine_died"
        assert "died twice" in got.json()["error"]["message"]
    until_ok(server.url)
    assert Stream(server.url, 30).end()
    assert "lcspec_requests_refused_twice_dead_total 1.0" in httpx.get(f"{server.url}/metrics").text
    assert health(server.url).json()["running"] == 0


def test_requests_that_wait_get_their_answers(server: Background) -> None:
    with ThreadPoolExecutor(8) as pool:
        streams = [Stream(server.url, 200) for _ in range(6)]
        assert streams[0].began.wait(WAIT)
        kill(service_of(server).worker.life.pid)
        tools = pool.submit(
            httpx.post, f"{server.url}/tokenize", json={"content": "Hello"}, timeout=WAIT
        )  # which waits for the process as well
        texts = {stream.end() for stream in streams}
        assert len(texts) == 1 and texts.pop() and not any(stream.error for stream in streams)
        assert tools.result(WAIT).json()["tokens"]


def test_one_that_is_stopped_keeps_nobody_from_asking(server: Background) -> None:
    pid = service_of(server).worker.life.pid
    stream = Stream(server.url, 300)
    assert stream.began.wait(WAIT)
    kill(pid, signal.SIGSTOP)
    try:
        for path in ("/health", "/v1/models", "/metrics"):
            assert httpx.get(f"{server.url}{path}", timeout=30).status_code == 200
    finally:
        kill(pid, signal.SIGCONT)
    assert stream.end() and stream.done and not stream.error


def test_one_models_death_leaves_the_others(tmp_path: Path) -> None:
    for name, seed in (("red", 1), ("blue", 2)):
        tiny.write_llama(tmp_path / f"{name}.gguf", seed=seed, chat_template=tiny.CHATML_TEMPLATE)
    with several(tmp_path, o=options(in_process=False, ctx=512)) as server:
        whole = {name: Stream(server.url, 200, model=name).end() for name in ("red", "blue")}
        engines = {e.name: e.service.worker for e in server.server.models.entries if e.service is not None}
        assert len({worker.life.pid for worker in engines.values()}) == 2
        streams = {name: Stream(server.url, 200, model=name) for name in ("red", "blue")}
        assert all(stream.began.wait(WAIT) for stream in streams.values())
        kill(engines["red"].life.pid)
        assert {name: stream.end() for name, stream in streams.items()} == whole
        until(lambda: engines["red"].life.restarts, patience=WAIT)  # the text may have ended before the kill
        assert engines["blue"].life.restarts == 0 and engines["red"].life.restarts == 1
        assert 'lcspec_engine_restarts_total{model="red"} 1.0' in httpx.get(f"{server.url}/metrics").text


def test_the_command_runs_it_so(tiny_model: Path) -> None:
    running = Process(str(tiny_model), "--ctx", "512", "--slots", "2", "--threads", "1", "--speculate", "off")
    try:
        assert running.port, "".join(running.lines)
        (child,) = engine_faults.children_of(running.process.pid)
        whole = Stream(running.url, 200).end()
        stream = Stream(running.url, 200)
        assert stream.began.wait(WAIT)
        kill(child)
        assert stream.end() == whole
        until_ok(running.url)
        (child,) = engine_faults.children_of(running.process.pid)
        running.process.terminate()
        assert running.wait() == 0
        assert not Path(f"/proc/{child}/exe").exists() and not any("Traceback" in line for line in running.lines)
    finally:
        running.kill()
    running = Process(str(tiny_model), "--ctx", "128", "--threads", "1", "--speculate", "off", "--in-process")
    try:
        assert running.port and engine_faults.children_of(running.process.pid) == []
    finally:
        running.kill()
