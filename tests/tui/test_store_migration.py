"""Files of older versions are brought up to date with everything in them; files of newer ones are not touched."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from lcspec.tui.store import Store, schema

# The first version's file as it was: never to be changed, whatever happens to the code.
VERSION_1 = """
CREATE TABLE chat (
    id TEXT PRIMARY KEY, title TEXT NOT NULL DEFAULT '', leaf TEXT, system TEXT NOT NULL DEFAULT '',
    model TEXT, created REAL NOT NULL DEFAULT 0, updated REAL NOT NULL DEFAULT 0);
CREATE TABLE message (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, chat TEXT NOT NULL, parent TEXT, role TEXT NOT NULL,
    text TEXT NOT NULL DEFAULT '', model TEXT, seed TEXT, sampling TEXT, stop_reason TEXT, tokens INTEGER,
    stats TEXT, state TEXT NOT NULL DEFAULT 'done', created REAL NOT NULL DEFAULT 0, updated REAL NOT NULL DEFAULT 0);
CREATE INDEX message_of_chat ON message (chat, seq);
INSERT INTO chat VALUES ('c1', 'Old', 'm3', 'Be old.', '/m.gguf', 1000.5, 2000.5);
INSERT INTO chat VALUES ('c2', 'Used last', 'n1', '', NULL, 1000, 1000);
INSERT INTO chat VALUES ('c3', 'Empty', NULL, '', NULL, 3000, 3000);
INSERT INTO message VALUES
    (1, 'm1', 'c1', NULL, 'user', 'question', NULL, NULL, NULL, NULL, NULL, NULL, 'done', 1001, 1002),
    (2, 'm2', 'c1', 'm1', 'assistant', 'first answer', 'm.gguf', '18446744073709551615', '{"temperature":0.5}',
     'length', 3, '{"drafted":4}', 'done', 1003, 1004),
    (3, 'm3', 'c1', 'm1', 'assistant', 'second answ', 'm.gguf', '7', NULL, NULL, 2, NULL, 'streaming', 1005, 1006),
    (4, 'n1', 'c2', NULL, 'user', 'other', NULL, NULL, NULL, NULL, NULL, NULL, 'done', 1001, 1002);
PRAGMA user_version = 1;
"""


def old_file(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript(VERSION_1)
    connection.close()


def check_content(store: Store) -> None:
    assert [(s.info.title, s.n_messages) for s in store.chats()] == [("Used last", 1), ("Old", 3)]
    chat = store.load("c1")
    assert (chat.info.title, chat.info.system, chat.info.model) == ("Old", "Be old.", "/m.gguf")
    assert (chat.info.created, chat.info.updated) == (1000.5, 2000.5)
    assert [m.text for m in chat.branch] == ["question", "second answ"]
    first = chat.walk("m3", -1)[-1]
    assert (first.text, first.model, first.seed, first.sampling) == (
        "first answer",
        "m.gguf",
        2**64 - 1,
        {"temperature": 0.5},
    )
    assert (first.stop_reason, first.tokens, first.stats) == ("length", 3, {"drafted": 4})
    assert (first.created, first.updated, first.spans, first.attachments) == (1003, 1004, (), ())
    cut = chat.message("m3")
    assert (cut.state, cut.stop_reason, cut.seed) == ("stopped", "interrupted", 7)
    chat.show("m3")


def test_an_old_file_keeps_everything_and_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    old_file(path)
    with Store(path) as store:
        assert store.problem is None
        check_content(store)
        store.load("c1").add_user("and now?")
    with Store(path) as store:
        assert [m.text for m in store.load("c1").branch] == ["question", "second answ", "and now?"]
        assert [s.info.title for s in store.chats()] == ["Old", "Used last"]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)


def test_an_old_file_ends_with_the_same_tables_as_a_new_one(tmp_path: Path) -> None:
    old_file(tmp_path / "old.db")
    shapes = []
    for name in ("old.db", "new.db"):
        with Store(tmp_path / name):
            pass
        with sqlite3.connect(tmp_path / name) as connection:
            shapes.append(
                {
                    table: connection.execute(f"PRAGMA table_info({table})").fetchall()
                    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
                }
            )
    assert shapes[0] == shapes[1] and set(shapes[0]) == {"chat", "message"}


def test_two_programs_migrate_at_once(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    old_file(path)
    gate = threading.Barrier(4)
    failed: list[object] = []

    def open_it() -> None:
        gate.wait()
        with Store(path) as store:
            failed.extend([store.problem] if store.problem else [])

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    with Store(path) as store:
        check_content(store)


def test_a_migration_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chats.db"
    old_file(path)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("UPDATE chat SET title = 'x'", "NONSENSE")))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    with Store(path) as store:
        assert store.problem is not None
    monkeypatch.undo()
    with Store(path) as store:
        check_content(store)


def test_a_file_from_a_newer_version_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with Store(path) as store:
        store.create().add_user("precious")
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("ALTER TABLE message ADD COLUMN novelty TEXT")
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    listed = sorted(p.name for p in tmp_path.iterdir())
    problems = []
    with Store(path, problems.append) as store:
        assert store.problem is not None and store.problem.kind == "newer" and problems == [store.problem]
        for word in ("newer lcspec", "upgrade lcspec", "LCSPEC_DATA_DIR", str(path)):
            assert word in store.problem.message
        chat = store.create()
        chat.add_user("in memory")
        assert [s.info.id for s in store.chats()] == [chat.id] and store.search("precious") == []
        assert not store.flush(1)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == listed, "no files beside it either"


def test_a_newer_version_that_is_only_in_the_log_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with Store(path):
        pass
    newer = sqlite3.connect(path, isolation_level=None)  # a newer program that runs, its change not yet in the file
    newer.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    assert path.read_bytes()[60:64] == schema.VERSION.to_bytes(4, "big")
    with Store(path) as store:
        assert store.problem is not None and store.problem.kind == "newer"
    newer.close()
