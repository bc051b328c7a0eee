"""Chat templates as the server uses them: its own or a given one, parts, answers to continue, arguments."""

from __future__ import annotations

from pathlib import Path

import httpx
import openai
import pytest
from click.testing import CliRunner

from lcspec.cli import cli
from tests.server.running import HELLO, MODEL, background

pytestmark = pytest.mark.server

GIVEN = (
    "{% for m in messages %}{% generation %}<{{ m.role }}>{{ m.content }}{% endgeneration %}{% endfor %}"
    "{% if add_generation_prompt %}<answer mood={{ mood }}>{% endif %}"
)
BEGUN = [*HELLO, {"role": "assistant", "content": "I am fine, th"}]


def _prompt(http: httpx.Client, **body: object) -> str:
    got = http.post("/apply-template", json={"messages": HELLO} | body)
    assert got.status_code == 200, got.text
    return str(got.json()["prompt"])


def test_a_given_template_with_arguments(tiny_model: Path) -> None:
    with (
        background(tiny_model, warm=False, chat_template=GIVEN, template_kwargs={"mood": "good"}) as running,
        httpx.Client(base_url=running.url, timeout=300) as http,
    ):
        assert _prompt(http) == f"<user>{HELLO[0]['content']}<answer mood=good>"
        assert _prompt(http, chat_template_kwargs={"mood": "bad"}).endswith("<answer mood=bad>")
        got = http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 2})
        assert got.status_code == 200


@pytest.mark.parametrize(
    "options, said",
    [
        (["--chat-template", "a", "--chat-template-file", "b"], "not both"),
        (["--chat-template-file", "missing.jinja"], "cannot read"),
        (["--chat-template", "{% if %}"], "is not valid"),
        (["--chat-template-kwargs", "[1]"], "JSON object"),
        (["--chat-template-kwargs", "{"], "not valid JSON"),
        (["--chat-template-kwargs", '{"messages": 1}'], "not yours"),
    ],
)
def test_a_bad_template_stops_the_server(tiny_model: Path, options: list[str], said: str) -> None:
    got = CliRunner().invoke(cli, ["serve", str(tiny_model), "--port", "0", *options])
    assert got.exit_code != 0 and said in str(got.exception)


def test_text_parts_are_joined_by_newlines(http: httpx.Client) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "one\ntwo<|im_end|>" in _prompt(http, messages=[{"role": "user", "content": parts}])


def test_begun_reasoning_is_continued(http: httpx.Client) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "", "reasoning_content": "Let me"}]
    prompt = _prompt(http, messages=begun)
    assert prompt.endswith("<think>\nLet me")
    raw = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 8, "temperature": 0}).json()
    got = http.post("/v1/chat/completions", json={"messages": begun, "max_tokens": 8, "temperature": 0}).json()
    message = got["choices"][0]["message"]
    assert not message["content"] and message["reasoning_content"] == raw["choices"][0]["text"].rstrip()


def test_a_final_answer_is_continued(http: httpx.Client, client: openai.OpenAI) -> None:
    prompt = _prompt(http, messages=BEGUN)
    assert prompt.endswith("<|im_start|>assistant\nI am fine, th")
    for new in ({"continue_final_message": False}, {"add_generation_prompt": True}):
        assert _prompt(http, messages=BEGUN, **new).endswith("th<|im_end|>\n<|im_start|>assistant\n")
    assert _prompt(http, messages=BEGUN, add_generation_prompt=False).endswith("th<|im_end|>\n")
    raw = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
    got = client.chat.completions.create(model=MODEL, messages=BEGUN, max_tokens=8, temperature=0)  # type: ignore[arg-type]
    assert got.choices[0].message.content == raw.choices[0].text


@pytest.mark.parametrize(
    "body",
    [
        {"messages": HELLO, "continue_final_message": True},
        {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True},
    ],
)
def test_what_cannot_be_continued_is_refused(http: httpx.Client, body: dict[str, object]) -> None:
    got = http.post("/v1/chat/completions", json=body)
    assert got.status_code == 400 and got.json()["error"]["param"] == "continue_final_message"


def test_a_template_that_takes_no_system_message_gets_its_text(tiny_model: Path) -> None:
    refuse = "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    strict = "{% for m in messages %}" + refuse + "{{ m.content }}|{% endfor %}"
    talk = [{"role": "system", "content": "Be brief."}, *HELLO]
    with (
        background(tiny_model, warm=False, chat_template=strict) as running,
        httpx.Client(base_url=running.url, timeout=300) as http,
    ):
        assert _prompt(http, messages=talk) == f"Be brief.\n{HELLO[0]['content']}|"
