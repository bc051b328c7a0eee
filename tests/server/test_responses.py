"""The Responses API's stateless core through the official client."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from lcspec.server.remembered import Remembered
from lcspec.server.responses import input_messages, message_item, prepare
from lcspec.server.schemas_responses import Item, ResponseBody
from tests.server.running import CHAT, MODEL, background
from tests.server.test_chat import SCHEMA
from tests.server.test_tools import NOTHING, WEATHER, check

pytestmark = pytest.mark.server


def flat(tool: Any) -> Any:
    """A tool in this API's form."""
    return {"type": "function", "strict": True} | tool["function"]


def test_an_answer(client: openai.OpenAI) -> None:
    got = client.responses.create(
        model=MODEL, input=CHAT, instructions="Be kind.", temperature=0, max_output_tokens=200
    )
    assert got.output_text and got.status == "completed" and got.error is None
    assert got.usage is not None and got.usage.total_tokens == got.usage.input_tokens + got.usage.output_tokens


def test_the_limit_makes_it_incomplete(client: openai.OpenAI) -> None:
    got = client.responses.create(model=MODEL, input=CHAT, temperature=0, max_output_tokens=2)
    assert got.status == "incomplete" and got.incomplete_details is not None
    assert got.incomplete_details.reason == "max_output_tokens"
    flat: dict[str, Any] = {
        "type": "function",
        "name": "f",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "minLength": 99}}},
    }
    flat["parameters"] |= {"required": ["x"], "additionalProperties": False}
    call: dict[str, Any] = {"tools": [flat], "tool_choice": "required"}
    for more, kind in (({}, "message"), (call, "function_call")):
        asked: Any = {"model": MODEL, "input": CHAT, "temperature": 0, "max_output_tokens": 48 if more else 2} | more
        whole: Any = client.responses.create(**asked).output[-1]
        with client.responses.stream(**asked) as stream:
            done: list[Any] = [event.item for event in stream if event.type == "response.output_item.done"]
        assert (whole.type, whole.status) == (kind, "incomplete")
        assert [(item.type, item.status) for item in done] == [(kind, "incomplete")]


def test_the_same_prompt_as_chat(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": CHAT}], temperature=0, max_tokens=16
    )
    for given in (CHAT, [{"role": "user", "content": [{"type": "input_text", "text": CHAT}]}]):
        got = client.responses.create(model=MODEL, input=given, temperature=0, max_output_tokens=16)  # type: ignore[arg-type]
        assert got.output_text == chat.choices[0].message.content


def test_tokens_are_counted(client: openai.OpenAI, http: httpx.Client) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": CHAT, "instructions": "Be brief."}
    got = client.responses.input_tokens.count(**asked)
    used = client.responses.create(**asked, max_output_tokens=1).usage
    assert used is not None and (got.object, got.input_tokens) == ("response.input_tokens", used.input_tokens)
    body = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": CHAT}]}
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        assert http.post(path, json=body).json() == {"object": got.object, "input_tokens": got.input_tokens}
    with pytest.raises(openai.BadRequestError, match="nothing is stored"):
        client.responses.input_tokens.count(**asked, previous_response_id="resp_1")


def test_parts_that_are_no_text(client: openai.OpenAI) -> None:
    """A refusal the model gave earlier is read; a picture is refused, with its place."""
    asked: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "Why?"},
    ]
    assert client.responses.create(model=MODEL, input=asked, max_output_tokens=4).usage
    picture: Any = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    with pytest.raises(openai.BadRequestError, match="reads text only, not 'input_image'") as refused:
        client.responses.create(model=MODEL, input=[{"role": "user", "content": [picture]}])
    assert refused.value.param == "input[0].content[0].type"


