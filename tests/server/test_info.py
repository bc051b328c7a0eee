"""Models, health, metrics, embeddings and the text tools."""

from __future__ import annotations

import math

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.running import CHAT, HELLO, MODEL

pytestmark = pytest.mark.server


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_health(http: httpx.Client) -> None:
    got = http.get("/health")
    assert got.status_code == 200 and got.json()["status"] == "ok" and got.json()["slots"] == 4


@pytest.mark.parametrize("text", [CHAT, "", "def f(x):\n\treturn 'é😀'", "<|im_start|>user"])
def test_tokens_and_back(http: httpx.Client, text: str) -> None:
    ids = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": ids}).json()["content"] == text
    mixed = {"content": [text, *ids, text], "add_special": True}
    begin = http.post("/tokenize", json={"content": text, "add_special": True}).json()["tokens"]
    assert http.post("/tokenize", json=mixed).json()["tokens"] == begin + ids + ids
    assert http.post("/tokenize", json={"content": [2**31 - 1]}).status_code == 400
    pieces = http.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    assert [p["id"] for p in pieces] == ids
    assert (
        b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
        == text.encode()
    )


def test_special_tokens_are_read_unless_told_otherwise(http: httpx.Client) -> None:
    body = {"content": "<|im_end|>"}
    assert len(http.post("/tokenize", json=body).json()["tokens"]) == 1
    assert len(http.post("/tokenize", json=body | {"parse_special": False}).json()["tokens"]) > 1


def test_the_template(http: httpx.Client) -> None:
    prompt = http.post("/apply-template", json={"messages": HELLO}).json()["prompt"]
    assert CHAT in prompt and prompt.endswith("<|im_start|>assistant\n")
    bare = http.post("/apply-template", json={"messages": HELLO, "add_generation_prompt": False}).json()["prompt"]
    assert prompt.startswith(bare) and bare != prompt


def test_metrics_count_what_happens(client: openai.OpenAI, http: httpx.Client) -> None:
    def values() -> dict[tuple[str, str], float]:
        found = {}
        for family in text_string_to_metric_families(http.get("/metrics").text):
            for sample in family.samples:
                found[sample.name, ",".join(sample.labels.values())] = sample.value
        return found

    before = values()
    body = {"speculation": {"drafters": "ngram"}}
    got = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=30, temperature=0, extra_body=body)
    http.post("/v1/chat/completions", json={"messages": []})
    after = values()

    def grew(name: str, label: str = "") -> float:
        return after.get((name, label), 0) - before.get((name, label), 0)

    assert got.usage is not None
    assert grew("lcspec_generated_tokens_total") == got.usage.completion_tokens
    assert grew("lcspec_prompt_tokens_total") + grew("lcspec_prompt_tokens_reused_total") == got.usage.prompt_tokens
    timings = got.model_extra["timings"]
    assert grew("lcspec_drafted_tokens_total", "ngram") == timings["draft_n"]
    assert grew("lcspec_accepted_tokens_total", "ngram") == timings["draft_n_accepted"]
    assert grew("lcspec_http_requests_total", "/v1/chat/completions,200") == 1
    assert grew("lcspec_http_requests_total", "/v1/chat/completions,400") == 1
    assert grew("lcspec_time_to_first_token_seconds_count") == 1
    assert after["lcspec_slots", ""] == 4
    assert after["lcspec_requests_running", ""] == after["lcspec_requests_waiting", ""] == 0
    steps = sum(v - before.get(k, 0) for k, v in after.items() if k[0] == "lcspec_decode_steps_total")
    assert steps == timings["target_steps"]


def test_paths_have_names_in_the_metrics(http: httpx.Client) -> None:
    def count(path: str) -> float:
        line = f'lcspec_http_requests_total{{path="{path}",'
        found = [row for row in http.get("/metrics").text.splitlines() if row.startswith(line)]
        return sum(float(row.split()[-1]) for row in found)

    for path, label in (
        ("/models", "/models"),
        (f"/v1/models/{MODEL}", "/v1/models/{name}"),
        (f"/models/{MODEL}", "/models/{name}"),
        ("/page/app.js", "/page/{name}"),
        ("/models-of-mine", "other"),
    ):
        before = count(label)
        http.get(path)
        assert count(label) == before + 1


def test_embeddings(client: openai.OpenAI, http: httpx.Client) -> None:
    texts = ["a cup of coffee", "def f(x): return x"]
    got = client.embeddings.create(model=MODEL, input=texts)  # base64 under the hood
    assert [d.index for d in got.data] == [0, 1]
    for item in got.data:
        assert math.sqrt(sum(x * x for x in item.embedding)) == pytest.approx(1, abs=1e-4)
    assert got.data[0].embedding != got.data[1].embedding
    floats = client.embeddings.create(model=MODEL, input=texts[0], encoding_format="float")
    assert floats.data[0].embedding == pytest.approx(got.data[0].embedding, abs=1e-6)
    ids = http.post("/tokenize", json={"content": texts[0], "add_special": True}).json()["tokens"]
    assert client.embeddings.create(model=MODEL, input=ids).data[0].embedding == floats.data[0].embedding
    assert got.usage.prompt_tokens == got.usage.total_tokens > len(ids)


def test_shorter_embeddings_have_unit_length_too(client: openai.OpenAI) -> None:
    got = client.embeddings.create(model=MODEL, input="a cup of coffee", dimensions=16)
    vector = got.data[0].embedding
    assert len(vector) == 16 and sum(x * x for x in vector) == pytest.approx(1, abs=1e-4)
