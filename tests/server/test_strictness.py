"""Parameters of other servers: done where they mean something, else ignored and said, or refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from lcspec.server import unknown
from lcspec.server.reading import budget_of, switched_off, template_arguments
from lcspec.server.responses import input_messages
from lcspec.server.schemas_chat import ChatBody
from lcspec.server.schemas_responses import ResponseBody
from tests.running import ROUNDS_ALIKE
from tests.server.running import HELLO, MODEL, background

pytestmark = pytest.mark.server

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SHORT: dict[str, Any] = {"messages": HELLO, "max_tokens": 4, "temperature": 0}


def _text(http: httpx.Client, **body: Any) -> str:
    got = http.post(CHAT, json=SHORT | {"seed": 7} | body)
    assert got.status_code == 200, got.text
    assert unknown.HEADER not in got.headers
    return str(got.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    "name, value",
    [
        ("num_ctx", 4096),
        ("keep_alive", "5m"),
        ("sse_ping_interval", 5),
        ("cache_control", {"type": "ephemeral"}),
        ("temprature", 1),
        ("model", "gpt-9"),
        ("reasoning_format", "deepseek-legacy"),
    ],
)
def test_what_means_nothing_is_ignored_and_said(http: httpx.Client, name: str, value: object) -> None:
    for stream in (False, True):
        got = http.post(CHAT, json=SHORT | {name: value, "stream": stream})
        assert got.status_code == 200 and got.headers[unknown.HEADER] == name
    assert http.post(CHAT, json=SHORT).headers.get(unknown.HEADER) is None


def test_it_is_logged_once(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("lcspec.server").propagate = True
    with caplog.at_level(logging.WARNING, "lcspec.server"):
        for _ in range(2):
            http.post(CHAT, json=SHORT | {"never_heard_of": 1})
    assert [r.getMessage() for r in caplog.records if "never_heard_of" in r.getMessage()].__len__() == 1


def test_inside_of_objects_too(http: httpx.Client) -> None:
    tool = {"type": "function", "function": {"name": "f"}, "cache_control": {"type": "ephemeral"}}
    got = http.post(CHAT, json=SHORT | {"tools": [tool], "tool_choice": "none"})
    assert got.status_code == 200 and got.headers[unknown.HEADER] == "tools[0].cache_control"


def test_tools_that_run_elsewhere_are_left_out(http: httpx.Client) -> None:
    """Agents send them beside functions of their own."""
    theirs = [{"type": "web_search", "external_web_access": False}, {"type": "custom", "name": "apply_patch"}]
    function = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    body = {"input": "Hello", "max_output_tokens": 64, "temperature": 0, "tool_choice": "required"}
    alone = http.post("/v1/responses", json=body | {"tools": [function]}).json()
    got = http.post("/v1/responses", json=body | {"tools": [theirs[0], function, theirs[1]]})
    assert got.status_code == 200
    assert got.json()["usage"]["input_tokens"] == alone["usage"]["input_tokens"]
    assert [item["name"] for item in got.json()["output"]] == ["f"]
    assert got.headers[unknown.HEADER] == "tools[0].type, tools[0].external_web_access, tools[2].type"
    hello = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    nested = {"type": "function", "function": {key: function[key] for key in ("name", "parameters")}}
    chats = [http.post(CHAT, json=hello | {"tools": tools}) for tools in ([nested], [theirs[0], nested])]
    assert chats[0].json()["usage"] == chats[1].json()["usage"]
    assert chats[1].headers[unknown.HEADER] == "tools[0].type, tools[0].external_web_access"
    wrong = http.post(CHAT, json=hello | {"tools": [{"type": "function"}]})
    assert wrong.status_code == 400 and "needs its `function`" in wrong.json()["error"]["message"]
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    got = http.post("/v1/messages", json=hello | {"tools": [search]})
    assert got.status_code == 200 and got.headers[unknown.HEADER] == "tools[0].type"
    counted = [http.post("/v1/messages/count_tokens", json=hello | more).json() for more in ({"tools": [search]}, {})]
    assert counted[0] == counted[1] and counted[0]["input_tokens"] > 0


def test_choices_of_tools_in_the_words_of_other_apis(http: httpx.Client) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    body = SHORT | {"tools": [tool], "seed": 7, "max_tokens": 64}
    for kind, ours in (("any", "required"), ("required", "required"), ("auto", "auto"), ("none", "none")):
        theirs = [http.post(CHAT, json=body | {"tool_choice": choice}) for choice in ({"type": kind}, ours)]
        assert [got.status_code for got in theirs] == [200, 200] and unknown.HEADER not in theirs[0].headers
        assert theirs[0].json()["choices"] == theirs[1].json()["choices"] or kind in ("any", "required")
        assert bool(theirs[0].json()["choices"][0]["message"].get("tool_calls")) is (ours == "required")
    for kind in ("tool", "function"):
        got = http.post(CHAT, json=body | {"tool_choice": {"type": kind, "name": "f"}})
        assert got.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"
    for wrong in ({"type": "x"}, {"type": ["auto"]}, {"type": "tool"}, {"type": "tool", "name": 3}, {}):
        assert http.post(CHAT, json=body | {"tool_choice": wrong}).status_code == 400
    assert http.post(CHAT, json=SHORT | {"response_format": {}}).status_code == 200


def test_items_of_other_kinds_are_left_out(http: httpx.Client) -> None:
    """A conversation that began elsewhere has what ran there in it, and calls of tools that take a text."""
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    }
    body = {"max_output_tokens": 1, "input": [{"role": "user", "content": "Hello"}]}
    http.post("/v1/responses", json=body)  # both of the next find it in the cache
    got = http.post("/v1/responses", json=body | {"input": [search, *body["input"]]})
    assert got.status_code == 200 and got.headers[unknown.HEADER] == "input[0].type"
    assert got.json()["usage"] == http.post("/v1/responses", json=body).json()["usage"]
    called = [
        [{"type": "function_call", "call_id": "c", "name": "patch", "arguments": '{"input": "+ 1"}'}]
        + [{"type": "function_call_output", "call_id": "c", "output": "Done"}],
        [{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "+ 1"}]
        + [{"type": "custom_tool_call_output", "call_id": "c", "output": "Done"}],
    ]
    first, second = (
        [dict(m) for m in input_messages(ResponseBody.model_validate({"input": items}))] for items in called
    )
    assert first == second and len(first) == 2
    got = http.post("/v1/responses", json=body | {"input": [{"type": "item_reference", "id": "msg_1"}]})
    assert got.status_code == 400 and "send the item itself" in got.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/completion"])
def test_numbers_and_lists_as_other_languages_write_them(http: httpx.Client, path: str) -> None:
    """Every number with a point (Java's Gson), and null for a stop string that is not set (JavaScript)."""
    body = {"messages": HELLO} if path == CHAT else {"prompt": "Hello"}
    usual, other = {"max_tokens": 4, "seed": 3, "top_k": 5}, {"max_tokens": 4.0, "seed": 3.0, "top_k": 5.0}
    first, second = (
        http.post(path, json=body | given).json() for given in (usual, other | {"stop": [None, "never there"]})
    )
    told = ("content", "choices")
    assert [first[key] for key in told if key in first] == [second[key] for key in told if key in second]
    refused = http.post(path, json=body | {"max_tokens": 4.5})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "max_tokens"


def test_a_hostile_name_is_no_header_of_its_own(http: httpx.Client) -> None:
    got = http.post(CHAT, json=SHORT | {"a\r\nset-cookie: x": 1, "é" * 500: 1, "": 1})
    assert got.status_code == 200 and "set-cookie" not in got.headers
    assert got.headers[unknown.HEADER] == "a__set-cookie__x, " + "_" * 64 + ", _"


@pytest.mark.parametrize(
    "name, value",
    [
        ("guided_json", {"type": "object"}),
        ("functions", [{"name": "f"}]),
        ("lora", [{"id": 0, "scale": 1.0}]),
        ("min_tokens", 5),
        ("tfs_z", 0.5),
        ("format", "json"),
        ("chat_template", "{{ messages }}"),
        ("documents", [{"text": "x"}]),
        ("use_beam_search", True),
        ("mcp_servers", [{"type": "url"}]),
    ],
)
def test_what_would_change_the_text_is_refused(http: httpx.Client, name: str, value: object) -> None:
    got = http.post(CHAT, json=SHORT | {name: value})
    assert got.status_code == 400 and got.json()["error"]["param"] == name
    assert "leave it out" in got.json()["error"]["message"]


@pytest.mark.parametrize(
    "path, more, param",
    [
        (COMPLETIONS, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ("/completion", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (COMPLETIONS, {"tool_choice": "required"}, "tool_choice"),
        ("/completion", {"min_keep": 3}, "min_keep"),
        ("/v1/responses", {"input": "x", "prompt": {"id": "pmpt_1"}}, "prompt"),
        ("/v1/responses", {"input": "x", "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_so_is_what_this_endpoint_cannot_do(http: httpx.Client, path: str, more: dict[str, Any], param: str) -> None:
    body = {"prompt": "x", "max_tokens": 1} if "input" not in more else {"max_output_tokens": 1}
    got = http.post(path, json=body | more)
    assert got.status_code == 400 and got.json()["error"]["param"] == param, got.text
    off = {"tools": [], "tool_choice": "none", "min_keep": 0, "prompt": None, "response_format": {"type": "text"}}
    got = http.post(path, json=body | more | {param: off[param]})
    assert got.status_code == 200 and unknown.HEADER not in got.headers, got.text


@pytest.mark.parametrize(
    "name, value",
    [("min_tokens", 0), ("lora", []), ("tfs_z", 1), ("functions", None), ("documents", []), ("use_beam_search", False)],
)
def test_unless_it_asks_for_nothing(http: httpx.Client, name: str, value: object) -> None:
    got = http.post(CHAT, json=SHORT | {name: value})
    assert got.status_code == 200 and unknown.HEADER not in got.headers


def test_limits_of_other_servers(client: openai.OpenAI, http: httpx.Client) -> None:
    got = http.post(COMPLETIONS, json={"prompt": "a", "n_predict": 3, "ignore_eos": True}).json()
    assert got["usage"]["completion_tokens"] == 3
    newer = {"prompt": "a", "max_completion_tokens": 3, "ignore_eos": True}
    for path in (COMPLETIONS, "/completion"):
        told = http.post(path, json=newer)
        assert told.json()["timings"]["predicted_n"] == 3 and unknown.HEADER not in told.headers
    body = {"prompt": "a", "max_tokens": -1, "ignore_eos": True}
    got = http.post(COMPLETIONS, json=body).json()
    assert got["usage"]["total_tokens"] == 512 and got["choices"][0]["finish_reason"] == "length"
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=-1)
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert http.post(CHAT, json={"messages": HELLO, "max_tokens": -2}).status_code == 400


def test_as_many_stop_strings_as_a_table_has_players(http: httpx.Client) -> None:
    text = _text(http, max_tokens=12)
    names = [f"\n{i}:" for i in range(99)] + [text[4:7]]
    assert _text(http, max_tokens=12, stop=names) == text[: text.index(text[4:7])]
    said = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0}
    got = http.post("/v1/messages", json=said | {"stop_sequences": names}).json()
    assert got["stop_sequence"] == text[4:7]
    options = {"temperature": 0, "num_predict": 12, "stop": names}
    got = http.post("/api/chat", json={"messages": HELLO, "stream": False, "options": options}).json()
    assert got["message"]["content"] == text[: text.index(text[4:7])]


def test_minus_one_means_off_or_any(http: httpx.Client) -> None:
    assert _text(http, temperature=1.5, top_k=-1) == _text(http, temperature=1.5, top_k=0) or not ROUNDS_ALIKE
    seeds = {http.post(CHAT, json=SHORT | {"temperature": 1, "seed": -1}).json()["timings"]["seed"] for _ in range(3)}
    assert len(seeds) == 3 and 2**64 - 1 not in seeds


def test_only_the_samplers_that_are_asked_for(http: httpx.Client) -> None:
    hot: dict[str, Any] = {"temperature": 1.5, "max_tokens": 24}
    plain = _text(http, **hot, top_k=0, top_p=1, min_p=0)
    assert _text(http, **hot, top_k=5, samplers=["temperature", "infill"]) == plain
    assert _text(http, **hot, top_k=5, samplers="t") == plain
    assert _text(http, **hot, top_k=1, samplers=["top-k", "temp"]) == _text(http, max_tokens=24)


def test_a_schema_in_llama_cpp_s_form(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema |= {"additionalProperties": False}
    assert set(json.loads(_text(http, json_schema=schema, max_tokens=60))) == {"a"}
    got = http.post(COMPLETIONS, json={"prompt": "x", "json_schema": schema, "max_tokens": 60, "temperature": 0}).json()
    assert set(json.loads(got["choices"][0]["text"])) == {"a"}
    assert _text(http, json_schema={}, max_tokens=60).startswith("{")  # any object, not any value
    beside = {"type": "json_schema", "schema": schema}
    assert set(json.loads(_text(http, response_format=beside, max_tokens=60))) == {"a"}
    none = http.post(CHAT, json=SHORT | {"response_format": {"type": "json_schema"}}).json()["error"]
    assert none["param"] == "response_format.json_schema.schema"
    both = SHORT | {"json_schema": schema, "response_format": {"type": "json_object"}}
    assert http.post(CHAT, json=both).json()["error"]["param"] == "json_schema"


def test_think_is_for_the_template(tiny_model: Path) -> None:
    text = "{{ enable_thinking }}|{{ reasoning_effort }}"
    with (
        background(tiny_model, warm=False, chat_template=text) as running,
        httpx.Client(base_url=running.url, timeout=300) as http,
    ):
        sizes = [
            http.post(CHAT, json={"messages": HELLO, "max_tokens": 1} | extra).json()["usage"]["prompt_tokens"]
            for extra in ({}, {"json_schema": {}}, {"think": True}, {"think": False}, {"think": "low"})
        ]
        tokens = [
            len(http.post("/tokenize", json={"content": t, "add_special": True}).json()["tokens"])
            for t in ("True|", "False|", "True|", "False|", "True|low")
        ]
        assert sizes == tokens
        for extra, shown in (
            ({"think": True, "reasoning_effort": "low", "max_tokens": 1, "stream": True}, "True|low"),
            ({"reasoning": {"enabled": False}, "response_format": {"type": "json_object"}}, "False|"),
            ({"thinking": {"type": "enabled", "budget_tokens": 9}, "json_schema": {}, "temperature": 0}, "True|"),
        ):
            got = http.post("/apply-template", json={"messages": HELLO} | extra)
            assert got.json() == {"prompt": shown} and unknown.HEADER not in got.headers


@pytest.mark.parametrize(
    "more, same",
    [
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"enable_thinking": True}),
        ({"thinking": False}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}, "enable_thinking": True}, {"enable_thinking": True}),
        ({"reasoning": {"effort": "none"}}, {"reasoning_effort": "none"}),
        ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"reasoning": {"max_tokens": 0}}, {"reasoning_budget_tokens": 0}),
    ],
)
def test_reasoning_in_the_words_of_other_apis(more: dict[str, Any], same: dict[str, Any]) -> None:
    made, wanted = (ChatBody.model_validate({"messages": HELLO, **fields}) for fields in (more, same))
    assert template_arguments(made, constrained=False) == template_arguments(wanted, constrained=False)
    assert switched_off(made) == switched_off(wanted)
    limit = 9 if "budget_tokens" in str(more) else budget_of(wanted)
    assert budget_of(made) == limit


