"""What happens to chats when things go wrong for real: kill -9, a full disk, a read-only or damaged file, two
programs at once."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable

import pytest

from lcspec.answers.text import Piece
from lcspec.tui.store import Store, StoreProblem, schema, writer

pytestmark = pytest.mark.slow

WAIT = 300.0

STREAM = """
import sys, time
from pathlib import Path
from lcspec.answers.text import Piece
from lcspec.tui.store import Store
store = Store(Path(sys.argv[1]))
chat = store.create()
chat.add_user("go on")
answer = chat.begin_answer(model="m")
print(chat.id, flush=True)
n = 0
while True:
    n += 1
    answer.append([Piece(f"{n} ", "ngram" if n % 2 else None)], 1)
    print(n, time.time(), flush=True)
    time.sleep(0.01)
"""

BUSY = """
import sys
from pathlib import Path
from lcspec.answers.text import Piece
from lcspec.tui.store import Store
problems = []
store = Store(Path(sys.argv[1]), lambda p: problems.append(p) if p else None)
chat = store.create(title=sys.argv[2])
for i in range(60):
    chat.add_user(f"{sys.argv[2]} {i}")
    answer = chat.begin_answer()
    answer.append([Piece("x" * 1000, "ngram")], 1)
    if i % 10 == 0:
        assert store.flush(300), store.problem
    answer.finish()
assert store.close(300), (store.problem, problems)
assert not problems, problems
"""


class Problems:
    """Collects what the store reports; `wait` for the next one."""

    def __init__(self) -> None:
        self.seen: list[StoreProblem | None] = []
        self._changed = threading.Condition()

    def __call__(self, problem: StoreProblem | None) -> None:
        with self._changed:
            self.seen.append(problem)
            self._changed.notify_all()

    def wait(self, wanted: Callable[[StoreProblem | None], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(wanted(p) for p in self.seen), WAIT), self.seen

    def kinds(self) -> list[str | None]:
        return [p.kind if p else None for p in self.seen]


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY", 0.05)
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.1)


def filled(path: Path) -> str:
    with Store(path) as store:
        chat = store.create()
        chat.add_user("before")
        return chat.id


def on_disk(path: Path) -> bool:
    """Whether a part of the answer is."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("SELECT 1 FROM message WHERE role = 'assistant' AND text != ''").fetchone())


