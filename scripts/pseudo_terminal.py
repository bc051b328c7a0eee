"""`lcspec chat` in a pseudo-terminal, as a user's terminal runs it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROWS, COLUMNS = 40, 120
WAIT = 300.0
LCSPEC = [str(Path(sys.executable).parent / "lcspec")]


class Terminal:
    """`lcspec chat` in a pseudo-terminal, everything it writes kept."""

    def __init__(self, arguments: list[str], data: Path) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LCSPEC_DATA_DIR": str(data)}
        self.process = subprocess.Popen(
            [*LCSPEC, "chat", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
        )
        os.close(slave)
        self.output = bytearray()
        self.changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                select.select([self.master], [], [])
                data = os.read(self.master, 65536)
                if not data:
                    return
                with self.changed:
                    self.output += data
                    self.changed.notify_all()

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.master, text.encode())

    def wait_for(self, text: str, start: int = 0) -> float:
        """Wait until `text` is written after position `start`; the moment it was seen.

        Raises:
            TimeoutError: it never came.
        """
        wanted, end = text.encode(), time.monotonic() + WAIT
        with self.changed:
            while wanted not in self.output[start:]:
                if not self.changed.wait(end - time.monotonic()):
                    raise TimeoutError(f"{text!r} was never shown")
            return time.monotonic()

    def ready(self) -> None:
        """Wait until a message can be typed."""
        self.wait_for("Enter sends")
        time.sleep(0.5)

    def close(self) -> None:
        """Quit as a user does."""
        self.type("\x11")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.kill()

    def kill(self) -> None:
        """End the chat at once, and nothing else."""
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@contextlib.contextmanager
def chatting(arguments: list[str], data: Path) -> Iterator[Terminal]:
    """A terminal whose chat is ready for input."""
    terminal = Terminal(arguments, data)
    try:
        terminal.ready()
        yield terminal
    finally:
        terminal.close()
