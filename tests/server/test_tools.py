"""Tools: forced calls through a grammar, streamed and not, and conversations that go on after one."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.server.running import HELLO, MODEL, lines_of

pytestmark = pytest.mark.server

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "metric": {"type": "boolean"}},
            "required": ["city", "metric"],
            "additionalProperties": False,
            "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
        },
    },
}
NOTHING: Any = {
    "type": "function",
    "function": {"name": "do_nothing", "parameters": {"type": "object", "properties": {}}},
}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


def check(name: str, arguments: str) -> None:
    data = json.loads(arguments)
    if name == "get_weather":
        assert data["city"] in ("Oslo", "Rome") and isinstance(data["metric"], bool)
    else:
        assert name == "do_nothing" and data == {}


@pytest.mark.parametrize("seed", range(3))
def test_a_required_call_comes(client: openai.OpenAI, seed: int) -> None:
    got = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WEATHER, NOTHING], tool_choice="required", seed=seed, max_tokens=120
    )
    choice = got.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert choice.message.tool_calls and len(choice.message.tool_calls) == 1
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.id.startswith("call_")
    check(call.function.name, call.function.arguments)


@pytest.mark.parametrize("parameters", [{}, {"parameters": {}}, {"parameters": None}])
def test_a_function_without_parameters_takes_nothing(client: openai.OpenAI, parameters: Any) -> None:
    tool: Any = {"type": "function", "function": {"name": "do_nothing", **parameters}}
    for seed in range(3):
        got = client.chat.completions.create(
            model=MODEL, messages=HELLO, tools=[tool], tool_choice="required", seed=seed, max_tokens=120
        )
        call = (got.choices[0].message.tool_calls or [None])[0]
        assert call is not None and call.type == "function"
        check(call.function.name, call.function.arguments)


def test_calls_may_stay_in_the_text(http: httpx.Client) -> None:
    body = {"messages": HELLO, "tools": [NOTHING], "tool_choice": "required", "seed": 1, "max_tokens": 120}
    got = http.post("/v1/chat/completions", json=body | {"parse_tool_calls": False})
    choice = got.json()["choices"][0]
    assert "x-lcspec-ignored" not in got.headers and choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]
    call = json.loads(choice["message"]["content"])
    check(call["name"], json.dumps(call["arguments"]))
    read = http.post("/v1/chat/completions", json=body | {"parse_tool_calls": True}).json()["choices"][0]
    assert read["message"]["tool_calls"][0]["function"]["name"] == "do_nothing"
    streamed = ""
    with http.stream("POST", "/v1/chat/completions", json=body | {"parse_tool_calls": False, "stream": True}) as answer:
        for line in lines_of(answer):
            if line.startswith("data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"]
                assert "tool_calls" not in delta
                streamed += delta.get("content") or ""
    assert streamed == choice["message"]["content"]


def test_a_named_function_is_called_and_streamed(client: openai.OpenAI) -> None:
    name, arguments, reason, content, pieces = "", "", None, "", 0
    for chunk in client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[NOTHING, WEATHER], tool_choice=NAMED, seed=2, max_tokens=120, stream=True
    ):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
        for call in delta.tool_calls or []:
            assert call.index == 0 and call.function is not None
            name += call.function.name or ""
            arguments += call.function.arguments or ""
            pieces += bool(call.function.arguments)
    assert name == "get_weather" and reason == "tool_calls" and content == ""
    assert pieces > 1
    check(name, arguments)


def test_a_conversation_goes_on_after_a_call(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WEATHER], tool_choice="required", seed=1, max_tokens=120
    )
    message = first.choices[0].message
    assert message.tool_calls
    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12 degrees"}
    then = client.chat.completions.create(
        model=MODEL,
        messages=[*HELLO, message.model_dump(exclude_none=True), answer],  # type: ignore[list-item]
        tools=[WEATHER],
        max_tokens=16,
    )
    assert then.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_tools_are_in_the_prompt_unless_they_are_switched_off(http: httpx.Client) -> None:
    with_tools = http.post("/apply-template", json={"messages": HELLO, "tools": [WEATHER]}).json()["prompt"]
    assert "get_weather" in with_tools and "Oslo" in with_tools
    assert "get_weather" not in http.post("/apply-template", json={"messages": HELLO}).json()["prompt"]
    asked = {"messages": HELLO, "max_tokens": 1, "temperature": 0}
    none = http.post("/v1/chat/completions", json=asked | {"tools": [WEATHER], "tool_choice": "none"}).json()
    plain = http.post("/v1/chat/completions", json=asked).json()
    assert none["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "body, param",
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]},
                },
            },
            "tool_choice",
        ),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools[0].function.name"),
    ],
)
def test_what_makes_no_sense_is_refused(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    got = http.post("/v1/chat/completions", json={"messages": HELLO} | body)
    assert got.status_code == 400 and got.json()["error"]["param"] == param


def test_allowed_tools_are_all_the_model_sees(http: httpx.Client) -> None:
    allowed = {"mode": "required", "tools": [NAMED]}
    body = {
        "messages": HELLO,
        "tools": [WEATHER, NOTHING],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
    }
    got = http.post("/v1/chat/completions", json=body | {"seed": 1, "max_tokens": 120}).json()
    (call,) = got["choices"][0]["message"]["tool_calls"]
    check("get_weather", call["function"]["arguments"])
    alone = {"messages": HELLO, "tools": [WEATHER], "tool_choice": "required", "seed": 1, "max_tokens": 120}
    assert (
        got["usage"]["prompt_tokens"] == http.post("/v1/chat/completions", json=alone).json()["usage"]["prompt_tokens"]
    )


@pytest.mark.parametrize("stream", [False, True])
def test_several_calls_can_be_forced_at_once(client: openai.OpenAI, stream: bool) -> None:
    asked: Any = dict(
        model=MODEL, messages=HELLO, tools=[WEATHER, NOTHING], tool_choice="required", parallel_tool_calls=True
    )
    counts = []
    for seed in range(4):
        calls: dict[int, list[str]] = {}
        if stream:
            for chunk in client.chat.completions.create(**asked, seed=seed, max_tokens=400, stream=True):
                for part in chunk.choices[0].delta.tool_calls or []:
                    entry = calls.setdefault(part.index, ["", ""])
                    assert part.function is not None
                    entry[0] += part.function.name or ""
                    entry[1] += part.function.arguments or ""
        else:
            message = client.chat.completions.create(**asked, seed=seed, max_tokens=400).choices[0].message
            assert message.content is None and message.tool_calls
            for i, call in enumerate(message.tool_calls):
                assert call.type == "function"
                calls[i] = [call.function.name, call.function.arguments]
        for name, arguments in list(calls.values())[:-1]:  # the last one may have been cut off
            check(name, arguments)
        counts.append(len(calls))
    assert min(counts) >= 1 and max(counts) > 1


def test_tools_go_with_a_response_format(http: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    kinds = set()
    for seed in range(6):
        body = {"messages": HELLO, "tools": [WEATHER], "response_format": form, "seed": seed, "temperature": 1.5}
        choice = http.post("/v1/chat/completions", json=body | {"max_tokens": 150}).json()["choices"][0]
        if choice["finish_reason"] == "tool_calls":
            (call,) = choice["message"]["tool_calls"]
            check("get_weather", call["function"]["arguments"])
        elif choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"])["ok"], bool)
        kinds.add(choice["finish_reason"])
    assert kinds & {"stop", "tool_calls"}


@pytest.mark.parametrize(
    "arguments, outcome",
    [({"city": "Oslo", "metric": True}, "valid"), ({"city": "Paris"}, "invalid"), ({"city": "Oslo"}, "invalid")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_arguments_that_break_the_schema_are_counted_and_left_as_they_are(
    http: httpx.Client, arguments: dict[str, Any], outcome: str, stream: bool
) -> None:
    def count() -> float:
        page = http.get("/metrics").text
        found = [
            line for line in page.splitlines() if line.startswith(f'lcspec_tool_calls_total{{arguments="{outcome}"')
        ]
        return float(found[0].split()[-1]) if found else 0.0

    text = "<tool_call>" + json.dumps({"name": "get_weather", "arguments": arguments}) + "</tool_call>"
    before = count()
    body = {"messages": HELLO, "tools": [WEATHER], "grammar": f"root ::= {json.dumps(text)}", "stream": stream}
    got = http.post("/v1/chat/completions", json=body)
    assert got.status_code == 200
    if stream:
        chunks = [json.loads(line[6:]) for line in lines_of(got) if line.startswith("data: {")]
        calls = [call for chunk in chunks for c in chunk["choices"] for call in c["delta"].get("tool_calls", ())]
        written = "".join(call["function"].get("arguments", "") for call in calls)
    else:
        written = got.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(written) == arguments
    assert count() == before + 1
