"""`echo` with `logprobs`: how probable a given text is, which is what evaluations ask for."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import httpx
import openai
import pytest

from tests.running import ROUNDS_ALIKE
from tests.server.running import CODE, MODEL

pytestmark = pytest.mark.server

COMPLETIONS = "/v1/completions"
ECHO: dict[str, Any] = {"echo": True, "logprobs": 2, "temperature": 0}


def test_they_are_those_the_model_would_have_given(http: httpx.Client) -> None:
    """A text that the model wrote has the same log-probabilities read as written."""
    ids = http.post("/tokenize", json={"content": CODE, "add_special": True}).json()["tokens"]
    body = {"prompt": ids, "max_tokens": 90, "logprobs": 2, "temperature": 0, "ignore_eos": True}
    written = http.post("/completion", json=body | {"n_predict": 90, "n_probs": 2, "return_tokens": True}).json()
    whole = ids + written["tokens"]
    assert len(whole) > 64  # more than one piece
    asked = {"prompt": whole, "max_tokens": 1, "ignore_eos": True} | ECHO
    got = http.post(COMPLETIONS, json=asked).json()["choices"][0]["logprobs"]
    assert len(got["tokens"]) == len(whole) + 1
    read = got["token_logprobs"][len(ids) : len(whole)]
    assert read == pytest.approx([p["logprob"] for p in written["completion_probabilities"]], abs=0.05)
    assert got["token_logprobs"][0] is None and got["top_logprobs"][0] is None
    assert all(p <= 0 for p in got["token_logprobs"][1:])
    assert all(len(top) == 2 for top in got["top_logprobs"][1:])


def test_offsets_and_text(client: openai.OpenAI) -> None:
    got = client.completions.create(model=MODEL, prompt=["Hello there", "x"], max_tokens=3, n=2, **ECHO).choices
    assert [c.index for c in got] == [0, 1, 2, 3]
    for choice in got:
        logprobs = choice.logprobs
        assert logprobs is not None and logprobs.tokens is not None and logprobs.text_offset is not None
        assert logprobs.text_offset == [0, *accumulate(map(len, logprobs.tokens))][:-1]
        assert "".join(logprobs.tokens) == choice.text
    assert got[0].logprobs is not None and got[1].logprobs is not None
    assert got[0].logprobs.token_logprobs == got[1].logprobs.token_logprobs


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=CODE, max_tokens=3, **ECHO).choices[0]
    parts = list(client.completions.create(model=MODEL, prompt=CODE, max_tokens=3, stream=True, **ECHO))
    assert "".join(p.choices[0].text for p in parts) == whole.text
    found = [x for p in parts if p.choices[0].logprobs for x in p.choices[0].logprobs.token_logprobs or []]
    near = 1e-3 if ROUNDS_ALIKE else 2e-2
    assert whole.logprobs is not None and found == pytest.approx(whole.logprobs.token_logprobs, nan_ok=True, abs=near)


def test_nothing_is_written_if_nothing_is_wanted(http: httpx.Client) -> None:
    got = http.post(COMPLETIONS, json={"prompt": CODE, "max_tokens": 0} | ECHO)
    assert got.status_code == 200, got.text
    assert got.json()["choices"][0]["text"] == CODE


def test_too_long_a_prompt(http: httpx.Client) -> None:
    got = http.post(COMPLETIONS, json={"prompt": "word " * 600, "max_tokens": 1} | ECHO)
    assert got.status_code == 400 and got.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_comes_back_as_it_was_sent(client: openai.OpenAI, stream: bool) -> None:
    """Also what spells control tokens, and characters of several tokens, of which each counts once."""
    prompt = "<|im_start|>user\nhé 🙂 x<|im_end|>\n"
    asked: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 3, "extra_body": {"ignore_eos": True}}
    got = client.completions.create(**asked, **ECHO, stream=stream)
    choices = [c.choices[0] for c in got] if stream else [got.choices[0]]
    assert "".join(c.text for c in choices).startswith(prompt)
    tokens = [t for c in choices if c.logprobs for t in c.logprobs.tokens or []]
    offsets = [n for c in choices if c.logprobs for n in c.logprobs.text_offset or []]
    assert offsets[tokens.index(" x")] == prompt.index(" x")
    assert offsets[-3] == len(prompt) and offsets == sorted(offsets)
