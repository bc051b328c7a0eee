"""llama-server's /embedding and /lora-adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from lcspec.config import Lora, ModelOptions
from lcspec.engine_thread import EngineThread
from lcspec.server.app import create_app
from lcspec.server.lifecycle import Background
from lcspec.server.settings import ServerSettings
from tests import tiny_gguf as tiny
from tests.server.running import MODEL, WAIT

pytestmark = pytest.mark.server


def _vectors(http: httpx.Client, **body: Any) -> np.ndarray:
    got = http.post("/embedding", json=body).json()
    assert [one["index"] for one in got] == list(range(len(got))) and all(len(one["embedding"]) == 1 for one in got)
    return np.array([one["embedding"][0] for one in got])


def test_embeddings_in_llama_server_s_form(http: httpx.Client) -> None:
    texts = ["a cup of coffee", "Good morning"]
    plain = [one["embedding"] for one in http.post("/v1/embeddings", json={"input": texts}).json()["data"]]
    for name in ("content", "input"):
        assert _vectors(http, **{name: texts}) == pytest.approx(np.array(plain), abs=1e-6)
    assert _vectors(http, content=texts[0])[0] == pytest.approx(np.array(plain[0]), abs=1e-6)
    ids = http.post("/tokenize", json={"content": texts[0], "add_special": True}).json()["tokens"]
    assert _vectors(http, content=[ids, texts[1]]) == pytest.approx(np.array(plain), abs=1e-6)


def test_embeddings_of_other_lengths(http: httpx.Client) -> None:
    raw = _vectors(http, content="a cup of coffee", embd_normalize=-1)[0]
    assert np.linalg.norm(raw) != pytest.approx(1, abs=0.01)
    for power in (1, 2, 3):
        found = _vectors(http, content="a cup of coffee", embd_normalize=power)[0]
        assert found == pytest.approx(raw / (np.abs(raw) ** power).sum() ** (1 / power), rel=1e-4)
    largest = _vectors(http, content="a cup of coffee", embd_normalize=0)[0]
    assert largest == pytest.approx(raw / np.abs(raw).max() * 32760, rel=1e-4)
    assert np.isfinite(_vectors(http, content="a cup of coffee", embd_normalize=2**31 - 1)).all()


@pytest.mark.parametrize(
    "body",
    [{}, {"content": ""}, {"content": []}, {"content": "a", "input": "b"}, {"content": "a", "embd_normalize": -2}],
)
def test_what_cannot_be_embedded_is_said(http: httpx.Client, body: dict[str, Any]) -> None:
    got = http.post("/embedding", json=body)
    assert got.status_code == 400 and got.json()["error"]["message"]


def test_adapters(tmp_path: Path) -> None:
    model, lora = tiny.write_llama(tmp_path / "model.gguf"), tiny.write_lora(tmp_path / "style.gguf")
    options = ModelOptions(model, ctx=256, slots=1, threads=1, lora=(Lora(lora, 0.5), Lora(lora, 0.0)))
    worker = EngineThread(options)
    running = Background(create_app(worker, ServerSettings(models=(MODEL,))))
    try:
        with httpx.Client(base_url=running.url, timeout=WAIT) as http:
            told = http.get("/lora-adapters").json()
            assert told == [
                {"id": 0, "path": "style.gguf", "scale": 0.5},
                {"id": 1, "path": "style.gguf", "scale": 0.0},
            ]
            assert http.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}]).json() == {"success": True}
            for scales in ([], [{"id": 0, "scale": 1.0}], [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 1.0}]):
                refused = http.post("/lora-adapters", json=scales)
                assert refused.status_code == 501 and "--lora FILE:SCALE" in refused.json()["error"]["message"]
            for wrong in ([{"id": 2, "scale": 1.0}], {"id": 0}, [{"id": 0}], [{"id": -1, "scale": 1.0}]):
                assert http.post("/lora-adapters", json=wrong).status_code == 400
    finally:
        running.close()
        assert worker.close(timeout=WAIT)


def test_no_adapters(http: httpx.Client) -> None:
    assert http.get("/lora-adapters", params={"model": MODEL}).json() == []
    assert http.post("/lora-adapters", json=[]).json() == {"success": True}
    assert http.get("/lora-adapters", params={"model": "nobody"}).status_code == 404
