"""A budget for reasoning: the same text with and without speculation, and closed when it is used up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from lcspec.server.lifecycle import Background
from lcspec.server.responses import input_messages
from lcspec.server.schemas_responses import ResponseBody
from tests import tiny_gguf as tiny
from tests.server.running import HELLO, MODEL, background

pytestmark = pytest.mark.server

OPENING = "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
OPENED = tiny.CHATML_TEMPLATE.replace("assistant\n{% endif %}", f"assistant\n{OPENING}{{% endif %}}")
assert OPENED != tiny.CHATML_TEMPLATE


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    """A random model whose template opens its reasoning."""
    path = tmp_path_factory.mktemp("models") / "thinker.gguf"
    tiny.write_llama(path, chat_template=OPENED)
    with background(path, ctx=512, slots=2) as server:
        yield server


def answer(server: Background, **body: Any) -> dict[str, Any]:
    asked = {"messages": HELLO, "max_tokens": 80, "ignore_eos": True, "seed": 5, **body}
    got = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=300)
    assert got.status_code == 200, got.text
    found: dict[str, Any] = got.json()
    return found


def parts(found: dict[str, Any]) -> tuple[str, str]:
    message = found["choices"][0]["message"]
    return message.get("reasoning_content") or "", message["content"] or ""


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("verifier", ["coupled", "rejection", "multi_step"])
def test_the_text_is_the_same_with_and_without_speculation(
    thinker: Background, temperature: float, verifier: str
) -> None:
    plain = answer(thinker, temperature=temperature, reasoning_budget=20, speculation={"off": True})
    thought, said = parts(plain)
    assert thought and said
    if verifier == "coupled" or temperature == 0:
        drafted = answer(
            thinker,
            temperature=temperature,
            reasoning_budget=20,
            speculation={"drafters": "ngram,suffix", "verifier": verifier, "max_draft": 8},
        )
        assert parts(drafted) == (thought, said)
    free = answer(thinker, temperature=temperature, speculation={"off": True})
    everything = parts(free)[0]
    assert parts(free)[1] == "" and everything.startswith(thought.rstrip("\ufffd"))


@pytest.mark.parametrize("n", [1, 7, 30])
def test_so_many_tokens_are_reasoning(thinker: Background, n: int) -> None:
    for name in ("reasoning_budget", "thinking_budget", "reasoning_budget_tokens", "thinking_budget_tokens"):
        found = answer(thinker, temperature=0, **{name: n})
        # The closing tag is written in several tokens by this vocabulary.
        assert n <= found["usage"]["completion_tokens_details"]["reasoning_tokens"] <= n + 12
        assert parts(found)[1]


def test_none_and_no_limit_are_as_before(thinker: Background) -> None:
    assert parts(answer(thinker, reasoning_budget=0))[0] == ""
    assert parts(answer(thinker, reasoning_budget=-1))[1] == ""
    got = httpx.post(
        f"{thinker.url}/v1/chat/completions", json={"messages": HELLO, "reasoning_budget": 4, "thinking_budget": 5}
    )
    assert got.status_code == 400 and got.json()["error"]["param"] == "thinking_budget"


def test_lossy_verifiers_are_refused(thinker: Background) -> None:
    body = {"messages": HELLO, "reasoning_budget": 4, "speculation": {"verifier": "typical", "drafters": "ngram"}}
    got = httpx.post(f"{thinker.url}/v1/chat/completions", json=body)
    assert got.status_code == 400 and "reasoning budget" in got.json()["error"]["message"]


def test_with_a_schema_there_is_no_reasoning(thinker: Background) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no"]}}}
    found = answer(thinker, reasoning_budget=4, response_format=form)
    assert parts(found)[0] == "" and parts(found)[1] in ('"yes"', '"no"')


def test_anthropics_form(thinker: Background) -> None:
    import anthropic  # takes four seconds

    with anthropic.Anthropic(base_url=thinker.url, api_key="none", max_retries=0) as claude:
        got = claude.messages.create(
            model="demo",
            messages=HELLO,  # type: ignore[arg-type]
            max_tokens=90,
            thinking={"type": "enabled", "budget_tokens": 12},
            extra_body={"seed": 3, "ignore_eos": True},
        )
        assert [block.type for block in got.content][0] == "thinking"


def test_the_servers_own_budget(tmp_path: Path) -> None:
    path = tmp_path / "thinker.gguf"
    tiny.write_llama(path, chat_template=OPENED)
    with background(path, ctx=512, reasoning_budget=6) as server:
        assert parts(answer(server))[1]
        assert parts(answer(server, reasoning_budget=-1))[1] == ""
        body = {"input": "Hello", "max_output_tokens": 80, "seed": 5}
        found = httpx.post(f"{server.url}/v1/responses", json=body, timeout=300).json()
        assert found["output"][0]["type"] == "reasoning"
        assert 6 <= found["usage"]["output_tokens_details"]["reasoning_tokens"] <= 18


def test_who_asks_for_a_summary_of_reasoning_gets_the_reasoning(tmp_path: Path) -> None:
    """Clients of the Responses API show nothing else; they send it back in the next turn."""
    path = tmp_path / "thinker.gguf"
    tiny.write_llama(path, chat_template=OPENED)
    asked: Any = {"model": MODEL, "input": HELLO, "max_output_tokens": 40}
    asked["extra_body"] = {"ignore_eos": True, "seed": 5}
    with background(path, ctx=512, reasoning_budget=6) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)
        raw = client.responses.create(**asked).output[0]
        asked["reasoning"] = {"summary": "auto"}
        whole = client.responses.create(**asked).output[0]
        events = list(client.responses.create(**asked, stream=True))
    pieces = "".join(event.delta for event in events if event.type == "response.reasoning_summary_text.delta")
    streamed = events[-1].response.output[0]
    parts = [event.type for event in events if "reasoning_summary_part" in event.type]
    assert parts == ["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    assert raw.type == whole.type == streamed.type == "reasoning"
    assert raw.content and not raw.summary and whole.summary == streamed.summary and not whole.content
    assert raw.content[0].text == whole.summary[0].text == pieces
    for item in (raw, whole):
        body = {"input": [*HELLO, item.model_dump(exclude_none=True), {"role": "assistant", "content": "x"}]}
        said = input_messages(ResponseBody.model_validate(body))[-1]
        assert said == {"role": "assistant", "content": "x", "reasoning_content": pieces}
