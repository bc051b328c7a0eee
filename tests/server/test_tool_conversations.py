"""Conversations of twenty turns with tools: every family of templates, through every client, streamed and whole.

The model (tests/reciter.py) writes what the family writes, control tokens included; the template is strict: it takes
only histories in which every result belongs to a call. What other people's templates make of the same conversations:
scripts/tool_conversations.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lcspec.answers.formats import Format, Tags, format_of
from lcspec.kv_cache.prompt_reader import LONG_PROMPT
from lcspec.server.lifecycle import Background
from tests.reciter import marker, pieces, write_reciter
from tests.server.running import MODEL, background
from tests.server.talks import TALKS, Answer, OllamaChat, Talk
from tests.tool_answers import FORMS, TOOLS, TURNS, Turn, controls, turns, written

pytestmark = [pytest.mark.server, pytest.mark.slow]

# Every result follows its calls, in their order and with their ids; arguments are objects.
STRICT = (
    "{# SIGNS #}{% set ns = namespace(open=[]) %}"
    "{{ '<|im_start|>system\n' }}{% for tool in tools or [] %}{{ tool | tojson }}{{ '\n' }}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'tool' %}"
    "{% if not ns.open or (m.tool_call_id != ns.open[0][0]) %}"
    "{{ raise_exception('a result of no call: ' ~ m.tool_call_id) }}{% endif %}"
    "{% set ns.open = ns.open[1:] %}{{ m.tool_call_id }}: "
    "{% elif ns.open %}{{ raise_exception('a call without its result') }}{% endif %}"
    "{% if m.reasoning_content %}{{ '[' + m.reasoning_content + ']' }}{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    "{% if not call.id or LENGTH %}{{ raise_exception('an id: ' ~ call.id) }}{% endif %}"
    "{% if call.function.arguments is not mapping %}{{ raise_exception('arguments') }}{% endif %}"
    "{{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}"
    "{% set ns.open = ns.open + [[call.id, call.function.name]] %}"
    "{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def strict(form: Format) -> str:
    """A template of the family's; its signs are in a comment."""
    length = "call.id | length != 9" if form.short_ids else "call.id | length > 60"
    return STRICT.replace("SIGNS", " ".join(form.signs[0]) if form.signs else "").replace("LENGTH", length)


@contextlib.contextmanager
def reciting(
    form: Format, template: str, folder: Path, opened: Tags | None = None, thinking: bool = True
) -> Iterator[Background]:
    """A server over a model of the family's, with this template."""
    texts = [pieces(written(form, turn, opened), controls(form), turn.own) for turn in turns(form, thinking)]
    path = write_reciter(folder / "model.gguf", texts, chat_template=template, controls=controls(form))
    with background(path, ctx=16384, slots=1, warm=False) as server:
        yield server


def hold(talk: Talk, expected: list[Turn]) -> list[Answer]:
    """The conversation; the answers are checked."""
    answers, calls = list[Answer](), list[Any]()
    for turn in expected:
        if calls:
            talk.results(calls, [f"{i}: 12° {marker(turn.number)}" for i in range(len(calls))])
        else:
            talk.say(f"Go on {marker(turn.number)}")
        # Both ways within ten turns of the same kind.
        answer = talk.ask(stream=(turn.number + turn.number // 10) % 2 == 0)
        calls = answer.calls
        found = (answer.content, answer.reasoning, tuple((name, given) for _, name, given in calls))
        wanted = (turn.content, turn.reasoning, turn.calls)
        assert found == wanted, f"turn {turn.number}: {found}, not {wanted}"
        answers.append(answer)
    return answers


def check(server: Background, form: Format, kind: type[Talk]) -> None:
    """Twenty turns: each is read as it was meant, the next prompt begins with the cells of the one before."""
    answers = hold(kind(server.url, MODEL, TOOLS), turns(form))
    assert len(answers) == TURNS
    ids = [call[0] for answer in answers for call in answer.calls]
    assert kind is OllamaChat or len(set(ids)) == len(ids)
    for before, after in zip(answers, answers[1:]):
        assert after.prompt > before.prompt
        # Where a prompt begins to be long it is read anew, once (lcspec.kv_cache.prompt_reader).
        long = before.prompt <= LONG_PROMPT < after.prompt
        assert after.cached is None or long or after.cached >= before.prompt - 16


# Every family through one of the clients, and these through all.
EVERYWHERE = ("gpt-oss", "hermes", "mistral")


@pytest.mark.parametrize("name", sorted(FORMS))
def test_twenty_turns(name: str, tmp_path: Path) -> None:
    form, template = FORMS[name], strict(FORMS[name])
    assert format_of(template) is form
    with reciting(form, template, tmp_path) as server:
        for kind in TALKS if name in EVERYWHERE else (TALKS[sorted(FORMS).index(name) % len(TALKS)],):
            check(server, form, kind)
