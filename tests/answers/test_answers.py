"""Answers of every family: text, reasoning and calls told apart, whole, letter by letter and cut anywhere."""

# ruff: noqa: E501 - the answers are as long as models write them
from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.answers.deltas import CallArguments, CallStart, Content, Reasoning
from lcspec.answers.formats import FORMATS, GENERIC, Format, format_of
from lcspec.answers.openings import continued_by, opened_by
from lcspec.answers.reader import AnswerReader, gathered
from lcspec.answers.text import Piece

CODE = "def f(x):\n    return \"</function>\" if x < 2 else '{}'\n\n# end"
TOOLS: list[dict[str, Any]] = [
    {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "metric": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}, "name": {"type": "string"}}},
            },
        },
    },
    {"name": "python", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}}},
    {"name": "noop", "parameters": {"type": "object", "properties": {}}},
]


def read_whole(reader: AnswerReader, text: str, complete: bool = True) -> tuple[str, str, list[dict[str, Any]]]:
    return gathered([*reader.feed(text), *reader.finish(complete)])


NAMED = {form.name: form for form in (*FORMATS, GENERIC)}
OSLO = {"city": "Oslo", "days": 3}
JSON = json.dumps(OSLO)
PY = json.dumps({"code": CODE})


class Case(NamedTuple):
    form: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    opened: bool = False
    ids: tuple[str, ...] = ()


