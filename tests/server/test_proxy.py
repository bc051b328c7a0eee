"""Several servers behind HAProxy, with the configuration of the docs."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.process import WAIT, Process
from tests.server.running import lines_of

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
]

CONFIGURATION = Path(__file__).parents[2] / "docs" / "haproxy.cfg"
TALKS = 8


@pytest.fixture()
def servers(tiny_model: Path) -> Iterator[list[Process]]:
    options = ("--ctx", "1024", "--slots", "4", "--threads", "1", "--speculate", "off")
    with contextlib.ExitStack() as stack:
        running = []
        for _ in range(2):
            running.append(Process(str(tiny_model), *options))
            stack.callback(running[-1].kill)
        yield running


@pytest.fixture()
def proxy(servers: list[Process], tmp_path: Path) -> Iterator[str]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    text = CONFIGURATION.read_text()
    for written, real in (("8000", port), ("8081", servers[0].port), ("8082", servers[1].port)):
        assert f"127.0.0.1:{written}" in text
        text = text.replace(f"127.0.0.1:{written}", f"127.0.0.1:{real}")
    file = tmp_path / "haproxy.cfg"
    file.write_text(text)
    running = subprocess.Popen(["haproxy", "-db", "-f", str(file)], stderr=subprocess.DEVNULL)
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + WAIT
    try:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            assert running.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        yield url
    finally:
        running.kill()
        running.wait(WAIT)


def messages_of(number: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "You are a helpful assistant. " * 3},
        {"role": "user", "content": f"This is conversation number {number}. Tell me about it."},
    ]


def served(server: Process) -> int:
    """Requests that a server has finished."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("lcspec_requests_done_total{"))


def test_a_conversation_stays_where_its_beginning_is(servers: list[Process], proxy: str) -> None:
    began = [served(server) for server in servers]
    for number in range(TALKS):
        messages, before = messages_of(number), 0
        for turn in range(3):
            body = {"messages": messages, "max_tokens": 4, "ignore_eos": True, "temperature": 0}
            answer = httpx.post(f"{proxy}/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            found = answer.json()
            cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached >= before - 8, "the turn before is in the cache"
            before = found["usage"]["prompt_tokens"]
            assert turn == 0 or cached > 0
            messages += [found["choices"][0]["message"], {"role": "user", "content": "And then?"}]
            messages[-2] = {"role": "assistant", "content": messages[-2]["content"] or ""}
    shares = [served(server) - before for server, before in zip(servers, began)]
    assert sum(shares) == 3 * TALKS and min(shares) >= 3, "and both have some"


def test_one_server_dies_and_the_other_s_requests_go_on(servers: list[Process], proxy: str) -> None:
    began = served(servers[1])
    with contextlib.ExitStack() as stack:
        streams = []
        for number in range(TALKS):
            body = {"messages": messages_of(number), "max_tokens": 600, "ignore_eos": True, "stream": True}
            answer = stack.enter_context(httpx.stream("POST", f"{proxy}/v1/chat/completions", json=body))
            assert answer.status_code == 200
            streams.append(answer)
        servers[0].kill()
        whole = 0
        for answer in streams:
            try:
                whole += "data: [DONE]" in list(lines_of(answer))
            except httpx.HTTPError:
                continue
    assert served(servers[1]) - began == whole > 0, "every request of the other server was answered to its end"
    for number in range(TALKS):
        body = {"messages": messages_of(number), "max_tokens": 4}
        assert httpx.post(f"{proxy}/v1/chat/completions", json=body).status_code == 200, "it serves all of them now"
