"""Whatever is wrong with a request, it gets the right status and an OpenAI error body."""

from __future__ import annotations

import json
import re
import shlex
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from lcspec.errors import UsageError
from lcspec.server.auth import read_keys
from tests.sampling.test_grammar import EXPLODING
from tests.server.leaks import wait_idle
from tests.server.running import HELLO, MODEL, background

pytestmark = pytest.mark.server

CHAT = "/v1/chat/completions"
LONG = "word " * 3000


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The body's error, checked for shape."""
    data = answer.json()
    assert set(data) == {"error"} and set(data["error"]) == {"message", "type", "param", "code"}
    assert isinstance(data["error"]["message"], str) and data["error"]["message"]
    return dict(data["error"])


BAD: dict[str, tuple[str, dict[str, Any], int, str | None, str | None]] = {
    "no messages": (CHAT, {"model": MODEL}, 400, "messages", "missing_required_parameter"),
    "empty messages": (CHAT, {"messages": []}, 400, "messages", "invalid_value"),
    "a role nobody knows": (CHAT, {"messages": [{"role": "king", "content": ""}]}, 400, "messages[0].role", None),
    "an image": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "messages[0].content[0].type",
        None,
    ),
    "temperature as text": (CHAT, {"messages": HELLO, "temperature": "hot"}, 400, "temperature", "invalid_value"),
    "temperature below 0": (CHAT, {"messages": HELLO, "temperature": -1}, 400, "temperature", "invalid_value"),
    "max_tokens as text": (CHAT, {"messages": HELLO, "max_tokens": "10"}, 400, "max_tokens", "invalid_value"),
    "max_tokens below 0": (CHAT, {"messages": HELLO, "max_tokens": -5}, 400, "max_tokens", "invalid_value"),
    "what would change the text": (
        CHAT,
        {"messages": HELLO, "guided_json": {"type": "object"}},
        400,
        "guided_json",
        "unsupported_parameter",
    ),
    "an unknown parameter inside": (
        CHAT,
        {"messages": HELLO, "speculation": {"fast": True}},
        400,
        "speculation.fast",
        "unknown_parameter",
    ),
    "a schema that is none": (
        CHAT,
        {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "dog"}}}},
        400,
        "response_format",
        "invalid_schema",
    ),
    "a schema elsewhere": (
        CHAT,
        {
            "messages": HELLO,
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "https://example.com/x"}}},
        },
        400,
        "response_format",
        "invalid_schema",
    ),
    "no schema": (
        CHAT,
        {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        400,
        "response_format.json_schema.schema",
        None,
    ),
    "a text that is not there": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        400,
        "messages[0].content[0].text",
        "missing_required_parameter",
    ),
    "a stop that is an object": (CHAT, {"messages": HELLO, "stop": {"a": 1}}, 400, "stop", None),
    "a schema of another type": (
        CHAT,
        {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
        400,
        "response_format.json_schema.schema",
        None,
    ),
    "a schema of another type beside the format's": (
        CHAT,
        {"messages": HELLO, "response_format": {"type": "json_object", "schema": 1}},
        400,
        "response_format.schema",
        None,
    ),
    "a grammar that is none": (CHAT, {"messages": HELLO, "grammar": "root ::= nowhere"}, 400, None, None),
    "a deep grammar": (CHAT, {"messages": HELLO, "grammar": "root ::= " + "(" * 9000}, 400, "grammar", None),
    "a grammar that repeats backwards": (
        CHAT,
        {"messages": HELLO, "grammar": 'root ::= "a"{5,2}'},
        400,
        "grammar",
        None,
    ),
    "a schema that cannot be held to": (
        CHAT,
        {
            "messages": HELLO,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"properties": {"tags": {"type": "array", "uniqueItems": True}}}},
            },
        },
        400,
        "response_format",
        "invalid_schema",
    ),
    "a grammar over its budget": (
        CHAT,
        {"messages": HELLO, "grammar": EXPLODING, "max_tokens": 20},
        400,
        None,
        "grammar_failed",
    ),
    "a bias for no token": (CHAT, {"messages": HELLO, "logit_bias": {"99999999": 1}}, 400, "logit_bias", None),
    "an unknown drafter": (CHAT, {"messages": HELLO, "speculation": {"drafters": "magic"}}, 400, None, None),
    "a drafter with a file": (
        CHAT,
        {"messages": HELLO, "speculation": {"drafters": "ngram:path=/etc/passwd"}},
        400,
        "speculation",
        None,
    ),
    "an unknown verifier": (CHAT, {"messages": HELLO, "speculation": {"verifier": "hope"}}, 400, None, None),
    "a grammar and a verifier that does not know it": (
        CHAT,
        {"messages": HELLO, "grammar": 'root ::= "a"', "speculation": {"verifier": "typical"}},
        400,
        None,
        None,
    ),
    "top_logprobs alone": (CHAT, {"messages": HELLO, "top_logprobs": 3}, 400, "top_logprobs", None),
    "two token limits": (CHAT, {"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 2}, 400, None, None),
    "more texts than fit": (CHAT, {"messages": HELLO, "n": 100}, 400, "n", None),
    "a prompt that does not fit": (
        CHAT,
        {"messages": [{"role": "user", "content": LONG}]},
        400,
        None,
        "context_length_exceeded",
    ),
    "a prompt far too long": (
        "/v1/completions",
        {"prompt": "x" * 900_000},
        400,
        None,
        "context_length_exceeded",
    ),
    "an empty list of prompts": ("/v1/completions", {"prompt": []}, 400, "prompt", None),
    "a token that does not exist": ("/v1/completions", {"prompt": [1, 99999]}, 400, None, None),
    "best_of": ("/v1/completions", {"prompt": "a", "best_of": 4}, 400, "best_of", None),
    "a suffix for a model that cannot": ("/v1/completions", {"prompt": "a", "suffix": "b"}, 400, None, None),
    "an empty text to embed": ("/v1/embeddings", {"input": ""}, 400, "input", None),
    "no text to embed": ("/v1/embeddings", {"input": []}, 400, "input", None),
    "too many dimensions": ("/v1/embeddings", {"input": "a", "dimensions": 9999}, 400, "dimensions", None),
    "an earlier response": (
        "/v1/responses",
        {"input": "a", "previous_response_id": "resp_1"},
        400,
        "previous_response_id",
        None,
    ),
    "a function without a name": ("/v1/responses", {"input": "a", "tools": [{"type": "function"}]}, 400, None, None),
    "a template argument of ours": (
        CHAT,
        {"messages": HELLO, "chat_template_kwargs": {"messages": []}},
        400,
        "chat_template_kwargs",
        None,
    ),
    "a lone surrogate": (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}, 400, None, None),
    "a path that does not exist": ("/v1/nothing", {}, 404, None, None),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_requests(http: httpx.Client, what: str) -> None:
    path, body, status, param, code = BAD[what]
    start = time.monotonic()
    got = http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert got.status_code == status, got.text
    error = error_of(got)
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param
    assert code is None or error["code"] == code
    assert time.monotonic() - start < 200  # no retry, no endless wait


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "a"}], "seed": ' + b"9" * 5000 + b"}",
        b'{"messages": ' + b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": "a"}], "tools": ' + b"[" * 500 + b"]" * 500 + b"}",
    ],
)
def test_malformed_bodies(http: httpx.Client, content: bytes) -> None:
    got = http.post(CHAT, content=content, headers={"content-type": "application/json"})
    assert got.status_code == 400, got.text
    error_of(got)


