"""The chats on disk: listing, opening, searching, deleting. Never raises because of the disk: see `on_problem`."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

from lcspec.errors import LcspecError
from lcspec.tui.store.chat import Chat
from lcspec.tui.store.records import ChatInfo, ChatSummary, SearchHit, StoreProblem

OnProblem = Callable[[StoreProblem | None], None]

FILE_NAME = "chats.db"
KEEP_DELETED_DAYS = 30.0


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
        raise NotImplementedError

    @property
    def path(self) -> Path:
        """The file."""
        raise NotImplementedError

    @property
    def problem(self) -> StoreProblem | None:
        """Why nothing is saved now; None = all is well."""
        raise NotImplementedError

    def chats(self, *, deleted: bool = False) -> list[ChatSummary]:
        """All chats, the one used last first; `deleted` lists the deleted ones instead."""
        raise NotImplementedError

    def latest(self) -> ChatInfo | None:
        """The chat used last that has a message, for --resume."""
        raise NotImplementedError

    def create(self, *, title: str = "", system: str = "", model: str | None = None, preset: str | None = None) -> Chat:
        """A new chat. It is written with its first message, so an unused one leaves nothing behind."""
        raise NotImplementedError

    def load(self, chat: str) -> Chat:
        """Open a chat. An answer that was streaming when its program died is stopped (stop_reason interrupted).

        Raises:
            NoSuchChat: there is none with this id.
        """
        raise NotImplementedError

    def search(self, text: str, limit: int = 50) -> list[SearchHit]:
        """Messages and titles that have `text` (any case, any language), chats used last first, a hit a message."""
        raise NotImplementedError

    def rename(self, chat: str, title: str) -> None:
        """Give a chat that is not open a title (for an open one: Chat.rename)."""
        raise NotImplementedError

    def delete(self, chat: str) -> None:
        """Delete a chat; it is kept KEEP_DELETED_DAYS for `undelete`."""
        raise NotImplementedError

    def undelete(self, chat: str) -> None:
        """Undo `delete`."""
        raise NotImplementedError

    def import_json(self, text: str) -> Chat:
        """Add a chat exported with `export.to_json`.

        Raises:
            ExportError: the text is not one.
        """
        raise NotImplementedError

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is on disk; False if it is not (timeout, or a problem)."""
        raise NotImplementedError

    def close(self, timeout: float = 5.0) -> bool:
        """Write what is left and let go of the file; returns as `flush` does."""
        raise NotImplementedError

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
