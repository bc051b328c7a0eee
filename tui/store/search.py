"""Finding text in titles and messages: any case, any language, no index to keep up while text streams."""

from __future__ import annotations

import re
import sqlite3
from typing import Iterable

from lcspec.tui.store.records import ChatInfo, SearchHit
from lcspec.tui.store.rows import CHAT_COLUMNS, chat_of

EXCERPT = 60  # characters on each side of the text found
_CHAT = ", ".join(f"chat.{column} AS {column}" for column in CHAT_COLUMNS)


def search_file(connection: sqlite3.Connection, wanted: str, limit: int) -> list[SearchHit]:
    """Hits in the file, chats used last first, titles before messages, newest messages first.

    Raises:
        sqlite3.Error: reading failed.
    """
    condition, value = _condition(connection, wanted)
    titles = connection.execute(
        f"SELECT {_CHAT} FROM chat WHERE deleted IS NULL AND {condition.format('title')} "
        "ORDER BY activity DESC LIMIT ?",
        (value, limit),
    )
    found = [(0, hit) for row in titles if (hit := hit_of(chat_of(row), None, chat_of(row).title, wanted))]
    texts = connection.execute(
        f"SELECT {_CHAT}, message.id AS message, message.text AS text FROM message JOIN chat ON chat.id = message.chat "
        f"WHERE chat.deleted IS NULL AND NOT message.deleted AND {condition.format('message.text')} "
        "ORDER BY chat.activity DESC, message.seq DESC LIMIT ?",
        (value, limit),
    )
    found += [(1, hit) for row in texts if (hit := hit_of(chat_of(row), str(row["message"]), str(row["text"]), wanted))]
    order = _order(connection)
    found.sort(key=lambda item: (-order.get(item[1].chat.id, 0), item[0]))
    return [hit for _, hit in found[:limit]]


def hit_of(chat: ChatInfo, message: str | None, text: str, wanted: str) -> SearchHit | None:
    """The first place in `text`, with what is around it on one line; None if it is not there."""
    match = re.search(re.escape(wanted), text, re.IGNORECASE)
    if match is None:
        if wanted.casefold() not in text.casefold():
            return None
        return SearchHit(chat, message, _line(text[: 2 * EXCERPT]), 0, 0)  # "STRASSE" finds "Straße", somewhere
    before = _line(text[max(0, match.start() - EXCERPT) : match.start()])
    inside = _line(match.group())
    after = _line(text[match.end() : match.end() + EXCERPT])
    before = "…" + before if match.start() > EXCERPT else before
    after = after + "…" if match.end() + EXCERPT < len(text) else after
    return SearchHit(chat, message, before + inside + after, len(before), len(before) + len(inside))


def merge(newer: Iterable[SearchHit], older: Iterable[SearchHit], limit: int) -> list[SearchHit]:
    """Both, each message once, `newer` first."""
    found: dict[tuple[str, str | None], SearchHit] = {}
    for hit in (*newer, *older):
        found.setdefault((hit.chat.id, hit.message), hit)
    return list(found.values())[:limit]


def _condition(connection: sqlite3.Connection, wanted: str) -> tuple[str, str]:
    """A condition on a column, and its parameter. LIKE folds the case of ASCII only but runs without Python."""
    if wanted.isascii() and len(wanted) < 1000 and "\0" not in wanted:
        pattern = re.sub(r"([\\%_])", r"\\\1", wanted)
        return "{} LIKE ? ESCAPE '\\'", f"%{pattern}%"
    connection.create_function("contains", 2, lambda text, part: part in str(text).casefold(), deterministic=True)
    return "contains({}, ?)", wanted.casefold()


def _order(connection: sqlite3.Connection) -> dict[str, int]:
    return {str(row["id"]): int(row["activity"]) for row in connection.execute("SELECT id, activity FROM chat")}


def _line(text: str) -> str:
    """Line ends and other control characters as blanks; the length stays."""
    return "".join(c if c.isprintable() else " " for c in text)
