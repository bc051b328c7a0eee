"""Tools in the prompt: through the model's template where it knows them, else described in the system message."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from lcspec.answers.deltas import LETTERS, MISTRAL_ID
from lcspec.answers.formats import format_of
from lcspec.errors import TemplateError
from lcspec.llama.template import ChatTemplate
from lcspec.server.errors import invalid
from lcspec.server.turns import parsed, shapes

ROLES = {"developer": "system", "function": "tool"}
# Forced calls at once, at most.
MAX_PARALLEL = 8
# The parameters of a function that names none.
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
INSTRUCTIONS = (
    "You may call these functions. Each line is one, as JSON with the schema of its parameters:\n{tools}\n"
    "To call a function, answer with a JSON object of its name and arguments inside tags, and nothing else:\n"
    '<tool_call>\n{{"name": "...", "arguments": {{...}}}}\n</tool_call>'
)


@dataclass(frozen=True)
class ToolUse:
    """What a request says about tools.

    Attributes:
        tools: the functions as the OpenAI API describes them ({"type": "function", "function": {...}}).
        choice: `none`, `auto`, `required`, or the name of the function that must be called.
        parallel: whether several calls may come at once; None leaves it to the model, and a forced call comes alone.
    """

    tools: tuple[dict[str, Any], ...] = ()
    choice: str = "auto"
    parallel: bool | None = None

    def __post_init__(self) -> None:
        """Check that what must be called exists.

        Raises:
            ApiError: it does not.
        """
        if self.choice not in ("none", "auto", "required", *self.names):
            raise invalid(f"tool_choice: there is no function {self.choice[:80]!r} among the tools", "tool_choice")
        if self.choice == "required" and not self.tools:
            raise invalid("tool_choice is `required` and there are no tools", "tool_choice")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the functions."""
        return tuple(str(tool["function"]["name"]) for tool in self.tools)

    @property
    def active(self) -> bool:
        """Whether the model may call anything."""
        return bool(self.tools) and self.choice != "none"

    @property
    def forced(self) -> bool:
        """Whether it must."""
        return self.active and self.choice != "auto"

    def schema(self, answer: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """JSON schema of a forced call, of several with `parallel`; or, with the schema of an `answer`, of a call or of
        that answer."""
        defs: dict[str, Any] = {}
        calls = []
        for i, tool in enumerate(self.tools):
            function = tool["function"]
            if self.choice not in ("required", "auto", function["name"]):
                continue
            defs[f"tool{i}"] = _moved(function.get("parameters") or NO_PARAMETERS, f"#/$defs/tool{i}")
            calls.append(
                {
                    "type": "object",
                    "properties": {
                        "name": {"const": function["name"]},
                        "arguments": {"$ref": f"#/$defs/tool{i}"},
                    },
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
            )
        if answer is not None:
            defs["answer"] = _moved(answer, "#/$defs/answer")
            return {"$defs": defs, "anyOf": [*calls, {"$ref": "#/$defs/answer"}]}
        if self.parallel and self.choice == "required":
            return {
                "$defs": defs,
                "type": "array",
                "items": {"anyOf": calls},
                "minItems": 1,
                "maxItems": MAX_PARALLEL,
            }
        return {"$defs": defs, "anyOf": calls}


def _moved(schema: Any, place: str) -> Any:
    """A schema whose references to its own parts still hold when it stands at `place` of a larger one."""
    if isinstance(schema, dict):
        return {
            key: place + value[1:]
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, place)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_moved(value, place) for value in schema]
    return schema


def render(
    template: ChatTemplate,
    template_text: str,
    messages: Sequence[Mapping[str, Any]],
    use: ToolUse,
    extra: Mapping[str, Any],
    add_generation_prompt: bool = True,
) -> str:
    """The prompt for a conversation with tools.

    Raises:
        TemplateError: the template refuses the messages.
    """
    knows = "tools" in template_text
    offered = [_with_parameters(tool) for tool in use.tools] if use.active else None
    plain = with_ids([dict(m, role=ROLES.get(m["role"], m["role"])) for m in messages])
    if format_of(template_text).short_ids:
        plain = [_with_short_ids(message) for message in plain]
    if not knows:
        plain = _without_tools(plain, offered)
        offered = None
    given = dict(extra, add_generation_prompt=add_generation_prompt)
    if offered is not None:
        given["tools"] = offered
    problem: TemplateError | None = None
    for shape in shapes(plain):
        try:
            return template.render(shape, **given)
        except TemplateError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _with_parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool that says what it takes, if only nothing: some templates look at it in any case."""
    function = tool["function"]
    parameters = dict(function.get("parameters") or {})
    parameters.setdefault("type", "object")
    parameters.setdefault("properties", {})
    return dict(tool, function=dict(function, parameters=parameters))


def call_opening(template_text: str, use: ToolUse) -> str:
    """What the model would write before a forced call; the grammar takes over behind it."""
    return "<tool_call>\n" if use.forced and ("tools" not in template_text or "<tool_call>" in template_text) else ""


def short_id(identity: str) -> str:
    """A call's id as nine letters and digits, which is what Mistral's templates take; the same one every time."""
    if re.fullmatch(rf"[a-zA-Z0-9]{{{MISTRAL_ID}}}", identity):
        return identity
    number = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "big")
    return "".join(LETTERS[number // len(LETTERS) ** i % len(LETTERS)] for i in range(MISTRAL_ID))


def with_ids(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Earlier calls and what they gave back, all with ids: some clients (Ollama's) send none, and templates ask for
    them. A result without one belongs to the first open call of its name, or the first open call."""
    out = []
    waiting: list[tuple[str, str]] = []  # id and name of calls without their result
    count = 0
    for message in messages:
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                count += 1
                calls.append(dict(call, id=call.get("id") or f"call_{count:09d}"))
            message = dict(message, tool_calls=calls)
            waiting = [(call["id"], call["function"]["name"]) for call in calls]
        elif message["role"] == "tool":
            own, name = message.get("tool_call_id"), message.get("name")
            if not own and waiting:
                own = next((known for known, called in waiting if called == name), waiting[0][0])
                message = dict(message, tool_call_id=own)
            waiting = [entry for entry in waiting if entry[0] != own]
        out.append(message)
    return out


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("tool_calls"):
        message = dict(message, tool_calls=[dict(c, id=short_id(c.get("id") or "")) for c in message["tool_calls"]])
    if message.get("tool_call_id") is not None:
        message = dict(message, tool_call_id=short_id(message["tool_call_id"]))
    return message


def _without_tools(messages: list[dict[str, Any]], offered: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The same conversation in words, for a template that has never heard of tools."""
    out: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if message.get("tool_calls"):
            calls = [call["function"] for call in message["tool_calls"]]
            said = "\n".join(
                f"<tool_call>\n{_json({'name': c['name'], 'arguments': parsed(c['arguments'])})}\n</tool_call>"
                for c in calls
            )
            content = f"{content}\n{said}" if content else said
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        thought = {"reasoning_content": message["reasoning_content"]} if message.get("reasoning_content") else {}
        out.append({"role": role, "content": content, **thought})
    if offered:
        text = INSTRUCTIONS.format(tools="\n".join(_json(tool["function"]) for tool in offered))
        if out and out[0]["role"] == "system":
            out[0]["content"] = f"{out[0]['content']}\n\n{text}"
        else:
            out.insert(0, {"role": "system", "content": text})
    return out


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
