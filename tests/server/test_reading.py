"""What a request says about reasoning and tools, and what becomes of it: the prompt, the template's arguments, ids."""

from __future__ import annotations

from typing import Any

import pytest

from lcspec.answers.formats import FORMATS
from lcspec.server.errors import ApiError
from lcspec.server.reading import reading_of, template_arguments
from lcspec.server.schemas_chat import ChatBody
from lcspec.server.tools import ToolUse, render, short_id

USER = [{"role": "user", "content": "Hi"}]
OPEN = "<|im_start|>assistant\n<think>\n"
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def body(**fields: Any) -> ChatBody:
    return ChatBody.model_validate({"messages": USER, **fields})


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, {}),
        ({"reasoning_effort": "high"}, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False, "thinking": False}),
        ({"enable_thinking": True}, {"enable_thinking": True, "thinking": True}),
        ({"thinking_budget_tokens": 0}, {"enable_thinking": False, "thinking": False}),
        ({"thinking_budget_tokens": -1}, {}),
        (
            {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True, "thinking": False},
        ),
    ],
)
def test_what_the_template_is_told(fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert template_arguments(body(**fields), constrained=False) == wanted


@pytest.mark.parametrize(
    ("fields", "thinks"), [({}, False), ({"reasoning_effort": "high"}, False), ({"enable_thinking": True}, True)]
)
def test_there_is_no_reasoning_beside_a_grammar_unless_it_is_asked_for(fields: dict[str, Any], thinks: bool) -> None:
    told = template_arguments(body(**fields), constrained=True)
    assert told["enable_thinking"] is told["thinking"] is thinks


def test_budgets_that_cannot_be_kept_are_refused() -> None:
    for fields in (
        {"thinking_budget_tokens": 0, "reasoning_budget_tokens": -1},
        {"thinking_budget": 9, "reasoning_budget": 8},
    ):
        with pytest.raises(ApiError):
            template_arguments(body(**fields), constrained=False)


def test_reasoning_that_the_prompt_opens_is_read_or_closed() -> None:
    reading, prompt = reading_of("<tool_call>", OPEN, ToolUse(), False, body())
    assert prompt == OPEN and reading.reader().thinking
    for fields, constrained in (
        ({"enable_thinking": False}, False),
        ({"reasoning_budget_tokens": 0}, False),
        ({}, True),
    ):
        reading, prompt = reading_of("<tool_call>", OPEN, ToolUse(), constrained, body(**fields))
        assert prompt == "<|im_start|>assistant\n<think>\n\n</think>\n\n" and not reading.reader().thinking
    reading, prompt = reading_of("[TOOL_CALLS]", "[/INST][THINK]", ToolUse(), True, body())
    assert prompt == "[/INST][THINK][/THINK]"


def test_a_constrained_answer_of_gpt_oss_begins_in_its_final_channel() -> None:
    template = " ".join(FORMATS[0].signs[0])
    _, prompt = reading_of(template, "<|start|>assistant", ToolUse(), True, body())
    assert prompt == "<|start|>assistant<|channel|>final<|message|>"
    assert reading_of(template, "<|start|>assistant", ToolUse(), False, body())[1] == "<|start|>assistant"


def test_ids_for_mistral_have_nine_characters_and_stay_the_same() -> None:
    assert short_id("aB3456789") == "aB3456789"
    long = short_id("call_0123456789abcdef")
    assert len(long) == 9 and long.isalnum() and long == short_id("call_0123456789abcdef") != short_id("call_1")

    class Template:
        def render(self, messages: Any, **_: Any) -> str:
            call, answer = messages[1]["tool_calls"][0], messages[2]
            return f"{call['id']} {answer['tool_call_id']}"

    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [
        *USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    ]
    use: Any = ToolUse((TOOL,))
    template: Any = Template()
    one, two = render(template, "tools [TOOL_CALLS]", talk, use, {}).split()
    assert one == two == short_id("call_1")
    assert render(template, "tools <tool_call>", talk, use, {}) == "call_1 call_1"


def test_a_forced_schema_of_one_call_of_several_and_of_a_call_or_an_answer() -> None:
    one = ToolUse((TOOL,), "required").schema()
    assert [c["properties"]["name"]["const"] for c in one["anyOf"]] == ["f"]
    several = ToolUse((TOOL,), "required", parallel=True).schema()
    assert several["type"] == "array" and several["minItems"] == 1
    either = ToolUse((TOOL,), "auto").schema({"$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}})
    assert either["anyOf"][1] == {"$ref": "#/$defs/answer"}
    assert either["$defs"]["answer"]["$ref"] == "#/$defs/answer/$defs/x"
