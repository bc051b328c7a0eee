"""`lcspec serve` under faults: of its clients, its engine's process, its disk and its clock. Everybody else must be
answered.

    python scripts/chaos_server.py --requests 10000 [MODEL.gguf --draft DRAFT.gguf]

The server is a process of its own, started once under each of these conditions: as usual; on a disk that is full; with
a cache folder that cannot be written; with a clock that jumps by hours. Each time clients cancel, cut their connection,
read slowly, send rubbish and hostile grammars, among others that want an answer; and now and then the process with the
engine is killed, or stopped for a while (on Linux, where it can be found). Afterwards nothing may be at hand, the
same seed must give the same text as before, and the server must end when it is told to, with code 0 and no traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Awaitable, Callable, Iterator, Sequence

import click
import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.engine_faults import children_of
from tests.server.running import CHAT, CODE
from tests.server.test_disorder import gives_up, hangs_up, leaves_a_stream, sends_rubbish, well_formed

AT_ONCE = 10
START_SECONDS, IDLE_SECONDS, STOP_SECONDS = 120.0, 120.0, 60.0
RUN = "from lcspec.cli import main; main()"
# The clock that people see jumps back and forth by up to ten hours at every look; waiting goes by the other clock.
JUMPS = """
import random, time
real, chance = time.time, random.Random(1)
time.time = lambda: real() + chance.uniform(-36000, 36000)
time.time_ns = lambda: int(time.time() * 1e9)
"""
NESTED = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "required": ["a", "b"]}
PATTERN = {"type": "string", "pattern": "(a*)*(b|c{1,5000})*d"}
HOSTILE: tuple[dict[str, Any], ...] = (
    {"grammar": "root ::= root"},
    {"grammar": 'root ::= a a a a a a\na ::= "" | "x" a | a "y" | a a'},
    {"grammar": 'root ::= "x"{1,1000000000}'},
    {"grammar": "root ::= " + "(" * 5000 + '"x"' + ")" * 5000},
    {"grammar": 'root ::= ([a-z]{0,200}){0,200} "\\U0010ffff"'},
    {"grammar": "start: /(a|aa)*(a|aa)*(a|aa)*b/"},
    {"grammar": "root ::= missing"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": NESTED}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["y" * 60_000]}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PATTERN}}},
)


# --- faults of clients ------------------------------------------------------------------------------------------------


async def reads_slowly(client: httpx.AsyncClient, chance: random.Random) -> None:
    """Takes its time over a stream, and gets all of it."""
    body = {"messages": [{"role": "user", "content": CHAT}], "max_tokens": 24, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            await asyncio.sleep(chance.uniform(0, 0.05))
    assert answer.status_code == 200 and text.endswith("data: [DONE]\n\n"), text[-200:]


async def hostile_grammar(client: httpx.AsyncClient, chance: random.Random) -> None:
    """A grammar that is refused, or that ends the request alone; never the server."""
    body = {"messages": [{"role": "user", "content": CHAT}], "max_tokens": 16, **chance.choice(HOSTILE)}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code in (200, 400, 422), f"{answer.status_code}: {answer.text[:300]}"


Fault = Callable[[httpx.AsyncClient, random.Random], Awaitable[None]]
FAULTS: dict[str, Fault] = {
    "answered": well_formed,
    "cancelled": leaves_a_stream,
    "gave up": gives_up,
    "malformed": sends_rubbish,
    "slow reader": reads_slowly,
    "hostile grammar": hostile_grammar,
}
CUT = "cut connection"
KILLED, STOPPED = "engine killed", "engine stopped"
# Requests to one of each. Who is running at two deaths is refused, so they must not come too close.
HARM_EVERY = 250
STOPPED_SECONDS = 1.0


async def harms(name: str, pid: int) -> None:
    """Kills the engine's process while others want answers, or stops it for a while."""
    for child in children_of(pid):
        if name == KILLED:
            os.kill(child, signal.SIGKILL)
            continue
        os.kill(child, signal.SIGSTOP)
        await asyncio.sleep(STOPPED_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)


