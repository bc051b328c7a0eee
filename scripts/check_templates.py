"""Conversations as clients send them, rendered with the chat templates of a folder: what is refused, what is left out.

    python scripts/check_templates.py llama.cpp/models/templates [--only qwen]

Histories with tools and without, cut and empty arguments, turns of one role in a row, tools that do not say what they
take. A text of the conversation that is not in the prompt is listed as well: some templates leave out what is said
beside a call, on purpose. Ends with code 1 if a template refused a conversation.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lcspec.errors import LcspecError
from lcspec.llama.template import ChatTemplate, Renderer
from lcspec.server.prompts import template_messages
from lcspec.server.schemas_chat import Message
from lcspec.server.tools import ToolUse, render

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
Json = dict[str, Any]


class Bare:
    """A template without a model."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.renderer = Renderer(text, TOKENS)

    def render(self, messages: Any, add_generation_prompt: bool = True, **extra: Any) -> str:
        """As ChatTemplate does it."""
        if extra.pop("continue_final", False):
            return self.renderer.continued(messages, extra)
        return self.renderer.folded(messages, dict(extra, add_generation_prompt=add_generation_prompt))


def tool(parameters: Json | None = None) -> Json:
    """A function, which may not say what it takes."""
    known = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": "get_time", "description": "The time in a city"} | known}


def called(*arguments: str, content: str = "") -> list[Json]:
    """Calls with these arguments, and what each gave back."""
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": "get_time", "arguments": given}}
        for i, given in enumerate(arguments)
    ]
    results = [
        {"role": "tool", "tool_call_id": f"call_{i}", "content": f"{12 + i}:00 there"} for i in range(len(calls))
    ]
    return [{"role": "assistant", "content": content, "tool_calls": calls}, *results]


def said(role: str, text: str, **more: Any) -> Json:
    """A message."""
    return {"role": role, "content": text, **more}


OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome"}'
CITY = tool({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
SYSTEM, USER, ANSWER = said("system", "Be brief."), said("user", "Good day"), said("assistant", "Hello!")
PARTS = [{"type": "text", "text": "first part"}, {"type": "text", "text": "second part"}]
CONVERSATIONS: dict[str, tuple[list[Json], list[Json]]] = {
    "a question": ([USER], []),
    "a system message": ([SYSTEM, USER, ANSWER, USER], []),
    "a system message in the middle": ([USER, ANSWER, said("system", "Rhyme."), USER], []),
    "nothing but a system message": ([SYSTEM], []),
    "parts": ([{"role": "user", "content": PARTS}], []),
    "earlier reasoning": ([USER, said("assistant", "Hello!", reasoning_content="A greeting."), USER], []),
    "two users in a row": ([USER, said("user", "Are you there?")], []),
    "two answers in a row": ([USER, ANSWER, said("assistant", "I am here."), USER], []),
    "an answer first": ([ANSWER, USER], []),
    "an empty answer": ([USER, said("assistant", ""), USER], []),
    "an answer that was begun": ([USER, said("assistant", "I am")], []),
    "tools": ([SYSTEM, USER], [CITY]),
    "a tool that takes nothing": ([USER], [tool()]),
    "a tool that takes an object": ([USER], [tool({"type": "object"})]),
    "a call": ([USER, *called(OSLO)], [CITY]),
    "two calls in a row": ([USER, *called(OSLO), *called(ROME)], [CITY]),
    "calls at once": ([USER, *called(OSLO, ROME), ANSWER, USER], [CITY]),
    "a call with words": ([USER, *called(OSLO, content="Let me look."), ANSWER, USER], [CITY]),
    "a result and what the user says": ([USER, *called(OSLO), said("user", "And now?")], [CITY]),
    "a call without its tools": ([USER, *called(OSLO), ANSWER, USER], []),
    "empty arguments": ([USER, *called("")], [CITY]),
    "arguments that were cut": ([USER, *called('{"city": "Os')], [CITY]),
    "arguments that are a list": ([USER, *called("[1]")], [CITY]),
}


def texts_of(messages: list[Json]) -> list[str]:
    """What has to be in the prompt."""
    contents = [m["content"] for m in messages]
    texts = [part["text"] for c in contents if isinstance(c, list) for part in c]
    texts += [c for c in contents if isinstance(c, str)]
    return [*texts, *("get_time" for m in messages if m.get("tool_calls"))]


def check(bare: Bare, name: str) -> tuple[str, list[str]]:
    """Why a conversation is refused, if it is, and texts that are not in its prompt."""
    conversation, tools = CONVERSATIONS[name]
    messages = template_messages([Message.model_validate(m) for m in conversation])
    use = ToolUse(tuple(tools), "auto" if tools else "none")
    if "tools" not in bare.text:
        for message in messages:
            if isinstance(message["content"], list):
                message["content"] = "\n".join(part["text"] for part in message["content"])
    extra = {"continue_final": True} if conversation[-1]["role"] == "assistant" else {}
    try:
        prompt = render(cast(ChatTemplate, bare), bare.text, messages, use, extra)
    except LcspecError as error:
        return str(error), []
    return "", [text for text in texts_of(conversation) if text not in prompt]


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", default="", help="Templates with this in their name.")
def main(folder: Path, only: str) -> None:
    """Render them all."""
    paths = sorted(path for path in folder.glob("*.jinja") if only in path.name)
    refused = 0
    for path in paths:
        bare = Bare(path.read_text(encoding="utf-8"))
        for name in CONVERSATIONS:
            problem, lost = check(bare, name)
            refused += bool(problem)
            if problem:
                click.echo(f"{path.stem}: {name}: {problem}")
            for text in lost:
                click.echo(f"{path.stem}: {name}: left out: {text}")
    click.echo(f"{len(paths)} templates, {len(paths) * len(CONVERSATIONS)} conversations, {refused} refused")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
