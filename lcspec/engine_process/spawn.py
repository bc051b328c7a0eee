"""Starting an engine's process. It imports nothing else, so that a program can start one before its own imports."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from typing import IO, NamedTuple

# With -c the interpreter puts the current folder on its path; nothing must be imported from there.
RUN = "import sys; sys.path[:] = filter(None, sys.path); from lcspec.engine_process.child import main; main()"


class Started(NamedTuple):
    """A process that waits for the message Open on the other end of `ours`.

    `said`: what it writes to stderr, None: that is shown.
    """

    process: subprocess.Popen[bytes]
    ours: socket.socket
    said: IO[bytes] | None


_early: list[Started] = []


def start_early() -> None:
    """Start a process that shows nothing and imports while the program does so too; the next one that is wanted so is
    this. If none is wanted, it ends with the program."""
    _early.append(_start(quiet=True, name=""))


def started(quiet: bool, name: str) -> Started:
    """A process, as `start_early` started it or a new one; `name` is shown in lists of processes.

    Raises:
        OSError: none can be started.
    """
    return _early.pop() if quiet and _early else _start(quiet, name)


def _start(quiet: bool, name: str) -> Started:
    said = tempfile.TemporaryFile() if quiet else None  # noqa: SIM115 (whoever reads it closes it)
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            # A session of its own: the interrupt key is the program's, which finishes what it has accepted.
            process = subprocess.Popen(
                [sys.executable, "-c", RUN, str(theirs.fileno()), "lcspec-engine", name],
                stdin=subprocess.DEVNULL,
                stderr=said,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    return Started(process, ours, said)
