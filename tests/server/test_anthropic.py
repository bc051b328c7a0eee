"""Anthropic's API through its own client, and what that would not send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from lcspec.server import unknown
from lcspec.server.anthropic import chat_body, prepare
from lcspec.server.lifecycle import Background
from lcspec.server.schemas_anthropic import AnthropicBody
from tests.server.running import CHAT, HELLO, MODEL, background, lines_of

if TYPE_CHECKING:
    import anthropic

pytestmark = pytest.mark.server

WEATHER: Any = {
    "name": "weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"hot": {"type": "boolean"}}, "required": ["hot"]},
}
COLD = {"temperature": 0}  # newer versions of the client have no argument for it
MUST: Any = {"type": "tool", "name": "weather"}


@pytest.fixture(scope="module")
def claude(server: Background) -> Iterator[anthropic.Anthropic]:
    import anthropic  # takes four seconds

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300) as client:
        yield client


def test_an_answer(claude: anthropic.Anthropic, http: httpx.Client) -> None:
    got = claude.messages.create(model=MODEL, max_tokens=12, messages=HELLO, extra_body=COLD)  # type: ignore[arg-type]
    body = {"messages": HELLO, "max_tokens": 12, "temperature": 0}
    plain = http.post("/v1/chat/completions", json=body).json()
    assert got.content[0].type == "text" and got.content[0].text == plain["choices"][0]["message"]["content"]
    assert got.stop_reason == {"length": "max_tokens", "stop": "end_turn"}[plain["choices"][0]["finish_reason"]]
    usage = got.usage
    assert usage.output_tokens == plain["usage"]["completion_tokens"]
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == plain["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_cache_can_be_warmed(claude: anthropic.Anthropic, stream: bool) -> None:
    said = "".join(f"{word} " for word in ("warm", str(stream), *"abcdefghijklmnopqrst"))
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": said}]}
    if stream:
        with claude.messages.stream(**asked, max_tokens=0) as parts:
            got = parts.get_final_message()
    else:
        got = claude.messages.create(**asked, max_tokens=0)
    assert got.content == [] and got.stop_reason == "max_tokens" and got.usage.output_tokens == 0
    usage = claude.messages.create(**asked, max_tokens=1).usage
    assert usage.input_tokens <= 1 < (usage.cache_read_input_tokens or 0)


def test_a_stream(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 12, "messages": HELLO, "extra_body": COLD, "system": "Be brief."}
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        got = stream.get_final_message()
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert got.stop_reason == whole.stop_reason and got.usage.output_tokens == whole.usage.output_tokens


def test_a_stop_sequence(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 30, "messages": HELLO, "extra_body": COLD}
    text = claude.messages.create(**asked).content[0].text  # type: ignore[union-attr]
    stop = text[5:8]
    got = claude.messages.create(**asked, stop_sequences=[stop])
    assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", stop)
    assert got.content[0].text == text[: text.index(stop)]  # type: ignore[union-attr]


def test_a_tool_must_be_called(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 60, "messages": HELLO, "tools": [WEATHER], "tool_choice": MUST}
    got = claude.messages.create(**asked, extra_body=COLD)
    assert got.stop_reason == "tool_use" and got.content[-1].type == "tool_use"
    assert got.content[-1].name == "weather" and isinstance(got.content[-1].input["hot"], bool)
    with claude.messages.stream(**asked, extra_body=COLD) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[-1].type == "tool_use" and streamed.content[-1].input == got.content[-1].input
    assert streamed.stop_reason == "tool_use"


def _prompt(running: Background, body: dict[str, Any]) -> str:
    """The prompt that a body becomes."""
    service = running.server.service
    made = prepare(service, AnthropicBody.model_validate({"max_tokens": 1} | body), MODEL)
    return service.vocab.text(list(made.requests[0].prompt), special=True)


def test_a_conversation_with_tools_is_what_the_other_api_makes_of_it(server: Background, http: httpx.Client) -> None:
    talk = [
        {"role": "user", "content": [{"type": "text", "text": "How hot?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Ask.", "signature": "x"},
                {"type": "text", "text": "I ask."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"hot": True}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "30"}]},
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    function = {"name": "weather", "description": "Weather of a city", "parameters": WEATHER["input_schema"]}
    call = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"hot": true}'}}
    same = [
        {"role": "user", "content": "How hot?"},
        {"role": "assistant", "content": "I ask.", "reasoning_content": "Ask.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "30"},
        {"role": "user", "content": "And?"},
    ]
    body = {"messages": same, "tools": [{"type": "function", "function": function}]}
    prompt = http.post("/apply-template", json=body).json()["prompt"]
    assert _prompt(server, {"messages": talk, "tools": [WEATHER]}) == prompt


def test_what_changes_from_request_to_request_is_no_part_of_the_prompt(server: Background) -> None:
    def system(n: int) -> list[dict[str, Any]]:
        texts = (f"x-anthropic-billing-header: cc_version=2.1; cch={n};", "You are an agent.", "Be brief.")
        return [{"type": "text", "text": text} for text in texts]

    first, second = (_prompt(server, {"messages": HELLO, "system": system(n)}) for n in (1, 2))
    assert first == second and "You are an agent.\nBe brief." in first and "billing" not in first


def test_counting(claude: anthropic.Anthropic) -> None:
    n = claude.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.").input_tokens  # type: ignore[arg-type]
    got = claude.messages.create(model=MODEL, max_tokens=1, messages=HELLO, system="Be brief.")  # type: ignore[arg-type]
    assert n == got.usage.input_tokens + (got.usage.cache_read_input_tokens or 0)


def test_names_of_other_apis(http: httpx.Client) -> None:
    body: dict[str, Any] = {"max_tokens": 30, "messages": HELLO, "temperature": 0}
    text = http.post("/v1/messages", json=body).json()["content"][0]["text"]
    stop = text[5:8]
    got = http.post("/v1/messages", json=body | {"stop": stop, "stop_sequences": ["never"]}).json()
    assert (got["stop_reason"], got["stop_sequence"]) == ("stop_sequence", stop)
    got = http.post("/v1/messages", json=body | {"grammar": 'root ::= "yes"'})
    assert got.json()["content"][0]["text"] == "yes" and unknown.HEADER not in got.headers
    got = http.post("/v1/messages", json=body | {"mcp_servers": [{"type": "url", "url": "https://x"}]})
    assert got.status_code == 400 and "mcp_servers" in got.json()["error"]["message"]
    assert http.post("/v1/messages", json=body | {"mcp_servers": []}).status_code == 200


def test_arguments_for_the_template(tiny_model: Path) -> None:
    with background(tiny_model, warm=False, chat_template="{{ mood }}.") as running:
        assert _prompt(running, {"messages": HELLO, "chat_template_kwargs": {"mood": "good"}}).endswith("good.")


def test_as_many_tools_and_as_long_names_as_the_api_has() -> None:
    tools = [{"name": f"mcp__{'x' * 100}_{i}", "input_schema": {"type": "object"}} for i in range(256)]
    made = chat_body(AnthropicBody.model_validate({"max_tokens": 1, "messages": HELLO, "tools": tools}), {})
    assert [tool.function.name for tool in made.tools or ()] == [tool["name"] for tool in tools]


def test_neighbours_of_one_role_are_one_turn(server: Background) -> None:
    def turn(role: str, *texts: str) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}

    apart = [
        turn("user", "One"),
        turn("user", "Two"),
        turn("assistant", "A"),
        turn("assistant", "B"),
        turn("user", "C"),
    ]
    together = [turn("user", "One", "Two"), turn("assistant", "A", "B"), turn("user", "C")]
    assert _prompt(server, {"messages": apart}) == _prompt(server, {"messages": together})


@pytest.mark.parametrize("inside", [False, True])
def test_texts_that_were_found(server: Background, inside: bool) -> None:
    text = {"type": "text", "text": "Cells divide."}
    found = {"type": "search_result", "source": "https://x", "title": "Biology", "content": [text]}
    paper = {"type": "document", "title": "Paper", "source": {"type": "content", "content": [text, text]}}
    note = {"type": "document", "source": {"type": "content", "content": "Short"}}
    blocks: list[dict[str, Any]] = [found, paper, note]
    if inside:
        blocks = [{"type": "tool_result", "tool_use_id": "t", "content": blocks}]
    prompt = _prompt(server, {"messages": [{"role": "user", "content": blocks}]})
    assert "Biology\nhttps://x\nCells divide.\nPaper\nCells divide.\nCells divide.\nShort" in prompt


def test_thinking_is_for_the_template(tiny_model: Path) -> None:
    with background(tiny_model, warm=False, chat_template="{{ enable_thinking }}") as running:
        for kind, seen in (("enabled", "True"), ("disabled", "False")):
            assert _prompt(running, {"messages": HELLO, "thinking": {"type": kind}}).endswith(seen)


@pytest.mark.parametrize(
    "body, said",
    [
        ({"messages": HELLO}, "max_tokens"),
        ({"max_tokens": 1, "messages": []}, "messages"),
        ({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "text only"),
        (
            {
                "max_tokens": 1,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}},
                        ],
                    }
                ],
            },
            "text only",
        ),
        ({"max_tokens": 1, "messages": HELLO, "tools": [{"type": "custom", "name": "w"}]}, "input_schema"),
        ({"max_tokens": 1, "messages": HELLO, "tool_choice": {"type": "tool"}}, "name"),
        ({"max_tokens": 1, "messages": HELLO, "tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "x"),
        ({"max_tokens": 1, "messages": HELLO, "temperature": -1}, "temperature"),
        ({"max_tokens": 1, "messages": [{"role": "user", "content": "word " * 3000}]}, "--ctx"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_in_its_form(http: httpx.Client, body: dict[str, Any], said: str, stream: bool) -> None:
    got = http.post("/v1/messages", json=body | {"stream": stream})
    assert got.status_code == 400, got.text
    data = got.json()
    assert data["type"] == "error" and data["error"]["type"] == "invalid_request_error"
    assert said in data["error"]["message"]


def test_a_wrong_key(tiny_model: Path) -> None:
    import anthropic

    with background(tiny_model, warm=False, api_keys=("right",)) as running:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            got = httpx.post(running.url + path, json={}, headers={"x-api-key": "wrong"})
            assert got.status_code == 401 and got.json()["error"]["type"] == "authentication_error"
        client = anthropic.Anthropic(base_url=running.url, api_key="right", max_retries=0)
        assert client.messages.create(model=MODEL, max_tokens=1, messages=[{"role": "user", "content": CHAT}]).id
        wrong = anthropic.Anthropic(base_url=running.url, api_key="wrong", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError):
            wrong.messages.create(model=MODEL, max_tokens=1, messages=[{"role": "user", "content": CHAT}])


def test_events_are_numbered_and_named(http: httpx.Client) -> None:
    with http.stream("POST", "/v1/messages", json={"max_tokens": 4, "messages": HELLO, "stream": True}) as got:
        lines = [line for line in lines_of(got) if line]
    names = [line[7:] for line in lines if line.startswith("event: ")]
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert names == [d["type"] for d in data]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


SHAPE = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 30}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("field", ["output_config", "output_format"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_structured_answer(http: httpx.Client, field: str, stream: bool) -> None:
    form: dict[str, Any] = {"type": "json_schema", "schema": SHAPE}
    body = {"model": "demo", "max_tokens": 60, "messages": HELLO, "stream": stream, "temperature": 1}
    got = http.post("/v1/messages", json=body | {field: form if field == "output_format" else {"format": form}})
    assert got.status_code == 200, got.text
    if stream:
        events = [json.loads(line[6:]) for line in lines_of(got) if line.startswith("data: {")]
        text = "".join(e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta")
    else:
        text = got.json()["content"][0]["text"]
    assert json.loads(text)["kind"] in ("cat", "dog")


def test_a_schema_that_cannot_be_held_to_is_refused(http: httpx.Client) -> None:
    form = {"type": "json_schema", "schema": {"not": {"type": "string"}}}
    body = {"max_tokens": 60, "messages": HELLO, "output_config": {"format": form}}
    got = http.post("/v1/messages", json=body)
    assert got.status_code == 400 and "not" in got.json()["error"]["message"]
