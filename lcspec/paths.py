"""The user's folders, and writing small files atomically."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import platformdirs


def data_dir() -> Path:
    """The user's data directory, for chats and the state file (LCSPEC_DATA_DIR moves it)."""
    return Path(os.environ.get("LCSPEC_DATA_DIR") or platformdirs.user_data_dir("lcspec")).expanduser()


def config_dir() -> Path:
    """The user's configuration directory."""
    return Path(platformdirs.user_config_dir("lcspec"))


def printable(text: str | Path, *, keep_lines: bool = False) -> str:
    """Text (or a path) without lone surrogates and, unless `keep_lines`, without line ends and other control
    characters: file names and headers may contain anything."""
    text = str(text).encode("utf-8", "replace").decode("utf-8")
    return text if keep_lines else "".join(c if c.isprintable() else "?" for c in text)


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace `path` by `text` (UTF-8) atomically, through links. A new file gets `mode`, an old one keeps its own.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    target = Path(os.path.realpath(path))  # dotfiles are often links into a repository: replace the file they point to
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            mode = target.stat().st_mode & 0o777
        with contextlib.suppress(OSError):  # some file systems have no modes
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
