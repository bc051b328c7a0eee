"""Structured output over HTTP: what comes validates, what cannot be held to is named, and nobody else is held up."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pydantic
import pytest

from tests.sampling.test_grammar import EXPLODING
from tests.server.running import HELLO, MODEL

pytestmark = pytest.mark.server

CODE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "pattern": "^[a-z]{1,8}\\.py$"},
        "code": {"type": "string", "minLength": 10, "maxLength": 40},
        "lines": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 1, "maxItems": 3},
    },
    "required": ["path", "code", "lines"],
}
WRITE: Any = {"type": "function", "function": {"name": "write_file", "parameters": CODE_SCHEMA}}


class Answer(pydantic.BaseModel):
    kind: Literal["short", "long"]
    score: int = pydantic.Field(ge=0, le=10)
    note: str | None = pydantic.Field(max_length=8)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_a_model_is_parsed_by_the_official_client(client: openai.OpenAI, temperature: float) -> None:
    got = client.chat.completions.parse(
        model=MODEL, messages=HELLO, response_format=Answer, temperature=temperature, seed=3, max_tokens=100
    )
    assert got.choices[0].finish_reason == "stop" and isinstance(got.choices[0].message.parsed, Answer)


@pytest.mark.parametrize("seed", range(4))
def test_code_in_a_forced_call_is_valid_json(client: openai.OpenAI, seed: int) -> None:
    got = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WRITE], tool_choice="required", temperature=1.0, seed=seed, max_tokens=250
    )
    assert got.choices[0].finish_reason == "tool_calls" and got.choices[0].message.tool_calls
    call = got.choices[0].message.tool_calls[0]
    assert call.type == "function"
    jsonschema.validate(json.loads(call.function.arguments), CODE_SCHEMA)


def test_the_keyword_and_its_path_are_named(http: httpx.Client) -> None:
    schema = {"properties": {"a": {"items": {"if": {"type": "null"}, "then": {}}}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    told = http.post("/v1/chat/completions", json={"messages": HELLO, "response_format": form})
    assert told.status_code == 400
    assert "if at #/properties/a/items/if" in told.json()["error"]["message"]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"s": {"uniqueItems": True}}}}}
    told = http.post("/v1/chat/completions", json={"messages": HELLO, "tools": [tool], "tool_choice": "required"})
    assert told.status_code == 400 and "uniqueItems at #/" in told.json()["error"]["message"]


def test_a_grammar_in_lark(http: httpx.Client) -> None:
    body = {"prompt": "x", "grammar": 'start: "yes" | "no"', "max_tokens": 9}
    assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] in ("yes", "no")


@pytest.mark.parametrize("stream", [False, True])
def test_a_hostile_grammar_ends_alone(http: httpx.Client, stream: bool) -> None:
    fair = {"messages": HELLO, "max_tokens": 30, "seed": 4, "temperature": 0.8}

    def ask(body: dict[str, Any]) -> httpx.Response:
        return http.post("/v1/chat/completions", json=body)

    alone = ask(fair).json()["choices"][0]["finish_reason"]
    hostile = {"messages": HELLO, "max_tokens": 60, "grammar": EXPLODING, "stream": stream}
    with ThreadPoolExecutor(6) as pool:
        bad = [pool.submit(ask, hostile) for _ in range(3)]
        good = [pool.submit(ask, fair) for _ in range(3)]
        for future in good:
            assert future.result().json()["choices"][0]["finish_reason"] == alone
        for future in bad:
            assert "max is 2000" in future.result().text and "grammar_failed" in future.result().text


def test_a_grammar_that_would_take_long_to_compile_is_refused(http: httpx.Client) -> None:
    told = http.post("/v1/completions", json={"prompt": "x", "grammar": "root ::= " + '"a"?' * 12_000})
    error = told.json()["error"]
    assert told.status_code == 400 and error["param"] == "grammar" and "write repetitions" in error["message"]
