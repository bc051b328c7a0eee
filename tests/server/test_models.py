"""Several models behind one address: loaded on demand, unloaded, pinned, and one that cannot be loaded."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest

from lcspec.engine_thread import EngineThread
from lcspec.modelfiles.memory import Memory
from lcspec.server import library as library_module
from lcspec.server import lifecycle, models
from lcspec.server.library import Library
from lcspec.server.lifecycle import Background
from lcspec.server.model_entry import Entry, Progress
from lcspec.server.service import Service
from tests import tiny_gguf as tiny
from tests.running import until
from tests.server.running import HELLO, WAIT, lines_of, options, several

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, one that the library refuses, and a file that is none."""
    folder = tmp_path_factory.mktemp("models")
    tiny.write_llama(folder / "red.gguf", seed=1, chat_template=tiny.CHATML_TEMPLATE)
    tiny.write_llama(folder / "blue.gguf", seed=2, chat_template=tiny.CHATML_TEMPLATE)
    tiny.write_llama(folder / "broken.gguf", chat_template=tiny.CHATML_TEMPLATE, extra={"block_count": 3})
    (folder / "none.gguf").write_bytes(b"GGUF, but no more")
    return folder


def say(server: Background, model: str | None, tokens: int = 8, **body: Any) -> httpx.Response:
    asked = {"messages": HELLO, "max_tokens": tokens, "temperature": 0, **({"model": model} if model else {}), **body}
    return httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=WAIT)


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def states(server: Background) -> dict[str, str]:
    data = httpx.get(f"{server.url}/v1/models", timeout=WAIT).json()["data"]
    return {model["id"]: model["status"]["value"] for model in data}


def reach(server: Background, expected: dict[str, str]) -> None:
    until(lambda: states(server) == expected, lambda: states(server))


def test_models_are_loaded_when_they_are_named(folder: Path) -> None:
    with several(folder) as server:
        unloaded = {"red": "unloaded", "blue": "unloaded", "broken": "unloaded"}
        assert states(server) == unloaded
        assert httpx.get(f"{server.url}/health").json() == {
            "status": "ok", "slots": 0, "running": 0, "waiting": 0, "models": {},
        }  # fmt: skip
        assert httpx.get(f"{server.url}/api/ps").json() == {"models": []}
        red, blue = text(say(server, "red")), text(say(server, "blue"))
        assert red != blue and text(say(server, "red")) == red
        assert text(say(server, "blue.gguf")) == blue == text(say(server, "BLUE:latest"))
        assert states(server) == unloaded | {"red": "loaded", "blue": "loaded"}
        client = ollama.Client(server.url)
        assert {m.model for m in client.ps().models} == {"red", "blue"}
        assert {m.model for m in client.list().models} == set(unloaded)
        assert client.show("broken").details is not None  # which loads nothing
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'lcspec_generated_tokens_total{model="red"}' in metrics
        assert 'lcspec_generated_tokens_total{model="blue"}' in metrics
        assert 'lcspec_model_loads_total{model="red",result="loaded"} 1.0' in metrics
        assert metrics.count("# TYPE lcspec_generated_tokens_total") == 1
        # A request that names none gets the one used last.
        assert text(say(server, "red")) == text(say(server, None)) == red != text(say(server, "blue"))
        assert httpx.get(f"{server.url}/props", params={"model": "red"}).json()["model_alias"] == "red"
        info = httpx.get(f"{server.url}/v1/models/red").json()
        assert info["meta"]["slots"] == 2 and info["meta"]["n_ctx"] == 256


def test_a_request_that_names_none_gets_the_pinned_model(folder: Path) -> None:
    with several(folder) as server:
        blue = text(say(server, "blue"))
        models = server.server.models
        models.find("blue").pinned = True
        assert text(say(server, "red")) != blue == text(say(server, None))


def test_a_name_that_is_not_there_and_none_at_all(folder: Path) -> None:
    with several(folder) as server:
        got = say(server, "green")
        assert got.status_code == 404 and got.json()["error"]["code"] == "model_not_found"
        assert "red" in got.json()["error"]["message"]
        assert say(server, None).status_code == 404
        assert httpx.get(f"{server.url}/v1/models/green").status_code == 404
        assert httpx.get(f"{server.url}/props").status_code == 404


