"""How far a text is while it is made, and the probabilities that were sampled from: fields of llama-server."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from lcspec.server import unknown
from tests.server.running import CODE, HELLO, lines_of

pytestmark = pytest.mark.server

NATIVE: dict[str, Any] = {"prompt": CODE, "n_predict": 12, "temperature": 0, "stream": True}
TEXT: dict[str, Any] = {"prompt": CODE, "max_tokens": 12, "temperature": 0, "stream": True}
CHAT: dict[str, Any] = {"messages": HELLO, "max_tokens": 12, "temperature": 0, "stream": True}
PATHS = [("/completion", NATIVE), ("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)]
SAMPLED: dict[str, Any] = {"prompt": CODE, "n_predict": 12, "post_sampling_probs": True}


def _parts(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", path, json=body) as got:
        assert got.status_code == 200 and unknown.HEADER not in got.headers
        return [json.loads(line[6:]) for line in lines_of(got) if line.startswith("data: {")]


def _written(part: dict[str, Any]) -> str:
    if "choices" not in part:
        return str(part["content"])
    choice = part["choices"][0]
    return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")


@pytest.mark.parametrize("path, body", PATHS)
def test_a_stream_says_how_its_time_goes(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    plain = _parts(http, path, body)
    parts = _parts(http, path, body | {"timings_per_token": True})
    assert "".join(map(_written, parts)) == "".join(map(_written, plain))
    assert sum("timings" in part for part in plain) == 1
    told = [part["timings"] for part in parts if _written(part)] + [parts[-1]["timings"]]
    counts = [timings["predicted_n"] for timings in told]
    assert (
        counts == sorted(counts) and counts[0] >= 1 and told[-1]["predicted_n"] == plain[-1]["timings"]["predicted_n"]
    )
    last, before = told[-1], told[-2]
    assert before.keys() == last.keys() and before["prompt_n"] == last["prompt_n"] and before["seed"] == last["seed"]
    for timings in told:
        assert timings["draft_n_accepted"] <= timings["draft_n"] <= last["draft_n"]
        assert timings["target_steps"] <= last["target_steps"] and timings["prompt_ms"] > 0


@pytest.mark.parametrize("path, body", PATHS)
def test_a_stream_says_how_far_its_prompt_is(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    text = f"# {path}\n" + "".join(f"{path} {i}\n" for i in range(20))
    long = {"prompt": text} if "prompt" in body else {"messages": [{"role": "user", "content": text}]}
    parts = _parts(http, path, body | long | {"return_progress": True})
    told = [part["prompt_progress"] for part in parts if "prompt_progress" in part]
    assert all(progress.keys() == {"total", "cache", "processed", "time_ms"} for progress in told)
    assert told[0]["processed"] == told[0]["cache"] and told[-1]["processed"] == told[-1]["total"] > 20
    assert [p["processed"] for p in told] == sorted(p["processed"] for p in told)
    assert not any(_written(part) for part in parts if "prompt_progress" in part)
    first = next(i for i, part in enumerate(parts) if _written(part))
    assert not any("prompt_progress" in part for part in parts[first:])
    if path == "/v1/chat/completions":
        chunk = next(part for part in parts if "prompt_progress" in part)
        assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": None}


@pytest.mark.parametrize("path, body", PATHS)
def test_without_a_stream_both_mean_nothing(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    whole = http.post(path, json=body | {"stream": False, "timings_per_token": True, "return_progress": True})
    assert whole.status_code == 200 and "prompt_progress" not in whole.json()


@pytest.mark.parametrize("drafters", ["off", "ngram"])
def test_probabilities_after_all_samplers(http: httpx.Client, drafters: str) -> None:
    body = SAMPLED | {"temperature": 1.5, "top_k": 3, "top_p": 1, "min_p": 0, "seed": 5, "n_probs": 9}
    got = http.post("/completion", json=body | {"speculation": {"drafters": drafters}}).json()
    found = got["completion_probabilities"]
    assert len(found) == got["tokens_predicted"]
    for entry in found:
        top = entry["top_probs"]
        assert len(top) == 3 and sum(one["prob"] for one in top) == pytest.approx(1)
        assert [one["prob"] for one in top] == sorted((one["prob"] for one in top), reverse=True)
        assert next(one["prob"] for one in top if one["id"] == entry["id"]) == entry["prob"]
        assert "logprob" not in entry and "logprob" not in top[0]


def test_they_are_the_probabilities_of_what_is_left(http: httpx.Client) -> None:
    """With a single step of temperature they follow from the raw ones."""
    body = SAMPLED | {"n_predict": 1, "temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 5, "n_probs": 40}
    sampled = http.post("/completion", json=body).json()["completion_probabilities"][0]["top_probs"]
    raw = http.post("/completion", json=body | {"post_sampling_probs": False}).json()["completion_probabilities"][0]
    logprobs = {one["id"]: one["logprob"] for one in raw["top_logprobs"]}
    assert len(logprobs) == 40 and [one["id"] for one in sampled] == list(logprobs)
    ratio = sampled[0]["prob"] / sampled[7]["prob"]
    difference = logprobs[sampled[0]["id"]] - logprobs[sampled[7]["id"]]
    assert ratio**2 == pytest.approx(2.718281828**difference, rel=1e-3)


def test_at_temperature_0_one_token_is_left(http: httpx.Client) -> None:
    for more in ({}, {"grammar": 'root ::= "ab" "c"*'}, {"repeat_penalty": 1.3}):
        body = SAMPLED | {"temperature": 0, "n_probs": 5} | more
        for entry in http.post("/completion", json=body).json()["completion_probabilities"]:
            assert entry["prob"] == 1 and [one["id"] for one in entry["top_probs"]] == [entry["id"]]


def test_in_a_stream_and_in_a_conversation(http: httpx.Client) -> None:
    body = SAMPLED | {"temperature": 1, "seed": 1, "n_probs": 2}
    whole = http.post("/completion", json=body).json()["completion_probabilities"]
    parts = _parts(http, "/completion", body | {"stream": True})
    assert [one for part in parts for one in part.get("completion_probabilities", ())] == whole
    asked = {"messages": HELLO, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "post_sampling_probs": True}
    content = http.post("/v1/chat/completions", json=asked).json()["choices"][0]["logprobs"]["content"]
    assert all(0 < entry["prob"] <= 1 and len(entry["top_probs"]) <= 2 for entry in content)


def test_more_than_20_probabilities(http: httpx.Client) -> None:
    for name in ("n_probs", "logprobs"):
        body = NATIVE | {"stream": False, name: 100}
        got = http.post("/completion", json=body).json()["completion_probabilities"]
        assert all(len(entry["top_logprobs"]) == 100 for entry in got)
    assert http.post("/completion", json=NATIVE | {"n_probs": 10**6}).status_code == 400


def test_a_bias_of_any_size(http: httpx.Client) -> None:
    plain = NATIVE | {"stream": False, "return_tokens": True, "n_predict": 3}
    first = http.post("/completion", json=plain).json()["tokens"][0]
    for value in (-1000, -1e30, False):
        for form in ([[first, value]], {str(first): value}):
            got = http.post("/completion", json=plain | {"logit_bias": form})
            assert got.status_code == 200 and first not in got.json()["tokens"]
    for value in (500, 1e9, 1e300):
        got = http.post("/completion", json=plain | {"logit_bias": [["Q", value]]}).json()
        assert got["content"] == "QQQ"
