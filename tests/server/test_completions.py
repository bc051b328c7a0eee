"""Raw completions through the official client."""

from __future__ import annotations

import httpx
import openai
import pytest

from tests.server.running import CODE, MODEL

pytestmark = pytest.mark.server


def test_a_text_goes_on(client: openai.OpenAI) -> None:
    got = client.completions.create(model=MODEL, prompt=CODE, temperature=0, max_tokens=12)
    assert got.object == "text_completion" and got.choices[0].text
    assert got.usage is not None and got.usage.completion_tokens <= 12


def test_sixteen_tokens_unless_something_else_is_said(client: openai.OpenAI) -> None:
    got = client.completions.create(model=MODEL, prompt=CODE, temperature=0, extra_body={"ignore_eos": True})
    assert got.usage is not None and got.usage.completion_tokens == 16


def test_streamed(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "prompt": CODE, "seed": 3, "max_tokens": 24}
    whole = client.completions.create(**asked)  # type: ignore[call-overload]
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_several_prompts_and_several_texts(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "temperature": 1.0, "seed": 4, "max_tokens": 8}
    got = client.completions.create(**asked, prompt=[CODE, "import "], n=2)  # type: ignore[call-overload]
    assert [c.index for c in got.choices] == [0, 1, 2, 3]
    first = client.completions.create(**asked, prompt=CODE)  # type: ignore[call-overload]
    third = client.completions.create(**asked, prompt="import ")  # type: ignore[call-overload]
    assert got.choices[0].text == first.choices[0].text
    assert got.choices[2].text == third.choices[0].text
    assert got.usage.prompt_tokens == first.usage.prompt_tokens + third.usage.prompt_tokens


def test_token_ids_as_a_prompt(client: openai.OpenAI, http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"content": CODE}).json()["tokens"]
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    from_ids = client.completions.create(**asked, prompt=ids)  # type: ignore[call-overload]
    from_lists = client.completions.create(**asked, prompt=[ids])  # type: ignore[call-overload]
    from_text = client.completions.create(**asked, prompt=CODE)  # type: ignore[call-overload]
    assert from_ids.choices[0].text == from_lists.choices[0].text == from_text.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_echo(client: openai.OpenAI, stream: bool) -> None:
    asked = {"model": MODEL, "prompt": CODE, "temperature": 0, "max_tokens": 4}
    plain = client.completions.create(**asked)  # type: ignore[call-overload]
    got = client.completions.create(**asked, echo=True, stream=stream)  # type: ignore[call-overload]
    text = "".join(c.choices[0].text for c in got) if stream else got.choices[0].text
    assert text == CODE + plain.choices[0].text


def test_an_empty_suffix_is_none(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "prompt": CODE, "temperature": 0, "max_tokens": 4}
    plain = client.completions.create(**asked)  # type: ignore[call-overload]
    got = client.completions.create(**asked, suffix="")  # type: ignore[call-overload]
    assert got.choices[0].text == plain.choices[0].text


def test_echo_of_nothing_more(client: openai.OpenAI) -> None:
    got = client.completions.create(model=MODEL, prompt=CODE, max_tokens=0, echo=True)
    assert got.choices[0].text == CODE and got.choices[0].finish_reason == "length"


def test_logprobs(client: openai.OpenAI) -> None:
    got = client.completions.create(model=MODEL, prompt=CODE, temperature=0, max_tokens=8, logprobs=3)
    logprobs = got.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens and logprobs.token_logprobs and logprobs.top_logprobs
    assert "".join(logprobs.tokens) == got.choices[0].text
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:i])) for i in range(len(logprobs.tokens))]
    for value, top in zip(logprobs.token_logprobs, logprobs.top_logprobs):
        assert value == pytest.approx(max(top.values()))


def test_a_prediction(client: openai.OpenAI) -> None:
    plain = client.completions.create(model=MODEL, prompt=CODE, temperature=0, max_tokens=32)
    got = client.completions.create(
        model=MODEL,
        prompt=CODE,
        temperature=0,
        max_tokens=32,
        extra_body={
            "prediction": {"type": "content", "content": plain.choices[0].text},
            "speculation": {"drafters": ["prediction"]},
        },
    )
    assert got.choices[0].text == plain.choices[0].text
    details = got.usage.completion_tokens_details if got.usage else None
    assert details is not None and details.accepted_prediction_tokens
