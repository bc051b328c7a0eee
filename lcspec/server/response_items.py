"""The items that a response of /v1/responses consists of."""

from __future__ import annotations

import secrets
from typing import Any

from lcspec.server.answer import Text
from lcspec.server.schemas_responses import ResponseBody


def message_item(identity: str, text: str, logprobs: list[Any], status: str = "completed") -> dict[str, Any]:
    """An output message."""
    return {
        "type": "message",
        "id": identity,
        "status": status,
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}],
    }


def reasoning_item(body: ResponseBody, identity: str, text: str, status: str = "completed") -> dict[str, Any]:
    """What the model thought; who asks for a summary of it gets all of it as that."""
    place, kind = ("content", "reasoning_text") if body.summary is None else ("summary", "summary_text")
    item = {"type": "reasoning", "id": identity, "status": status, "summary": [], "content": []}
    return item | {place: [{"type": kind, "text": text}]}


def call_item(body: ResponseBody, identity: str, call: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    """An output call, by the client's name for the function."""
    name = call["function"]["name"]
    found = next((function for function in body.functions if function.told == name), None)
    named = {"name": found.tool.name if found else name}
    if found and found.namespace:
        named["namespace"] = found.namespace
    return {
        "type": "function_call",
        "id": identity,
        "call_id": call["id"],
        **named,
        "arguments": call["function"]["arguments"],
        "status": status,
    }


def ended(text: Text) -> str:
    """The status of an answer's last item: a limit may have cut it."""
    return "incomplete" if text.reason == "length" else "completed"


def new_id(kind: str) -> str:
    """`msg_...` or `fc_...`."""
    return f"{kind}_{secrets.token_hex(16)}"
