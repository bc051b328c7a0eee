"""The results of measurements on this machine, as small JSON files in the user's cache directory.

If a file is missing, unreadable, damaged or of another version, the measurement is repeated. If the directory cannot be
written, it is repeated next time; that is never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator

import platformdirs

from lcspec.paths import write_atomically

FORMAT = 1


def cache_dir() -> Path:
    """The user's cache directory (LCSPEC_CACHE_DIR moves it)."""
    return Path(os.environ.get("LCSPEC_CACHE_DIR") or platformdirs.user_cache_dir("lcspec"))


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """An empty folder for what is too large for the system's own, which may be in memory. What a killed process left is
    removed after an hour.

    Raises:
        OSError: the directory cannot be written.
    """
    root = cache_dir()
    root.mkdir(parents=True, exist_ok=True)
    for old in root.glob(f"{prefix}*"):
        if time.time() - old.stat().st_mtime > 3600:
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root) as folder:
        yield Path(folder)


def file_identity(path: Path) -> str:
    """A string that changes when the file is replaced: from its real path, size and modification time."""
    stat = path.stat()
    return f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"


def key_of(*parts: object) -> str:
    """A file name derived from `parts`."""
    return hashlib.sha256("\0".join(str(p) for p in parts).encode()).hexdigest()[:32]


def load(kind: str, key: str) -> Any:
    """The stored value, or None."""
    try:
        data = json.loads((cache_dir() / kind / f"{key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return None
    since, seconds = data.get("since", 0.0), data.get("seconds")
    if seconds is not None and not (_is_number(since, seconds) and 0.0 <= time.time() - since <= seconds):
        return None
    return data.get("value")


def _is_number(*values: object) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def save(kind: str, key: str, value: Any, seconds: float | None = None) -> bool:
    """Store a value atomically, for so many seconds; None: for good. False if the directory cannot be written."""
    lasts = {} if seconds is None else {"since": time.time(), "seconds": seconds}
    try:
        text = json.dumps({"format": FORMAT, **lasts, "value": value})
        write_atomically(cache_dir() / kind / f"{key}.json", text)
    except OSError:
        return False
    return True
