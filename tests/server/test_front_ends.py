"""One seed gives one text, whether the server is asked, `lcspec generate` or the chat."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import httpx
import pytest

from lcspec.config import DraftFiles, ModelOptions
from lcspec.engine.events import Failed, Tokens
from lcspec.engine.request import Request
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import parse_speculation
from lcspec.tui.bridge import Bridge
from tests.commands.test_command_line import ok
from tests.running import ROUNDS_ALIKE
from tests.server.running import CHAT, CODE, WAIT, background

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.skipif(not ROUNDS_ALIKE, reason="needs exact texts")]

N = 24
ASKED = [(CHAT, 0.0, 1), (CODE, 0.8, 2), (CHAT, 1.2, 3)]


@contextlib.contextmanager
def chat() -> Iterator[Bridge]:
    """What the chat talks to, with the options that the chat takes."""
    options = ModelOptions(demo_path(DEMO_TARGET), ctx=512, threads=1, exact=True)
    bridge = Bridge(options, DraftFiles((demo_path(DEMO_DRAFT),)), history=False, apart=False)
    try:
        asyncio.run(bridge.ready())
        yield bridge
    finally:
        assert bridge.close(timeout=WAIT)


def said_in_chat(bridge: Bridge, prompt: str, sampling: SamplingParams) -> str:
    ids, stop = bridge.loaded.chat_ids([{"role": "user", "content": prompt}])
    speculation = parse_speculation("auto", bridge.files)
    answer = bridge.submit(Request(ids, sampling, speculation, N, stop))
    text, end = "", time.monotonic() + WAIT
    while not answer.done and time.monotonic() < end:
        for event in answer.drain():
            assert not isinstance(event, Failed), event
            text += event.text if isinstance(event, Tokens) else ""
        time.sleep(0.01)
    return text


def test_server_generate_and_chat_write_the_same_text() -> None:
    pair = (demo_path(DEMO_TARGET), "--draft", demo_path(DEMO_DRAFT))
    common = ("--chat", "--exact", "--threads", "1", "--ctx", "512", "--no-history", "-n", str(N))
    with background(slots=4) as server, httpx.Client(base_url=server.url, timeout=WAIT) as http, chat() as bridge:
        for prompt, temperature, seed in ASKED:
            body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": N}
            found = http.post("/v1/chat/completions", json={**body, "temperature": temperature, "seed": seed}).json()
            served = found["choices"][0]["message"]["content"]
            sampled = ("--temperature", str(temperature), "--seed", str(seed))
            written = ok("generate", *pair, "-p", prompt, *sampled, *common).stdout
            said = said_in_chat(bridge, prompt, SamplingParams(temperature=temperature, seed=seed))
            assert served.strip() and served.strip() == written.strip() == said.strip()
