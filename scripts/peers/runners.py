"""Starting the programs, one at a time, and getting one `Run` out of each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from .contenders import OURS, Contender, Setting
from .outputs import LostStatistics, OutputError, Run, parse_bench, parse_example, parse_server, reason_of
from .prompts import Prompt

LOAD_SECONDS = 600.0
BATCH = 2048
# llama.cpp's log is written by a thread that nobody waits for at the end (its issue 22142), so the last lines of a
# program, which are its statistics, are lost now and then.
TRIES = 5
ROOT = Path(__file__).resolve().parents[2]


class RunError(Exception):
    """A program did not deliver; the message is its reason."""


@dataclass(frozen=True)
class Job:
    """What all programs share.

    Attributes:
        bin: folder of llama.cpp's programs.
        target: the target model.
        draft: the draft model, if there is one.
        n: tokens to generate.
        threads: threads for everything.
        ctx: positions of the context.
        gpu_layers: layers to offload; None = each program's own choice.
        timeout: seconds after which a run has failed.
    """

    bin: Path
    target: Path
    draft: Path | None
    n: int
    threads: int
    ctx: int
    gpu_layers: int | None = None
    timeout: float = 900.0

    def model_args(self) -> list[str]:
        """Options that every program of llama.cpp understands."""
        args = ["-m", str(self.target), "-t", str(self.threads)]
        return args + (["-ngl", str(self.gpu_layers)] if self.gpu_layers is not None else [])

    def common_args(self, draft: bool) -> list[str]:
        """Options of the programs that complete text, all but llama-bench."""
        args = self.model_args() + ["-c", str(self.ctx), "-b", str(max(BATCH, self.ctx)), "--temp", "0"]
        args += ["-n", str(self.n), "--ignore-eos", "--no-escape"]
        if draft and self.draft is not None:
            args += ["-md", str(self.draft)]
            args += ["-ngld", str(self.gpu_layers)] if self.gpu_layers is not None else []
        return args


class Runner(Protocol):
    """Runs a contender with one setting."""

    def run(self, prompt: Prompt) -> Run:
        """Complete a prompt.

        Raises:
            RunError: it crashed, took too long, or said something unexpected.
        """

    def close(self) -> None:
        """Stop what still runs."""


class ExampleRunner:
    """A command-line program: a process for each prompt. Its own clock leaves loading and the prompt out."""

    def __init__(self, job: Job, contender: Contender, setting: Setting) -> None:
        self.job, self.contender, self.setting = job, contender, setting

    def run(self, prompt: Prompt) -> Run:
        """See Runner."""
        with tempfile.TemporaryDirectory(prefix="peers-") as folder:
            file = Path(folder, "prompt.txt")
            # It drops one newline at the end of the file.
            file.write_bytes(prompt.text.encode() + b"\n")
            command = [str(self.job.bin / self.contender.program), *self.job.common_args(self.contender.draft)]
            command += ["-f", str(file), *self.setting.args]
            for tries in range(1, TRIES + 1):
                stdout, stderr = execute(command, self.job.timeout)
                try:
                    run = parse_example(stdout, stderr, prompt.text, self.contender.free)
                    return dataclasses.replace(run, tries=tries)
                except LostStatistics as error:
                    if tries == TRIES:
                        raise RunError(f"{error} ({TRIES} times)") from error
                except OutputError as error:
                    raise RunError(str(error)) from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Nothing stays."""


