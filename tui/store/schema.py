"""The SQLite file: its versions, and opening it without harming one that we do not understand.

The version is PRAGMA user_version. A migration is never changed once released; the next version gets its own.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import urllib.parse
from pathlib import Path

from lcspec.paths import printable
from lcspec.tui.store.records import ProblemKind, StoreProblem

_V1 = (
    """CREATE TABLE chat (
        id TEXT PRIMARY KEY, title TEXT NOT NULL DEFAULT '', leaf TEXT, system TEXT NOT NULL DEFAULT '',
        model TEXT, created REAL NOT NULL DEFAULT 0, updated REAL NOT NULL DEFAULT 0)""",
    # seq keeps the order of arrival, whatever the clock does; seeds go up to 2^64 - 1, so they are text
    """CREATE TABLE message (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, chat TEXT NOT NULL, parent TEXT, role TEXT NOT NULL,
        text TEXT NOT NULL DEFAULT '', model TEXT, seed TEXT, sampling TEXT, stop_reason TEXT, tokens INTEGER,
        stats TEXT, state TEXT NOT NULL DEFAULT 'done', created REAL NOT NULL DEFAULT 0,
        updated REAL NOT NULL DEFAULT 0)""",
    "CREATE INDEX message_of_chat ON message (chat, seq)",
)
_V2 = (
    "ALTER TABLE chat ADD COLUMN preset TEXT",
    "ALTER TABLE chat ADD COLUMN deleted REAL",
    # the order of use, counted and not timed
    "ALTER TABLE chat ADD COLUMN activity INTEGER NOT NULL DEFAULT 0",
    "UPDATE chat SET activity = (SELECT coalesce(max(seq), 0) FROM message WHERE message.chat = chat.id)",
    "CREATE INDEX chat_activity ON chat (activity)",
    "ALTER TABLE message ADD COLUMN attachments TEXT",
    "ALTER TABLE message ADD COLUMN speculation TEXT",
    "ALTER TABLE message ADD COLUMN spans TEXT",
    "ALTER TABLE message ADD COLUMN error TEXT",
    "ALTER TABLE message ADD COLUMN owner TEXT",
    "ALTER TABLE message ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0",
    # counting a chat's messages must not read their texts
    "DROP INDEX message_of_chat",
    "CREATE INDEX message_of_chat ON message (chat, deleted, seq)",
)
_V3 = ("ALTER TABLE chat ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",)
MIGRATIONS: tuple[tuple[str, ...], ...] = (_V1, _V2, _V3)
VERSION = len(MIGRATIONS)

BUSY_SECONDS = 2.0


class DatabaseProblem(Exception):
    """The file cannot be used; carries what to tell the user."""

    def __init__(self, problem: StoreProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def open_writer(path: Path) -> sqlite3.Connection:
    """Open the file for writing, making or migrating it. Usable from any one thread at a time.

    Raises:
        DatabaseProblem: with the kind of problem. A newer or damaged file has not been touched.
    """
    try:
        _refuse_newer(path, _version_in_header(path))
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # What people say to a model is private: SQLite's own files take over this mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise DatabaseProblem(problem_of(error, path)) from error
    try:
        connection.text_factory = _text
        _refuse_newer(path, _version(connection))
        _refuse_foreign(path, connection)
        connection.execute("PRAGMA journal_mode = WAL")  # a file system without shared memory keeps its own mode
        connection.execute("PRAGMA synchronous = FULL")
        _migrate(connection, path)
    except DatabaseProblem:
        connection.close()
        raise
    except (sqlite3.Error, UnicodeDecodeError) as error:
        connection.close()
        raise DatabaseProblem(problem_of(error, path)) from error
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open the file for reading only.

    Raises:
        sqlite3.Error: it cannot be opened, or is of another version (sqlite3.DatabaseError).
    """
    if not path.is_file():  # SQLite would wait for the writer of a pipe
        raise sqlite3.OperationalError("there is no such file")
    base = "file:" + urllib.parse.quote(os.fsencode(os.path.abspath(path)))
    try:
        connection = _read_only(base + "?mode=ro")
    except sqlite3.OperationalError:
        # In a directory that may not be written, a file in WAL mode opens only under the promise that nobody writes.
        if os.access(path.parent, os.W_OK):
            raise
        connection = _read_only(base + "?mode=ro&immutable=1")
    connection.row_factory = sqlite3.Row
    return connection


def _read_only(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.text_factory = _text
        version = _version(connection)
        if version != VERSION:
            raise sqlite3.DatabaseError(f"the file has format {version}")
    except BaseException:
        connection.close()
        raise
    return connection


def problem_of(error: Exception, path: Path) -> StoreProblem:
    """What an error of SQLite or of the system means for the user."""
    # SQLite quotes a damaged name in its message as it is, and Python cannot read that.
    text = "malformed name" if isinstance(error, UnicodeDecodeError) else printable(str(error))
    shown = printable(path)
    kind: ProblemKind = next((kind for words, kind in _KINDS if words in text.lower()), "io")
    advice = {
        "corrupt": f"{shown} is damaged: move it away (or put a copy of it back) and start again",
        "full": "the disk is full: free some space",
        "read-only": f"{shown} may not be written: check the permissions of the file and its directory",
        "busy": f"{shown} is held by another program: close it",
        "io": f"{shown} cannot be written ({text}): check the disk",
    }[kind]
    return StoreProblem(kind, f"chats are not being saved: {advice}")


_KINDS: tuple[tuple[str, ProblemKind], ...] = (
    ("disk is full", "full"),
    ("no space left", "full"),
    ("quota exceeded", "full"),
    ("readonly", "read-only"),
    ("read-only", "read-only"),
    ("permission denied", "read-only"),
    ("not permitted", "read-only"),
    ("malformed", "corrupt"),
    ("not a database", "corrupt"),
    ("no such table", "corrupt"),
    ("no such column", "corrupt"),
    ("has no column", "corrupt"),
    ("already exists", "corrupt"),
    ("locked", "busy"),
)


def _refuse_newer(path: Path, version: int) -> None:
    if version > VERSION:
        raise DatabaseProblem(
            StoreProblem(
                "newer",
                f"chats are not being saved: {printable(path)} was written by a newer lcspec (format {version}, this "
                f"one knows {VERSION}); upgrade lcspec, or set LCSPEC_DATA_DIR to another directory",
            )
        )


def _refuse_foreign(path: Path, connection: sqlite3.Connection) -> None:
    tables = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if _version(connection) < 0 or (tables and not {"chat", "message"} <= tables):
        advice = "move it away, or set LCSPEC_DATA_DIR to another directory"
        problem = f"chats are not being saved: {printable(path)} belongs to another program: {advice}"
        raise DatabaseProblem(StoreProblem("corrupt", problem))


def _version_in_header(path: Path) -> int:
    """user_version as the file's first page has it, read without SQLite, which would make files beside it."""
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        head = file.read(100)
        if head.startswith(b"SQLite format 3\0") and len(head) == 100:
            return int.from_bytes(head[60:64], "big", signed=True)
    return 0


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to VERSION, all or nothing. Two programs may start at once: the second finds it done."""
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        _refuse_newer(path, version)
        for step in MIGRATIONS[version:]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