def test_streamed(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": CHAT, "temperature": 0, "max_output_tokens": 24}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    kinds = [e.type for e in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == whole.output_text


def test_functions_of_a_namespace_are_called_with_it(client: openai.OpenAI) -> None:
    """So Codex sends those of an MCP server, and finds them again."""
    theirs = {"type": "namespace", "name": "mcp__sky", "tools": [flat(WEATHER), {"type": "custom", "name": "patch"}]}
    asked: Any = {"model": MODEL, "input": CHAT, "tools": [theirs], "max_output_tokens": 400, "temperature": 0}
    got = client.responses.create(**asked, tool_choice="required")
    call = got.output[0].model_dump()
    assert (call["name"], call["namespace"]) == ("get_weather", "mcp__sky")
    check(call["name"], call["arguments"])
    events = list(client.responses.create(**asked, tool_choice="required", stream=True))
    items = [
        e.item.model_dump() for e in events if e.type in ("response.output_item.added", "response.output_item.done")
    ]
    assert len(items) == 2 and all((i["name"], i["namespace"]) == ("get_weather", "mcp__sky") for i in items)
    other = theirs | {"name": "mcp__sea", "tools": [flat(WEATHER), flat(NOTHING)]}
    body = ResponseBody.model_validate(
        {"input": [{"type": "function_call", "name": "get_weather", "namespace": "mcp__sea", "arguments": "{}"}]}
        | {"tools": [theirs, other]}
    )
    told = ["mcp__sky__get_weather", "mcp__sea__get_weather", NOTHING["function"]["name"]]
    assert [function.told for function in body.functions] == told
    assert input_messages(body)[0]["tool_calls"][0]["function"]["name"] == told[1]
    long = [{"type": "namespace", "name": one * 128, "tools": [flat(WEATHER)]} for one in "ab"]
    named = {function.told for function in ResponseBody.model_validate({"input": "x", "tools": long}).functions}
    assert len(named) == 2 and all(re.fullmatch("[ab]+__get_weather", name) and len(name) <= 128 for name in named)


def test_items_of_earlier_answers_may_be_referred_to(client: openai.OpenAI) -> None:
    """So the AI SDK does it, unless it is told that nothing is stored."""
    asked: Any = {"model": MODEL, "max_output_tokens": 8, "temperature": 0}
    whole = client.responses.create(input=CHAT, **asked).output[0].model_dump()
    *_, last = client.responses.create(input=CHAT, stream=True, **asked)
    assert last.type == "response.incomplete"
    own = last.response.output[0].model_dump()
    assert own["id"] != whole["id"] and own["content"][0]["text"] == whole["content"][0]["text"]
    talk: list[Any] = [{"role": "user", "content": CHAT}, whole, {"role": "user", "content": "Why?"}]
    wanted = client.responses.create(input=talk, **asked)
    for item in (whole, own):
        talk[1] = {"type": "item_reference", "id": item["id"]}
        got = client.responses.create(input=talk, **asked)
        assert (got.output_text, got.usage and got.usage.input_tokens) == (
            wanted.output_text,
            wanted.usage and wanted.usage.input_tokens,
        )
        assert client.responses.input_tokens.count(model=MODEL, input=talk).input_tokens == got.usage.input_tokens
    talk[1]["id"] = client.responses.create(input=CHAT, store=False, **asked).output[0].id
    with pytest.raises(openai.BadRequestError, match="send the item itself"):
        client.responses.create(input=talk, **asked)


def test_the_oldest_items_are_forgotten() -> None:
    items = [message_item(f"msg_{i}", "x" * 300, []) for i in range(20)]
    known = Remembered(kept=4000)
    for item in items:
        known.add([item])
    references = [Item.model_validate({"type": "item_reference", "id": f"msg_{i}"}) for i in range(20)]
    kinds = [item.kind for item in known.resolved(references)]
    assert kinds == sorted(kinds) and kinds[0] == "item_reference" and kinds[-1] == "message"
    known.add([message_item("msg_long", "x" * 5000, [])])
    assert {item.kind for item in known.resolved(references)} == {"item_reference"}


def test_a_function_is_called(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": MODEL,
        "input": CHAT,
        "tools": [flat(WEATHER), flat(NOTHING)],
        "max_output_tokens": 400,
        "temperature": 0,
    }
    got = client.responses.create(**asked, tool_choice="required")
    assert [item.type for item in got.output] == ["function_call"]
    call: Any = got.output[0]
    check(call.name, call.arguments)
    events = list(
        client.responses.create(**asked, tool_choice={"type": "function", "name": "get_weather"}, stream=True)
    )
    arguments = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert len(done) == 1 and done[0].arguments == arguments
    check("get_weather", arguments)
    assert events[-1].response.output[0].type == "function_call"
    # And on with it.
    then = client.responses.create(
        model=MODEL,
        input=[
            {"role": "user", "content": CHAT},
            call.model_dump(),
            {"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"},
        ],
        max_output_tokens=8,
    )
    assert then.status in ("completed", "incomplete")


def test_a_schema(client: openai.OpenAI) -> None:
    got = client.responses.create(
        model=MODEL,
        input=CHAT,
        max_output_tokens=80,
        text={"format": {"type": "json_schema", "name": "order", "schema": SCHEMA, "strict": True}},
    )
    assert set(json.loads(got.output_text)) == {"size", "hot"}


def test_what_steers_the_text_as_in_the_other_apis(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": CHAT, "temperature": 0}

    def text(**more: Any) -> str:
        return client.responses.create(**asked, extra_body=more).output_text

    plain = text(max_tokens=12)
    assert plain == client.responses.create(**asked, max_output_tokens=12).output_text
    stop = plain[4:7]
    assert text(stop=stop, max_tokens=12) == plain[: plain.index(stop)]
    assert text(grammar='root ::= "yes"') == "yes"
    assert text(logit_bias=[["Q", 100]], max_tokens=3) == "QQQ"


def test_arguments_for_the_template(tiny_model: Path) -> None:
    with background(tiny_model, warm=False, chat_template="{{ mood }}.") as running:
        body = ResponseBody.model_validate({"input": "x", "chat_template_kwargs": {"mood": "good"}})
        service = running.server.service
        prompt = list(prepare(service, body, MODEL).request.prompt)
        assert service.vocab.text(prompt, special=True).endswith("good.")


def test_log_probabilities(client: openai.OpenAI) -> None:
    got: Any = client.responses.create(
        model=MODEL, input=CHAT, max_output_tokens=8, include=["message.output_text.logprobs"], top_logprobs=2
    )
    logprobs = got.output[0].content[0].logprobs
    assert len(logprobs) == got.usage.output_tokens and all(len(item.top_logprobs) == 2 for item in logprobs)
