"""Requests as other programs send them: written after what is public of them, not recorded from a running one.

- Continue: core/llm/llms/OpenAI.ts and LlamaCpp.ts of continuedev/continue
- Open WebUI: what is generally known of its OpenAI and Ollama connections
- Zed: crates/open_ai/src/open_ai.rs of zed-industries/zed
- llama.vim: a public script with one of its requests
- Claude Code: snippets of its requests, and the types of Anthropic's own client
- Copilot's Ollama mode: src/extension/byok/vscode-node/ollamaProvider.ts of microsoft/vscode-copilot-chat
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lcspec.server.lifecycle import Background
from lcspec.server.native import until_outdent
from tests import tiny_gguf as tiny
from tests.server.running import background, lines_of

pytestmark = pytest.mark.server

READ_FILE: Any = {
    "name": "read_file",
    "description": "Reads a file.",
    "parameters": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": ["integer", "null"], "default": None}},
        "required": ["path"],
    },
}
LIMITED = 12


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    """A random model with a chat template and fill-in-the-middle tokens."""
    path = tmp_path_factory.mktemp("models") / "coder.gguf"
    marks = {f"tokenizer.ggml.fim_{name}_token_id": 280 + i for i, name in enumerate(("pre", "suf", "mid"))}
    tiny.write_llama(path, extra=marks, chat_template=tiny.CHATML_TEMPLATE, n_ctx=4096)
    with background(path, ctx=2048, slots=2, models=("coder",)) as server:
        yield server


@pytest.fixture()
def http(coder: Background) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=coder.url, timeout=300) as client:
        yield client


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in lines_of(response) if line.startswith("data: {")]


# --- Continue ---------------------------------------------------------------------------------------------------------


def test_continue_chat(http: httpx.Client) -> None:
    body = {
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": [{"type": "text", "text": "What does this do?"}]},
            {"role": "assistant", "content": " "},
            {
                "role": "user",
                "content": [{"type": "text", "text": "```py\nx = 1\n```"}, {"type": "text", "text": "x?"}],
            },
        ],
        "model": "coder",
        "max_tokens": LIMITED,
        "temperature": 0,
        "stream": True,
        "stop": [
            "<|endoftext|>",
            "<|im_start|>",
            "\n\n\n\n",
            "/src/",
            "#- coding: utf-8",
            "```",
            "\r\n\r\n",
            "\nfunction",
        ],
    }
    headers = {"Authorization": "Bearer none", "api-key": "none"}
    found = events(http.post("/v1/chat/completions", json=body, headers=headers))
    assert all({"index", "delta"} <= set(e["choices"][0]) for e in found)
    assert http.get("/v1/models", headers=headers).json()["data"][0]["id"] == "coder"


def test_continue_agent(http: httpx.Client) -> None:
    tool = {"type": "function", "function": READ_FILE | {"strict": False}}
    call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
    body = {
        "messages": [
            {"role": "user", "content": "Read a.py"},
            {"role": "assistant", "content": " ", "tool_calls": [call]},
            {"role": "tool", "content": "x = 1", "tool_call_id": "call_1"},
        ],
        "model": "coder",
        "max_tokens": LIMITED,
        "stream": True,
        "tools": [tool],
        "parallel_tool_calls": False,
    }
    assert events(http.post("/v1/chat/completions", json=body))[-1]["choices"][0]["finish_reason"]


def test_continue_llama_cpp_provider(http: httpx.Client) -> None:
    body = {
        "prompt": "<|fim_prefix|>def f(<|fim_suffix|>):<|fim_middle|>",
        "stream": True,
        "n_predict": LIMITED,
        "frequency_penalty": 0.0,
        "presence_penalty": None,
        "min_p": 0.05,
        "mirostat": 0,
        "stop": ["<|endoftext|>"],
        "top_k": 40,
        "top_p": 0.9,
        "temperature": 0.01,
    }
    found = events(http.post("/completion", json=body, headers={"Authorization": "Bearer undefined"}))
    assert found[-1]["stop"] and all("content" in e for e in found)


# --- Open WebUI -------------------------------------------------------------------------------------------------------


def test_open_webui(http: httpx.Client) -> None:
    headers = {"Authorization": "Bearer none", "X-OpenWebUI-User-Name": "me", "X-OpenWebUI-User-Role": "admin"}
    assert http.get("/v1/models", headers=headers).json()["object"] == "list"
    body: dict[str, Any] = {
        "stream": True,
        "model": "coder",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream_options": {"include_usage": True},
        "max_tokens": LIMITED,
        "logit_bias": {},
    }
    assert events(http.post("/v1/chat/completions", json=body, headers=headers))[-1]["usage"]["total_tokens"]
    title = {
        "model": "coder",
        "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title"}],
        "stream": False,
        "max_completion_tokens": LIMITED,
        "user": {"name": "me", "id": "1", "email": "me@localhost", "role": "admin"},
    }
    got = http.post("/v1/chat/completions", json=title, headers=headers)
    assert got.status_code in (200, 400)  # `user` is a text in OpenAI's API; Open WebUI drops it for such servers
    assert http.post("/v1/chat/completions", json=title | {"user": "1"}, headers=headers).status_code == 200


def test_open_webui_over_ollama(http: httpx.Client) -> None:
    assert http.get("/api/version").json()["version"]
    (model,) = http.get("/api/tags").json()["models"]
    assert model["details"]["family"] == "llama" and http.get("/api/ps").json()["models"]
    body = {
        "model": model["model"],
        "messages": [{"role": "user", "content": "Hello"}],
        "options": {"num_predict": LIMITED, "num_ctx": 2048, "num_gpu": 99},
        "stream": True,
        "keep_alive": "5m",
        "format": "",
    }
    lines = [json.loads(line) for line in lines_of(http.post("/api/chat", json=body)) if line]
    assert lines[-1]["done"] and lines[-1]["eval_count"] > 0


# --- Zed --------------------------------------------------------------------------------------------------------------


def test_zed(http: httpx.Client) -> None:
    tool = {"type": "function", "function": READ_FILE}
    call = {"id": "call_a", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a.rs"}'}}
    body = {
        "model": "coder",
        "messages": [
            {"role": "system", "content": "You are a coding agent."},
            {"role": "user", "content": [{"type": "text", "text": "<context>"}, {"type": "text", "text": "Fix it"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Let me look."},
            {"role": "tool", "content": [{"type": "text", "text": "fn main() {}"}], "tool_call_id": "call_a"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": LIMITED,
        "temperature": 1.0,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "tools": [tool],
        "prompt_cache_key": "2f1b7c1e-thread",
        "reasoning_effort": "medium",
    }
    found = events(http.post("/v1/chat/completions", json=body, headers={"Authorization": "Bearer none"}))
    # Its types: `usage` may be null, `choices` is always there.
    assert all(isinstance(e["choices"], list) for e in found)
    assert {"prompt_tokens", "completion_tokens", "total_tokens"} <= set(found[-1]["usage"])


# --- llama.vim --------------------------------------------------------------------------------------------------------


def vim(**more: Any) -> dict[str, Any]:
    chunk = {"text": "import os\n", "time": [1, 2], "filename": "a.py"}
    return {
        "id_slot": 0,
        "input_prefix": "class A:\n    def f(self):\n",
        "input_suffix": "\n    def g(self):\n        pass\n",
        "input_extra": [chunk],
        "prompt": "        return ",
        "n_predict": LIMITED,
        "stop": [],
        "n_indent": 8,
        "top_k": 40,
        "top_p": 0.90,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/prompt_n", "timings/prompt_ms", "truncated", "tokens_cached"],
    } | more


def test_llama_vim(http: httpx.Client) -> None:
    got = http.post("/infill", json=vim(), headers={"Authorization": "Bearer none"})
    assert got.status_code == 200, got.text
    found = got.json()
    assert isinstance(found["content"], str) and found.keys() == set(vim()["response_fields"])
    warm = http.post("/infill", json=vim(input_prefix="", input_suffix="", prompt="", n_predict=0))
    assert warm.status_code == 200 and warm.json()["content"] == ""


@pytest.mark.parametrize(
    "text, indent, expected",
    [
        ("a\n        b\n    c", 8, "a\n        b"),
        ("a\n\n        b", 8, "a\n\n        b"),
        ("a\nb", 1, "a"),
        ("a\nb", 0, "a\nb"),
        ("\tx\n\ty", 1, "\tx\n\ty"),
    ],
)
def test_lines_that_are_indented_less_end_the_text(text: str, indent: int, expected: str) -> None:
    assert until_outdent(text, indent) == expected


# --- Claude Code ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thinking", [{"type": "adaptive"}, {"type": "enabled", "budget_tokens": 31999}, None])
def test_claude_code(http: httpx.Client, thinking: dict[str, Any] | None) -> None:
    once = {"type": "ephemeral"}
    tool = {"name": "Read", "description": "Reads a file.", "input_schema": READ_FILE["parameters"]}
    used = {"type": "tool_use", "id": "toolu_01", "name": "Read", "input": {"path": "a.py"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_01", "content": "1\tx = 1", "is_error": False}
    thought = {"type": "thinking", "thinking": "Let me look.", "signature": ""}
    reminder = {"type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>"}
    body: dict[str, Any] = {
        "model": "claude-sonnet-4-5",
        "messages": [
            {"role": "user", "content": [reminder, {"type": "text", "text": "Fix a.py", "cache_control": once}]},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "I read it."}, used]},
            {"role": "user", "content": [result | {"cache_control": once}]},
        ],
        "system": [
            {
                "type": "text",
                "text": "x-anthropic-billing-header: cc_version=2.1.77.abc; cc_entrypoint=cli; cch=00000;",
            },
            {"type": "text", "text": "You are Claude Code.", "cache_control": once},
        ],
        "tools": [tool],
        "metadata": {"user_id": "user_1_account__session_2"},
        "max_tokens": 32000,
        "stream": True,
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        **({"thinking": thinking} if thinking else {"temperature": 1}),
    }
    headers = {
        "x-api-key": "none",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "anthropic-dangerous-direct-browser-access": "true",
        "x-app": "cli",
        "x-stainless-helper-method": "stream",
    }
    got = http.post("/v1/messages?beta=true", json=body | {"stop_sequences": ["a", "e"]}, headers=headers)
    names = [e["type"] for e in events(got)]
    assert names[0] == "message_start" and names[-1] == "message_stop" and names.count("message_delta") == 1
    counted = {k: v for k, v in body.items() if k in ("model", "messages", "system", "tools", "thinking")}
    got = http.post("/v1/messages/count_tokens?beta=true", json=counted, headers=headers)
    assert got.status_code == 200 and got.json()["input_tokens"] > 10
    # Before all else it asks for a word, to see whether anybody answers.
    quota = {"model": "claude-haiku-4-5", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
    assert http.post("/v1/messages?beta=true", json=quota, headers=headers).status_code == 200


def test_claude_code_sees_that_the_prompt_is_too_long(http: httpx.Client) -> None:
    body = {"model": "coder", "max_tokens": 9, "messages": [{"role": "user", "content": "word " * 3000}]}
    error = http.post("/v1/messages?beta=true", json=body).json()["error"]
    # It looks for this text and both numbers, then makes the conversation shorter.
    found = re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", error["message"], re.I)
    assert error["type"] == "invalid_request_error" and found
    assert int(found[1]) > 3000 and int(found[2]) == 2047
    # Continue looks for this.
    assert "maximum context length" in error["message"]


# --- Copilot over Ollama ----------------------------------------------------------------------------------------------


def test_copilots_ollama_mode(http: httpx.Client) -> None:
    version = [int(part) for part in http.get("/api/version").json()["version"].split(".")]
    assert version >= [0, 6, 4]
    for model in http.get("/api/tags").json()["models"]:
        shown = http.post("/api/show", json={"model": model["model"]}).json()
        info = shown["model_info"]
        assert info["general.basename"] and info[f"{info['general.architecture']}.context_length"] == 2048
        assert "tools" in shown["capabilities"]
    body = {
        "model": "coder",
        "messages": [
            {"role": "system", "content": "You are an AI programming assistant."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        ],
        "temperature": 0.1,
        "top_p": 1,
        "max_tokens": LIMITED,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": READ_FILE}],
        "tool_choice": "auto",
        "intent": False,
    }
    assert events(http.post("/v1/chat/completions", json=body))[-1]["usage"]["completion_tokens"]
