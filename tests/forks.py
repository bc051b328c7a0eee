"""Processes of their own without the second that importing everything takes: forked from one that has imported it.

A forked process has its own files, environment and folder, calls what it is told to and ends as Python ends. What is
read while modules are imported is not read again: for that, and for signals, start an interpreter.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.running import hasty_measuring

ROOT = Path(__file__).resolve().parents[1]
COMMAND_LINE = "lcspec.cli"
# What the commands import when they need it.
PRELOADED = (
    *("lcspec.cli", "lcspec.session", "lcspec.engine.engine", "lcspec.drafters.all"),
    *("lcspec.commands.generate", "lcspec.bench.runner", "numpy.random"),
)
SERVER = "lcspec.commands.serving"


class ForkServer:
    """Starts with the first process that is asked of it, and ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self,
        arguments: Sequence[object],
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 300,
        module: str = COMMAND_LINE,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """`lcspec ARGUMENTS`, or `python -m MODULE ARGUMENTS`, as `subprocess.run` would.

        Raises:
            subprocess.TimeoutExpired: it took longer than `timeout` seconds and was killed.
        """
        words = [os.fsdecode(a if isinstance(a, bytes) else str(a)) for a in arguments]
        with self._lock, tempfile.TemporaryDirectory(prefix="fork-") as folder:
            files = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
            files[0].write_bytes(stdin)
            order = {
                "module": module,
                "arguments": words,
                "environment": dict(os.environ if env is None else env),
                "folder": str(cwd or Path.cwd()),
                "files": [str(file) for file in files],
            }
            code = self._ask(order, timeout)
            if code is None:
                raise subprocess.TimeoutExpired(words, timeout, files[1].read_bytes(), files[2].read_bytes())
            return subprocess.CompletedProcess(words, code, files[1].read_bytes(), files[2].read_bytes())

    def _ask(self, order: dict[str, Any], timeout: float) -> int | None:
        """The exit code, None after a timeout."""
        if self._process is None:
            self._start()
        self._stream.write(json.dumps(order).encode() + b"\n")
        self._stream.flush()
        pid = int(self._line())
        self._socket.settimeout(timeout)
        try:
            return int(self._line())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self.close()
            return None
        finally:
            self._socket.settimeout(None)

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            more = self._socket.recv(64)
            if not more:
                raise RuntimeError("the process that forks others has ended")
            line += more
        return line

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._stream = self._socket.makefile("wb")
        command = [sys.executable, "-m", "tests.forks", str(theirs.fileno())]
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._stream.close()
            self._socket.close()
            self._process.wait()
            self._process = None


server = ForkServer()


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for every order that comes. In the child: its order. In the parent: None at the end of the orders."""
    with control.makefile("rb") as orders:
        for line in orders:
            order: dict[str, Any] = json.loads(line)
            if order["arguments"][:1] == ["serve"]:
                __import__(SERVER)
            if order["module"] != COMMAND_LINE:
                __import__(order["module"])  # and so all that it imports
            pid = os.fork()
            if not pid:
                os.close(control.detach())
                return order
            control.sendall(b"%d\n" % pid)
            control.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return None


def _text(fd: int, mode: str, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(fd, mode, closefd=False)
    return io.TextIOWrapper(io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw), errors=errors)


def _become(order: dict[str, Any]) -> None:
    """Take over the files, the environment and the folder of an order, as a new interpreter would."""
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    for fd, (path, flags) in enumerate(zip(order["files"], (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY))):
        file = os.open(path, flags | os.O_CREAT, 0o600)
        os.dup2(file, fd)
        os.close(file)
    streams = [_text(fd, mode, errors) for fd, mode, errors in _STREAMS]
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc]
    streams[2].reconfigure(line_buffering=True)


_STREAMS = ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in PRELOADED:
        __import__(name)
    gc.freeze()  # or every process would copy all of it at its end, to look for garbage
    order = _serve(control)
    if order is None:
        return
    _become(order)
    sys.argv = ["lcspec", *order["arguments"]]
    with hasty_measuring():
        if order["module"] == COMMAND_LINE:
            sys.modules["__main__"].__package__ = None  # click would take this module's name for the command's
            sys.modules[COMMAND_LINE].main()
        else:
            sys.modules.pop(order["module"], None)  # it runs as __main__
            runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