class ServerRunner:
    """llama-server with one slot and no prompt cache, started at the first prompt and kept; idle, it only waits."""

    def __init__(self, job: Job, contender: Contender, setting: Setting) -> None:
        self.job, self.contender, self.setting = job, contender, setting
        self.process: subprocess.Popen[bytes] | None = None
        self.log: IO[bytes] | None = None
        self.url = ""

    def run(self, prompt: Prompt) -> Run:
        """See Runner."""
        if self.setting.fresh:
            self.close()
        if self.process is None:
            self._start()
        body = {
            "prompt": prompt.text,
            "n_predict": self.job.n + 1,  # the first comes from the prompt's last row
            "temperature": 0,
            "cache_prompt": False,
            "ignore_eos": True,
        }
        try:
            return parse_server(self._ask("/completion", body, self.job.timeout))
        except OutputError as error:
            raise RunError(str(error)) from error
        except OSError as error:
            reason = self._reason() if self._dead() else str(error)
            self.close()
            raise RunError(reason) from error

    def close(self) -> None:
        """Stop the server."""
        if self.process is not None:
            stop(self.process)
        if self.log is not None:
            self.log.close()
        self.process = self.log = None

    def _start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the server)
        command = [str(self.job.bin / self.contender.program), *self.job.common_args(self.contender.draft)]
        command += ["--host", "127.0.0.1", "--port", str(port), "-np", "1", "--no-cache-prompt", "-cram", "0"]
        self.process = spawn([*command, *self.setting.args], stdout=self.log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + LOAD_SECONDS
        while time.monotonic() < deadline:
            if self._dead():
                reason = self._reason()
                self.close()
                raise RunError(reason)
            with contextlib.suppress(OSError):
                if self._ask("/health", None, 5.0).get("status") == "ok":
                    return
            time.sleep(0.1)
        self.close()
        raise RunError(f"it did not get ready within {LOAD_SECONDS:.0f} s")

    def _ask(self, path: str, body: dict[str, Any] | None, timeout: float) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout) as reply:
                answer: dict[str, Any] = json.load(reply)
        except urllib.error.HTTPError as error:
            if path == "/health":
                raise
            try:
                answer = json.load(error)
            except ValueError:
                answer = {"error": str(error)}
        except ValueError as error:
            raise OutputError(f"the reply is not JSON: {error}") from error
        return answer

    def _dead(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def _reason(self) -> str:
        if self.log is None or self.process is None:
            return "it is not running"
        self.log.seek(0)
        code = self.process.poll()
        return f"it ended with code {code}: " + reason_of(self.log.read().decode("utf-8", "replace"))


class Lcspec:
    """The process that runs all of lcspec's strategies on one loaded target."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self.cache = tempfile.TemporaryDirectory()
        self.process = spawn(
            [sys.executable, str(Path(__file__).with_name("lcspec_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            # What it keeps between two answers begins with this comparison and ends with it.
            env={**os.environ, "PYTHONPATH": path, "LCSPEC_CACHE_DIR": self.cache.name},
        )

    def ask(self, op: str, **arguments: Any) -> Any:
        """Send a request and wait for its answer.

        Raises:
            RunError: the library refused it, or the process died.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            self.log.seek(0)
            raise RunError("lcspec's process died: " + reason_of(self.log.read().decode("utf-8", "replace")))
        answer = json.loads(line)
        if "error" in answer:
            raise RunError(answer["error"])
        return answer["ok"]

    def close(self) -> None:
        """Stop the process."""
        stop(self.process)
        self.log.close()
        self.cache.cleanup()


class LcspecRunner:
    """One strategy with one setting."""

    def __init__(self, lcspec: Lcspec, job: Job, contender: Contender, setting: Setting) -> None:
        self.lcspec, self.job, self.contender, self.setting = lcspec, job, contender, setting

    def run(self, prompt: Prompt) -> Run:
        """See Runner."""
        return self._run(prompt.text)

    def run_bare(self) -> Run:
        """Generate after a single token, which is what llama-bench does."""
        return self._run(None)

    def _run(self, text: str | None) -> Run:
        reply = self.lcspec.ask(
            "run", strategy=self.contender.strategy, max_draft=self.setting.max_draft, prompt=text, n=self.job.n
        )
        return Run(**reply)

    def close(self) -> None:
        """The process stays for the other strategies."""


def make_runner(lcspec: Lcspec, job: Job, contender: Contender, setting: Setting) -> Runner:
    """The runner for `contender`."""
    if contender.program == OURS:
        return LcspecRunner(lcspec, job, contender, setting)
    if contender.program == "llama-server":
        return ServerRunner(job, contender, setting)
    return ExampleRunner(job, contender, setting)


def bench_plain(job: Job) -> float:
    """Tokens per second of `llama-bench`'s generation test, one repetition after its own warm-up.

    Raises:
        RunError: it failed.
    """
    command = [str(job.bin / "llama-bench"), *job.model_args(), "-p", "0", "-n", str(job.n), "-r", "1", "-o", "json"]
    stdout, stderr = execute(command, job.timeout)
    try:
        return parse_bench(stdout)
    except OutputError as error:
        raise RunError(f"{error}: {reason_of(stderr)}") from error


def execute(command: list[str], timeout: float) -> tuple[str, str]:
    """Run a program to its end; returns its standard output and standard error.

    Raises:
        RunError: it cannot be started, failed, or took too long.
    """
    process = spawn(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        raw, raw_log = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"stopped after {timeout:.0f} s") from error
    finally:
        stop(process)
    out, log = raw.decode("utf-8", "replace"), raw_log.decode("utf-8", "replace")
    if process.returncode != 0:
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"code {process.returncode}"
        raise RunError(f"it ended with {how}: {reason_of(log or out)}")
    return out, log


def spawn(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that Ctrl-C reaches only the script, which then ends it.

    Raises:
        RunError: it cannot be started.
    """
    try:
        return subprocess.Popen(command, start_new_session=True, **options)
    except OSError as error:
        raise RunError(f"cannot start {command[0]}: {error.strerror}") from error


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a program that this script started and wait for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