def plan(requests: int, chance: random.Random) -> list[str]:
    """What is done, in its order."""
    names = [chance.choice((*FAULTS, CUT, "answered")) for _ in range(requests)]
    if sys.platform == "linux":
        for start in range(0, requests, HARM_EVERY):
            part = min(HARM_EVERY, requests - start)
            names[start + part // 3], names[start + 2 * part // 3] = KILLED, STOPPED
    return names


async def storm(url: str, pid: int, requests: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """Requests of all kinds, a few at once; how many of each, and what was wrong."""
    chance, gate, port = random.Random(seed), asyncio.Semaphore(AT_ONCE), int(url.rsplit(":", 1)[1])
    counts: dict[str, int] = {}
    wrong: list[str] = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def one(name: str) -> None:
            async with gate:
                counts[name] = counts.get(name, 0) + 1
                try:
                    if name in (KILLED, STOPPED):
                        await harms(name, pid)
                    else:
                        await (hangs_up(port, chance) if name == CUT else FAULTS[name](client, chance))
                except (AssertionError, httpx.HTTPError, OSError) as error:
                    wrong.append(f"{name}: {type(error).__name__} {str(error)[:300]}")

        await asyncio.gather(*map(one, plan(requests, chance)))
    return counts, wrong


# --- conditions -------------------------------------------------------------------------------------------------------


@dataclass
class Condition:
    """What the server has to live with: its environment, and what is done in its process."""

    environment: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None


def _no_more_bytes() -> None:
    """Files can be made and cannot grow: what a program sees of a full disk, whatever the machine's own."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def conditions(folder: Path) -> dict[str, Condition]:
    """By name."""
    (folder / "file").write_text("in the way")
    (folder / "jumps").mkdir()
    (folder / "jumps" / "sitecustomize.py").write_text(JUMPS)  # which every Python reads, the engine's too
    own = {"LCSPEC_CACHE_DIR": str(folder / "cache")}
    return {
        "usual": Condition(own),
        "full disk": Condition({"LCSPEC_CACHE_DIR": str(folder / "full")}, before=_no_more_bytes),
        "unwritable cache": Condition({"LCSPEC_CACHE_DIR": str(folder / "file" / "cache")}),
        "clock jumps": Condition({**own, "PYTHONPATH": str(folder / "jumps")}),
    }


@contextlib.contextmanager
def serving(condition: Condition, models: Sequence[str], errors: list[str]) -> Iterator[tuple[str, int]]:
    """The server's address ("": it did not start) and process; what it does wrong goes into `errors`."""
    command = [sys.executable, "-c", RUN, "serve", *models, "--port", "0", "--slots", "3"]
    command += ["--ctx", "256", "--threads", "1", "--queue", "64"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **condition.environment},
        preexec_fn=condition.before,
    )
    assert process.stderr is not None
    log: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line)
            if " at http://" in line:
                ready.set()
        ready.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        if not ready.wait(START_SECONDS) or not any(" at http://" in line for line in log):
            errors.append(f"it did not start: {''.join(log)[-500:]}")
            yield "", 0
            return
        url = next(line for line in log if " at http://" in line).rsplit(" at ", 1)[1].strip().removesuffix("/v1")
        yield url, process.pid
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            errors.append("it did not end when it was told to")
            return
        if code != 0:
            errors.append(f"it ended with {code}: {''.join(log)[-500:]}")
        if "Traceback" in "".join(log):
            errors.append("a traceback: " + "".join(log)[-2000:])
    finally:
        process.kill()
        process.wait()


def reference(url: str) -> str:
    """A text that must stay the same."""
    body = {"prompt": CODE, "max_tokens": 32, "seed": 7, "temperature": 0.8, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    return str(answer.json()["choices"][0]["text"])


def idle(url: str) -> str | None:
    """Wait until nobody is at hand; what the server says if that takes too long."""
    end = time.monotonic() + IDLE_SECONDS
    while True:
        told = httpx.get(f"{url}/health", timeout=30).json()
        if told["status"] == "ok" and told["running"] == told["waiting"] == 0:
            return None
        if time.monotonic() > end:
            return f"somebody is still at hand: {told}"
        time.sleep(0.05)


def run(name: str, requests: int, seed: int, models: Sequence[str] = ()) -> tuple[dict[str, int], list[str]]:
    """One condition: how many requests of each kind there were, and what was wrong."""
    wrong: list[str] = []
    counts: dict[str, int] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(conditions(Path(folder))[name], models, wrong) as (url, pid),
    ):
        if url:
            before = reference(url)
            counts, failed = asyncio.run(storm(url, pid, requests, seed))
            wrong += failed
            still = idle(url)
            if still is not None:
                wrong.append(still)
            if reference(url) != before:
                wrong.append("the same seed gives another text than before")
    return counts, wrong


@click.command()
@click.argument("model", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option("--draft", type=click.Path(exists=True, dir_okay=False))
@click.option("--requests", type=click.IntRange(4), default=1000, show_default=True, help="Under all conditions.")
@click.option("--seed", type=int, default=1, show_default=True)
def main(model: str | None, draft: str | None, requests: int, seed: int) -> None:
    """Harass the server."""
    models = [*([model] if model else []), *(["--draft", draft] if draft else [])]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        names = list(conditions(Path(folder)))
    for name in names:
        counts, wrong = run(name, requests // len(names), seed, models)
        told = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
        click.echo(f"{name}: {told}; {len(wrong)} wrong")
        for line in wrong[:10]:
            click.echo(f"  {line}")
        failures += len(wrong)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
