"""Writing a conversation to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from textual.app import App

from lcspec.paths import write_atomically
from lcspec.tui.screens.ask_text import AskText
from lcspec.tui.store import Chat, file_name, to_json, to_markdown

HINT = "A name that ends in .json takes all branches along, any other gets Markdown of the branch shown."


def write_export(chat: Chat, path: Path) -> None:
    """Write `chat` in the format that the name asks for.

    Raises:
        OSError: the file cannot be written.
    """
    write_atomically(path, to_json(chat) if path.suffix.lower() == ".json" else to_markdown(chat))


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
