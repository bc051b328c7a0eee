"""Telling whether the program that was streaming a message still runs: each holds a lock that dies with it.

Not by process number, which is used again, and not by time, since clocks jump.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from pathlib import Path


class Owner:
    """This program's lock. `id` is "" where none could be had (a directory that may not be written)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle: int | None = None
        self.id = ""
        name = uuid.uuid4().hex
        temporary = self._path(f"{name}.new")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(exist_ok=True, mode=0o700)
            self._handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(temporary, self._path(name))  # so that it is locked from the moment it can be seen
            self.id = name
        except OSError:
            self.close()
            with contextlib.suppress(OSError):
                temporary.unlink()

    def alive(self, owner: str | None) -> bool:
        """Whether the program `owner` runs; this one does."""
        if not owner or not owner.isalnum():
            return False
        if owner == self.id:
            return True
        path = self._path(owner)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(handle)
        with contextlib.suppress(OSError):
            path.unlink()
        return False

    def close(self) -> None:
        """Let go of the lock."""
        if self._handle is not None:
            if self.id:
                with contextlib.suppress(OSError):
                    self._path(self.id).unlink()
            os.close(self._handle)
            self._handle = None
            self.id = ""

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.lock"