def test_the_same_name_in_two_folders(folder: Path, tmp_path: Path) -> None:
    tiny.write_llama(tmp_path / "red.gguf", seed=3, chat_template=tiny.CHATML_TEMPLATE)
    with several(folder, tmp_path) as server:
        assert text(say(server, "red")) != text(say(server, str(tmp_path / "red.gguf")))
        assert say(server, "red.gguf").status_code == 404  # which?


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_cannot_be_loaded_takes_nobody_along(folder: Path, stream: bool) -> None:
    with several(folder) as server:
        red = text(say(server, "red"))
        for _ in range(2):
            got = say(server, "broken", stream=stream)
            assert got.status_code == 503 and got.json()["error"]["code"] == "model_load_failed"
            assert "broken.gguf" in got.json()["error"]["message"]
        found = httpx.get(f"{server.url}/v1/models/broken").json()["status"]
        assert found["value"] == "failed" and "broken.gguf" in found["error"]
        assert text(say(server, "red")) == red
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_one_goes_when_there_is_no_place(folder: Path) -> None:
    with several(folder, max_loaded=1) as server:
        red, blue = text(say(server, "red")), text(say(server, "blue"))
        assert states(server) == {"red": "unloaded", "blue": "loaded", "broken": "unloaded"}
        with ThreadPoolExecutor(8) as pool:
            names = [("red", "blue")[i % 2] for i in range(24)]
            said = list(pool.map(lambda name: text(say(server, name)), names))
        assert said == [red if name == "red" else blue for name in names]
        assert sum(state == "loaded" for state in states(server).values()) == 1


def test_an_answer_is_finished_before_its_model_goes(folder: Path) -> None:
    with several(folder, max_loaded=1) as server, ThreadPoolExecutor(2) as pool:
        long = pool.submit(say, server, "red", 200, ignore_eos=True)
        while httpx.get(f"{server.url}/health").json()["running"] == 0 and not long.done():
            time.sleep(0.01)
        assert text(say(server, "blue"))
        assert long.result().json()["usage"]["completion_tokens"] == 200


def test_pinned_models_stay(folder: Path) -> None:
    with several(folder, max_loaded=1) as server:
        assert text(say(server, "red"))
        (entry,) = [e for e in server.server.models.entries if e.name == "red"]
        entry.pinned = True
        got = say(server, "blue")
        assert got.status_code == 503 and "--max-loaded" in got.json()["error"]["message"]
        assert text(say(server, "red"))


def test_an_idle_model_is_unloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "WATCH", 0.05)
    with several(folder, idle_unload=0.2) as server:
        red = text(say(server, "red"))
        reach(server, {"red": "unloaded", "blue": "unloaded", "broken": "unloaded"})
        assert text(say(server, "red")) == red


@pytest.mark.parametrize("keep_alive", [0, "0s"])
def test_unloading_as_ollamas_clients_do_it(folder: Path, keep_alive: int | str) -> None:
    with several(folder) as server:
        assert text(say(server, "red"))
        got = ollama.Client(server.url).generate(model="red", prompt="", keep_alive=keep_alive)
        assert got.done_reason == "unload"
        assert states(server)["red"] == "unloaded"


def test_loading_and_unloading_by_hand(folder: Path) -> None:
    with several(folder) as server, httpx.Client(base_url=server.url, timeout=WAIT) as http:
        assert http.post("/models/load", json={"model": "red"}).json() == {"success": True}
        assert states(server)["red"] == "loaded"
        assert http.post("/models/unload", json={"model": "red"}).json() == {"success": True}
        assert states(server)["red"] == "unloaded"
        assert http.post("/models/load", json={"model": "green"}).status_code == 404
        assert http.post("/models/load", json={"model": "broken"}).status_code == 503
        assert http.get("/v1/models/broken").json()["status"]["failed"] is True
        (entry,) = [e for e in server.server.models.entries if e.name == "blue"]
        entry.pinned = True
        assert http.post("/models/unload", json={"model": "blue"}).status_code == 400


class Slow(Library):
    """Loading takes a while."""

    gate = threading.Event()

    def load(self, entry: Entry, others: Iterable[Entry], progress: Progress) -> Service:
        progress(entry.name, 0.5)
        assert self.gate.wait(WAIT)
        return super().load(entry, others, progress)


@pytest.fixture()
def gate() -> Iterator[threading.Event]:
    Slow.gate = threading.Event()
    yield Slow.gate
    Slow.gate.set()


def test_a_stream_says_that_its_model_is_being_loaded(folder: Path, gate: threading.Event) -> None:
    with several(folder, loader=Slow) as server:
        body = {"model": "red", "messages": HELLO, "max_tokens": 4, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=WAIT) as got:
            assert got.status_code == 200
            lines = lines_of(got)
            assert next(lines).startswith(": loading red")
            assert states(server)["red"] == "loading"
            gate.set()
            rest = [line for line in lines if line.startswith("data: ")]
        assert rest[-1] == "data: [DONE]" and json.loads(rest[-2][6:])["choices"][0]["finish_reason"]


def test_other_streams_wait_without_a_word(folder: Path, gate: threading.Event) -> None:
    with several(folder, loader=Slow) as server:
        threading.Timer(2.5, gate.set).start()
        parts = list(ollama.Client(server.url).chat(model="red", messages=HELLO, stream=True))
        assert parts[-1].done
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            assert client.chat.completions.create(model="blue", messages=HELLO, max_tokens=4).choices  # type: ignore[arg-type]


