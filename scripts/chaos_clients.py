"""Clients of scripts/chaos_server.py: those that do harm, and one that only looks how long it has to wait."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.server.running import CHAT, CODE
from tests.server.test_disorder import gives_up, leaves_a_stream, sends_rubbish, well_formed

GAP_STEPS, GAP_SECONDS = 3.0, 0.2
NESTED = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "required": ["a", "b"]}
PATTERN = {"type": "string", "pattern": "(a*)*(b|c{1,5000})*d"}
HOSTILE: tuple[dict[str, Any], ...] = (
    {"grammar": "root ::= root"},
    {"grammar": 'root ::= a a a a a a\na ::= "" | "x" a | a "y" | a a'},
    {"grammar": 'root ::= "x"{1,1000000000}'},
    {"grammar": "root ::= " + "(" * 5000 + '"x"' + ")" * 5000},
    {"grammar": 'root ::= ([a-z]{0,200}){0,200} "\\U0010ffff"'},
    {"grammar": "start: /(a|aa)*(a|aa)*(a|aa)*b/"},
    {"grammar": "root ::= missing"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": NESTED}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["y" * 60_000]}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PATTERN}}},
)


async def reads_slowly(client: httpx.AsyncClient, chance: random.Random) -> None:
    """Takes its time over a stream, and gets all of it."""
    body = {"messages": [{"role": "user", "content": CHAT}], "max_tokens": 24, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            await asyncio.sleep(chance.uniform(0, 0.05))
    assert answer.status_code == 200 and text.endswith("data: [DONE]\n\n"), text[-200:]


async def hostile_grammar(client: httpx.AsyncClient, chance: random.Random) -> None:
    """A grammar that is refused, or that ends the request alone; never the server."""
    body = {"messages": [{"role": "user", "content": CHAT}], "max_tokens": 16, **chance.choice(HOSTILE)}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code in (200, 400, 422), f"{answer.status_code}: {answer.text[:300]}"


TOOL = {
    "name": "weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]},
}
TOOLS = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**TOOLS, "max_tokens": 60},
    "/v1/messages": {"max_tokens": 12},
    "/api/chat": {"options": {"num_predict": 12}},
    "/v1/responses": {"max_output_tokens": 12},
    "/completion": {"n_predict": 12},
}


async def other_api(client: httpx.AsyncClient, chance: random.Random) -> None:
    """Something of another API, or a tool, whole or streamed."""
    path = chance.choice(sorted(ASKED))
    body = {**ASKED[path], "seed": chance.randint(0, 9), "stream": chance.random() < 0.5}
    body[{"/completion": "prompt", "/v1/responses": "input"}.get(path, "messages")] = (
        [{"role": "user", "content": CHAT}] if path.rsplit("/", 1)[1] in ("completions", "messages", "chat") else CHAT
    )
    answer = await client.post(path, json=body)
    assert answer.status_code == 200 and answer.text, f"{path}: {answer.status_code}: {answer.text[:300]}"


Fault = Callable[[httpx.AsyncClient, random.Random], Awaitable[None]]
FAULTS: dict[str, Fault] = {
    "answered": well_formed,
    "other API": other_api,
    "cancelled": leaves_a_stream,
    "gave up": gives_up,
    "malformed": sends_rubbish,
    "slow reader": reads_slowly,
    "hostile grammar": hostile_grammar,
}


class Clients(httpx.AsyncClient):
    """Clients that name a model, mostly the first, where there are several (the others have no draft model); answers
    with 500 are noted."""

    def __init__(self, url: str, models: Sequence[str], chance: random.Random, wrong: list[str]) -> None:
        async def note(answer: httpx.Response) -> None:
            if answer.status_code == 500:
                await answer.aread()
                wrong.append(f"500: {answer.request.url.path} {answer.text[:300]}")

        super().__init__(base_url=url, timeout=300, event_hooks={"response": [note]})
        self._models, self._chance = models, chance

    def build_request(self, *given: Any, **named: Any) -> httpx.Request:
        """With a model in its body."""
        body = named.get("json")
        if self._models and isinstance(body, dict):
            name = self._models[0] if self._chance.random() < 0.9 else self._chance.choice(self._models)
            if name != self._models[0] and body.get("speculation") == {"drafters": "model"}:
                body = {**body, "speculation": {}}
            named["json"] = {"model": name, **body}
        return super().build_request(*given, **named)


class Stranger(threading.Thread):
    """Reads one long stream after another and notes the seconds between their pieces."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.gaps: list[float] = []
        self.streams = 0
        self.wrong: list[str] = []
        self._url, self._over = url, threading.Event()

    def run(self) -> None:
        """Until `end`."""
        body = {"prompt": CODE, "max_tokens": 160, "ignore_eos": True, "stream": True, "temperature": 1}
        while not self._over.is_set():
            last = None
            try:
                with httpx.stream("POST", f"{self._url}/v1/completions", json=body, timeout=300) as answer:
                    for _ in answer.iter_bytes():
                        now = time.perf_counter()
                        if last is not None:
                            self.gaps.append(now - last)
                        last = now
                if answer.status_code != 200:
                    self.wrong.append(f"stranger: {answer.status_code}")
            except httpx.HTTPError as error:
                self.wrong.append(f"stranger: {type(error).__name__} {error}")
            self.streams += 1

    def end(self) -> str:
        """What it saw, in words."""
        self._over.set()
        self.join(300)
        median, worst = self.median * 1e3, max(self.gaps, default=0.0) * 1e3
        return f"a stranger's {self.streams} streams: median step {median:.1f} ms, longest pause {worst:.0f} ms"

    @property
    def median(self) -> float:
        """Seconds between two pieces, usually."""
        return statistics.median(self.gaps) if self.gaps else 0.0

    @property
    def late(self) -> bool:
        """Whether a pause was too long."""
        return max(self.gaps, default=0.0) > GAP_STEPS * self.median + GAP_SECONDS