BOTH = (("weather", OSLO), ("noop", {}))
CASES = [
    # Hermes, Qwen 2.5 and 3, Granite 4, MiMo
    Case("hermes", "Hello <b>you</b>!\n", "Hello <b>you</b>!\n"),
    Case("hermes", "<think>\nhm\n\nso\n</think>\n\nYes.", "Yes.", "hm\n\nso"),
    Case("hermes", "hm</think>Yes.", "Yes.", "hm", opened=True),
    Case("hermes", "hm, and then nothing", "", "hm, and then nothing", opened=True),
    Case("hermes", f'Look:\n<tool_call>\n{{"name": "weather", "arguments": {JSON}}}\n</tool_call>', "Look:",
         calls=(("weather", OSLO),)),
    Case("hermes", f'<tool_call>\n{{"name": "weather", "arguments": {JSON}}}\n</tool_call>\n<tool_call>\n'
         '{"name": "noop", "arguments": {}}\n</tool_call>', calls=BOTH),
    Case("hermes", f'<tool_call>{{"name": "python", "arguments": {{"code": "{CODE[:9]}\n\tx"}}}}</tool_call>',
         calls=(("python", {"code": CODE[:9] + "\n\tx"}),)),
    Case("hermes", '<think>I might <tool_call>{"name": "noop", "arguments": {}}</tool_call> but no.</think>Done.', "Done.",
         'I might <tool_call>{"name": "noop", "arguments": {}}</tool_call> but no.'),
    Case("hermes", 'I forget to close it.\n<tool_call>{"name": "noop", "arguments": {}}</tool_call>', "",
         "I forget to close it.", (("noop", {}),), opened=True),
    Case("hermes", "I use <tool_call> for calls", "", "I use <tool_call> for calls", opened=True),
    Case("hermes", "A `<think>` tag and a </think> are text.", "A `<think>` tag and a </think> are text."),
    # Qwen Coder, 3.5, Nemotron 3, StepFun
    Case("qwen-xml", "<think>\nhm\n</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
         "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", "", "hm", (("weather", OSLO),)),
    Case("qwen-xml", f"<tool_call>\n<function=python>\n<parameter=code>\n{CODE}\n</parameter>\n</function>\n</tool_call>",
         calls=(("python", {"code": CODE}),)),
    Case("qwen-xml", "<function=python>\n<parameter=code>\n[1, 2]\n</parameter>\n</function>\n</tool_call>",
         calls=(("python", {"code": "[1, 2]"}),)),
    Case("qwen-xml", "<tool_call>\n<function=weather>\n<parameter=tags>\n[\"a\", \"b\"]\n</parameter>\n<parameter=metric>\n"
         "True\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=noop>\n</function>\n</tool_call>",
         calls=(("weather", {"tags": ["a", "b"], "metric": True}), ("noop", {}))),
    Case("qwen-xml", "<tool_call>\n<function=python>\n<parameter=code>\nline\n\n</parameter>\n</function>\n</tool_call>",
         calls=(("python", {"code": "line\n"}),)),
    # Llama 3
    Case("llama-3", f'{{"name": "weather", "parameters": {JSON}}}', calls=(("weather", OSLO),)),
    Case("llama-3", f'<|python_tag|>{{"name": "weather", "parameters": {JSON}}}', calls=(("weather", OSLO),)),
    Case("llama-3", f"<|python_tag|>{CODE}", calls=(("python", {"code": CODE}),)),
    Case("llama-3", '{"answer": 42}', '{"answer": 42}'),
    # Mistral
    Case("mistral", f'[TOOL_CALLS][{{"name": "weather", "arguments": {JSON}, "id": "aB3456789"}}]',
         calls=(("weather", OSLO),), ids=("aB3456789",)),
    Case("mistral", f"[TOOL_CALLS]weather[ARGS]{JSON}[TOOL_CALLS]noop[ARGS]{{}}", calls=BOTH),
    Case("mistral", f"Wait.[TOOL_CALLS]weather[CALL_ID]123456789[ARGS]{JSON}", "Wait.", calls=(("weather", OSLO),),
         ids=("123456789",)),
    Case("mistral", "[THINK]Is [TOOL_CALLS]noop[ARGS]{} right?[/THINK]No.", "No.", "Is [TOOL_CALLS]noop[ARGS]{} right?"),
    # DeepSeek R1, V3.1, V3.2, V4
    Case("deepseek", f"<think>hm</think>A.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{JSON}"
         "<｜tool▁call▁end｜><｜tool▁call▁begin｜>noop<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "A.", "hm", BOTH),
    Case("deepseek", f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{JSON}\n```"
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", calls=(("weather", OSLO),)),
    Case("deepseek-dsml", 'hm</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
         '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
         '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
         '<｜DSML｜invoke name="noop">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>', "", "hm", BOTH, opened=True),
    Case("deepseek-dsml", '</think>Now.\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="python">\n'
         f'<｜DSML｜parameter name="code" string="true">{CODE}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
         "Now.", "", (("python", {"code": CODE}),)),
    # GLM 4.x, Laguna, Ling, Spark; Hunyuan
    Case("glm", "hm</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n"
         "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>noop\n</tool_call>", "", "hm", BOTH, opened=True),
    Case("glm", "<tool_call>python<arg_key>code</arg_key><arg_value><tool_call> and </think></arg_value></tool_call>",
         calls=(("python", {"code": "<tool_call> and </think>"}),)),
    Case("hunyuan", "<think:opensource>hm</think:opensource>A.<tool_calls:opensource>\n<tool_call:opensource>weather"
         "<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Oslo"
         "</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>3"
         "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>", "A.", "hm", (("weather", OSLO),)),
    # Kimi K2 and K3
    Case("kimi-k2", "<think>hm</think>A.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
         f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_call_begin|>functions.noop:1"
         "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", "A.", "hm", BOTH,
         ids=("functions.weather:0", "functions.noop:1")),
    Case("kimi-k3", "hm<|close|>think<|sep|><|open|>response<|sep|>A.<|close|>response<|sep|><|open|>tools<|sep|>"
         '<|open|>call tool="weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Oslo'
         '<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
         '<|close|>call<|sep|><|open|>call tool="noop" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
         "<|close|>message<|sep|>", "A.", "hm", BOTH, opened=True),
    Case("kimi-k3", '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|><|open|>json type="object"<|sep|>'
         f"{JSON}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>", calls=(("weather", OSLO),)),
    # gpt-oss, Muse, Functionary 3.2
    Case("gpt-oss", "<|channel|>final<|message|>A.", "A."),
    Case("gpt-oss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>First."
         "<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
         f"{JSON}<|call|>", "First.", "hm", (("weather", OSLO),)),
    Case("gpt-oss", f" to=functions.weather<|channel|>commentary json<|message|>{JSON}", calls=(("weather", OSLO),)),
    Case("gpt-oss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=browser.search<|channel|>commentary"
         '<|message|>{"q": 1}<|call|><|start|>assistant<|channel|>final<|message|>A.<|return|>', "A.", "hm"),
    Case("gpt-oss", f"<|channel|>commentary to=functions.python <|constrain|>code<|message|>{CODE}<|call|>",
         calls=(("python", {"code": CODE}),)),
    Case("muse", ' to=self<|message|>hm<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>\n'
         '<atem:invoke name="weather">\n<atem:parameter name="city">Oslo</atem:parameter>\n<atem:parameter name="days">3'
         "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>", "", "hm", (("weather", OSLO),)),
    Case("muse", " to=user<|message|>Write <atem:invoke>.<|eot|>", "Write <atem:invoke>."),
    Case("functionary-3.2", f"all\nA >>> b.>>>weather\n{JSON}>>>noop\n{{}}", "A >>> b.", calls=BOTH),
    # Gemma 4
    Case("gemma4", "<|channel>thought\nhm\n<channel|>A.<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>,days:3}<tool_call|>"
         "<|tool_call>call:noop{}<tool_call|>", "A.", "hm", BOTH),
    Case("gemma4", '<|tool_call>call:weather{tags:[<|"|>a}<|"|>,<|"|>b<|"|>],where:{lat:-1.5,name:<|"|>x:y<|"|>},'
         "metric:true}<tool_call|>",
         calls=(("weather", {"tags": ["a}", "b"], "where": {"lat": -1.5, "name": "x:y"}, "metric": True}),)),
    Case("gemma4", "<|channel>thought\n<channel|>A.", "A."),
    # LFM2
    Case("lfm2", "<think>hm</think>A.<|tool_call_start|>[weather(city=\"Oslo\", days=3), noop()]<|tool_call_end|>", "A.",
         "hm", BOTH),
    Case("lfm2", "<|tool_call_start|>[weather(tags=['a, b)', \"c\"], metric=True, where={'lat': 1.5, \"name\": None})]"
         "<|tool_call_end|>",
         calls=(("weather", {"tags": ["a, b)", "c"], "metric": True, "where": {"lat": 1.5, "name": None}}),)),
    Case("lfm2", "See [this](that) and [f(x)].", "See [this](that) and [f(x)]."),
    # MiniMax
    Case("minimax-m2", 'hm\n</think>\n\n<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n'
         '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="noop">\n</invoke>\n</minimax:tool_call>',
         "", "hm", BOTH, opened=True),
    Case("minimax-m3", "<mm:think>hm</mm:think>A.]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"weather\">"
         "]<]minimax[>[<city>Oslo]<]minimax[>[</city>]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>"
         "]<]minimax[>[<item>b]<]minimax[>[</item>]<]minimax[>[</tags>]<]minimax[>[<where>]<]minimax[>[<lat>2.5"
         "]<]minimax[>[</lat>]<]minimax[>[</where>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>", "A.", "hm",
         (("weather", {"city": "Oslo", "tags": ["a", "b"], "where": {"lat": 2.5}}),)),
    # Granite 3, Command, Functionary 3.1, Nemotron 2, Seed
    Case("granite-3", f'<think>hm</think><response>A.</response><|tool_call|>[{{"name": "weather", "arguments": {JSON}}}]',
         "A.", "hm", (("weather", OSLO),)),
    Case("command-r7b", "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>A.<|END_RESPONSE|>", "A.", "hm"),
    Case("command-r7b", '<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": '
         f'"weather", "parameters": {JSON}}},\n    {{"tool_call_id": "1", "tool_name": "noop", "parameters": {{}}}}\n]'
         "<|END_ACTION|>", "", "hm", BOTH, ids=("0", "1")),
    Case("command-r", f'Action:\n```json\n[{{"tool_name": "weather", "parameters": {JSON}}}]\n```', calls=(("weather", OSLO),)),
    Case("functionary-3.1", f"A.<function=weather>{JSON}</function><function=noop>{{}}</function>", "A.", calls=BOTH),
    Case("nemotron-2", f'hm\n</think>\n<TOOLCALL>[{{"name": "weather", "arguments": {JSON}}}, '
         '{"name": "noop", "arguments": {}}]</TOOLCALL>', "", "hm", BOTH, opened=True),
    Case("seed", f"<seed:think>hm</seed:think>\nA.<seed:tool_call>\n<function=python>\n<parameter=code>{CODE}</parameter>\n"
         "</function>\n</seed:tool_call>", "A.", "hm", (("python", {"code": CODE}),)),
    # The rest
    Case("apertus", f'<|inner_prefix|>hm<|inner_suffix|>A.<|tools_prefix|>[{{"weather": {JSON}}}, {{"noop": {{}}}}]'
         "<|tools_suffix|>", "A.", "hm", BOTH),
    Case("firefunction", f' functools[{{"name": "weather", "arguments": {JSON}}}, {{"name": "noop", "arguments": {{}}}}]',
         calls=BOTH),
    Case("gigachat-3", f'A.<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "weather", "arguments": {JSON}}}', "A.",
         calls=(("weather", OSLO),)),
    Case("gigachat-3.1", f'A.<|function_call|>{{"name": "weather", "arguments": {JSON}}}', "A.", calls=(("weather", OSLO),)),
    Case("minicpm5", f'hm</think><function name="python"><param name="code"><![CDATA[{CODE} </param>]]></param></function>\n'
         '<function name="noop"></function>', "", "hm", (("python", {"code": CODE + " </param>"}), ("noop", {})),
         opened=True),
    Case("apriel", f'hm\n[BEGIN FINAL RESPONSE]\nA.<tool_calls>[{{"name": "weather", "arguments": {JSON}}}]</tool_calls>',
         "A.", "hm", (("weather", OSLO),), opened=True),
    Case("solar", "<|think|>hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>weather"
         f"<|tool_call:args|>{JSON}<|tool_call:end|><|calls|>", "", "hm", (("weather", OSLO),), ids=("a1b2c3d4e5",)),
    Case("solar", "<|content|>A.<|end|>", "A."),
]  # fmt: skip
IDS = [f"{case.form}-{i}" for i, case in enumerate(CASES)]


def reader_for(case: Case, **more: Any) -> AnswerReader:
    form = NAMED[case.form]
    return AnswerReader(form, TOOLS, opened=form.reasoning[0] if case.opened else None, **more)


def check(case: Case, pieces: list[str]) -> None:
    reader = reader_for(case)
    deltas = [delta for piece in pieces for delta in reader.feed(piece)] + reader.finish()
    content, reasoning, calls = gathered(deltas)
    assert (content, reasoning) == (case.content, case.reasoning)
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls] == list(case.calls)
    assert [c["id"] for c in calls] == list(case.ids) or not case.ids
    for delta in deltas:  # text is found where it says
        if isinstance(delta, (Content, Reasoning)):
            assert case.text[delta.at : delta.at + len(delta.text)] == delta.text


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_whole_by_letters_and_cut_in_two_anywhere(case: Case) -> None:
    check(case, [case.text])
    check(case, list(case.text))
    for cut in range(1, len(case.text)):
        check(case, [case.text[:cut], case.text[cut:]])


@given(st.sampled_from(CASES), st.data())
@settings(deadline=None)
def test_cut_into_several_pieces(case: Case, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(case.text)), max_size=8)))
    check(case, [case.text[a:b] for a, b in zip([0, *cuts], [*cuts, len(case.text)])])


def test_every_format_is_tried() -> None:
    assert {case.form for case in CASES} == set(NAMED) - {"generic"}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_template_says_its_format(form: Format) -> None:
    for group in form.signs:
        assert format_of("{{ messages }} " + " ".join(group)).name == form.name
    assert format_of("{{ messages }}") is GENERIC


@given(st.sampled_from(sorted(NAMED)), st.data())
@settings(deadline=None, max_examples=300)
def test_nothing_raises_and_pieces_do_not_matter(name: str, data: st.DataObject) -> None:
    """Any mixture of what formats are made of gives the same, whole and by letters."""
    texts = [case.text for case in CASES if case.form == name] or ["<tool_call>"]
    parts = st.builds(
        lambda t, a, b: t[min(a, b) : max(a, b)], st.sampled_from(texts), st.integers(0, 99), st.integers(0, 99)
    )
    text = "".join(data.draw(st.lists(parts | st.sampled_from(["\n", "{", "}", "]", "a", '"', "<"]), max_size=6)))

    def read(pieces: list[str]) -> Any:
        reader = AnswerReader(NAMED[name], TOOLS)
        content, reasoning, calls = gathered([d for p in pieces for d in reader.feed(p)] + reader.finish())
        return content, reasoning, [call["function"] for call in calls]

    assert read([text]) == read(list(text))


@pytest.mark.parametrize("case", [c for c in CASES if c.calls], ids=lambda c: c.form)
def test_without_tools_there_are_no_calls_and_without_parallel_calls_one(case: Case) -> None:
    form = NAMED[case.form]
    assert not read_whole(AnswerReader(form, (), opened=form.reasoning[0] if case.opened else None), case.text)[2]
    calls = read_whole(reader_for(case, parallel=False), case.text)[2]
    assert [c["function"]["name"] for c in calls] == [case.calls[0][0]]


def test_control_tokens_reach_the_reader_and_nobody_else() -> None:
    form = NAMED["lfm2"]
    pieces = [Piece("A.", None), Piece("", None, "<|unknown|>"), Piece(" B", None), Piece("", None, "<|tool_call_start|>"),
              Piece('[weather(city="Oslo")]', None), Piece("", None, "<|tool_call_end|>")]  # fmt: skip
    reader = AnswerReader(form, TOOLS)
    content, _, calls = gathered([*reader.feed_pieces(pieces), *reader.finish()])
    assert content == "A. B" and json.loads(calls[0]["function"]["arguments"]) == {"city": "Oslo"}
    # A token that begins no call after all is not shown either.
    reader = AnswerReader(form, TOOLS)
    pieces = [Piece("A", None), Piece("", None, "<|tool_call_start|>"), Piece(" and B", None)]
    assert gathered([*reader.feed_pieces(pieces), *reader.finish()]) == ("A and B", "", [])
    reader = AnswerReader(form)
    assert gathered([*reader.feed_pieces(pieces), *reader.finish()]) == ("A and B", "", [])


def test_reasoning_opened_by_the_prompt() -> None:
    assert opened_by(NAMED["hermes"], "<|im_start|>assistant\n<think>\n") is NAMED["hermes"].reasoning[0]
    assert opened_by(NAMED["hermes"], "<|im_start|>assistant\n<think>\n\n</think>\n\n") is None
    assert opened_by(NAMED["seed"], "<seed:bos>assistant\n<seed:think>") is not None
    assert opened_by(GENERIC, "What is <think>?<|im_end|>\n<|im_start|>assistant\n") is None


@pytest.mark.parametrize(
    "name, prompt, answer",
    [
        ("hermes", "assistant\n<think>\nI'm", " thinking\n</think>\n\nHello"),
        ("gemma4", "model\n<|channel>thought\nI'm", " thinking<channel|>Hello"),
        ("gpt-oss", "<|channel|>analysis<|message|>I'm", " thinking<|end|><|start|>assistant<|channel|>final<|message|>Hello"),
    ],
)  # fmt: skip
def test_reasoning_that_the_prompt_has_begun(name: str, prompt: str, answer: str) -> None:
    form = NAMED[name]
    opened = continued_by(form, prompt, "I'm")
    assert opened is not None and continued_by(form, f"{prompt}{opened.end}Hello", "Hello") is None
    assert read_whole(AnswerReader(form, opened=opened, continued=True), answer)[:2] == ("Hello", " thinking")


def test_channels_left_in_the_text() -> None:
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>A."
    reader = AnswerReader(NAMED["gpt-oss"], inline=True)
    assert read_whole(reader, text) == ("<|channel|>analysis<|message|>hm<|end|>A.", "", [])


def test_reasoning_left_in_the_text() -> None:
    assert read_whole(AnswerReader(NAMED["hermes"], inline=True), "<think>\nhm\n</think>\n\nA.") == (
        "<think>\nhm\n</think>\n\nA.", "", [])  # fmt: skip


def test_arguments_and_names_come_while_they_are_written() -> None:
    reader = AnswerReader(NAMED["qwen-xml"], TOOLS)
    assert [d.name for d in reader.feed("<tool_call>\n<function=python>\n<parameter=") if isinstance(d, CallStart)] == [
        "python"
    ]
    found = reader.feed("code>\nprint(1)\npr")
    assert "".join(d.text for d in found if isinstance(d, CallArguments)) == '{"code": "print(1)\\npr'
    reader = AnswerReader(NAMED["hermes"], TOOLS)
    start = reader.feed('<tool_call>{"name": "weather", ')
    assert [type(d) for d in start] == [CallStart]


def test_mistral_ids_have_nine_characters() -> None:
    _, _, calls = read_whole(AnswerReader(NAMED["mistral"], TOOLS), "[TOOL_CALLS]noop[ARGS]{}")
    assert len(calls[0]["id"]) == 9 and calls[0]["id"].isalnum()


def test_an_answer_that_was_cut_off_within_reasoning_makes_no_call() -> None:
    text = 'So <tool_call>{"name": "noop", "arguments": {}}</tool_call>'
    form = NAMED["hermes"]
    cut = read_whole(AnswerReader(form, TOOLS, opened=form.reasoning[0]), text, complete=False)
    assert cut == ("", text, [])


def test_forced_calls_are_bare_json_one_or_a_list() -> None:
    for name in ("hermes", "gpt-oss", "gemma4"):
        one = f'{{"name": "weather", "arguments": {JSON}}}'
        for text, wanted in ((one, 1), (f"[{one}, {one}]", 2), ('{"a": "<think>"}', 0)):
            content, reasoning, calls = read_whole(AnswerReader(NAMED[name], TOOLS, forced=True), text)
            assert len(calls) == wanted and reasoning == "" and (content == "") == bool(wanted)


def test_a_further_call_that_was_cut_off_is_not_shown() -> None:
    text = f'[{{"name": "weather", "arguments": {JSON}}}, {{"name": "wea'
    reader = AnswerReader(NAMED["hermes"], TOOLS, forced=True)
    content, _, calls = gathered([*reader.feed(text), *reader.finish(False)])
    assert content == "" and len(calls) == 1


@pytest.mark.parametrize(
    ("family", "written"),
    [
        ("mistral", "[TOOL_CALLS]mcp:noop[ARGS]{}"),
        ("kimi-k2", "<|tool_call_begin|>functions.mcp:noop:0<|tool_call_argument_begin|>{}<|tool_call_end|>"),
        ("deepseek", "<｜tool▁call▁begin｜>mcp:noop<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        ("gemma4", "<|tool_call>call:mcp:noop{}<tool_call|>"),
        ("lfm2", "<|tool_call_start|>[mcp:noop()]<|tool_call_end|>"),
        ("hermes", '<tool_call>{"name": "mcp:noop", "arguments": {}}</tool_call>'),
    ],
)
def test_names_may_have_a_colon(family: str, written: str) -> None:
    reader = AnswerReader(NAMED[family], [{"name": "mcp:noop"}])
    _, _, (call,) = read_whole(reader, written)
    assert call["function"] == {"name": "mcp:noop", "arguments": "{}"}
