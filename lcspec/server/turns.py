"""Conversations in other shapes, for templates that refuse them as they are: turns that alternate, one call a turn,
arguments that are objects or text. Nothing that was said is left out."""

from __future__ import annotations

import json
from typing import Any, Callable, Iterator, Mapping, Sequence

Turn = dict[str, Any]
SAID = ("content", "reasoning_content", "tool_calls")


def shapes(messages: Sequence[Turn]) -> Iterator[list[Turn]]:
    """A conversation as it is, then as templates want it that are strict about whose turn it is. Each is new."""
    seen: list[list[Turn]] = []
    for change in (list, split_calls, alternating, lambda turns: alternating(split_calls(turns))):
        for form in argument_forms(change(messages)):
            if form not in seen:
                seen.append(form)
                yield form


def argument_forms(messages: Sequence[Turn]) -> Iterator[list[Turn]]:
    """Earlier calls with their arguments as JSON, which most templates want, or as text. Where they are no object (they
    were cut, say) they become one only if the template insists."""
    for form in (parsed, as_object, written):
        yield [_with_arguments(message, form) for message in messages]


def _with_arguments(message: Turn, form: Callable[[str], Any]) -> Turn:
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        calls.append(dict(call, function=dict(function, arguments=form(function["arguments"]))))
    return dict(message, tool_calls=calls)


def written(arguments: str) -> str:
    """Arguments as text; nothing is an empty object."""
    return arguments if arguments.strip() not in ("", "null") else "{}"


def parsed(arguments: str) -> Any:
    """Arguments as JSON, or as they were written if they are none."""
    try:
        return json.loads(written(arguments))
    except ValueError:
        return arguments


def as_object(arguments: str) -> dict[str, Any]:
    """Arguments as an object in any case."""
    found = parsed(arguments)
    return found if isinstance(found, dict) else {"arguments": found}


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> Turn:
    """Two messages as one of the first's role."""
    out = dict(first, content=_both(first.get("content") or "", second.get("content") or ""))
    thoughts = [m["reasoning_content"] for m in (first, second) if m.get("reasoning_content")]
    calls = [*(first.get("tool_calls") or ()), *(second.get("tool_calls") or ())]
    if thoughts:
        out["reasoning_content"] = "\n".join(thoughts)
    if calls:
        out["tool_calls"] = calls
    return out


def _both(first: str | list[Turn], second: str | list[Turn]) -> str | list[Turn]:
    if isinstance(first, str) and isinstance(second, str):
        return "\n".join(text for text in (first, second) if text)
    return [*_parts(first), *_parts(second)]


def _parts(content: str | list[Turn]) -> list[Turn]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content


def alternating(messages: Sequence[Turn]) -> list[Turn]:
    """Neighbours of one role as one message. What the user says beside a tool's result belongs to the result: between
    them the template would want an answer that nobody gave. Before a first answer the user said nothing; an empty
    answer is none."""
    out: list[Turn] = []
    for message in messages:
        before = out[-1] if out else {"role": ""}
        if message["role"] == "assistant" and not any(message.get(part) for part in SAID):
            continue
        if message["role"] == "assistant" and before["role"] in ("", "system"):
            out.append({"role": "user", "content": ""})
        if _one_turn(before, message):
            out[-1] = joined(before, message)
        else:
            out.append(message)
    return out


def _one_turn(before: Turn, message: Turn) -> bool:
    if message["role"] == "user":
        return before["role"] in ("user", "tool")
    return message["role"] == before["role"] == "assistant" and not before.get("tool_calls")


def split_calls(messages: Sequence[Turn]) -> list[Turn]:
    """Calls that were made at once as one after the other, each with its result."""
    out: list[Turn] = []
    i = 0
    while i < len(messages):
        message, i = messages[i], i + 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            out.append(message)
            continue
        results: list[Turn] = []
        while i < len(messages) and messages[i]["role"] == "tool":
            results.append(messages[i])
            i += 1
        for n, call in enumerate(calls):
            said = message if n == 0 else {"role": "assistant", "content": ""}
            out.append(dict(said, tool_calls=[call]))
            out += [result for result in results if result.get("tool_call_id") == call["id"]]
        known = {call["id"] for call in calls}
        out += [result for result in results if result.get("tool_call_id") not in known]
    return out
