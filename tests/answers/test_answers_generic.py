"""Calls of models whose template names no format: all common ones are looked for, however the text is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcspec.answers.deltas import CallArguments, CallStart, Content
from lcspec.answers.formats import GENERIC
from lcspec.answers.reader import AnswerReader

ARGS = '{"city": "O\\"slo {", "n": [1, {"a": 2}]}'
PARSED = json.loads(ARGS)
ONE = [("get", PARSED)]
CASES = {
    "hermes": (f'<tool_call>\n{{"name": "get", "arguments": {ARGS}}}\n</tool_call>', "", ONE),
    "hermes after text": (
        f'Let me see. <tool_call>\n{{"name": "get", "arguments": {ARGS}}}\n</tool_call>',
        "Let me see.",
        ONE,
    ),
    "two of them": (
        f'<tool_call>{{"name": "get", "arguments": {ARGS}}}</tool_call>\n'
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        "",
        [*ONE, ("other", {})],
    ),
    "keys the other way round": (f'<tool_call>{{"arguments": {ARGS}, "name": "get"}}</tool_call>', "", ONE),
    "arguments as a string": (
        f'<tool_call>{{"name": "get", "arguments": {json.dumps(ARGS)}}}</tool_call>',
        "",
        ONE,
    ),
    "more keys after the arguments": (
        f'<tool_call>{{"name": "get", "arguments": {ARGS}, "id": "x}}"}}</tool_call>',
        "",
        ONE,
    ),
    "llama": (f'{{"name": "get", "parameters": {ARGS}}}', "", ONE),
    "llama with a type": (f'{{"type": "function", "name": "get", "parameters": {ARGS}}}', "", ONE),
    "openai": (f'{{"type": "function", "function": {{"name": "get", "arguments": {ARGS}}}}}', "", ONE),
    "mistral": (
        f'[TOOL_CALLS][{{"name": "get", "arguments": {ARGS}}}, {{"name": "other", "arguments": {{}}}}]',
        "",
        [*ONE, ("other", {})],
    ),
    "mistral, the marker unseen": (f'[{{"name": "get", "arguments": {ARGS}}}]', "", ONE),
    "mistral, newer": (f"[TOOL_CALLS]get[ARGS]{ARGS}", "", ONE),
    "qwen coder": (
        "<tool_call>\n<function=get>\n<parameter=city>\nOslo\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
        "",
        [("get", {"city": "Oslo", "n": 3})],
    ),
    "text only": ("It is 5 < 7, and [this] is {fine}.", "It is 5 < 7, and [this] is {fine}.", []),
    "JSON that is no call": ('{"city": "Oslo"}', '{"city": "Oslo"}', []),
    "JSON with a name that is not on offer": (
        '{"name": "Anna", "arguments": {}}',
        '{"name": "Anna", "arguments": {}}',
        [],
    ),
    "a list that is no call": ("[1, 2]", "[1, 2]", []),
    "a marker and no call": ("<tool_call> is a tag", "<tool_call> is a tag", []),
    "nearly a marker": ("a <tool_cal", "a <tool_cal", []),
}


def reader_for(names: list[str]) -> AnswerReader:
    return AnswerReader(GENERIC, [{"name": name} for name in names])


def parse(pieces: list[str]) -> tuple[str, list[tuple[str, object]]]:
    parser = reader_for(["get", "other"])
    content, calls = "", list[list[str]]()
    for delta in [*(d for piece in pieces for d in parser.feed(piece)), *parser.finish()]:
        if isinstance(delta, Content):
            content += delta.text
        elif isinstance(delta, CallStart):
            assert delta.index == len(calls)
            calls.append([delta.name, ""])
        else:
            assert isinstance(delta, CallArguments)
            calls[delta.index][1] += delta.text
    return content, [(name, json.loads(text)) for name, text in calls]


@pytest.mark.parametrize("name", CASES)
def test_in_one_piece_and_in_letters(name: str) -> None:
    text, content, calls = CASES[name]
    assert parse([text]) == (content, calls)
    assert parse(list(text)) == (content, calls)


@given(st.sampled_from(sorted(CASES)), st.data())
def test_however_it_is_cut(name: str, data: st.DataObject) -> None:
    text, content, calls = CASES[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    assert parse(pieces) == (content, calls)


@given(st.text(alphabet='<>{}[]":,/ntolcaf_=TOLCAS |python', max_size=60))
def test_nothing_raises_and_text_without_calls_is_kept(text: str) -> None:
    parser = reader_for(["get"])
    deltas = [*(d for char in text for d in parser.feed(char)), *parser.finish()]
    if not any(isinstance(d, CallStart) for d in deltas):
        shown = "".join(d.text for d in deltas if isinstance(d, Content))
        assert shown == text or (not text.strip() and shown == "")


def test_arguments_are_streamed() -> None:
    parser = reader_for(["get"])
    (start,) = parser.feed('<tool_call>{"name": "get", "arguments": ')
    assert isinstance(start, CallStart)
    assert parser.feed('{"city": "Os') == [CallArguments(0, '{"city": "Os')]
    assert parser.feed('lo"}}</tool') == [CallArguments(0, 'lo"}')]
    assert parser.feed("_call>") == [] and parser.finish() == []


def test_an_unfinished_call_gives_what_there_is() -> None:
    parser = reader_for(["get"])
    unfinished = [*parser.feed('<tool_call>{"name": "get", "arguments": {"a": 1'), *parser.finish()]
    assert [type(d) for d in unfinished] == [CallStart, CallArguments]
