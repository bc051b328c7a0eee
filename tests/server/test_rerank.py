"""POST /v1/rerank: by a reranker or by similarity, in the forms of Jina and of Text Embeddings Inference."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from lcspec.config import ModelOptions
from lcspec.session import open_session
from tests import tiny_gguf as tiny
from tests.server.running import WAIT, background

pytestmark = pytest.mark.server

TEXTS = ["def f(x): return x", "Good morning", "Good evening"]


def test_the_form_of_tei(http: httpx.Client) -> None:
    jina = http.post("/rerank", json={"query": "Good morning", "documents": TEXTS}).json()["results"]
    for path in ("/rerank", "/v1/rerank", "/reranking", "/v1/reranking"):
        tei = http.post(path, json={"query": "Good morning", "texts": TEXTS}).json()
        assert tei == [{"index": one["index"], "score": one["relevance_score"]} for one in jina]
    best = http.post("/rerank", json={"query": "Good morning", "texts": TEXTS, "top_n": 1, "return_text": True}).json()
    assert [one["text"] for one in best] == ["Good morning"]


@pytest.mark.parametrize("more", [{}, {"documents": TEXTS, "texts": TEXTS}, {"texts": []}, {"texts": [{"text": "a"}]}])
def test_one_list_of_texts_is_needed(http: httpx.Client, more: dict[str, object]) -> None:
    got = http.post("/rerank", json={"query": "x"} | more)
    assert got.status_code == 400 and got.json()["error"]["message"]


@pytest.mark.parametrize("here", [True, False], ids=["thread", "process"])
def test_a_reranker(tmp_path: Path, here: bool) -> None:
    path = tiny.write_bert(tmp_path / "rank.gguf", pooling=4)
    documents = ["x y", "a b", "c"]
    with open_session(ModelOptions(path, ctx=64, threads=1)) as session:
        found = [found for found in session.rank_in_pieces("a b", documents) if found is not None]
    scores, counts = found[0]
    order = sorted(range(3), key=lambda i: -scores[i])
    with (
        background(path, ctx=64, slots=1, warm=False, here=here) as running,
        httpx.Client(base_url=running.url, timeout=WAIT) as http,
    ):
        got = http.post("/v1/rerank", json={"query": "a b", "documents": documents}).json()
        assert [one["index"] for one in got["results"]] == order
        assert [one["relevance_score"] for one in got["results"]] == pytest.approx([scores[i] for i in order], abs=1e-5)
        assert got["usage"] == {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
        tei = http.post("/rerank", json={"query": "a b", "texts": documents}).json()
        assert [one["index"] for one in tei] == order
        long = http.post("/rerank", json={"query": "a b", "documents": ["fine", "x " * 60]})
        assert long.status_code == 400 and long.json()["error"]["code"] == "context_length_exceeded"
        assert http.post("/v1/embeddings", json={"input": "a"}).status_code == 400
        assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 400
