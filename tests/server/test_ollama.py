"""Ollama's API through its own client, and what that would not send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from lcspec.server import unknown
from lcspec.server.lifecycle import Background
from tests import tiny_gguf as tiny
from tests.server.running import CODE, HELLO, MODEL, background, lines_of

pytestmark = pytest.mark.server

COLD: dict[str, Any] = {"temperature": 0, "num_predict": 12}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather",
        "parameters": {"type": "object", "properties": {"hot": {"type": "boolean"}}, "required": ["hot"]},
    },
}


@pytest.fixture(scope="module")
def llama(server: Background) -> Iterator[ollama.Client]:
    yield ollama.Client(host=server.url, timeout=300)


def _plain(http: httpx.Client, **more: Any) -> dict[str, Any]:
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 12} | more
    data: dict[str, Any] = http.post("/v1/chat/completions", json=body).json()
    return data


def test_chat(llama: ollama.Client, http: httpx.Client) -> None:
    got = llama.chat(model=MODEL, messages=HELLO, options=COLD)
    plain = _plain(http)
    assert got.message.content == plain["choices"][0]["message"]["content"]
    assert got.done and got.done_reason == plain["choices"][0]["finish_reason"]
    assert got.eval_count == plain["usage"]["completion_tokens"]
    assert got.prompt_eval_count == plain["usage"]["prompt_tokens"]
    parts = list(llama.chat(model=f"{MODEL}:latest", messages=HELLO, options=COLD, stream=True))
    assert "".join(p.message.content or "" for p in parts) == got.message.content
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]


def test_generate(llama: ollama.Client, http: httpx.Client) -> None:
    prompt = HELLO[0]["content"]
    got = llama.generate(model=MODEL, prompt=prompt, options=COLD)
    assert got.response == _plain(http)["choices"][0]["message"]["content"]
    raw = llama.generate(model=MODEL, prompt=CODE, raw=True, options=COLD)
    body = {"prompt": CODE, "temperature": 0, "max_tokens": 12}
    assert raw.response == http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    for given in ({"prompt": prompt, "system": "Be brief."}, {"prompt": CODE, "raw": True}):
        whole = llama.generate(model=MODEL, options=COLD, **given)  # type: ignore[call-overload]
        parts = llama.generate(model=MODEL, options=COLD, stream=True, **given)  # type: ignore[call-overload]
        assert "".join(p.response for p in parts) == whole.response


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(llama: ollama.Client, http: httpx.Client, stream: bool) -> None:
    def told(got: Any) -> list[Any]:
        parts = list(got) if stream else [got]
        found = [entry for part in parts for entry in part.logprobs or ()]
        return [(e.token, e.logprob, [(t.token, t.logprob) for t in e.top_logprobs]) for e in found]

    asked: dict[str, Any] = {"model": MODEL, "options": COLD, "logprobs": True, "top_logprobs": 2, "stream": stream}
    plain = _plain(http, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    seen = [(e["token"], e["logprob"], [(t["token"], t["logprob"]) for t in e["top_logprobs"]]) for e in plain]
    got = told(llama.chat(messages=HELLO, **asked))
    assert [e[0] for e in got] == [e[0] for e in seen] and got[0][1] == pytest.approx(seen[0][1], abs=0.1)
    prompt = HELLO[0]["content"]
    for given in ({"prompt": prompt}, {"prompt": CODE, "raw": True}):
        got = told(llama.generate(**given, **asked))
        assert len(got) >= 8 and all(len(tops) == 2 for _, _, tops in got)
    assert [t for t, _, _ in told(llama.generate(prompt=prompt, **asked))] == [t for t, _, _ in seen]
    without = llama.chat(model=MODEL, messages=HELLO, options=COLD, top_logprobs=2)
    assert without.logprobs is None


@pytest.mark.parametrize("form", ["json", TOOL["function"]["parameters"]])
def test_formats(llama: ollama.Client, form: Any) -> None:
    options = COLD | {"num_predict": 80}
    got = llama.chat(model=MODEL, messages=HELLO, format=form, options=options)
    if form == "json":
        assert (got.message.content or "").lstrip().startswith("{")
    else:
        assert isinstance(json.loads(got.message.content or "")["hot"], bool)
    raw = llama.generate(model=MODEL, prompt=CODE, raw=True, format=form, options=options).response or ""
    assert raw.lstrip().startswith("{") if form == "json" else isinstance(json.loads(raw)["hot"], bool)


def test_tools_and_what_they_gave_back(http: httpx.Client) -> None:
    talk: Any = [
        *HELLO,
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"hot": True}}}]},
        {"role": "tool", "tool_name": "weather", "content": "30"},
    ]
    asked = {"messages": talk, "tools": [TOOL], "options": COLD, "stream": False}
    got = http.post("/api/chat", json=asked).json()
    call = {"id": "", "type": "function", "function": {"name": "weather", "arguments": '{"hot": true}'}}
    same = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "weather", "content": "30"},
    ]
    plain = _plain(http, messages=same, tools=[TOOL])
    assert got["prompt_eval_count"] == plain["usage"]["prompt_tokens"]
    assert got["message"]["content"] == plain["choices"][0]["message"]["content"]


def test_calls_have_arguments_as_objects(llama: ollama.Client, http: httpx.Client) -> None:
    asked = {"messages": HELLO, "tools": [TOOL], "tool_choice": "required", "options": COLD | {"num_predict": 80}}
    got = ollama.ChatResponse.model_validate(http.post("/api/chat", json=asked | {"stream": False}).json())
    (call,) = got.message.tool_calls or ()
    assert call.function.name == "weather" and isinstance(call.function.arguments["hot"], bool)
    lines = [json.loads(line) for line in lines_of(http.post("/api/chat", json=asked)) if line]
    (found,) = [line["message"]["tool_calls"] for line in lines if line["message"].get("tool_calls")]
    assert found[0]["function"] == {"name": "weather", "arguments": dict(call.function.arguments)}
    assert lines[-1]["done"] is True


def test_what_there_is(llama: ollama.Client, http: httpx.Client) -> None:
    (model,) = llama.list().models
    assert model.model == MODEL and model.details is not None and model.details.format == "gguf"
    (running,) = llama.ps().models
    assert running.model == MODEL
    shown = llama.show(MODEL)
    assert shown.capabilities is not None and "completion" in shown.capabilities and "tools" in shown.capabilities
    assert shown.modelinfo is not None
    architecture = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{architecture}.context_length"] == 512
    assert int(http.get("/api/version").json()["version"].split(".")[1]) >= 6


def test_embeddings(llama: ollama.Client, http: httpx.Client) -> None:
    got = llama.embed(model=MODEL, input=["one", "two"])
    plain = http.post("/v1/embeddings", json={"input": ["one", "two"]}).json()
    assert [list(e) for e in got.embeddings] == [d["embedding"] for d in plain["data"]]
    assert list(llama.embeddings(model=MODEL, prompt="one").embedding) == plain["data"][0]["embedding"]


def test_a_long_text_is_cut_unless_told_otherwise(llama: ollama.Client, http: httpx.Client) -> None:
    got = llama.embed(model=MODEL, input=["word " * 30000, "two"])
    ids = http.post("/tokenize", json={"content": "word " * 600, "add_special": True}).json()["tokens"]
    plain = [http.post("/v1/embeddings", json={"input": text}).json() for text in (ids[:512], "two")]
    assert [list(e) for e in got.embeddings] == [p["data"][0]["embedding"] for p in plain]
    assert got.prompt_eval_count == sum(p["usage"]["prompt_tokens"] for p in plain)
    with pytest.raises(ollama.ResponseError, match="512"):
        llama.embed(model=MODEL, input="word " * 600, truncate=False)


def test_the_end_of_a_cut_text_is_the_model_s(tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    tiny.write_bert(path)
    with background(path, ctx=64, slots=1, warm=False) as running:
        got = httpx.post(f"{running.url}/api/embed", json={"input": "a" * 500}).json()
        ids = httpx.post(f"{running.url}/tokenize", json={"content": "a" * 500, "add_special": True}).json()["tokens"]
        room = got["prompt_eval_count"]
        plain = httpx.post(f"{running.url}/v1/embeddings", json={"input": ids[: room - 1] + ids[-1:]}).json()
        assert room < len(ids) and got["embeddings"][0] == plain["data"][0]["embedding"]


def test_asking_to_load(llama: ollama.Client) -> None:
    assert llama.generate(model=MODEL, keep_alive="5m").done_reason == "load"
    assert llama.chat(model=MODEL, messages=[]).done_reason == "load"


def test_options_that_mean_nothing(http: httpx.Client) -> None:
    body = {"messages": HELLO, "stream": False, "options": {"num_ctx": 4096, "num_gpu": 1, "num_predict": 1}}
    got = http.post("/api/chat", json=body)
    assert got.status_code == 200 and got.headers[unknown.HEADER] == "options.num_ctx, options.num_gpu"


def test_what_keeping_a_model_means_here_is_said(http: httpx.Client) -> None:
    """It stays anyway; without models on demand it cannot go either."""
    for path, body in (
        ("chat", {"messages": HELLO, "options": {"num_predict": 1}, "keep_alive": "5m"}),
        ("generate", {"prompt": "", "keep_alive": 0}),
        ("embed", {"input": "x", "keep_alive": -1}),
    ):
        got = http.post(f"/api/{path}", json=body | {"stream": False} if path != "embed" else body)
        assert got.status_code == 200 and got.headers[unknown.HEADER] == "keep_alive"


def test_names_of_other_apis(http: httpx.Client) -> None:
    body: dict[str, Any] = {"messages": HELLO, "stream": False, "temperature": 0, "max_tokens": 12}
    whole = http.post("/api/chat", json=body).json()
    assert whole["message"]["content"] == _plain(http)["choices"][0]["message"]["content"]
    assert http.post("/api/chat", json=body | {"max_tokens": 3}).json()["eval_count"] == 3
    stop = whole["message"]["content"][4:7]
    for more in ({"stop": stop}, {"stop": "never", "options": {"stop": [stop]}}):
        got = http.post("/api/chat", json=body | more).json()["message"]["content"]
        assert got == whole["message"]["content"][: whole["message"]["content"].index(stop)]
    for path, asked in (("chat", body), ("generate", {"prompt": "x", "raw": True, "stream": False})):
        got = http.post(f"/api/{path}", json=asked | {"grammar": 'root ::= "yes"'})
        assert (got.json().get("message", {}).get("content") or got.json().get("response")) == "yes"
        assert unknown.HEADER not in got.headers


def test_arguments_for_the_template(tiny_model: Path) -> None:
    with background(tiny_model, warm=False, chat_template="{{ mood }}.") as running:
        for path, asked in (("chat", {"messages": HELLO}), ("generate", {"prompt": "x"})):
            body = asked | {"options": {"num_predict": 1}, "stream": False, "chat_template_kwargs": {"mood": "good"}}
            got = httpx.post(f"{running.url}/api/{path}", json=body).json()
            plain = httpx.post(f"{running.url}/tokenize", json={"content": "good.", "add_special": True}).json()
            assert got["prompt_eval_count"] == len(plain["tokens"])


def test_the_most_thinking_is_what_templates_know(tiny_model: Path) -> None:
    with background(tiny_model, warm=False, chat_template="{{ reasoning_effort }}.") as running:
        for think, shown in (("max", "high."), ("low", "low."), (True, ".")):
            body = {"messages": HELLO, "think": think, "options": {"num_predict": 1}, "stream": False}
            got = httpx.post(f"{running.url}/api/chat", json=body).json()
            plain = httpx.post(f"{running.url}/tokenize", json={"content": shown, "add_special": True}).json()
            assert got["prompt_eval_count"] == len(plain["tokens"])


def test_what_its_clients_send_besides(http: httpx.Client) -> None:
    call = {"function": {"name": "mcp:weather", "arguments": {"hot": True}}}
    talk = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "30"}]
    tool = {"type": "function", "function": TOOL["function"] | {"name": "mcp:weather"}}
    body = {"messages": talk, "tools": [tool], "options": {"num_predict": 1}, "stream": False}
    got = http.post("/api/chat", json=body)
    assert got.status_code == 200, got.text
    for nothing in ([], ""):
        assert http.post("/api/embed", json={"input": nothing}).json()["embeddings"] == []
    for path in ("tags", "version"):
        got = http.head(f"/api/{path}")
        assert got.status_code == 200 and not got.content


@pytest.mark.parametrize(
    "path, body, said",
    [
        ("chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "text only"),
        ("chat", {"messages": [{"role": "king", "content": "x"}]}, "role"),
        ("chat", {"messages": HELLO, "options": {"tfs_z": 0.5}}, "leave it out"),
        ("chat", {"messages": HELLO, "format": "xml"}, "format"),
        ("chat", {"messages": [{"role": "user", "content": "word " * 3000}]}, "--ctx"),
        ("generate", {"prompt": "x", "context": [1]}, "context"),
        ("generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "--chat-template"),
        ("generate", {"prompt": "x", "raw": True, "system": "y"}, "raw"),
        ("generate", {"prompt": "x", "suffix": "y"}, "fill-in-the-middle"),
        ("embed", {}, "input"),
        ("embeddings", {}, "prompt"),
    ],
)
def test_errors_are_in_its_form(http: httpx.Client, path: str, body: dict[str, Any], said: str) -> None:
    got = http.post(f"/api/{path}", json=body)
    assert got.status_code == 400 and said in got.json()["error"], got.text


def test_a_wrong_key(tiny_model: Path) -> None:
    with (
        background(tiny_model, warm=False, api_keys=("right",)) as running,
        httpx.Client(base_url=running.url, timeout=300) as http,
    ):
        for path in ("tags", "ps", "version"):
            assert http.get(f"/api/{path}").status_code == 401
        for path in ("chat", "generate", "embed", "embeddings", "show"):
            got = http.post(f"/api/{path}", json={})
            assert got.status_code == 401 and isinstance(got.json()["error"], str)


def test_an_embedding_model_says_so(tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    tiny.write_bert(path)
    with background(path, ctx=64, slots=1, warm=False) as running:
        shown = httpx.post(f"{running.url}/api/show", json={}).json()
        assert shown["capabilities"] == ["embedding"]
