"""Memory of the library that other threads read: freed only when nobody does, and never read after that."""

from __future__ import annotations

import threading

from lcspec.errors import ModelClosed


class Lifetime:
    """`with` it around every reading; `end` it before freeing. Many may read at once."""

    def __init__(self, what: str) -> None:
        """Of `what`, for the error message."""
        self._what = what
        self._changed = threading.Condition()
        self._readers = 0
        self._over = False

    def __enter__(self) -> None:
        """Raises:
        ModelClosed: it is over.
        """
        with self._changed:
            if self._over:
                raise ModelClosed(f"{self._what} is not loaded any more: load it again, or restart the server")
            self._readers += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._readers -= 1
            self._changed.notify_all()

    def end(self) -> None:
        """Let nobody in any more and wait for those who still read. Idempotent."""
        with self._changed:
            self._over = True
            self._changed.wait_for(lambda: not self._readers)
