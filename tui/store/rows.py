"""Records to rows and back. Reading is forgiving: a value that is nonsense becomes a default, never an error."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Iterable, Mapping

from lcspec.tui.attachments import Attachment
from lcspec.tui.store.records import ChatInfo, Message, Role, Span, State, clean

CHAT_COLUMNS = ("id", "title", "leaf", "system", "model", "preset", "created", "updated", "deleted", "pinned")
MESSAGE_COLUMNS = (
    "id", "chat", "parent", "role", "text", "attachments", "model", "seed", "sampling", "speculation",
    "stop_reason", "tokens", "stats", "spans", "state", "error", "owner", "created", "updated", "deleted",
)  # fmt: skip
_FIXED = ("id", "chat", "parent", "role", "created")
_STATES: tuple[State, ...] = ("streaming", "done", "stopped", "failed")

UPSERT_MESSAGE = (
    f"INSERT INTO message ({', '.join(MESSAGE_COLUMNS)}) VALUES ({', '.join('?' * len(MESSAGE_COLUMNS))}) "
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{c} = excluded.{c}' for c in MESSAGE_COLUMNS if c not in _FIXED)}"
)


def upsert_chat(fields: Iterable[str], bump: bool) -> str:
    """The statement that writes a chat: all of it if it is new, else `fields` only (another program may have changed
    the others); `bump` makes it the one used last."""
    sets = [f"{c} = excluded.{c}" for c in CHAT_COLUMNS[1:] if c in frozenset(fields)]
    sets += ["activity = excluded.activity"] if bump else []
    conflict = f"DO UPDATE SET {', '.join(sets)}" if sets else "DO NOTHING"
    return (
        f"INSERT INTO chat ({', '.join(CHAT_COLUMNS)}, activity) VALUES ({', '.join('?' * len(CHAT_COLUMNS))}, "
        f"(SELECT coalesce(max(activity), 0) + 1 FROM chat)) ON CONFLICT (id) {conflict}"
    )


def chat_row(info: ChatInfo) -> tuple[Any, ...]:
    """Values for CHAT_COLUMNS."""
    return tuple(_plain(getattr(info, column)) for column in CHAT_COLUMNS)


def message_row(message: Message, owner: str) -> tuple[Any, ...]:
    """Values for MESSAGE_COLUMNS; `owner` is noted while it streams."""
    values: dict[str, Any] = {
        "attachments": _dump([a.as_dict() for a in message.attachments]),
        "seed": None if message.seed is None else str(message.seed),
        "sampling": _dump(dict(message.sampling)),
        "stats": _dump(dict(message.stats)),
        "spans": _dump(message.spans),
        "owner": owner if message.state == "streaming" else None,
        "deleted": int(message.deleted),
    }
    return tuple(values[c] if c in values else _plain(getattr(message, c)) for c in MESSAGE_COLUMNS)


def chat_of(row: sqlite3.Row) -> ChatInfo:
    """A chat from a row with CHAT_COLUMNS."""
    return ChatInfo(
        id=_string(row["id"]),
        title=_string(row["title"]),
        leaf=_optional(row["leaf"]),
        system=_string(row["system"]),
        model=_optional(row["model"]),
        preset=_optional(row["preset"]),
        created=number_of(row["created"]),
        updated=number_of(row["updated"]),
        deleted=None if row["deleted"] is None else number_of(row["deleted"]),
        pinned=bool(row["pinned"]),
    )


def message_of(row: sqlite3.Row) -> Message:
    """A message from a row with MESSAGE_COLUMNS."""
    text = _string(row["text"])
    return Message(
        id=_string(row["id"]),
        chat=_string(row["chat"]),
        parent=_optional(row["parent"]),
        role=role_of(row["role"]),
        text=text,
        attachments=attachments_of(_load(row["attachments"])),
        model=_optional(row["model"]),
        seed=integer_of(row["seed"]),
        sampling=mapping_of(_load(row["sampling"])),
        speculation=_optional(row["speculation"]),
        stop_reason=_optional(row["stop_reason"]),
        tokens=integer_of(row["tokens"]),
        stats=mapping_of(_load(row["stats"])),
        spans=spans_of(_load(row["spans"]), len(text)),
        state=state_of(row["state"]),
        error=_optional(row["error"]),
        created=number_of(row["created"]),
        updated=number_of(row["updated"]),
        deleted=bool(row["deleted"]),
    )


def role_of(value: object) -> Role:
    """A role; nonsense is taken for a user's."""
    return "assistant" if value == "assistant" else "user"


def state_of(value: object) -> State:
    """A state; nonsense is done."""
    return next((state for state in _STATES if state == value), "done")


def spans_of(value: object, length: int) -> tuple[Span, ...]:
    """Spans from JSON that fit a text of `length` characters, in order and not overlapping."""
    spans: list[Span] = []
    for item in value if isinstance(value, list) else []:
        if isinstance(item, (list, tuple)) and len(item) == 3 and type(item[0]) is type(item[1]) is int:
            start, end = max(item[0], spans[-1].end if spans else 0), min(item[1], length)
            if start < end:
                spans.append(Span(start, end, str(item[2])))
    return tuple(spans)


def attachments_of(value: object) -> tuple[Attachment, ...]:
    """Attachments from JSON."""
    items = value if isinstance(value, list) else []
    return tuple(Attachment.from_dict(item) for item in items if isinstance(item, Mapping))


def mapping_of(value: object) -> dict[str, Any]:
    """A JSON object, or an empty one."""
    return {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else {}


def integer_of(value: object) -> int | None:
    """A whole number, also as text; else None."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def number_of(value: object) -> float:
    """A finite number, or 0."""
    number = float(value) if isinstance(value, (int, float)) and abs(value) < 1e15 else 0.0
    return number if number == number else 0.0


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    # SQLite's integers end at 2^63
    return str(value) if isinstance(value, int) and abs(value) >= 1 << 63 else value


def _dump(value: Any) -> str | None:
    try:
        return clean(json.dumps(value, ensure_ascii=False, default=str, separators=(",", ":"))) if value else None
    except (TypeError, ValueError, RecursionError):  # keys that are no text, a ring: better without it than not at all
        return None


def _load(value: object) -> object:
    if not isinstance(value, str):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _string(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _optional(value: object) -> str | None:
    return None if value is None else _string(value)
