"""Conversations with tools, held by the clients that people use: each keeps the history in its own form, and sends back
what its library made of the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ollama
import openai

from tests.server.running import WAIT

LIMIT = 600


@dataclass
class Answer:
    """What a client made of an answer.

    Attributes:
        calls: (id, name, arguments); arguments are parsed.
        prompt, cached: prompt tokens, and those of them that were in the cache; None where the API does not say.
    """

    content: str
    reasoning: str
    calls: list[tuple[str, str, dict[str, Any]]]
    prompt: int
    cached: int | None
    ended: str = ""


@dataclass
class Talk:
    """A conversation.

    Attributes:
        model: its name; tools: as the OpenAI API has them inside `function`; forced: a call must come, of `parallel`
            ones several may.
        history: in the form of the API.
    """

    url: str
    model: str
    tools: tuple[dict[str, Any], ...]
    forced: bool = False
    parallel: bool = False
    seed: int = 0
    history: list[Any] = field(default_factory=list)

    def say(self, text: str) -> None:
        """The user says something."""
        self.history.append({"role": "user", "content": text})

    def result(self, call: tuple[str, str, dict[str, Any]], text: str) -> None:
        """What a call gave back."""
        self.history.append({"role": "tool", "tool_call_id": call[0], "content": text})

    def results(self, calls: list[tuple[str, str, dict[str, Any]]], texts: list[str]) -> None:
        """What all calls of an answer gave back."""
        for call, text in zip(calls, texts):
            self.result(call, text)

    def ask(self, stream: bool) -> Answer:
        """The answer, which becomes part of the history."""
        raise NotImplementedError


class OpenAIChat(Talk):
    """The `openai` client's chat completions."""

    def ask(self, stream: bool) -> Answer:
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=WAIT)
        asked: Any = {
            "model": self.model,
            "messages": self.history,
            "tools": [{"type": "function", "function": tool} for tool in self.tools],
            "max_tokens": LIMIT,
            "temperature": 0,
            "seed": self.seed,
        }
        if self.forced:
            asked |= {"tool_choice": "required", "parallel_tool_calls": self.parallel}
        if stream:
            chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
            usage, message = chunks[-1].usage, self._joined(chunks)
            (ended,) = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
        else:
            got = client.chat.completions.create(**asked)
            usage, ended = got.usage, got.choices[0].finish_reason
            message = got.choices[0].message.model_dump(exclude_none=True)
        assert usage is not None and usage.prompt_tokens_details is not None
        self.history.append(message)
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", ())
        ]
        content, reasoning = message.get("content") or "", message.get("reasoning_content", "")
        cached = usage.prompt_tokens_details.cached_tokens
        return Answer(content, reasoning, calls, usage.prompt_tokens, cached, ended)

    @staticmethod
    def _joined(chunks: list[Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for delta in (choice.delta for chunk in chunks for choice in chunk.choices):
            message["content"] += delta.content or ""
            if getattr(delta, "reasoning_content", None):
                message["reasoning_content"] = message.get("reasoning_content", "") + delta.reasoning_content
            for part in delta.tool_calls or ():
                calls = message.setdefault("tool_calls", [])
                if part.index == len(calls):
                    function = {"name": part.function.name, "arguments": ""}
                    calls.append({"id": part.id, "type": part.type, "function": function})
                calls[part.index]["function"]["arguments"] += part.function.arguments or ""
        return message


class OpenAIResponses(Talk):
    """The `openai` client's Responses API, without anything stored."""

    def result(self, call: tuple[str, str, dict[str, Any]], text: str) -> None:
        self.history.append({"type": "function_call_output", "call_id": call[0], "output": text})

    def ask(self, stream: bool) -> Answer:
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=WAIT)
        asked: Any = {
            "model": self.model,
            "input": self.history,
            "tools": [{"type": "function", **tool} for tool in self.tools],
            "max_output_tokens": LIMIT,
            "temperature": 0,
            "store": False,
            "extra_body": {"seed": self.seed},
        }
        if self.forced:
            asked |= {"tool_choice": "required", "parallel_tool_calls": self.parallel}
        if stream:
            with client.responses.stream(**asked) as events:
                got: Any = events.get_final_response()
        else:
            got = client.responses.create(**asked)
        items = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in got.output]
        for item in items:
            for part in item.get("content", ()):
                part.pop("parsed", None)
        self.history += items
        calls = [(i["call_id"], i["name"], json.loads(i["arguments"])) for i in items if i["type"] == "function_call"]
        reasoning = "".join(p["text"] for i in items if i["type"] == "reasoning" for p in i["content"])
        ended = got.incomplete_details.reason if got.incomplete_details else ""
        cached = got.usage.input_tokens_details.cached_tokens
        return Answer(got.output_text, reasoning, calls, got.usage.input_tokens, cached, ended)


