"""A chat as Markdown for people (the branch shown) and as JSON (all branches), which can be read back."""

from __future__ import annotations

import contextlib
import json
import re
import time
import unicodedata
from dataclasses import replace
from typing import Any, Mapping

from lcspec.errors import LcspecError
from lcspec.tui.attachments import fenced
from lcspec.tui.store.chat import Chat
from lcspec.tui.store.records import ChatInfo, Message, clean, new_id, now
from lcspec.tui.store.rows import attachments_of, integer_of, mapping_of, number_of, role_of, spans_of, state_of

JSON_FORMAT = "lcspec-chat"
JSON_VERSION = 1

_MARKDOWN = re.compile(r"# .*\n\n\d{4,}-\d\d-\d\d \d\d:\d\d\n")
_HEADINGS = {"user": "You", "assistant": "Assistant"}
_ENDINGS = {
    "length": "ended at the limit of tokens",
    "context": "ended because the context was full",
    "cancelled": "stopped",
    "interrupted": "interrupted",
    "edited": "edited",
}


class ExportError(LcspecError):
    """A text is not an exported chat; the message says what it is instead."""


def to_markdown(chat: Chat) -> str:
    """The branch shown, ready to read or to publish."""
    lines = [f"# {_one_line(chat.info.title) or 'Chat'}", ""]
    with contextlib.suppress(OverflowError, OSError, ValueError):  # a time that no calendar has
        lines += [time.strftime("%Y-%m-%d %H:%M", time.localtime(chat.info.created)), ""]
    if chat.info.system:
        lines += ["## System", "", chat.info.system.rstrip(), ""]
    for message in chat.branch:
        lines += [f"## {_heading(message)}", ""]
        for attachment in message.attachments:
            lines += [fenced(attachment), ""]
        lines += [message.text.strip() or "*(empty)*", ""] if message.text.strip() or not message.attachments else []
        note = message.error or _ENDINGS.get(message.stop_reason or "")
        if note:
            lines += [f"*({_one_line(note)})*", ""]
    return clean("\n".join(lines).rstrip() + "\n")


def to_json(chat: Chat) -> str:
    """Everything, all branches, as one JSON object."""
    messages = [chat.message(m.id) for m in chat.tree.everything.values() if m.id in chat.tree]
    data = {
        "format": JSON_FORMAT,
        "version": JSON_VERSION,
        "chat": {
            k: getattr(chat.info, k) for k in ("title", "leaf", "system", "model", "preset", "created", "updated")
        },
        "messages": [_message_object(message) for message in messages],
    }
    return clean(json.dumps(data, ensure_ascii=False, indent=1, default=str)) + "\n"


def is_export(start: str) -> bool:
    """Whether a file that begins like this is an exported chat, of either format."""
    return f'"format": "{JSON_FORMAT}"' in start[:100] or _MARKDOWN.match(start) is not None


def from_json(text: str) -> tuple[ChatInfo, list[Message]]:
    """Read an exported chat; every id is new, so that it can stand beside the original.

    Raises:
        ExportError: it is not one, or from a newer version; the message says which.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"this is not an exported chat: it is not valid JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != JSON_FORMAT:
        raise ExportError('this is not an exported chat: it has no "format": "lcspec-chat"')
    version = data.get("version")
    if not isinstance(version, int) or version > JSON_VERSION:
        raise ExportError(f"this chat was exported by a newer lcspec (version {version}): upgrade lcspec to read it")
    items = data.get("messages")
    items = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    ids = {str(item.get("id")): new_id() for item in items}
    chat = mapping_of(data.get("chat"))
    info = ChatInfo(
        id=new_id(),
        title=_one_line(_text(chat, "title")),
        leaf=ids.get(str(chat.get("leaf"))),
        system=_text(chat, "system"),
        model=_text(chat, "model") or None,
        preset=_text(chat, "preset") or None,
        created=_number(chat, "created") or now(),
        updated=_number(chat, "updated") or now(),
    )
    messages = {m.id: m for m in (_message(item, info.id, ids) for item in items)}
    return info, list(messages.values())


def file_name(info: ChatInfo, suffix: str) -> str:
    """A safe file name from the title: `file_name(info, ".md")`."""
    plain = unicodedata.normalize("NFC", info.title)
    words = re.sub(r"[^\w.+-]+", "-", plain).strip("-._")
    while len(words.encode()) > 80:
        words = words[:-1]
    return (words.rstrip("-._") or "chat") + suffix


def _message_object(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": message.id,
        "parent": message.parent,
        "role": message.role,
        "text": message.text,
        "state": message.state,
        "created": message.created,
        "updated": message.updated,
        "attachments": [a.as_dict() for a in message.attachments],
        "model": message.model,
        "seed": message.seed,
        "sampling": dict(message.sampling),
        "speculation": message.speculation,
        "stop_reason": message.stop_reason,
        "tokens": message.tokens,
        "stats": dict(message.stats),
        "spans": [list(span) for span in message.spans],
        "error": message.error,
    }
    always = ("id", "parent", "role", "text", "state")
    return {k: v for k, v in out.items() if k in always or v not in (None, [], {})}


def _message(item: Mapping[str, Any], chat: str, ids: Mapping[str, str]) -> Message:
    text = _text(item, "text")
    message = Message(
        id=ids[str(item.get("id"))],
        chat=chat,
        parent=ids.get(str(item.get("parent"))),
        role=role_of(item.get("role")),
        text=text,
        attachments=attachments_of(item.get("attachments")),
        model=_text(item, "model") or None,
        seed=integer_of(item.get("seed")),
        sampling=mapping_of(item.get("sampling")),
        speculation=_text(item, "speculation") or None,
        stop_reason=_text(item, "stop_reason") or None,
        tokens=integer_of(item.get("tokens")),
        stats=mapping_of(item.get("stats")),
        spans=spans_of(item.get("spans"), len(text)),
        state=state_of(item.get("state")),
        error=_text(item, "error") or None,
        created=_number(item, "created"),
        updated=_number(item, "updated"),
    )
    if message.state == "streaming":  # exported while it streamed: what came is all there is
        message = replace(message, state="stopped", stop_reason="interrupted")
    return message


def _heading(message: Message) -> str:
    name = _HEADINGS[message.role]
    return f"{name} ({_one_line(message.model)})" if message.model else name


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return clean(value) if isinstance(value, str) else ""


def _number(data: Mapping[str, Any], key: str) -> float:
    value = data.get(key)
    return number_of(value)
