"""The child process: starting it, the pipe to it, and how it ended."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection

from lcspec.engine_process.heartbeat import Watch
from lcspec.engine_process.protocol import Beat, Message, Open, QueuedPipe
from lcspec.engine_process.spawn import started

# Bytes at the end of what a process wrote in which its last line is looked for.
LAST = 4096


class Child:
    """An engine's process and the program's end of the pipe to it."""

    def __init__(self, opening: Open) -> None:
        """Start the process.

        Raises:
            OSError: no process can be started.
        """
        self._process, ours, self._said = started(opening.quiet, str(opening.options.path))
        self.pid = self._process.pid
        self._pipe = QueuedPipe(Connection(ours.detach()))
        self._hangs = False
        self._watch = Watch(opening.limit, self._kill_hanging)
        self.send(opening)

    def send(self, message: Message) -> None:
        """Queue a message."""
        self._pipe.send(message)

    def receive(self) -> Message:
        """Wait for the next message. A process that hangs meanwhile is killed.

        Raises:
            EOFError: the process has ended.
        """
        while True:
            message = self._pipe.receive()
            self._watch.heard()
            if not isinstance(message, Beat):
                return message
            if message.hangs:
                self._kill_hanging()

    def kill(self) -> None:
        """Kill it, even if it is stopped."""
        self._process.kill()

    def wait(self) -> str:
        """Wait for its end, and close the pipe; returns how it ended, as a phrase to follow "it"."""
        self._watch.close()
        self._pipe.close()
        code = self._process.wait()
        words = self._last_words()
        return "gave no sign of life and was killed" if self._hangs and code else ended(code, words)

    def _last_words(self) -> str | None:
        """The last line that it wrote ("": none); None if that was shown."""
        if self._said is None:
            return None
        with self._said as said:
            said.seek(max(0, said.seek(0, os.SEEK_END) - LAST))
            lines = [line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("lcspec: ") if lines else ""

    def _kill_hanging(self) -> None:
        self._hangs = True
        self.kill()


def ended(code: int, words: str | None = None) -> str:
    """Describe an exit code; `words`: what the process said last ("": nothing), if nobody has seen it."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    why = {
        "SIGABRT": "the library gave up; its last words are in the log" if words is None else words,
        "SIGKILL": "by hand, or because memory ran out",
        "SIGSEGV": "an error in the library",
        "SIGBUS": "the model file changed or its disk failed",
        "SIGILL": "this processor lacks what the library was built for",
    }.get(name)
    return f"was ended by {name}" + (f" ({why})" if why else "")
