"""The one thread that writes: it keeps what is not on disk yet and retries what the disk refuses.

    any thread                          writer thread
    put(record)  ---- pending ---->     every 0.2 s while text streams, at once for everything else:
                                        one transaction with all of pending

Pending holds records, not operations: the newest state of each message and chat. So a record that changes ten times
between two writes is written once, a failed write loses nothing, and an outage costs no more memory than the texts.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable, Iterator, Protocol, Sequence

from lcspec.tui.store.records import ChatInfo, Message, StoreProblem
from lcspec.tui.store.rows import CHAT_COLUMNS, UPSERT_MESSAGE, chat_row, message_row, upsert_chat
from lcspec.tui.store.schema import DatabaseProblem, open_writer, problem_of

OnProblem = Callable[[StoreProblem | None], None]

INTERVAL = 0.2  # seconds between two writes of streaming text
RETRY = 2.0  # seconds after a failure


class Live(Protocol):
    """A message that grows: asked for its state when it is written."""

    @property
    def message(self) -> Message:
        """What it is now; called on any thread."""
        ...


class _PendingChat:
    """A chat with the fields that changed."""

    def __init__(self, info: ChatInfo, fields: frozenset[str], bump: bool) -> None:
        self.info, self.fields, self.bump = info, fields, bump


@dataclass(frozen=True)
class Pending:
    """Records that may not be on disk yet: chats and messages by id in order of arrival, and the chats `used` since."""

    chats: dict[str, ChatInfo]
    messages: dict[str, Message]
    used: list[str]

    def __bool__(self) -> bool:
        return bool(self.chats or self.messages)


class Writer:
    """Writes records until closed. `problem` says why it does not, if so."""

    def __init__(
        self,
        path: Path,
        owner: str,
        on_problem: OnProblem | None,
        prepare: Callable[[sqlite3.Connection], None] = lambda _: None,
    ) -> None:
        """Open the file (in this thread, so that migrations are done on return) and start.

        `prepare` runs on the connection whenever the file has been opened, inside a transaction.
        """
        self.path = path
        self.problem: StoreProblem | None = None
        self._owner = owner
        self._on_problem = on_problem
        self._prepare = prepare
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._chats: dict[str, _PendingChat] = {}
        self._messages: dict[str, Message | Live] = {}
        self._writing: tuple[dict[str, _PendingChat], dict[str, Message | Live]] = ({}, {})
        self._changed = threading.Condition()
        self._urgent = False
        self._closing = False
        self._failures = 0
        self._not_before = 0.0
        if not self._write([], []):
            self._not_before = time.monotonic() + RETRY
        self._thread = threading.Thread(target=self._main, name="lcspec-chats", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ any thread

    def put_chat(
        self,
        info: ChatInfo,
        fields: Iterable[str] = CHAT_COLUMNS,
        *,
        bump: bool = False,
        messages: Sequence[Message] = (),
    ) -> None:
        """Write a chat's `fields` soon; `bump` makes it the one used last. `messages` are written in the same
        transaction: a message without its chat would never be seen again."""
        with self._changed:
            self._messages.update((message.id, message) for message in messages)
            # taken out and put in again when it is used, so that the order is that of use
            old = self._chats.pop(info.id, None) if bump else self._chats.get(info.id)
            changed = frozenset(fields) | (old.fields if old else frozenset())
            self._chats[info.id] = _PendingChat(info, changed, bump or (old is not None and old.bump))
            self._urgent = True
            self._changed.notify_all()

    def put_message(self, message: Message) -> None:
        """Write a message soon."""
        with self._changed:
            self._messages[message.id] = message
            self._urgent = True
            self._changed.notify_all()

    def put_live(self, number: str, live: Live) -> None:
        """Write a growing message within INTERVAL."""
        with self._changed:
            known = number in self._messages
            self._messages[number] = live
            if not known:
                self._changed.notify_all()

    def pending(self) -> Pending:
        """What may not be on disk yet."""
        with self._changed:
            chats = {**self._writing[0], **self._chats}
            messages = {**self._writing[1], **self._messages}
            later = [k for k, c in self._chats.items() if c.bump]
            used = [k for k, c in self._writing[0].items() if c.bump and k not in later] + later
        return Pending(
            {k: c.info for k, c in chats.items()},
            {k: _now(m) for k, m in messages.items()},
            used,
        )

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing is pending; False if the next try failed or `timeout` came first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            # a write that is under way does not have everything, so its failure is not the answer
            enough = self._failures + (2 if any(self._writing) else 1)
            self._urgent, self._not_before = True, 0.0
            self._changed.notify_all()
            while self._chats or self._messages or any(self._writing):
                if self._failures >= enough or not self._thread.is_alive() or (self.problem and self.problem.lasting):
                    return False
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
            return self.problem is None

    def close(self, timeout: float) -> bool:
        """Write what is left and let go of the file; True if everything is on disk."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        with self._changed:
            return not (self._chats or self._messages or any(self._writing) or self._thread.is_alive())

    # ------------------------------------------------------------ the writer thread

    def _main(self) -> None:
        written = 0.0
        while True:
            with self._changed:
                self._wait(written)
                if self._closing and not (self._chats or self._messages):
                    break
                closing = self._closing
                self._writing = (self._chats, self._messages)
                self._chats, self._messages = {}, {}
                self._urgent = False
            written = time.monotonic()
            chats, messages = self._writing
            done = self._write(list(chats.values()), list(messages.values()))
            with self._changed:
                if not done:
                    self._put_back(chats, messages)
                    self._not_before = time.monotonic() + RETRY
                self._writing = ({}, {})
                self._failures += not done
                self._changed.notify_all()
            if closing and not done:
                break
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()

    def _wait(self, written: float) -> None:
        """Until there is something to write and it is time to; with the lock held."""
        while not self._closing:
            if self.problem is not None and self.problem.lasting:
                self._changed.wait()
                continue
            waiting = bool(self._chats or self._messages)
            if not waiting and self.problem is None:
                self._changed.wait()
                continue
            # what could not be opened is tried again even when there is nothing to write
            due = max(self._not_before, 0.0 if self._urgent or not waiting else written + INTERVAL)
            left = due - time.monotonic()
            if left <= 0:
                return
            self._changed.wait(left)

    def _put_back(self, chats: dict[str, _PendingChat], messages: dict[str, Message | Live]) -> None:
        """Take up again what was not written; what changed meanwhile wins."""
        for number, newer in self._chats.items():
            older = chats.pop(number, None)
            if older is not None:
                newer = _PendingChat(newer.info, newer.fields | older.fields, newer.bump or older.bump)
            chats[number] = newer
        self._chats = chats
        self._messages = {**messages, **self._messages}

    def _write(self, chats: list[_PendingChat], messages: list[Message | Live]) -> bool:
        """One transaction; True if it is on disk."""
        if self.problem is not None and self.problem.lasting:
            return False
        try:
            if self._connection is not None and self._file != _identity(self.path):
                # Somebody removed or replaced the file: what is written to the old one would be lost.
                self._connection.close()
                self._connection = None
            if self._connection is None:
                connection = open_writer(self.path)
                self._file = _identity(self.path)
                with _transaction(connection):
                    self._prepare(connection)
                self._connection = connection
            if chats or messages:
                with _transaction(self._connection):
                    for chat in chats:
                        self._connection.execute(upsert_chat(chat.fields, chat.bump), chat_row(chat.info))
                    self._connection.executemany(UPSERT_MESSAGE, [message_row(_now(m), self._owner) for m in messages])
        except DatabaseProblem as error:
            self.report(error.problem)
            return False
        except Exception as error:  # whatever it is, the thread lives on and the records stay
            self.report(problem_of(error, self.path))
            return False
        self.report(None)
        return True

    def report(self, problem: StoreProblem | None) -> None:
        """Note a problem, or that there is none any more; tell the application once."""
        if problem == self.problem:
            return
        self.problem = problem
        if self._on_problem is not None:
            with contextlib.suppress(Exception):
                self._on_problem(problem)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _now(message: Message | Live) -> Message:
    return message if isinstance(message, Message) else message.message


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
