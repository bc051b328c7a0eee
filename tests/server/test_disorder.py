"""Clients that go away, cancel, and send rubbish leave nothing behind, and everyone else gets an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lcspec.server.lifecycle import Background
from tests.server.leaks import State, state_of, wait_idle
from tests.server.running import CHAT, CODE, WAIT, background, engine_of

pytestmark = pytest.mark.server

REQUESTS = 300
AT_ONCE = 10


@pytest.fixture(scope="module")
def busy() -> Iterator[Background]:
    """The bundled pair, all drafters, a queue that holds everybody."""
    with background(slots=3, queue=32, ctx=256, here=True) as server:
        yield server


async def well_formed(client: httpx.AsyncClient, chance: random.Random) -> None:
    """Whole or streamed, it must be answered."""
    stream = chance.random() < 0.5
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": chance.choice((CHAT, CODE))}],
        "max_tokens": chance.randint(0, 24),
        "seed": chance.randint(0, 9),
        "n": chance.choice((1, 1, 2)),
        "stream": stream,
        "speculation": chance.choice(({}, {"off": True}, {"drafters": "ngram"}, {"drafters": "model"})),
    }
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    if stream:
        assert answer.text.endswith("data: [DONE]\n\n"), answer.text[-300:]
    else:
        assert len(answer.json()["choices"]) == body["n"]


async def leaves_a_stream(client: httpx.AsyncClient, chance: random.Random) -> None:
    """Reads a little and closes."""
    body = {"messages": [{"role": "user", "content": CHAT}], "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        left = chance.randint(0, 5)
        async for _ in answer.aiter_lines():
            left -= 1
            if left < 0:
                return


async def gives_up(client: httpx.AsyncClient, chance: random.Random) -> None:
    """Waits for a long answer, and not long enough."""
    path = chance.choice(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"))
    body = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": CHAT}], "ignore_eos": True},
        "/v1/completions": {"prompt": [CODE, CHAT], "max_tokens": 200, "ignore_eos": True},
        "/v1/responses": {"input": CHAT},
        "/v1/embeddings": {"input": [CODE] * 3},
    }[path]
    with contextlib.suppress(httpx.TimeoutException):
        await client.post(path, json=body, timeout=chance.uniform(0.001, 0.3))


async def hangs_up(port: int, chance: random.Random) -> None:
    """Sends a request, or part of one, and closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": CODE, "max_tokens": 100, "stream": chance.random() < 0.5}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    data = head.encode() + b"\r\n\r\n" + body
    writer.write(data[: chance.choice((10, len(data) - 5, len(data), len(data)))])
    await writer.drain()
    await asyncio.sleep(chance.uniform(0, 0.05))
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def sends_rubbish(client: httpx.AsyncClient, chance: random.Random) -> None:
    """Something that cannot be answered."""
    content = chance.choice(
        (b"", b"{", b"[]", b'{"messages": 3}', b'{"messages": [], "temperature": NaN}', b"\xff" * 50, b"x" * 100_000)
    )
    answer = await client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["message"]


async def disorder(server: Background, requests: int, seed: int) -> None:
    """`requests` of all kinds, a few at once."""
    chance, gate = random.Random(seed), asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:

        async def one(kind: int) -> None:
            async with gate:
                if kind == 4:
                    await hangs_up(server.port, chance)
                else:
                    await (well_formed, leaves_a_stream, gives_up, sends_rubbish)[kind](client, chance)

        await asyncio.gather(*(one(chance.choice((0, 0, 1, 2, 3, 4))) for _ in range(requests)))


async def test_disorder_leaves_nothing_behind(busy: Background) -> None:
    before = state_of(busy)
    await disorder(busy, REQUESTS, seed=1)
    wait_idle(busy)
    after = state_of(busy)
    assert after == before
    assert after == State(running=0, waiting=0, at_hand=0, free=after.free, cells=0)


def test_a_client_that_goes_frees_its_slot(tiny_model: Path) -> None:
    with background(tiny_model, slots=1, queue=4, ctx=2048, speculate="off", warm=False, here=True) as server:
        body = {"prompt": "abc", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        for _ in range(3):
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=WAIT) as answer:
                next(answer.iter_text())
            wait_idle(server)
        short = httpx.post(f"{server.url}/v1/completions", json={"prompt": "abc", "max_tokens": 3}, timeout=WAIT)
        assert short.status_code == 200
        done = engine_of(server).ready.result().engine.counters.done
        assert done["cancelled"] == 3
