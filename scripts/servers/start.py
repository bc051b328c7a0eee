"""Starting and stopping the servers that are compared."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine_faults import children_of

from .load import LoadError

READY_SECONDS = 600.0
STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Contender:
    """A server with its setting.

    Attributes:
        name: what the table calls it.
        ours: lcspec, or llama-server.
        tree: a checkout of another lcspec, which runs instead of this one.
        args: more arguments of the program.
        body: more fields of every request.
        draft: needs the draft model.
    """

    name: str
    ours: bool
    args: tuple[str, ...] = ()
    body: dict[str, Any] = field(default_factory=dict)
    draft: bool = False
    tree: Path | None = None

    @property
    def is_this(self) -> bool:
        """Whether it is the lcspec of this checkout, which the others are compared with."""
        return self.ours and self.tree is None


@dataclass(frozen=True)
class Setup:
    """What all servers share: files, threads, tokens of context a slot."""

    binary: Path | None
    target: Path
    draft: Path | None
    threads: int
    ctx: int


def command_of(contender: Contender, setup: Setup, slots: int, port: int) -> list[str]:
    """The command that starts `contender` with `slots` slots."""
    draft = ["--draft", str(setup.draft)] if contender.ours else ["-md", str(setup.draft)]
    draft = draft if contender.draft else []
    common = ["--host", "127.0.0.1", "--port", str(port)]
    if contender.ours:
        main = [sys.executable, "-c", "from lcspec.cli import main; main()", "serve", str(setup.target), *common]
        sizes = ["--slots", str(slots), "--ctx", str(setup.ctx), "--threads", str(setup.threads)]
        # Else the next run of the same prompts would draft from the answers of this one.
        return [*main, *sizes, "--no-history", "--log-level", "warning", *draft, *contender.args]
    sizes = ["-np", str(slots), "-c", str(setup.ctx * slots), "-t", str(setup.threads)]
    quiet = ["--no-cache-prompt", "-cram", "0", "--no-webui"]
    return [str(setup.binary), "-m", str(setup.target), *common, *sizes, *quiet, *draft, *contender.args]


@contextlib.contextmanager
def running(contender: Contender, setup: Setup, slots: int) -> Iterator[int]:
    """The port of a server that is ready; it is stopped at the end.

    Raises:
        LoadError: it did not get ready.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryFile() as log:
        command, environment = command_of(contender, setup, slots, port), dict(os.environ)
        if contender.tree is not None:
            environment["PYTHONPATH"] = str(contender.tree)
            environment["LCSPEC_CACHE_DIR"] = str(contender.tree / "work" / "cache")  # it may store in another format
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=contender.tree,  # from where Python imports before anything else
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait(process, port, log)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def peak_memory(pid: int) -> int:
    """Megabytes at the peaks of all processes that run under this one, mapped pages included; 0 where nobody says."""
    found = 0.0
    for child in children_of(pid) if sys.platform == "linux" else []:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            status = Path(f"/proc/{child}/status").read_text()
            found += sum(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
            found += peak_memory(child)
    return round(found)


def _wait(process: subprocess.Popen[bytes], port: int, log: Any) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            log.seek(0)
            lines = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
            raise LoadError(f"it ended with code {process.returncode}: {' | '.join(lines[-3:])[-400:]}")
        with contextlib.suppress(OSError, urllib.error.HTTPError):
            if opener.open(f"http://127.0.0.1:{port}/health", timeout=5).status == 200:
                return
        time.sleep(0.1)
    raise LoadError(f"it did not get ready within {READY_SECONDS:.0f} s")
