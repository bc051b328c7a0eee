"""What requests get when the engine has died: a clean 503 that says what to do, and never memory that is gone."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from lcspec.config import ModelOptions
from lcspec.errors import ModelClosed
from lcspec.llama import Model
from lcspec.llama.grammar import compile_grammar
from lcspec.server import lifecycle
from tests.server.running import HELLO, background, engine_of

pytestmark = pytest.mark.server


class Died(BaseException):
    """No error that anybody expects."""


def die(_: Any) -> None:
    raise Died("on purpose")


def test_requests_after_the_engines_death(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "WATCH", 600.0)  # the server would end, and nobody could ask it
    with background(tiny_model, ctx=2048, slots=2, queue=200, warm=False, here=True) as server:
        url, worker = server.url, engine_of(server)
        answers: list[httpx.Response] = []
        stop = threading.Event()
        text = "a long text, " * 400

        def ask() -> None:
            with httpx.Client(base_url=url, timeout=300) as http:
                while not stop.is_set():
                    answers.append(http.post("/tokenize", json={"content": text}))
                    answers.append(http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 4}))

        askers = [threading.Thread(target=ask) for _ in range(4)]
        for asker in askers:
            asker.start()
        while len(answers) < 20:
            time.sleep(0.01)
        worker.order(die)
        while worker.alive:
            time.sleep(0.01)
        known = len(answers)
        while len(answers) < known + 40:
            time.sleep(0.01)
        stop.set()
        for asker in askers:
            asker.join()
        assert {a.status_code for a in answers} == {200, 503}
        last = answers[-1].json()["error"]
        assert last["code"] in ("engine_stopped", "unavailable") and "restart" in last["message"]
        for path, body in [
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/messages", {"messages": HELLO, "max_tokens": 4}),
            ("/v1/embeddings", {"input": "a"}),
            ("/apply-template", {"messages": HELLO}),
            ("/detokenize", {"tokens": [1, 2]}),
            ("/api/chat", {"messages": HELLO}),
            ("/completion", {"prompt": "a"}),
        ]:
            got = httpx.post(f"{url}{path}", json=body, timeout=300)
            assert got.status_code in (200, 503), (path, got.text)
        health = httpx.get(f"{url}/health")
        assert health.status_code == 503 and health.json()["status"] == "failed"
        assert "on purpose" in health.json()["error"]
        assert httpx.get(f"{url}/metrics").status_code == 200


def test_a_vocabulary_outlives_no_model(tiny_model: Path) -> None:
    model = Model.load(ModelOptions(tiny_model))
    vocab = model.vocab
    assert vocab.tokenize("abc")
    reading, closed = threading.Event(), threading.Event()

    def close() -> None:
        reading.wait()
        model.close()
        closed.set()

    closer = threading.Thread(target=close)
    closer.start()
    with vocab.alive:  # as while the library tokenizes
        reading.set()
        assert not closed.wait(0.2)
    closer.join()
    for use in (
        lambda: vocab.tokenize("abc"),
        lambda: vocab.piece(7, special=True),
        lambda: vocab.end_tokens,
        lambda: vocab.fill_in_middle,
        lambda: vocab.fingerprint(),
        lambda: compile_grammar(vocab, 'root ::= "a"'),
    ):
        with pytest.raises(ModelClosed, match="not loaded any more"):
            use()