class AnthropicMessages(Talk):
    """The `anthropic` client."""

    def results(self, calls: list[tuple[str, str, dict[str, Any]]], texts: list[str]) -> None:
        blocks = [{"type": "tool_result", "tool_use_id": c[0], "content": text} for c, text in zip(calls, texts)]
        self.history.append({"role": "user", "content": blocks})

    def ask(self, stream: bool) -> Answer:
        import anthropic  # takes four seconds

        client = anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0, timeout=WAIT)
        asked: Any = {
            "model": self.model,
            "messages": self.history,
            "tools": [
                {"name": t["name"], "description": t["description"], "input_schema": t["parameters"]}
                for t in self.tools
            ],
            "max_tokens": LIMIT,
            "extra_body": {"seed": self.seed, "temperature": 0},  # newer versions have no argument for it
        }
        if self.forced:
            asked["tool_choice"] = {"type": "any", "disable_parallel_tool_use": not self.parallel}
        if stream:
            with client.messages.stream(**asked) as events:
                got = events.get_final_message()
        else:
            got = client.messages.create(**asked)
        blocks = [block.model_dump(exclude_none=True) for block in got.content]
        self.history.append({"role": "assistant", "content": blocks})
        calls = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        content = "".join(b["text"] for b in blocks if b["type"] == "text")
        reasoning = "".join(b["thinking"] for b in blocks if b["type"] == "thinking")
        cached = got.usage.cache_read_input_tokens or 0
        return Answer(content, reasoning, calls, got.usage.input_tokens + cached, cached, got.stop_reason or "")


class OllamaChat(Talk):
    """The `ollama` client. Its messages have no ids: what a tool gave back names the tool."""

    def result(self, call: tuple[str, str, dict[str, Any]], text: str) -> None:
        self.history.append({"role": "tool", "tool_name": call[1], "content": text})

    def ask(self, stream: bool) -> Answer:
        client = ollama.Client(host=self.url, timeout=WAIT)
        tools = [{"type": "function", "function": tool} for tool in self.tools]
        options = {"temperature": 0, "seed": self.seed, "num_predict": LIMIT}
        parts: Iterator[Any] = iter(
            client.chat(self.model, self.history, tools=tools, options=options, stream=True)
            if stream
            else [client.chat(self.model, self.history, tools=tools, options=options)]
        )
        message = ollama.Message(role="assistant", content="")
        calls, thinking = list[Any](), ""
        for part in parts:
            message.content = (message.content or "") + (part.message.content or "")
            thinking += part.message.thinking or ""
            calls += part.message.tool_calls or ()
        message.thinking, message.tool_calls = thinking or None, calls or None
        self.history.append(message)
        found = [("", call.function.name, dict(call.function.arguments)) for call in calls]
        return Answer(message.content or "", thinking, found, part.prompt_eval_count, None, part.done_reason)


TALKS: tuple[type[Talk], ...] = (OpenAIChat, OpenAIResponses, AnthropicMessages, OllamaChat)
