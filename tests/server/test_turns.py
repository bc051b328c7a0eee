"""Conversations that a template refuses as they are: no turn is lost, in whichever API they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lcspec.llama.template import Renderer
from lcspec.server.lifecycle import Background
from lcspec.server.tools import ToolUse, render
from tests.server.running import background

pytestmark = pytest.mark.server

# As Mistral's and Gemma 2's: turns of the user and answers alternate.
ALTERNATE = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
)
WRITE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "{% endfor %}"
)
TOOLS = "{% if tools %}{{ tools | length }}{% endif %}"
MISTRAL = ALTERNATE + TOOLS + WRITE
GEMMA = ALTERNATE + WRITE
# As Llama 3's: one call at once.
SINGLE = (
    "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}"
    "{{ raise_exception('single tool-calls') }}{% endif %}{% endfor %}" + TOOLS + WRITE
)
# As Qwen Coder's: arguments are objects. DeepSeek's take nothing but text.
OBJECTS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{% for k, v in c.function.arguments | items %}({{ k }}={{ v }}){% endfor %}{% endfor %}{% endfor %}" + TOOLS
)
TEXTS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ '(' + c.function.arguments + ')' }}{% endfor %}"
    "{% endfor %}" + TOOLS
)
# As Seed's and Hermes': what a tool takes is looked at in any case.
SHAPES = (
    "{% for t in tools %}{{ t.function.parameters.type }}{{ t.function.parameters.properties | length }}{% endfor %}"
)
USER = {"role": "user", "content": "Hi"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


class Template:
    """A template without a model."""

    def __init__(self, text: str) -> None:
        self.renderer = Renderer(text, {"bos_token": "", "eos_token": ""})

    def render(self, messages: Any, **extra: Any) -> str:
        return self.renderer.folded(messages, extra)


def prompt(text: str, messages: list[dict[str, Any]], *tools: dict[str, Any]) -> str:
    template: Any = Template(text)
    return render(template, text, messages, ToolUse(tools), {})


def call(identity: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": "f", "arguments": arguments}}


def calls(*made: dict[str, Any], content: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(made)}


def result(identity: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


@pytest.mark.parametrize(
    "arguments, objects, texts",
    [
        ("", "", "({})"),
        ("null", "", "({})"),
        ('{"a": 1}', "(a=1)", '({"a": 1})'),
        ('{"a": "cu', '(arguments={"a": "cu)', '({"a": "cu)'),
        ("[1]", "(arguments=[1])", "([1])"),
    ],
)
def test_arguments_of_earlier_calls(arguments: str, objects: str, texts: str) -> None:
    talk = [USER, calls(call("a", arguments)), result("a", "1")]
    assert prompt(OBJECTS, talk, TOOL) == objects + "1"
    assert prompt(TEXTS, talk, TOOL) == texts + "1"


@pytest.mark.parametrize(
    "talk, wanted",
    [
        ([USER, USER], "<user>Hi\nHi"),
        (
            [USER, calls(call("a")), result("a", "12"), USER],
            "<user>Hi<assistant>[f {}]<tool>12\nHi",
        ),
        (
            [USER, {"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}, USER],
            "<user>Hi<assistant>A\nB<user>Hi",
        ),
        ([{"role": "assistant", "content": "A"}, USER], "<user><assistant>A<user>Hi"),
        ([{"role": "system", "content": "S"}, USER, USER], "<user>S\nHi\nHi"),
    ],
)
def test_turns_alternate_where_they_have_to(talk: list[dict[str, Any]], wanted: str) -> None:
    assert prompt(MISTRAL, talk, TOOL) == "1" + wanted
    free = prompt(TOOLS + WRITE, talk, TOOL)
    assert free.count("<") == len(talk)


def test_an_empty_answer_is_none_where_it_is_refused() -> None:
    talk = [USER, {"role": "assistant", "content": ""}, USER]
    refused = "{% for m in messages %}{% if not m.content %}{{ raise_exception('empty') }}{% endif %}{% endfor %}"
    assert prompt(refused + WRITE, talk) == "<user>Hi\nHi"
    assert prompt(WRITE, talk) == "<user>Hi<assistant><user>Hi"


def test_results_in_words_are_one_turn() -> None:
    talk = [USER, calls(call("a"), call("b")), result("a", "12"), result("b", "13"), USER]
    written = prompt(GEMMA, talk)
    assert written.count("<user>") == 2 and written.count("<tool_response>") == 2 and written.endswith("\nHi")


def test_calls_at_once_become_one_after_the_other() -> None:
    talk = [USER, calls(call("a"), call("b", '{"x": 1}'), content="Look"), result("b", "13"), result("a", "12"), USER]
    one, two = "<assistant>Look[f {}]<tool>12", '<assistant>[f {"x": 1}]<tool>13'
    assert prompt(SINGLE, talk, TOOL) == f"1<user>Hi{one}{two}<user>Hi"
    assert prompt(TOOLS + WRITE, talk, TOOL).count("<assistant>") == 1


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}])
def test_a_tool_that_does_not_say_what_it_takes(parameters: dict[str, Any] | None) -> None:
    function = {"name": "f"} if parameters is None else {"name": "f", "parameters": parameters}
    use = ToolUse(({"type": "function", "function": function},))
    template: Any = Template(SHAPES)
    assert render(template, SHAPES, [USER], use, {}) == "object0"
    assert use.tools[0]["function"] == function


@pytest.fixture(scope="module")
def strict(tiny_model: Path) -> Iterator[Background]:
    with background(tiny_model, warm=False, chat_template=MISTRAL) as running:
        yield running


def test_a_result_and_what_the_user_says_with_it(strict: Background) -> None:
    """Claude Code's shape."""
    used = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    given = {"type": "tool_result", "tool_use_id": "t", "content": "12"}
    talk = [
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": [{"type": "text", "text": "Go on"}]},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [given, {"type": "text", "text": "And?"}]},
    ]
    tool = {"name": "f", "input_schema": {"type": "object"}}
    got = httpx.post(f"{strict.url}/v1/messages", json={"max_tokens": 1, "messages": talk, "tools": [tool]})
    assert got.status_code == 200, got.text


