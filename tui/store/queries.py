"""What the store asks of the file."""

from __future__ import annotations

import sqlite3
from typing import Sequence

from lcspec.tui.store.records import ChatInfo, ChatSummary, Message, now
from lcspec.tui.store.rows import CHAT_COLUMNS, MESSAGE_COLUMNS, chat_of, message_of

KEEP_DELETED_DAYS = 30.0
PREVIEW = 100
_AT_ONCE = 500  # parameters of one statement


def read_list(connection: sqlite3.Connection, messages: Sequence[str]) -> tuple[list[ChatSummary], dict[str, bool]]:
    """All chats, deleted ones included, the one used last first; and which of `messages` are in the file (True: shown,
    False: deleted)."""
    connection.execute("BEGIN")  # so that all queries see the same state
    rows = connection.execute(
        f"""SELECT {", ".join(CHAT_COLUMNS)},
            (SELECT count(*) FROM message WHERE chat = chat.id AND deleted = 0) AS n_messages,
            (SELECT substr(text, 1, 400) FROM message WHERE chat = chat.id AND deleted = 0 AND text != ''
             ORDER BY seq DESC LIMIT 1) AS preview
        FROM chat ORDER BY activity DESC"""
    )
    chats = [ChatSummary(chat_of(row), int(row["n_messages"]), preview(str(row["preview"] or ""))) for row in rows]
    return chats, _are_shown(connection, messages)


def read_chat(connection: sqlite3.Connection, chat: str) -> tuple[ChatInfo, list[tuple[Message, str | None]]] | None:
    """A chat with its messages in order of arrival, each with its owner; None if there is none."""
    connection.execute("BEGIN")  # so that all queries see the same state
    found = connection.execute(f"SELECT {', '.join(CHAT_COLUMNS)} FROM chat WHERE id = ?", (chat,)).fetchone()
    if found is None:
        return None
    rows = connection.execute(f"SELECT {', '.join(MESSAGE_COLUMNS)} FROM message WHERE chat = ? ORDER BY seq", (chat,))
    return chat_of(found), [(message_of(row), row["owner"]) for row in rows]


def _are_shown(connection: sqlite3.Connection, messages: Sequence[str]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for i in range(0, len(messages), _AT_ONCE):
        part = messages[i : i + _AT_ONCE]
        marks = ", ".join("?" * len(part))
        rows = connection.execute(f"SELECT id, deleted FROM message WHERE id IN ({marks})", part)
        found.update({str(row["id"]): not row["deleted"] for row in rows})
    return found


def purge(connection: sqlite3.Connection) -> None:
    """Take away for good what was deleted more than KEEP_DELETED_DAYS ago."""
    before = now() - KEEP_DELETED_DAYS * 86400
    connection.execute(
        "DELETE FROM message WHERE chat IN (SELECT id FROM chat WHERE deleted < ?) OR (deleted = 1 AND updated < ?)",
        (before, before),
    )
    connection.execute("DELETE FROM chat WHERE deleted < ?", (before,))


def preview(text: str) -> str:
    """The beginning of a message on one line."""
    return " ".join(text[: 4 * PREVIEW].split())[:PREVIEW]