def test_a_load_that_fails_late_ends_its_stream_with_an_error(folder: Path, gate: threading.Event) -> None:
    with several(folder, loader=Slow) as server:
        body = {"model": "broken", "messages": HELLO, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=WAIT) as got:
            lines = lines_of(got)
            next(lines)
            gate.set()
            (last,) = [line for line in lines if line.startswith("data: ")]
        assert "broken.gguf" in json.loads(last[6:])["error"]["message"]


def held_by_nobody(server: Background) -> None:
    until(lambda: not any(entry.users or entry.waiters for entry in server.server.models.entries))


def test_whoever_goes_away_while_it_is_loaded_holds_nothing(folder: Path, gate: threading.Event) -> None:
    with several(folder, loader=Slow, queue=3) as server:
        for stream in (False, True):
            for _ in range(3):
                with pytest.raises(httpx.TimeoutException):
                    body = {"model": "red", "messages": HELLO, "stream": stream}
                    httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=0.3)
        held_by_nobody(server)
        with ThreadPoolExecutor(12) as pool:
            waiting = [pool.submit(say, server, "red") for _ in range(12)]
            wait(waiting, WAIT, FIRST_COMPLETED)  # one too many is refused at once, and the others are held
            gate.set()
            codes = [future.result().status_code for future in waiting]
        assert set(codes) <= {200, 429} and codes.count(200) >= 3 and 429 in codes
        held_by_nobody(server)


def test_an_engine_that_dies_is_loaded_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Died(BaseException):
        pass

    def die(_: Any) -> None:
        raise Died("on purpose")

    monkeypatch.setattr(lifecycle, "WATCH", 0.05)
    with several(folder, o=options(in_process=True)) as server:
        red, blue = text(say(server, "red")), text(say(server, "blue"))
        (entry,) = [e for e in server.server.models.entries if e.name == "red"]
        assert entry.service is not None
        worker = entry.service.worker
        assert isinstance(worker, EngineThread)
        worker.order(die)
        while worker.alive:
            time.sleep(0.01)
        assert text(say(server, "blue")) == blue
        assert text(say(server, "red")) == red


def test_memory_is_looked_at_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (folder / "red.gguf").stat().st_size
    with several(folder) as server:
        monkeypatch.setattr(library_module, "machine_memory", lambda: Memory(int(size * 1.9), 1 << 40))
        assert text(say(server, "red")) and text(say(server, "blue"))
        assert states(server) == {"red": "unloaded", "blue": "loaded", "broken": "unloaded"}
        monkeypatch.setattr(library_module, "machine_memory", lambda: Memory(size // 2, 1 << 40))
        got = say(server, "red")
        assert got.status_code == 503 and "cannot fit into memory" in got.json()["error"]["message"]


def test_a_draft_is_paired(tmp_path: Path) -> None:
    tiny.write_llama(tmp_path / "big.gguf", n_layer=6, chat_template=tiny.CHATML_TEMPLATE)
    tiny.write_llama(tmp_path / "small.gguf", n_layer=1, chat_template=tiny.CHATML_TEMPLATE)
    with several(tmp_path, o=options(no_draft=False)) as server:
        assert text(say(server, "big"))
        meta = httpx.get(f"{server.url}/v1/models/big").json()["meta"]
        assert meta["drafters"] == ["model"]
        assert text(say(server, "small"))
        assert httpx.get(f"{server.url}/v1/models/small").json()["meta"]["drafters"] == []


def test_every_other_endpoint_loads_as_well(folder: Path) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": HELLO}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["a", "b"]}),
        ("/api/generate", {"prompt": "a", "options": {"num_predict": 2}, "stream": False}),
        ("/api/embed", {"input": "a"}),
        ("/completion", {"prompt": "a", "n_predict": 2}),
        ("/tokenize", {"content": "a"}),
        ("/detokenize", {"tokens": [1]}),
        ("/apply-template", {"messages": HELLO}),
    ]
    with several(folder, max_loaded=1) as server:
        for i, (path, body) in enumerate(asked):
            name = ("red", "blue")[i % 2]
            got = httpx.post(f"{server.url}{path}", json=body | {"model": name}, timeout=WAIT)
            assert got.status_code == 200, (path, got.text)
            assert states(server)[name] == "loaded"


def test_new_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.write_llama(tmp_path / "one.gguf", chat_template=tiny.CHATML_TEMPLATE)
    with several(tmp_path) as server:
        assert set(states(server)) == {"one"}
        assert text(say(server, "one"))
        tiny.write_llama(tmp_path / "two.gguf", chat_template=tiny.CHATML_TEMPLATE)
        server.server.models._scanned = -1e9
        assert states(server) == {"one": "loaded", "two": "unloaded"}
        assert text(say(server, "two"))
