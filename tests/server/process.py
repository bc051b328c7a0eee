"""`lcspec serve` as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

from tests import forks

WAIT = 300.0


class Process:
    """A running `lcspec serve`."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-c", "from lcspec.cli import main; main()", "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.port = 0
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"at (?:http://127\.0\.0\.1:(\d+)|unix:.*)/v1", line)
            if found:
                self.port = int(found[1] or -1)
                break
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> int:
        """The exit code."""
        code = self.process.wait(WAIT)
        self._reader.join(WAIT)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT)
        self._reader.join(WAIT)
        assert self.process.stderr is not None
        self.process.stderr.close()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`lcspec serve` that is expected to refuse."""
    done = forks.server.run(("serve", *arguments), timeout=WAIT)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