def test_a_penalty_has_two_names(http: httpx.Client) -> None:
    penal = _text(http, repeat_penalty=1.9, max_tokens=40)
    assert penal == _text(http, repetition_penalty=1.9, max_tokens=40) != _text(http, max_tokens=40)
    got = http.post(CHAT, json=SHORT | {"repeat_penalty": 1.9, "repetition_penalty": 1.9})
    assert got.status_code == 200 and got.headers[unknown.HEADER] == "repetition_penalty"


def test_strict_refuses(tiny_model: Path) -> None:
    with (
        background(tiny_model, warm=False, strict=True) as running,
        httpx.Client(base_url=running.url, timeout=300) as http,
    ):
        got = http.post(CHAT, json=SHORT | {"num_ctx": 1})
        assert (got.status_code, got.json()["error"]["code"]) == (400, "unknown_parameter")
        got = http.post("/v1/responses", json={"input": "a", "tools": [{"type": "web_search"}]})
        assert (got.status_code, got.json()["error"]["param"]) == (400, "tools[0].type")
        got = http.post(CHAT, json=SHORT | {"model": "gpt-9"})
        assert (got.status_code, got.json()["error"]["code"]) == (404, "model_not_found")
        assert http.post(CHAT, json=SHORT | {"model": MODEL}).status_code == 200