def test_a_body_that_is_not_declared_as_json_is_refused(http: httpx.Client) -> None:
    """A page in a browser may send text/plain anywhere without asking; so it is not read."""
    got = http.post(CHAT, content=json.dumps({"messages": HELLO}), headers={"content-type": "text/plain"})
    assert got.status_code == 400
    assert "content-type: application/json" in error_of(got)["message"]


def test_the_documented_commands_are_answered(http: httpx.Client) -> None:
    """curl declares what `-d` sends as a form where nothing else is said, and a form is not read."""
    root = Path(__file__).resolve().parents[2]
    text = "\n".join((root / name).read_text() for name in ("README.md", "docs/server.md"))
    commands = [shlex.split(c) for c in re.findall(r"^ +(curl .*)$", re.sub(r"\\\n\s*", " ", text), re.M)]
    sent = [c for c in commands if "-d" in c]
    assert len(sent) >= 2
    for command in sent:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        headers |= dict(h.split(": ", 1) for flag, h in zip(command, command[1:]) if flag == "-H")
        path = "/v1/" + command[1].split("/v1/", 1)[1]
        body = {**json.loads(command[command.index("-d") + 1]), "max_tokens": 4}
        got = http.post(path, content=json.dumps(body), headers=headers)
        assert got.status_code == 200, got.text


def test_a_wrong_method(http: httpx.Client) -> None:
    got = http.get(CHAT)
    assert got.status_code == 405 and error_of(got)["message"]


def test_an_oversized_body(http: httpx.Client) -> None:
    got = http.post(CHAT, json={"messages": [{"role": "user", "content": "x" * 10_000_000}]})
    assert got.status_code == 413
    assert error_of(got)["type"] == "invalid_request_error"


