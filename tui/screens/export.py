"""Writing a conversation to a file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from textual.app import App

from lcspec.paths import write_atomically
from lcspec.tui.screens.ask_text import AskText
from lcspec.tui.store import Chat, file_name, is_export, to_json, to_markdown

HINT = "A name that ends in .json takes all branches along, any other gets Markdown of the branch shown."
OTHER = "it exists and is no conversation: give another name"


def write_export(chat: Chat, path: Path) -> None:
    """Write `chat` in the format that the name asks for.

    Raises:
        OSError: the file cannot be written, or holds something else than an exported chat.
    """
    if path.exists() and not path.is_dir() and not _replaceable(path):
        raise FileExistsError(errno.EEXIST, OTHER)
    write_atomically(path, to_json(chat) if path.suffix.lower() == ".json" else to_markdown(chat))


def _replaceable(path: Path) -> bool:
    """Whether nothing is lost if the chat takes the file's place."""
    if not path.is_file():
        return False  # a device or a pipe
    with path.open(encoding="utf-8", errors="replace") as file:
        start = file.read(2000)
    return not start or is_export(start)


def save_to(app: App[Any], chat: Chat, path: Path) -> None:
    """Write, and say so."""
    try:
        write_export(chat, path)
    except OSError as error:
        app.notify(f"cannot write {path}: {error.strerror or error}", title="Export", severity="error", markup=False)
    else:
        app.notify(f"written to {path}", title="Export", markup=False)


def ask_export(app: App[Any], chat: Chat) -> None:
    """Ask for a file name, and write."""

    def write(name: str | None) -> None:
        if name and name.strip():
            save_to(app, chat, Path(os.path.expanduser(name.strip())))

    app.push_screen(AskText("Export to", str(Path.cwd() / file_name(chat.info, ".md")), hint=HINT), write)
