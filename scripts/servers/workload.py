"""Requests for comparing servers: plain answers, answers under a JSON schema, forced tool calls.

No prompt comes twice in one list, so that nobody drafts from an earlier answer to the same question.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import jsonschema

from .load import Answer

CASES = ("plain", "schema", "tools")
SUBJECTS = (
    *("a bicycle", "a kettle", "an old lighthouse", "the river Danube", "a chess club", "a bakery", "honey"),
    *("a thunderstorm", "the moon", "a violin", "a train station", "wool", "a school trip", "volcanoes", "tea"),
    *("a lost umbrella", "a garden fence", "snow", "a birthday party", "a museum", "copper", "a sailing boat"),
    *("a broken lamp", "a winter coat", "apples", "a bridge", "a market", "the desert", "a dentist", "clouds"),
)


def _text(most: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most}


def _object(**properties: Any) -> dict[str, Any]:
    named = {"properties": properties, "required": list(properties)}
    return {"type": "object", **named, "additionalProperties": False}


SCHEMAS: dict[str, dict[str, Any]] = {
    "Write a catalogue entry for": _object(
        title=_text(40), category={"enum": ["home", "travel", "food", "nature", "other"]}, summary=_text(120)
    ),
    "Write three quiz questions about": _object(
        questions={
            "type": "array",
            "items": _object(question=_text(80), answer=_text(40), difficulty={"enum": ["easy", "hard"]}),
            "minItems": 3,
            "maxItems": 3,
        }
    ),
    "Report what was said about": _object(
        mood={"enum": ["positive", "neutral", "negative"]},
        score={"type": "integer", "minimum": 1, "maximum": 10},
        reasons={"type": "array", "items": _text(60), "minItems": 1, "maxItems": 3},
    ),
    "Plan a day around": _object(
        morning=_object(place=_text(30), what=_text(60)),
        evening=_object(place=_text(30), what=_text(60)),
        outdoors={"type": "boolean"},
    ),
}
TOOLS: dict[str, dict[str, Any]] = {
    "search": _object(query=_text(60), limit={"type": "integer", "minimum": 1, "maximum": 20}),
    "write_note": _object(title=_text(40), text=_text(160)),
    "create_event": _object(title=_text(40), weekday={"enum": ["Monday", "Wednesday", "Friday"]}, note=_text(80)),
}
WISHES = ("Look up something about", "Make a note about", "Plan an event about", "Remind me of something about")
QUESTIONS = ("Explain in a few sentences:", "Write a short story about", "List five facts about", "Give advice about")


@dataclass(frozen=True)
class Asked:
    """A request, and the schemas its answer must follow: by the name of the tool, or "" for the text itself."""

    body: dict[str, Any]
    schemas: dict[str, dict[str, Any]]

    def held_by(self, answer: Answer) -> bool:
        """Whether the answer is whole and follows its schema; plain text always does."""
        if not self.schemas:
            return True
        try:
            jsonschema.validate(json.loads(answer.text), self.schemas[answer.call])
        except (ValueError, KeyError, jsonschema.ValidationError):
            return False
        return True


def requests(case: str, count: int, n: int, seed: int = 1) -> list[Asked]:
    """`count` different requests of a case for /v1/chat/completions.

    Args:
        case: one of CASES.
        n: tokens of an answer at most.
        seed: draws which subjects and kinds, in which order.
    """
    kinds: tuple[str, ...] = {"plain": QUESTIONS, "schema": tuple(SCHEMAS), "tools": WISHES}[case]
    pairs = [(kind, subject) for kind in kinds for subject in SUBJECTS]
    random.Random(seed).shuffle(pairs)
    if count > len(pairs):
        raise ValueError(f"there are only {len(pairs)} different requests of this kind")
    return [_asked(case, kind, subject, n) for kind, subject in pairs[:count]]


def _asked(case: str, kind: str, subject: str, n: int) -> Asked:
    messages = [{"role": "user", "content": f"{kind} {subject}."}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": n, "temperature": 0, "stream": True}
    body["cache_prompt"] = True
    if case == "plain":
        return Asked(body, {})
    if case == "schema":
        wanted = {"name": "answer", "schema": SCHEMAS[kind]}
        return Asked({**body, "response_format": {"type": "json_schema", "json_schema": wanted}}, {"": SCHEMAS[kind]})
    functions = [
        {"name": name, "description": f"Use this to {name.replace('_', ' ')}.", "parameters": schema}
        for name, schema in TOOLS.items()
    ]
    tools = [{"type": "function", "function": function} for function in functions]
    return Asked({**body, "tools": tools, "tool_choice": "required"}, TOOLS)