def test_an_oversized_body_without_a_length(http: httpx.Client) -> None:
    got = http.post(CHAT, content=(b"x" * 65536 for _ in range(100)), headers={"content-type": "application/json"})
    assert got.status_code == 413
    error_of(got)


def test_the_official_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": LONG}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as stream:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": LONG}], stream=True)
    assert stream.value.code == "context_length_exceeded"


def test_a_full_queue_says_when_to_come_back(tiny_model: Path) -> None:
    with background(tiny_model, slots=1, queue=1, ctx=4096, speculate="off", warm=False) as server:
        body = {"messages": HELLO, "ignore_eos": True, "stream": True}
        with httpx.Client(base_url=server.url, timeout=300) as http:
            with http.stream("POST", CHAT, json=body) as running, http.stream("POST", CHAT, json=body) as waiting:
                assert running.status_code == waiting.status_code == 200
                refused = http.post(CHAT, json={"messages": HELLO, "max_tokens": 1})
                assert refused.status_code == 429
                error = error_of(refused)
                assert error["code"] == "queue_full" and error["type"] == "rate_limit_error"
                assert [slot["is_processing"] for slot in http.get("/slots").json()] == [True]
                none_free = http.get("/slots", params={"fail_on_no_slot": 1})
                assert none_free.status_code == 503 and error_of(none_free)["code"] == "no_slot"
                assert 1 <= int(refused.headers["retry-after"]) <= 60
                assert http.get("/health").json()["waiting"] == 1
            wait_idle(server)
            assert http.post(CHAT, json={"messages": HELLO, "max_tokens": 1}).status_code == 200


def test_keys(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with (
        background(tiny_model, api_keys=("sk-right", "sk-second"), warm=False) as server,
        httpx.Client(base_url=server.url, timeout=300) as http,
    ):
        assert http.get("/health").status_code == 200
        for headers in ({}, {"authorization": "Bearer sk-wrong"}, {"authorization": "sk-right"}, {"x-api-key": "no"}):
            for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
                got = http.get(path, headers=headers)
                assert got.status_code == 401 and got.headers["x-should-retry"] == "false"
                assert error_of(got)["code"] == "invalid_api_key"
        big = http.post(CHAT, content=b"x" * 3_000_000, headers={"authorization": "Bearer sk-wrong"})
        assert big.status_code == 401
        for key in ("sk-right", "sk-second"):
            assert http.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
            assert http.get("/v1/models", headers={"x-api-key": key}).status_code == 200
        wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-wrong", max_retries=0)
        with wrong, pytest.raises(openai.AuthenticationError):
            wrong.models.list()
    assert "sk-" not in caplog.text


def test_keys_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# for the editor\nsk-one\n\n sk-two \n")
    assert read_keys(None, file) == ("sk-one", "sk-two")
    assert read_keys("sk", None) == ("sk",) and read_keys(None, None) == ()
    file.write_text("# nothing\n")
    for key, path in ((None, file), ("sk", file), (None, tmp_path / "missing"), ("  ", None), ("schlüssel", None)):
        with pytest.raises(UsageError):
            read_keys(key, path)


def test_prompts_are_logged_only_when_asked_for(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    body = {"messages": [{"role": "user", "content": "the secret word"}], "max_tokens": 2}
    for log_prompts in (False, True):
        caplog.clear()
        with background(tiny_model, log_prompts=log_prompts, warm=False) as server:
            httpx.post(server.url + CHAT, json=body).raise_for_status()
            httpx.post(server.url + CHAT, json=body | {"the secret word": 1})
            httpx.post(server.url + "/the secret word", json=body)
        assert ("the secret word" in caplog.text) == log_prompts
        assert "/v1/chat/completions 200" in caplog.text


def test_other_origins_may_not_call_unless_asked_for(tiny_model: Path) -> None:
    asks = {"origin": "https://page.example", "access-control-request-method": "POST"}
    for cors in ((), ("https://page.example",)):
        with (
            background(tiny_model, cors=cors, warm=False) as server,
            httpx.Client(base_url=server.url, timeout=300) as http,
        ):
            before = http.options(CHAT, headers=asks)
            answer = http.post(CHAT, json={"messages": HELLO, "max_tokens": 1}, headers={"origin": asks["origin"]})
            for got in (before, answer):
                assert ("access-control-allow-origin" in got.headers) == bool(cors)


def test_a_body_that_never_comes_is_not_waited_for(tiny_model: Path) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    with (
        background(tiny_model, body_seconds=0.3, warm=False) as server,
        socket.create_connection(("127.0.0.1", server.port)) as sock,
    ):
        sock.sendall(head)
        sock.settimeout(30)
        assert sock.recv(100).startswith(b"HTTP/1.1 408")