def test_everything_is_ignored_if_so_configured(tiny_model: Path) -> None:
    with background(tiny_model, ignore_unknown=True, warm=False) as server:
        got = httpx.post(server.url + CHAT, json=SHORT | {"min_tokens": 2})
        assert got.status_code == 200 and got.headers[unknown.HEADER] == "min_tokens"


@pytest.mark.parametrize(
    "more",
    [
        {"grammar": ""},
        {"max_completion_tokens": 4},
        {"logprobs": False, "top_logprobs": 0},
        {"logit_bias": []},
    ],
)
def test_what_asks_for_nothing_changes_nothing(http: httpx.Client, more: dict[str, Any]) -> None:
    assert _text(http, **more) == _text(http)


def test_biases_as_pairs(http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"content": _text(http, max_tokens=1)}).json()["tokens"]
    never = _text(http, logit_bias=[[token, False] for token in ids])
    assert never == _text(http, logit_bias={str(token): -100 for token in ids}) != _text(http)
    told = http.post(CHAT, json=SHORT | {"logit_bias": [[1]]})
    assert told.status_code == 400 and told.json()["error"]["param"] == "logit_bias"


def test_an_image_that_a_tool_gave_back_does_not_end_the_conversation(http: httpx.Client) -> None:
    """Agents send it again with every request; the model is told that it cannot see it."""
    call = {"id": "c1", "type": "function", "function": {"name": "view", "arguments": "{}"}}
    parts = [{"type": "text", "text": "8x8"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    talk = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    chat = {"messages": [*talk, {"role": "tool", "tool_call_id": "c1", "content": parts}]}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    used = {"type": "tool_use", "id": "c1", "name": "view", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [parts[0], image]}
    blocks = [*HELLO, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    flat = {"type": "function_call", "call_id": "c1", "name": "view", "arguments": "{}"}
    seen = [{"type": "input_text", "text": "8x8"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]
    items = [*HELLO, flat, {"type": "function_call_output", "call_id": "c1", "output": seen}]
    counts = []
    for path, body, part in (
        ("/v1/chat/completions", chat, "messages[2].content.image_url"),
        ("/v1/messages", {"messages": blocks}, "messages[2].content.image"),
        ("/v1/responses", {"input": items}, "input[2].output.input_image"),
    ):
        got = http.post(path, json=body | {"max_tokens": 1})
        assert got.status_code == 200 and got.headers[unknown.HEADER] == part
        usage = got.json()["usage"]
        counts.append(
            usage.get("prompt_tokens", usage.get("input_tokens", 0) + usage.get("cache_read_input_tokens", 0))
        )
    blocks[-1]["content"] = [result | {"content": "A PDF"}, {"type": "document", "source": image["source"]}]
    beside = http.post("/v1/messages", json={"messages": blocks, "max_tokens": 1})
    assert beside.status_code == 200 and beside.headers[unknown.HEADER] == "messages[2].content.document"
    alone = http.post("/v1/messages", json={"messages": [{"role": "user", "content": [image]}], "max_tokens": 1})
    assert alone.status_code == 400
    prompt = http.post("/apply-template", json=chat).json()["prompt"]
    assert "8x8\n[image_url: this model reads text only]" in prompt
    # The same prompt in every API but for the part's name.
    assert max(counts) - min(counts) < 16


def test_images_are_not_passed_over(http: httpx.Client) -> None:
    told = http.post("/completion", json={"prompt": "x", "image_data": [{"id": 1, "data": "x"}]})
    assert told.status_code == 400 and told.json()["error"]["param"] == "image_data"