def test_kill_9_while_an_answer_streams(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with subprocess.Popen([sys.executable, "-c", STREAM, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        chat_id = child.stdout.readline().strip()
        begun = time.time()
        shown: list[tuple[int, float]] = []
        while time.time() - begun < 1.5 or len(shown) < 50 or not on_disk(path):
            number, when = child.stdout.readline().split()
            shown.append((int(number), float(when)))
        os.kill(child.pid, signal.SIGKILL)
        killed = time.time()
        for line in child.stdout:
            number, when = line.split()
            shown.append((int(number), float(when)))
    with Store(path) as store:
        assert store.problem is None
        latest = store.latest()
        assert latest is not None and latest.id == chat_id and latest.title == "go on"
        asked, answer = store.load(chat_id).branch
    assert asked.text == "go on"
    assert (answer.state, answer.stop_reason, answer.model) == ("stopped", "interrupted", "m")
    kept = [int(n) for n in answer.text.split()]
    assert kept == list(range(1, len(kept) + 1)), "a beginning of it, nothing else"
    assert answer.tokens == len(kept) and len(answer.spans) == (len(kept) + 1) // 2
    # Everything older than half a second is there; a busy machine gets another two to reach its disk.
    old = [n for n, when in shown if when < killed - 2.5]
    assert len(kept) >= len(old) and kept, (len(kept), len(shown))
    with Store(path) as store:
        assert store.load(chat_id).branch[-1].state == "stopped", "settled for good"
    assert list((tmp_path / "running").iterdir()) == [], "the dead program's lock is gone"


def test_the_writer_waits_no_longer_than_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The half second, without a clock: every text that was appended before a write begins is in that write, and the
    pause that is asked for between two writes of streaming text is INTERVAL."""
    assert writer.INTERVAL <= 0.25
    batches: list[list[str]] = []
    pauses: list[float] = []
    real_write, real_wait = writer.Writer._write, threading.Condition.wait
    written = threading.Semaphore(0)

    def write(self: writer.Writer, chats: list[object], messages: list[object]) -> bool:
        texts = [getattr(m, "message", m).text for m in messages]
        done = real_write(self, chats, messages)  # type: ignore[arg-type]
        batches.append(texts)
        written.release()
        return done

    def wait(self: threading.Condition, timeout: float | None = None) -> bool:
        if timeout is not None and threading.current_thread().name == "lcspec-chats":
            pauses.append(timeout)
        return real_wait(self, timeout)

    monkeypatch.setattr(writer.Writer, "_write", write)
    monkeypatch.setattr(threading.Condition, "wait", wait)
    with Store(tmp_path / "chats.db") as store:
        chat = store.create()
        chat.add_user("go")
        answer = chat.begin_answer()
        assert store.flush(WAIT)
        for i in range(5):
            answer.append([Piece(f"{i}", None)])
            assert written.acquire(timeout=WAIT)
            while answer.text not in batches[-1]:
                assert written.acquire(timeout=WAIT)
        answer.finish()
    assert pauses and max(pauses) <= writer.INTERVAL


def test_two_programs_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    names = ["first", "second", "third"]
    children = [
        subprocess.Popen([sys.executable, "-c", BUSY, str(path), name], stderr=subprocess.PIPE, text=True)
        for name in names
    ]
    for child in children:
        _, errors = child.communicate(timeout=300)
        assert child.returncode == 0, errors
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with Store(path) as store:
        summaries = store.chats()
        assert sorted(s.info.title for s in summaries) == names
        assert all(s.n_messages == 120 for s in summaries)
        for summary in summaries:
            asked = [m.text for m in store.load(summary.info.id).branch if m.role == "user"]
            assert asked == [f"{summary.info.title} {i}" for i in range(60)]


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """SQLite itself is told that the file may not grow: the error is the real one."""
    path = tmp_path / "chats.db"
    number = filled(path)
    problems = Problems()
    with Store(path, problems) as store:
        connection = store._writer._connection
        assert connection is not None
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        chat = store.load(number)
        chat.add_user("x" * 100_000)
        answer = chat.begin_answer()
        answer.append([Piece("y" * 1000, "ngram")])
        problems.wait(lambda p: p is not None and p.kind == "full")
        assert store.problem is not None and "disk is full" in store.problem.message
        assert not store.flush(WAIT)
        answer.append([Piece("z", "ngram")])
        assert [len(m.text) for m in store.load(number).branch] == [6, 100_000, 1001], "it goes on in memory"
        assert store.search("yyyz") and store.chats()[0].n_messages == 3
        connection.execute("PRAGMA max_page_count = 1000000")  # somebody made room
        problems.wait(lambda p: p is None)
        answer.finish()
        assert store.flush(WAIT) and store.problem is None
        assert problems.kinds() == ["full", None], "told once"
    with Store(path) as store:
        assert [len(m.text) for m in store.load(number).branch] == [6, 100_000, 1001]


LIMITED = """
import resource, sys
from pathlib import Path
from lcspec.answers.text import Piece
from lcspec.tui.store import Store
path = Path(sys.argv[1])
problems = []
store = Store(path, problems.append)
chat = store.create()
chat.add_user("kept")
assert store.flush(300)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
chat.add_user("x" * 400_000)
assert not store.flush(300) and store.problem is not None
assert [len(m.text) for m in store.load(chat.id).branch] == [4, 400_000]
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert store.flush(300), store.problem
assert problems[-1] is None and problems[0].message
assert store.close()
print(chat.id)
"""


def test_the_system_refuses_to_write_and_then_does_not(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "chats.db")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    with Store(tmp_path / "chats.db") as store:
        assert [len(m.text) for m in store.load(done.stdout.strip()).branch] == [4, 400_000]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    number = filled(folder / "chats.db")
    problems = Problems()
    (folder / "running").chmod(0o500)
    (folder / "chats.db").chmod(0o400)
    folder.chmod(0o500)
    try:
        with Store(folder / "chats.db", problems) as store:
            assert problems.kinds() == ["read-only"] and store.problem is not None
            assert [s.info.id for s in store.chats()] == [number] and store.search("before")
            chat = store.load(number)
            chat.add_user("in memory")
            assert [m.text for m in store.load(number).branch] == ["before", "in memory"]
            assert not store.flush(WAIT) and not store.close()
    finally:
        folder.chmod(0o700)
    (folder / "chats.db").chmod(0o600)
    with Store(folder / "chats.db") as store:
        assert [m.text for m in store.load(number).branch] == ["before"]


def test_a_read_only_file_is_noticed_even_by_root(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    number = filled(path)
    problems = Problems()
    with Store(path, problems) as store:
        assert store._writer._connection is not None
        store._writer._connection.execute("PRAGMA query_only = ON")
        store.load(number).add_user("in memory")
        problems.wait(lambda p: p is not None and p.kind == "read-only")
        assert not store.flush(WAIT)
        store._writer._connection.execute("PRAGMA query_only = OFF")
        problems.wait(lambda p: p is None)


@pytest.mark.parametrize("damage", ["text", "zeros", "cut", "middle"])
def test_a_damaged_file_is_left_alone_and_reported(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "chats.db"
    with Store(path) as store:
        chat = store.create()
        for i in range(200):
            chat.add_user(f"{i} " * 200)
    good = path.read_bytes()
    bad = {
        "text": b"this is not a database\n" * 1000,
        "zeros": bytes(len(good)),
        "cut": good[: len(good) // 3],
        "middle": good[:4096] + os.urandom(len(good) - 4096),
    }[damage]
    path.write_bytes(bad)
    problems = Problems()
    with Store(path, problems) as store:
        store.chats()
        fresh = store.create()
        fresh.add_user("in memory")
        store.flush(WAIT)
        store.chats(), store.search("xyz")
        assert "corrupt" in problems.kinds() and store.problem is not None
        assert "move it away" in store.problem.message and str(path) in store.problem.message
        assert [s.info.id for s in store.chats()] == [fresh.id]
        assert [h.message for h in store.search("memory")][-1] == fresh.branch[0].id
        assert not store.flush(WAIT)
    if damage in ("text", "zeros"):
        assert path.read_bytes() == bad


def test_a_damaged_name_in_the_file_is_reported(tmp_path: Path) -> None:
    """SQLite quotes it as it is, and it may be no text at all."""
    path = tmp_path / "chats.db"
    filled(path)
    good = path.read_bytes()
    bad = good.replace(b"system TEXT NOT NULL DEFAULT", b"system TEXT NOT \xbf\x1b\xf7\x10lEFAULT")
    assert bad != good
    path.write_bytes(bad)
    problems = Problems()
    with Store(path, problems) as store:
        assert store.chats() == [] and store.search("before") == []
        assert problems.kinds() == ["corrupt"]
    assert path.read_bytes() == bad


def test_another_program_s_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.execute("INSERT INTO theirs VALUES (1)")
    connection.close()
    before = path.read_bytes()
    problems = Problems()
    with Store(path, problems):
        assert problems.kinds() == ["corrupt"]
        assert problems.seen[0] is not None and "another program" in problems.seen[0].message
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["a file in the way", "a directory", "a pipe"])
def test_a_place_where_no_file_can_be(tmp_path: Path, place: str) -> None:
    if place == "a pipe":
        path = tmp_path / "chats.db"
        os.mkfifo(path)
    elif place == "a directory":
        path = tmp_path / "chats.db"
        path.mkdir()
    else:
        (tmp_path / "file").write_text("in the way")
        path = tmp_path / "file" / "chats.db"
    problems = Problems()
    with Store(path, problems) as store:
        chat = store.create()
        chat.add_user("in memory")
        assert [s.info.id for s in store.chats()] == [chat.id] and store.load(chat.id) is chat
        assert len(problems.seen) == 1 and not store.flush(WAIT)


def test_a_held_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    number = filled(path)
    problems = Problems()
    blocker = sqlite3.connect(path, isolation_level=None)
    with Store(path, problems) as store:
        blocker.execute("BEGIN IMMEDIATE")
        chat = store.load(number)
        chat.add_user("later")
        problems.wait(lambda p: p is not None and p.kind == "busy")
        blocker.execute("ROLLBACK")
        problems.wait(lambda p: p is None)
        assert store.flush(WAIT)
    blocker.close()
    with Store(path) as store:
        assert [m.text for m in store.load(number).branch] == ["before", "later"]


@pytest.mark.parametrize("idle", [False, True])
def test_opening_while_locked_catches_up(tmp_path: Path, idle: bool) -> None:
    path = tmp_path / "chats.db"
    filled(path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    problems = Problems()
    with Store(path, problems) as store:
        assert problems.kinds() == ["busy"]
        if not idle:
            store.create().add_user("meanwhile")
        blocker.execute("ROLLBACK")
        problems.wait(lambda p: p is None)
        assert store.flush(WAIT)
    blocker.close()
    with Store(path) as store:
        titles = [s.info.title for s in store.chats()]
        assert titles == (["before"] if idle else ["meanwhile", "before"])


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_taken_away_while_the_program_runs(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "data"
    filled(tmp_path / "other.db")
    with Store(folder / "chats.db") as store:
        chat = store.create(system="kept")
        chat.add_user("before")
        answer = chat.begin_answer()
        answer.append([Piece("streaming ", None)])
        assert store.flush(WAIT)
        if how == "removed":
            shutil.rmtree(folder)
        else:
            for suffix in ("-wal", "-shm"):
                (folder / f"chats.db{suffix}").unlink()
            os.replace(tmp_path / "other.db", folder / "chats.db")
        answer.append([Piece("on", None)])
        answer.finish()
        assert store.flush(WAIT) and store.problem is None
    with Store(folder / "chats.db") as store:
        again = store.load(chat.id)
        assert [m.text for m in again.branch] == ["before", "streaming on"] and again.info.system == "kept"
        assert len(store.chats()) == (1 if how == "removed" else 2)


def test_statistics_that_are_no_json_harm_nobody(tmp_path: Path) -> None:
    ring: dict[str, object] = {}
    ring["ring"] = ring
    with Store(tmp_path / "chats.db") as store:
        chat = store.create()
        chat.add_user("go")
        for stats in (ring, {(1, 2): 3}):
            answer = chat.begin_answer()
            answer.append([Piece("text", None)])
            answer.finish(stats=stats)  # type: ignore[arg-type]
        assert store.flush(WAIT) and store.problem is None


def test_a_callback_that_fails_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "chats.db").write_text("nonsense" * 100)

    def fail(_: StoreProblem | None) -> None:
        raise RuntimeError("the application has gone")

    with Store(tmp_path / "chats.db", fail) as store:
        assert store.problem is not None and store.problem.kind == "corrupt"


def test_a_program_that_forgets_to_close_loses_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from lcspec.tui.store import Store; "
        "store = Store(Path(sys.argv[1])); chat = store.create(); chat.add_user('forgotten'); print(chat.id)"
    )
    path = tmp_path / "chats.db"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with Store(path) as store:
        assert [m.text for m in store.load(done.stdout.strip()).branch] == ["forgotten"]
