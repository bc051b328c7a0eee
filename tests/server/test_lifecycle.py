"""`lcspec serve` as a process: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import tiny_gguf as tiny
from tests.server.process import WAIT, Process, run
from tests.server.running import HELLO, lines_of

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture()
def process(tiny_model: Path) -> Iterator[Process]:
    running = Process(
        str(tiny_model), "--ctx", "2048", "--slots", "2", "--threads", "1", "--speculate", "off", "--queue", "8"
    )
    try:
        assert running.port, "".join(running.lines)
        yield running
    finally:
        running.kill()


class Stream(threading.Thread):
    """Reads one streamed answer to its end, once `gate` is open."""

    def __init__(self, url: str, tokens: int, gate: threading.Event | None = None) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.tokens = tokens
        self.gate = gate
        self.began = threading.Event()
        self.events: list[dict[str, object]] = []
        self.done = False
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        body = {"messages": HELLO, "max_tokens": self.tokens, "ignore_eos": True, "stream": True}
        try:
            with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=WAIT) as answer:
                assert answer.status_code == 200
                self.began.set()
                if self.gate is not None:
                    assert self.gate.wait(WAIT)
                for line in lines_of(answer):
                    if line == "data: [DONE]":
                        self.done = True
                    elif line.startswith("data: "):
                        self.events.append(json.loads(line[6:]))
        except Exception as error:
            self.error = error
            self.began.set()

    @property
    def predicted(self) -> object:
        timings = self.events[-1]["timings"]
        assert isinstance(timings, dict)
        return timings["predicted_n"]


def test_a_term_signal_under_load_loses_no_accepted_stream(process: Process) -> None:
    # Two run, four wait. Nobody reads before the signal: on a busy machine readers of the first kept the last from
    # being accepted until little was left to finish.
    gate = threading.Event()
    streams = [Stream(process.url, 2000, gate) for _ in range(6)]
    for stream in streams:
        assert stream.began.wait(WAIT)
    process.process.send_signal(signal.SIGTERM)
    gate.set()
    assert process.wait() == 0
    for stream in streams:
        stream.join(WAIT)
        assert stream.error is None and stream.done and stream.predicted == 2000
    (line,) = [line for line in process.lines if "finishing" in line]
    assert int(re.findall(r"finishing (\d+) requests", line)[0]) > 2  # so the signal came in the middle of the work
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{process.url}/health")


def test_a_second_signal_exits_now(process: Process) -> None:
    stream = Stream(process.url, 2000)
    assert stream.began.wait(WAIT)
    process.process.send_signal(signal.SIGTERM)
    while not any("finishing" in line for line in process.lines):
        time.sleep(0.01)
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    stream.join(WAIT)
    assert not stream.done


def test_an_interrupt_of_an_idle_server_is_a_clean_end(process: Process) -> None:
    assert httpx.get(f"{process.url}/health").json()["status"] == "ok"
    process.process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    assert not any("Traceback" in line for line in process.lines)


def test_a_port_in_use_is_said_at_once(tiny_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        got = run(str(tiny_model), "--port", str(taken.getsockname()[1]))
    assert got.returncode == 1 and "choose another --port" in got.stderr and "Traceback" not in got.stderr


def test_what_cannot_be_served_is_refused_in_a_sentence(tiny_model: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("[serve]\nslotz = 3\n")
    for code, said, arguments in (
        (1, "nothing.gguf", [str(tmp_path / "nothing.gguf")]),
        (2, "unknown drafter", [str(tiny_model), "--speculate", "magic", "--threads", "1", "--ctx", "128"]),
        (2, "--slots", [str(tiny_model), "--slots", "0"]),
        (2, "host", [str(tiny_model), "--host", "no such host"]),
        (2, "not both", [str(tiny_model), "--api-key", "a", "--api-key-file", str(config)]),
        (2, "slotz", [str(tiny_model), "--config", str(config)]),
        (2, "no configuration file", [str(tiny_model), "--config", str(tmp_path / "none.toml")]),
        (1, "cannot fit into memory", [str(tiny_model), "--slots", "64", "--ctx", "2000000000"]),
    ):
        got = run(*arguments)
        assert got.returncode == code, got.stderr
        assert said in got.stderr and "Traceback" not in got.stderr


def test_options_from_a_file_and_a_key_from_the_environment(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "serve.toml"
    options = ("slots = 3", "ctx = 128", "threads = 1", 'speculate = "off"', 'alias = ["gpt-local"]')
    config.write_text("\n".join(["[serve]", f'model = "{tiny_model}"', *options]))
    monkeypatch.setenv("LCSPEC_API_KEY", "sk-from-the-environment")
    running = Process("--config", str(config), "--slots", "1")  # the command line wins
    try:
        assert running.port, "".join(running.lines)
        assert httpx.get(f"{running.url}/health").json()["slots"] == 1
        assert httpx.get(f"{running.url}/v1/models").status_code == 401
        headers = {"authorization": "Bearer sk-from-the-environment"}
        names = [m["id"] for m in httpx.get(f"{running.url}/v1/models", headers=headers).json()["data"]]
        assert names == ["gpt-local"]
    finally:
        running.kill()
    assert not any("sk-from" in line for line in running.lines)


def test_models_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seed in (("red", 1), ("blue", 2)):
        tiny.write_llama(tmp_path / f"{name}.gguf", seed=seed, chat_template=tiny.CHATML_TEMPLATE)
    small = ("--threads", "1", "--ctx", "256", "--slots", "1", "--speculate", "off")
    running = Process("--models-dir", str(tmp_path), "--pin", "red", "--max-loaded", "2", "--idle-unload", "0", *small)
    try:
        assert running.port, "".join(running.lines)
        assert any("2 models on demand (1 loaded)" in line for line in running.lines)
        data = httpx.get(f"{running.url}/v1/models").json()["data"]
        assert {m["id"]: (m["status"]["value"], m["status"]["pinned"]) for m in data} == {
            "red": ("loaded", True),
            "blue": ("unloaded", False),
        }
        for name in ("blue", "red"):
            body = {"model": name, "messages": HELLO, "max_tokens": 2}
            got = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=WAIT)
            assert got.status_code == 200 and got.json()["model"] == name
        running.process.terminate()
        assert running.wait() == 0
    finally:
        running.kill()
    for said, arguments in (
        ("no model 'green'", ["--pin", "green"]),
        ("--max-loaded", ["--pin", "red", "--pin", "blue", "--max-loaded", "1"]),
        ("no folder", ["--models-dir", str(tmp_path / "none")]),
        ("--alias", ["--alias", "x"]),
        ("belongs to one model", ["--chat-template", "chatml"]),
    ):
        got = run("--models-dir", str(tmp_path), *small, *arguments)
        assert got.returncode == 2 and said in got.stderr and "Traceback" not in got.stderr, got.stderr


def test_without_a_model_all_of_this_machine_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("LCSPEC_MODELS", str(tmp_path / "mine"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    tiny.write_llama(tmp_path / "mine" / "red.gguf", chat_template=tiny.CHATML_TEMPLATE)
    running = Process("--threads", "1", "--ctx", "256", "--slots", "1", "--speculate", "off")
    try:
        assert running.port, "".join(running.lines)
        names = {m["id"] for m in httpx.get(f"{running.url}/v1/models").json()["data"]}
        assert {"red", "demo-target-q8_0"} <= names
        body = {"messages": HELLO, "max_tokens": 2}  # the only one of the user's
        got = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=WAIT)
        assert got.status_code == 200 and got.json()["model"] == "red"
    finally:
        running.kill()
