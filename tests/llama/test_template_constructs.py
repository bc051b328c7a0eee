"""What chat templates of real models do, one small template for each construct."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from lcspec.errors import TemplateError
from lcspec.llama.template import Renderer

pytestmark = pytest.mark.model

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Hello!"}
# As Gemma 2: no system messages, turns alternate.
STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)
# As Qwen 3.5: only at the beginning.
FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('at the beginning') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)
# As SmolLM3: others are left out without a word.
SILENT = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}<{{ m.role }}>{{ m.content }}</>"
    "{% endif %}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}</>{% endfor %}"
)
ONLY_PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }};{% endfor %}</>{% endfor %}"
TWO_PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


def render(text: str, messages: list[dict[str, Any]], **extra: Any) -> str:
    return Renderer(text, TOKENS).folded(messages, extra)


def test_generation_blocks_are_their_content() -> None:
    text = "{% for m in messages %}{% generation %}{% set x = m.content %}{{ x }}{%- endgeneration %}|{% endfor %}"
    assert render(text, [USER, ANSWER]) == "Hi|Hello!|"


def test_lists_can_be_appended_to_and_popped() -> None:
    each = "{% for m in messages %}{% set _ = ns.ids.append(m.role) %}{% endfor %}"
    text = "{% set ns = namespace(ids=[]) %}" + each + "{{ ns.ids }}"
    assert render(text, [USER, ANSWER]) == "['user', 'assistant']"
    assert render("{{ messages.pop(0).content }}|{{ messages[0].content }}", [USER, ANSWER]) == "Hi|Hello!"


def test_what_a_template_does_to_its_lists_stays_there() -> None:
    messages, tools = [dict(USER, tool_calls=[])], [{"name": "f"}]
    text = "{{ messages.append(1) }}{{ messages[0].tool_calls.append(2) }}{{ tools.pop() }}"
    for _ in range(2):
        render(text, messages, tools=tools)
    assert messages == [dict(USER, tool_calls=[])] and tools == [{"name": "f"}]


def test_lists_do_not_grow_without_end() -> None:
    with pytest.raises(TemplateError, match="grew"):
        render("{% for m in messages %}{% set _ = messages.append(m) %}{% endfor %}", [USER])


def test_tojson_takes_its_keywords() -> None:
    value = {"b": "é<", "a": [1]}
    text = (
        "{{ x | tojson }} {{ x | tojson(ensure_ascii=True) }} {{ x | tojson(sort_keys=true) }} "
        "{{ x | tojson(separators=(',', ':')) }} {{ x | tojson(indent=1) }} {{ x.a | map('string') | tojson }} "
        "{{ nothing | tojson }}"
    )
    assert render(text, [USER], x=value) == (
        '{"b": "é<", "a": [1]} {"b": "\\u00e9<", "a": [1]} {"a": [1], "b": "é<"} '
        '{"b":"é<","a":[1]} {\n "b": "é<",\n "a": [\n  1\n ]\n} ["1"] null'
    )


def test_nothing_is_escaped_beside_a_safe_text() -> None:
    assert render("{{ (messages | tojson | safe) ~ '<&>' }}{{ '<' + ('x' | safe) }}", [USER])[-5:] == "<&><x"


def test_dates() -> None:
    renderer = Renderer(
        "{{ strftime_now('%Y-%m-%d') }} {{ date_string }} {{ datetime }}", TOKENS, lambda: datetime.datetime(2031, 2, 3)
    )
    assert renderer.plain([USER], {}) == "2031-02-03 03 Feb 2031 Feb 03 2031"


def test_what_is_missing_is_empty_beside_text() -> None:
    assert render("{{ 'a' + nothing }}{{ nothing + 'b' }}", [USER]) == "ab"
    with pytest.raises(TemplateError):
        render("{{ nothing.part }}", [USER])


def test_tools_under_the_name_of_functions() -> None:
    assert render("{{ 'f: ' + functions }}", [USER], tools=[{"a": 1}]) == 'f: [\n  {\n    "a": 1\n  }\n]'
    assert render("{{ 'f: ' + functions }}", [USER]) == "f: "


@pytest.mark.parametrize("text", [STRICT, FIRST_ONLY, SILENT, CHATML])
def test_no_system_message_is_lost(text: str) -> None:
    begin = "<user>Be brief.\n" if text is STRICT else "<system>Be brief.</><user>"
    assert render(text, [SYSTEM, USER, ANSWER, USER]) == f"{begin}Hi</><assistant>Hello!</><user>Hi</>"
    second = {"role": "system", "content": "Now rhyme."}
    late = "<system>Now rhyme.</><user>" if text is CHATML else "<user>Now rhyme.\n"
    assert render(text, [SYSTEM, USER, ANSWER, second, USER]) == f"{begin}Hi</><assistant>Hello!</>{late}Hi</>"
    assert "Now rhyme." in render(text, [USER, ANSWER, USER, second])
    assert "Be brief." in render(text, [SYSTEM])


@pytest.mark.parametrize("text", [FIRST_ONLY, SILENT])
def test_the_prompt_goes_on_where_a_late_system_message_was(text: str) -> None:
    late = {"role": "system", "content": "Now rhyme."}  # Claude Code says after a question which agents there are
    for talk in ([SYSTEM, USER], [SYSTEM, USER, ANSWER, USER]):
        before = render(text, [*talk, late])
        assert before.endswith("<user>Hi\nNow rhyme.</>")
        assert render(text, [*talk, late, ANSWER, USER]).startswith(f"{before}<assistant>")


def test_a_refusal_that_folding_does_not_help_is_said() -> None:
    with pytest.raises(TemplateError, match="alternate"):
        render(STRICT, [USER, USER])
    with pytest.raises(TemplateError):
        render(STRICT, [SYSTEM, USER, USER])


def test_parts_are_joined_unless_the_template_does_it() -> None:
    talk = [dict(SYSTEM, content=TWO_PARTS), dict(USER, content=TWO_PARTS)]
    assert render(CHATML, talk) == "<system>one\ntwo</><user>one\ntwo</>"
    assert render(PARTS, talk) == "<system>[one][two]</><user>[one][two]</>"
    assert render(STRICT, talk) == "<user>one\ntwo\none\ntwo</>"


def test_a_template_for_parts_only_gets_parts() -> None:
    assert render(ONLY_PARTS, [SYSTEM, USER]) == "<system>Be brief.;</><user>Hi;</>"


def test_reasoning_under_the_name_of_thinking() -> None:
    text = "{% for message in messages %}({{ message.thinking }}){{ message.content }}{% endfor %}"
    thought = dict(ANSWER, reasoning_content="I greet.")
    assert render(text, [USER, thought]) == "()Hi(I greet.)Hello!"
    called = dict(thought, tool_calls=[{}])
    assert render(text, [USER, called]) == "()Hi()Hello!"  # gpt-oss refuses both beside calls


OPENS = CHATML.replace("<assistant>{% endif %}", "<assistant><think>\n{% endif %}")
# As Qwen 3: the last answer is written with its reasoning, even an empty one.
KEEPS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content }}\n</think>"
    "\n\n{% endif %}{{ m.content | trim }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
LAST_USER = "{% if messages[-1].role != 'user' %}{{ raise_exception('user last') }}{% endif %}" + OPENS


@pytest.mark.parametrize("text, given, expected", [
    (CHATML, {"content": "Hello the "}, "<assistant>Hello the "),
    (CHATML, {"content": "</>"}, "<assistant></>"),
    (CHATML, {"content": ""}, "<assistant>"),
    (KEEPS, {"content": "Hello the "}, "<assistant><think>\n\n</think>\n\nHello the "),
    (KEEPS, {"content": "Hello", "reasoning_content": "I"}, "<assistant><think>\nI\n</think>\n\nHello"),
    (KEEPS, {"content": "", "reasoning_content": "I gr"}, "<assistant><think>\nI gr"),
    (LAST_USER, {"content": "Hello"}, "<assistant><think>\n\n</think>\n\nHello"),
    (LAST_USER, {"content": "Hello", "reasoning_content": "I"}, "<assistant><think>\nI\n</think>\n\nHello"),
    (LAST_USER, {"content": "", "reasoning_content": "I gr"}, "<assistant><think>\nI gr"),
])  # fmt: skip
def test_an_answer_is_continued(text: str, given: dict[str, str], expected: str) -> None:
    last = {"role": "assistant", **given}
    got = Renderer(text, TOKENS).continued([USER, ANSWER, USER, last], {})
    assert got.endswith("<user>Hi</>" + expected)
    assert got.count("Hello!") == 1


def test_reasoning_of_a_template_that_shows_none_is_continued() -> None:
    plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    last = {"role": "assistant", "content": "", "reasoning_content": "I gr"}
    assert Renderer(plain, TOKENS).continued([USER, last], {}).endswith("<assistant><think>\nI gr")