@pytest.mark.parametrize("arguments", ["", '{"a": "cu'])
def test_arguments_that_are_none_in_every_api(tiny_model: Path, arguments: str) -> None:
    with (
        background(tiny_model, warm=False, chat_template=OBJECTS + WRITE) as running,
        httpx.Client(base_url=running.url, timeout=300) as http,
    ):
        talk = [USER, calls(call("a", arguments)), result("a", "12")]
        items = [
            USER,
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": arguments},
            {"type": "function_call_output", "call_id": "a", "output": "12"},
        ]
        for path, body in (
            ("/v1/chat/completions", {"messages": talk, "max_tokens": 1, "tools": [TOOL]}),
            ("/v1/responses", {"input": items, "max_output_tokens": 1}),
        ):
            got = http.post(path, json=body)
            assert got.status_code == 200, got.text


def test_calls_of_the_older_form(tiny_model: Path) -> None:
    old = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "f", "content": "12"},
    ]
    new = [USER, calls(call("", '{"a": 1}')), {"role": "tool", "name": "f", "content": "12"}]
    as_object = [USER, calls(call("") | {"function": {"name": "f", "arguments": {"a": 1}}}), new[2]]
    with (
        background(tiny_model, warm=False, chat_template=TOOLS + WRITE) as running,
        httpx.Client(base_url=running.url, timeout=300) as http,
    ):
        made = [http.post("/apply-template", json={"messages": m}).json()["prompt"] for m in (old, new, as_object)]
    assert made[0] == made[1] == made[2] == f"<user>Hi<assistant>[f {json.dumps({'a': 1})}]<tool>12"
