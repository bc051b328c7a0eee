"""The chats on disk: listing, opening, searching, deleting. Never raises because of the disk: see `on_problem`."""

from __future__ import annotations

import atexit
import contextlib
import sqlite3
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Callable, TypeVar

from lcspec.errors import LcspecError
from lcspec.paths import data_dir
from lcspec.tui.store.chat import Chat
from lcspec.tui.store.export import from_json
from lcspec.tui.store.owner import Owner
from lcspec.tui.store.queries import preview, purge, read_chat, read_list
from lcspec.tui.store.records import ChatInfo, ChatSummary, Message, SearchHit, StoreProblem, clean, new_id, now
from lcspec.tui.store.schema import open_reader, problem_of
from lcspec.tui.store.search import hit_of, merge, search_file
from lcspec.tui.store.writer import OnProblem, Writer

T = TypeVar("T")

FILE_NAME = "chats.db"


class NoSuchChat(LcspecError):
    """The chat is not there (any more)."""


class Store:
    """Chats in an SQLite file, written by one thread of its own.

    Reading methods may be called from any thread and take milliseconds; `search` over a large file may take longer,
    so call it from a worker thread. Writing never waits for the disk. What could not be written yet is part of
    everything that is read.
    """

    def __init__(self, path: Path | None = None, on_problem: OnProblem | None = None) -> None:
        """Open (or make) the file, migrate it, purge what was deleted long ago. Always gives a usable store.

        Args:
            path: the file; default `data_dir() / "chats.db"`.
            on_problem: called on any thread when saving stops working, and with None when it works again. It must
                return at once (Textual's `post_message` is fine).
        """
        self._path = data_dir() / FILE_NAME if path is None else path
        self._open: weakref.WeakValueDictionary[str, Chat] = weakref.WeakValueDictionary()
        self._owner = Owner(self._path.parent / "running")
        self._writer = Writer(self._path, self._owner.id, on_problem, self._prepare)
        atexit.register(self.close)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def problem(self) -> StoreProblem | None:
        """Why nothing is saved now; None = all is well."""
        return self._writer.problem

    # ------------------------------------------------------------ chats

    def chats(self, *, deleted: bool = False, pinned_first: bool = True) -> list[ChatSummary]:
        """All chats that have messages, pinned ones first, then the one used last; `deleted` lists the deleted ones
        instead."""
        pending = self._writer.pending()
        summaries, in_file = self._read(lambda c: read_list(c, list(pending.messages))) or ([], {})
        found = {s.info.id: s for s in summaries}
        for info in pending.chats.values():
            old = found.get(info.id)
            found[info.id] = ChatSummary(info, 0, "") if old is None else replace(old, info=info)
        for message in pending.messages.values():
            old = found.get(message.chat)
            if old is not None:
                change = (not message.deleted) - in_file.get(message.id, False)
                text = preview(message.text) if not message.deleted else ""
                found[message.chat] = replace(old, n_messages=old.n_messages + change, preview=text or old.preview)
        order = [n for n in reversed(pending.used) if n in found]  # used after everything that is written
        order += [n for n in found if n not in pending.used]
        shown = [found[n] for n in order if (found[n].info.deleted is not None) == deleted and found[n].n_messages]
        return shown if not pinned_first else sorted(shown, key=lambda s: not s.info.pinned)

    def latest(self) -> ChatInfo | None:
        """The chat used last, for --resume; None if there is none."""
        return next((summary.info for summary in self.chats(pinned_first=False)), None)

    def create(self, *, title: str = "", system: str = "", model: str | None = None, preset: str | None = None) -> Chat:
        """A new chat. It is written with its first message, so an unused one leaves nothing behind."""
        title = " ".join(clean(title).split())
        info = ChatInfo(new_id(), title, None, clean(system), model, preset, created=now(), updated=now())
        return self._opened(Chat(info, [], self._writer))

    def load(self, chat: str) -> Chat:
        """Open a chat; one that is open already is given back. An answer that was streaming when its program died is
        stopped (stop_reason interrupted).

        Raises:
            NoSuchChat: there is none with this id.
        """
        known = self._open.get(chat)
        if known is not None:
            return known
        pending = self._writer.pending()
        stored = self._read(lambda c: read_chat(c, chat))
        info = pending.chats.get(chat, stored[0] if stored else None)
        if info is None:
            raise NoSuchChat("this chat is not there any more: another program may have deleted it")
        messages = {m.id: self._settled(m, owner) for m, owner in (stored[1] if stored else [])}
        messages.update({m.id: m for m in pending.messages.values() if m.chat == chat})
        return self._opened(Chat(info, list(messages.values()), self._writer))

    def rename(self, chat: str, title: str) -> None:
        """Give a chat a title; an empty one goes back to the first message's."""
        with contextlib.suppress(NoSuchChat):
            self.load(chat).rename(title)

    def pin(self, chat: str, pinned: bool) -> None:
        """Keep a chat at the top of the list, or not."""
        with contextlib.suppress(NoSuchChat):
            self.load(chat).pin(pinned)

    def delete(self, chat: str) -> None:
        """Delete a chat; it is kept 30 days for `undelete`."""
        with contextlib.suppress(NoSuchChat):
            self.load(chat).set_deleted(True)

    def undelete(self, chat: str) -> None:
        """Undo `delete`."""
        with contextlib.suppress(NoSuchChat):
            self.load(chat).set_deleted(False)

    def import_json(self, text: str) -> Chat:
        """Add a chat exported with `export.to_json`.

        Raises:
            ExportError: the text is not one.
        """
        info, messages = from_json(text)
        self._writer.put_chat(info, bump=True, messages=messages)
        return self._opened(Chat(info, messages, self._writer))

    def search(self, text: str, limit: int = 50) -> list[SearchHit]:
        """Messages and titles that have `text` (any case, any language), chats used last first, a hit a message."""
        wanted = clean(text.strip())
        if not wanted:
            return []
        pending = self._writer.pending()
        newer: list[SearchHit | None] = []
        if pending:
            chats = {s.info.id: s.info for s in self.chats()}
            newer += [hit_of(i, None, i.title, wanted) for i in pending.chats.values() if i.id in chats]
            live = [m for m in reversed(list(pending.messages.values())) if m.chat in chats and not m.deleted]
            newer += [hit_of(chats[m.chat], m.id, m.text, wanted) for m in live]
        older = self._read(lambda c: search_file(c, wanted, limit)) or []
        gone = {m.id for m in pending.messages.values() if m.deleted}
        gone |= {i.id for i in pending.chats.values() if i.deleted is not None}
        older = [hit for hit in older if hit.chat.id not in gone and hit.message not in gone]
        return merge([hit for hit in newer if hit is not None], older, limit)

    # ------------------------------------------------------------ the file

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is on disk; False if it is not (timeout, or a problem)."""
        return self._writer.flush(timeout)

    def close(self, timeout: float = 5.0) -> bool:
        """Write what is left and let go of the file; True if everything is on disk."""
        atexit.unregister(self.close)
        saved = self._writer.close(timeout)
        self._owner.close()
        return saved

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ inside

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """After opening the file, also again when it had been taken away: then open chats are written anew, whole."""
        purge(connection)
        for chat in list(self._open.values()):
            chat.write_all()

    def _opened(self, chat: Chat) -> Chat:
        self._open[chat.id] = chat
        return chat

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run a query on a connection of its own; None if the file cannot be read."""
        if self.problem is not None and self.problem.lasting:
            return None
        try:
            with contextlib.closing(open_reader(self._path)) as connection:
                return query(connection)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            problem = problem_of(error, self._path)
            if problem.lasting:
                self._writer.report(problem)
            return None

    def _settled(self, message: Message, owner: str | None) -> Message:
        """A message that seems to stream: stopped, if whoever streamed it is gone."""
        if message.state != "streaming" or self._owner.alive(owner):
            return message
        message = replace(message, state="stopped", stop_reason="interrupted")
        self._writer.put_message(message)
        return message
