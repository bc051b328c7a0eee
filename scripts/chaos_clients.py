"""Clients of scripts/chaos_server.py that do harm, among others."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.server.running import CHAT
from tests.server.test_disorder import gives_up, leaves_a_stream, sends_rubbish, well_formed

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

    def __init__(
        self, url: str, models: Sequence[str], chance: random.Random, wrong: list[str], patience: float
    ) -> None:
        async def note(answer: httpx.Response) -> None:
            if answer.status_code == 500:
                await answer.aread()
                wrong.append(f"500: {answer.request.url.path} {answer.text[:300]}")

        super().__init__(base_url=url, timeout=patience, event_hooks={"response": [note]})
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
