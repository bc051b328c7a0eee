"""llama-server's own paths, the same paths without /v1, and rerank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from lcspec.server.lifecycle import Background
from tests import tiny_gguf as tiny
from tests.server.running import CODE, HELLO, MODEL, background, lines_of

pytestmark = pytest.mark.server

COLD: dict[str, Any] = {"temperature": 0, "n_predict": 12}


def _raw(http: httpx.Client, **more: Any) -> dict[str, Any]:
    data: dict[str, Any] = http.post(
        "/v1/completions", json={"prompt": CODE, "max_tokens": 12, "temperature": 0} | more
    ).json()
    return data


def test_a_completion(http: httpx.Client) -> None:
    got = http.post("/completion", json={"prompt": CODE, "return_tokens": True} | COLD).json()
    plain = _raw(http)
    assert got["content"] == plain["choices"][0]["text"]
    assert http.post("/detokenize", json={"tokens": got["tokens"]}).json()["content"].startswith(got["content"])
    assert got["tokens_predicted"] == plain["usage"]["completion_tokens"] == len(got["tokens"])
    assert got["tokens_evaluated"] == plain["usage"]["prompt_tokens"]
    assert got["stop"] is True and got["stop_type"] == "limit" and got["timings"]["predicted_n"] == 12
    assert got["truncated"] is False
    told = got["generation_settings"]
    assert told["temperature"] == 0 and told["n_predict"] == 12 and told["seed"] == got["timings"]["seed"]
    for name in ("mirostat_tau", "dry_base", "top_n_sigma", "dynatemp_range", "adaptive_target"):
        assert name in told


def test_it_ends_with_the_context_unless_told_otherwise(http: httpx.Client) -> None:
    got = http.post("/completion", json={"prompt": "a", "ignore_eos": True, "temperature": 0}).json()
    assert got["tokens_predicted"] + got["tokens_evaluated"] == 512
    assert got["stop_type"] == "limit" and got["truncated"] is True


def test_without_a_token_to_write_the_prompt_is_read(http: httpx.Client) -> None:
    text = "def warm(x):\n" + "".join(f"    x += {i}\n" for i in range(9))
    got = http.post("/completion", json={"prompt": text, "n_predict": 0}).json()
    assert (got["content"], got["tokens_predicted"], got["stop_type"]) == ("", 0, "limit")
    again = http.post("/completion", json={"prompt": text} | COLD).json()
    assert again["timings"]["cache_n"] >= got["tokens_evaluated"] - 1 > got["timings"]["cache_n"]


def test_a_stream(http: httpx.Client) -> None:
    whole = http.post("/completion", json={"prompt": CODE} | COLD).json()
    with http.stream("POST", "/completion", json={"prompt": CODE, "stream": True} | COLD) as got:
        parts = [json.loads(line[6:]) for line in lines_of(got) if line.startswith("data: ")]
    assert "".join(p["content"] for p in parts) == whole["content"]
    assert [p["stop"] for p in parts] == [False] * (len(parts) - 1) + [True]
    assert sum(len(p["tokens"]) for p in parts) == 12


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_of_time_ends_a_text_with_a_line(http: httpx.Client, stream: bool) -> None:
    asked = {"prompt": CODE, "temperature": 0, "n_predict": 200, "ignore_eos": True}
    whole = http.post("/completion", json=asked).json()["content"]
    got = http.post("/completion", json=asked | {"t_max_predict_ms": 1, "stream": stream})
    parts = [json.loads(line[6:]) for line in lines_of(got) if line.startswith("data: ")] if stream else [got.json()]
    text = "".join(part["content"] for part in parts)
    assert parts[-1]["stop_type"] == "limit" and "\n" in text
    assert whole.startswith(text) and len(text) < len(whole)


def test_no_limit_of_time_and_no_probabilities(http: httpx.Client) -> None:
    nothing = {"t_max_predict_ms": -1, "post_sampling_probs": True, "n_probs": 0}
    asked = {"prompt": CODE, "temperature": 0, "n_predict": 60}
    whole = http.post("/completion", json=asked).json()["content"]
    assert http.post("/completion", json=asked | nothing).json()["content"] == whole


def test_stop_words(http: httpx.Client) -> None:
    text = http.post("/completion", json={"prompt": CODE} | COLD).json()["content"]
    stop = text[4:7]
    got = http.post("/completion", json={"prompt": CODE, "stop": [stop]} | COLD).json()
    assert (got["stop_type"], got["stopping_word"], got["content"]) == ("word", stop, text[: text.index(stop)])


def test_prompts_of_every_kind(http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"content": CODE, "add_special": True}).json()["tokens"]
    plain = http.post("/completion", json={"prompt": CODE} | COLD).json()["content"]
    assert http.post("/completion", json={"prompt": ids} | COLD).json()["content"] == plain
    half = http.post("/detokenize", json={"tokens": ids[:9]}).json()["content"]
    assert http.post("/completion", json={"prompt": [half, *ids[9:]]} | COLD).json()["content"] == plain
    many = http.post("/completion", json={"prompt": [ids, [half, *ids[9:]]]} | COLD).json()
    assert [m["content"] for m in many] == [plain, plain] and [m["index"] for m in many] == [0, 1]
    both = http.post("/completion", json={"prompt": [CODE, "x"]} | COLD).json()
    assert both[0]["content"] == plain and len(both) == 2
    each = http.post("/completion", json={"prompt": [CODE, ids, [half, *ids[9:]]]} | COLD).json()
    assert [part["content"] for part in each] == [plain] * 3
    for quoted in ({"prompt_string": CODE}, [{"prompt_string": CODE, "multimodal_data": []}]):
        assert http.post("/completion", json={"prompt": quoted} | COLD).json()["content"] == plain
    seen = http.post("/completion", json={"prompt": {"prompt_string": CODE, "multimodal_data": ["iVBO"]}} | COLD)
    assert seen.status_code == 400


def test_probabilities(http: httpx.Client) -> None:
    got = http.post("/completion", json={"prompt": CODE, "n_probs": 3} | COLD).json()["completion_probabilities"]
    plain = http.post(
        "/v1/completions", json={"prompt": CODE, "max_tokens": 12, "temperature": 0, "logprobs": 3}
    ).json()
    assert [p["logprob"] for p in got] == pytest.approx(plain["choices"][0]["logprobs"]["token_logprobs"], abs=1e-3)
    assert all(len(p["top_logprobs"]) == 3 and p["top_logprobs"][0]["id"] == p["id"] for p in got)


def test_biases_as_pairs(http: httpx.Client) -> None:
    first = http.post("/completion", json={"prompt": CODE, "return_tokens": True} | COLD | {"n_predict": 1}).json()
    token = first["tokens"][0]
    for form in ([[token, False]], [[token, -100]], {str(token): -100}):
        got = http.post("/completion", json={"prompt": CODE, "logit_bias": form, "return_tokens": True} | COLD).json()
        assert got["tokens"][0] != token
    letter = http.post(
        "/completion", json={"prompt": CODE, "logit_bias": [["Q", 100]], "n_predict": 3, "temperature": 0}
    )
    assert letter.json()["content"] == "QQQ"
    assert http.post("/completion", json={"prompt": CODE, "logit_bias": {"²": 1}} | COLD).status_code == 200


@pytest.mark.parametrize(
    "bias", [5, [[1]], [[1, True]], [[1, "x"]], [[10**9, 1.0]], [[None, 1]], {"-1": 2}, {"1" * 5000: 2}]
)
def test_a_bad_bias_is_refused(http: httpx.Client, bias: Any) -> None:
    got = http.post("/completion", json={"prompt": "x", "logit_bias": bias})
    assert got.status_code == 400 and got.json()["error"]["param"] == "logit_bias"


@pytest.mark.parametrize(
    "path, body",
    [
        ("/completion", {}),
        ("/completion", {"prompt": []}),
        ("/completion", {"prompt": [10**8]}),
        ("/completion", {"prompt": "word " * 3000}),
        ("/infill", {"input_prefix": "x"}),
        ("/infill", {"input_prefix": "x", "input_suffix": "y"}),  # the bundled model cannot
        ("/rerank", {"query": "x"}),
        ("/rerank", {"query": "x", "documents": []}),
        ("/rerank", {"query": "", "documents": ["a"]}),
    ],
)
def test_what_cannot_be_done_is_said(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    got = http.post(path, json=body)
    assert got.status_code == 400 and got.json()["error"]["message"]


def test_a_gap_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "code.gguf"
    marks = {f"tokenizer.ggml.fim_{name}_token_id": 280 + i for i, name in enumerate(("pre", "suf", "mid"))}
    tiny.write_llama(path, extra=marks)
    with background(path, ctx=256, warm=False) as running, httpx.Client(base_url=running.url, timeout=300) as http:
        gap = {"input_prefix": "def f(", "input_suffix": "):\n    pass", "return_tokens": True}
        got = http.post("/infill", json=gap | COLD).json()
        service = running.server.service
        assert service.vocab.fill_in_middle == (280, 281, 282, -1, -1)

        def ids(text: str) -> list[int]:
            return service.vocab.tokenize(text, special=False)

        plain = [280, *ids("def f("), 281, *ids("):\n    pass"), 282]
        raw = http.post("/completion", json={"prompt": plain, "return_tokens": True} | COLD).json()
        assert got["tokens"] == raw["tokens"]
        assert got["tokens_evaluated"] == len(plain)
        extra = [{"filename": "a.py", "text": "import os"}]
        more = http.post("/infill", json=gap | COLD | {"input_extra": extra, "prompt": "x"}).json()
        assert more["tokens_evaluated"] == len(plain) + 1 + len(ids("--- a.py ---\nimport os\n\n"))
        long = {"input_prefix": "a" * 900 + "END", "input_suffix": "BEGIN" + "b" * 900, "input_extra": extra}
        cut = http.post("/infill", json=long | COLD).json()
        assert cut["tokens_evaluated"] + 12 <= 256 and "END" in cut["prompt"] and "BEGIN" in cut["prompt"]
        assert "import os" not in cut["prompt"]
        # A text may be as long as the context and still sees what is around it.
        around = {"input_prefix": "a" * 60, "input_suffix": "b" * 30}
        little, much = (http.post("/infill", json=around | COLD | {"n_predict": n}).json() for n in (12, 1000))
        assert little["prompt"] == much["prompt"] and little["tokens_evaluated"] == much["tokens_evaluated"]


@pytest.mark.parametrize("repository", [True, False])
def test_other_files_are_given_as_the_model_has_learned_repositories(tmp_path: Path, repository: bool) -> None:
    """Qwen's and StarCoder's coders; they got names in dashes, as models get that know no files."""
    path, names = tmp_path / "code.gguf", ("pre", "suf", "mid", "sep", "rep")[: 4 + repository]
    tiny.write_llama(path, extra={f"tokenizer.ggml.fim_{name}_token_id": 280 + i for i, name in enumerate(names)})
    with background(path, ctx=256, warm=False) as running, httpx.Client(base_url=running.url, timeout=300) as http:
        vocab = running.server.service.vocab

        def ids(text: str) -> list[int]:
            return vocab.tokenize(text, special=False)

        gap = {"input_prefix": "def f(", "input_suffix": "):", "return_tokens": True}
        plain = [280, *ids("def f("), 281, *ids("):"), 282]
        others = [{"filename": "a.py", "text": "import os\n"}, {"text": "x"}]
        files = [283, *ids("a.py\nimport os\n"), 283, *ids("snippet\nx"), 283, *ids("file\n")]
        expected = [*([284, *ids("project\n")] if repository else []), *files, *plain]
        for extra, prompt in ((others, expected), ([], plain), ([{"text": "y" * 300}], plain)):
            got = http.post("/infill", json=gap | COLD | {"input_extra": extra}).json()
            raw = http.post("/completion", json={"prompt": prompt, "return_tokens": True} | COLD).json()
            assert (got["tokens"], got["tokens_evaluated"]) == (raw["tokens"], len(prompt))


def test_what_is_served(http: httpx.Client) -> None:
    props = http.get("/props").json()
    assert props["total_slots"] == 4 and props["model_alias"] == MODEL and "<|im_start|>" in props["chat_template"]
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["default_generation_settings"]["params"]["seed"] == -1  # a number, as elsewhere: any
    slots = http.get("/slots").json()
    assert [s["id"] for s in slots] == [0, 1, 2, 3] and not any(s["is_processing"] for s in slots)
    assert http.get("/slots", params={"fail_on_no_slot": 1}).json() == slots
    assert http.get("/v1/health").json()["status"] == "ok"


def test_without_a_prefix(server: Background, http: httpx.Client) -> None:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=300) as client:
        assert [m.id for m in client.models.list()] == [MODEL] and client.models.retrieve(MODEL).id == MODEL
        got = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3)  # type: ignore[arg-type]
        assert got.object == "chat.completion"
        assert client.completions.create(model=MODEL, prompt="x", max_tokens=2).object == "text_completion"
        assert client.embeddings.create(model=MODEL, input="x").data[0].embedding
        assert client.responses.create(model=MODEL, input="x", max_output_tokens=2).object == "response"


def test_rerank(http: httpx.Client) -> None:
    texts = ["def f(x): return x", "Good morning", "Good evening"]
    got = http.post("/v1/rerank", json={"query": "Good morning", "documents": [*texts[:2], {"text": texts[2]}]}).json()
    rows = http.post("/v1/embeddings", json={"input": ["Good morning", *texts]}).json()["data"]
    vectors = np.array([r["embedding"] for r in rows])
    scores = vectors[1:] @ vectors[0]
    assert [r["index"] for r in got["results"]] == np.argsort(-scores).tolist()
    assert got["results"][0]["index"] == 1 and got["results"][0]["relevance_score"] == pytest.approx(1, abs=1e-5)
    first = http.post("/rerank", json={"query": "Hi", "documents": texts, "top_n": 1, "return_documents": True}).json()
    assert len(first["results"]) == 1 and first["results"][0]["document"]["text"] in texts


def test_rerank_with_an_embedding_model(tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    tiny.write_bert(path)
    with background(path, ctx=64, slots=1, warm=False) as running:
        got = httpx.post(f"{running.url}/v1/rerank", json={"query": "a b", "documents": ["x y", "a b"]}).json()
        assert got["results"][0]["index"] == 1


def test_a_wrong_key(tiny_model: Path) -> None:
    with (
        background(tiny_model, warm=False, api_keys=("right",)) as running,
        httpx.Client(base_url=running.url, timeout=300) as http,
    ):
        for path in ("/props", "/slots", "/lora-adapters", "/models", "/v1/models"):
            assert http.get(path).status_code == 401
        for path in ("/completion", "/infill", "/rerank", "/embedding", "/chat/completions", "/completions"):
            got = http.post(path, json={}, headers={"authorization": "Bearer wrong"})
            assert got.status_code == 401 and got.json()["error"]["code"] == "invalid_api_key"
        assert http.get("/v1/health").status_code == 200


def test_fields_that_are_asked_for(http: httpx.Client) -> None:
    body = {"prompt": CODE, "response_fields": ["content", "timings/predicted_n", "nothing", "stop/x", "/"]} | COLD
    plain = http.post("/completion", json={"prompt": CODE} | COLD).json()
    assert http.post("/completion", json=body).json() == {"content": plain["content"], "timings/predicted_n": 12}
    with http.stream("POST", "/completion", json=body | {"stream": True}) as got:
        parts = [json.loads(line[6:]) for line in lines_of(got) if line.startswith("data: ")]
    assert "".join(part["content"] for part in parts[:-1]) == plain["content"]
    assert parts[-1] == {"content": "", "timings/predicted_n": 12}
    assert http.post("/completion", json=body | {"response_fields": []}).json().keys() == plain.keys()


@pytest.mark.parametrize("name", ["n_cmpl", "n"])
def test_several_texts_of_a_prompt(http: httpx.Client, name: str) -> None:
    warm = COLD | {"temperature": 1.5, "seed": 5}
    got = http.post("/completion", json={"prompt": [CODE, "x"], name: 2} | warm).json()
    assert [part["index"] for part in got] == [0, 1, 2, 3]
    alone = [
        http.post("/completion", json={"prompt": p} | warm | {"seed": s}).json() for p in (CODE, "x") for s in (5, 6)
    ]
    assert [part["content"] for part in got] == [part["content"] for part in alone]
    assert isinstance(http.post("/completion", json={"prompt": ["x"], name: 1} | COLD).json(), dict)
    assert http.post("/completion", json={"prompt": "x", name: 0} | COLD).status_code == 400
