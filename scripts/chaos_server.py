"""`lcspec serve` under faults: of its clients, its engine's process, its disk and its clock. Everybody else must be
answered.

    python scripts/chaos_server.py --requests 10000 [MODEL.gguf --draft DRAFT.gguf] [--only steady] [--timed]

The server is a process of its own, started once under each of these conditions: steady, with nothing wrong but its
clients, which gets half of the requests; as usual; with several models, of which not all may be loaded; on a disk that
is full; with a cache folder that cannot be written; with a clock that jumps by hours. Each time 16 clients cancel, cut
their connection, read slowly, send rubbish and hostile grammars, among others that want an answer, through all APIs;
and under all conditions but the first the processes with the engines are killed now and then, or stopped for a while
(on Linux, where they can be found).

No answer may be a 500. Afterwards nothing may be at hand, all slots must run at once, the same seed must give the same
text as before, and the server must end when it is told to, with code 0 and no traceback. Under the first condition
memory may grow by 2 % in the second half of the requests, and a stranger's stream, read all the while, tells the
longest pause between two pieces: with --timed it may be three median ones and 200 ms (on a machine that does nothing
else).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator, Sequence

import click
import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from scripts.chaos_clients import FAULTS, Clients
from scripts.chaos_probes import Stranger, all_slots, failures, idle, reference, resident
from tests import tiny_gguf as tiny
from tests.engine_faults import children_of
from tests.server.test_disorder import hangs_up

AT_ONCE = 16
# Parts that many requests come in; between them nobody is at hand, and memory is looked at.
PARTS = 10
GROWTH = 0.02
# Fewer requests than these say nothing about memory.
ENOUGH = 1000
# Seconds to wait for anything.
PATIENCE = 300.0
RUN = "from lcspec.cli import main; main()"
# The clock that people see jumps back and forth by up to ten hours at every look; waiting goes by the other clock.
JUMPS = """
import random, time
real, chance = time.time, random.Random(1)
time.time = lambda: real() + chance.uniform(-36000, 36000)
time.time_ns = lambda: int(time.time() * 1e9)
"""
CUT = "cut connection"
KILLED, STOPPED = "engine killed", "engine stopped"
# Who waits for a model whose process is killed while it loads is told so, as when memory ran out.
KILLED_LOADING, ENDED = "killed while loading", "could not be loaded: the engine's process was ended by SIGKILL"
# Requests to one of each. Who is running at two deaths is refused, so they must not come too close.
HARM_EVERY = 250
STOPPED_SECONDS = 1.0
STEADY = "steady"


async def harms(name: str, pid: int) -> None:
    """Kills the engine's process while others want answers, or stops it for a while."""
    for child in children_of(pid):
        with contextlib.suppress(ProcessLookupError):  # a model that was unloaded meanwhile
            if name == KILLED:
                os.kill(child, signal.SIGKILL)
                continue
            os.kill(child, signal.SIGSTOP)
            await asyncio.sleep(STOPPED_SECONDS)
            os.kill(child, signal.SIGCONT)


def plan(requests: int, chance: random.Random, harm: bool = True) -> list[str]:
    """What is done, in its order."""
    names = [chance.choice((*FAULTS, CUT, "answered")) for _ in range(requests)]
    if harm and sys.platform == "linux":
        for start in range(0, requests, HARM_EVERY):
            part = min(HARM_EVERY, requests - start)
            names[start + part // 3], names[start + 2 * part // 3] = KILLED, STOPPED
    return names


async def storm(
    url: str,
    pid: int,
    names: Sequence[str],
    chance: random.Random,
    models: Sequence[str] = (),
    patience: float = PATIENCE,
) -> tuple[dict[str, int], list[str]]:
    """Requests of these kinds, a few at once; how many of each, and what was wrong."""
    gate, port = asyncio.Semaphore(AT_ONCE), int(url.rsplit(":", 1)[1])
    counts: dict[str, int] = {}
    wrong: list[str] = []
    async with Clients(url, models, chance, wrong, patience) as client:

        async def one(name: str) -> None:
            async with gate:
                counts[name] = counts.get(name, 0) + 1
                try:
                    if name in (KILLED, STOPPED):
                        await harms(name, pid)
                    else:
                        await (hangs_up(port, chance) if name == CUT else FAULTS[name](client, chance))
                except (AssertionError, httpx.HTTPError, OSError) as error:
                    if KILLED in counts and ENDED in str(error):
                        counts[KILLED_LOADING] = counts.get(KILLED_LOADING, 0) + 1
                        return
                    wrong.append(f"{name}: {type(error).__name__} {str(error)[:300]}")

        await asyncio.gather(*map(one, names))
    return counts, wrong


# --- conditions -------------------------------------------------------------------------------------------------------


@dataclass
class Condition:
    """What the server has to live with: its environment, and what is done in its process."""

    environment: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None
    harm: bool = True
    folder: Path | None = None  # of models, which are loaded on demand

    @property
    def models(self) -> list[str]:
        """Names that requests may use."""
        return sorted(path.stem for path in self.folder.glob("*.gguf")) if self.folder is not None else []


def _no_more_bytes() -> None:
    """Files can be made and cannot grow: what a program sees of a full disk, whatever the machine's own."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def conditions(folder: Path, cache: Path | None = None, first: str = "") -> dict[str, Condition]:
    """By name.

    `cache`: where those that may write one find what was measured of this machine before; `first`: Python that every
    process runs first.
    """
    (folder / "file").write_text("in the way")
    for name, text in (("first", first), ("jumps", first + JUMPS)):
        (folder / name).mkdir()
        (folder / name / "sitecustomize.py").write_text(text)  # which every Python reads, the engine's too
    always = {"PYTHONPATH": str(folder / "first")} if first else {}
    own = {**always, "LCSPEC_CACHE_DIR": str(cache or folder / "cache")}
    (folder / "models").mkdir()
    shutil.copy(demo_path(DEMO_TARGET), folder / "models" / "a.gguf")
    for i, name in enumerate(("b", "c")):
        tiny.write_llama(folder / "models" / f"{name}.gguf", seed=i, chat_template=tiny.CHATML_TEMPLATE)
    return {
        STEADY: Condition(own, harm=False),
        "usual": Condition(own),
        "several models": Condition(own, folder=folder / "models"),
        "full disk": Condition({**own, "LCSPEC_CACHE_DIR": str(folder / "full")}, before=_no_more_bytes),
        "unwritable cache": Condition({**own, "LCSPEC_CACHE_DIR": str(folder / "file" / "cache")}),
        "clock jumps": Condition({**own, "PYTHONPATH": str(folder / "jumps")}),
    }


@contextlib.contextmanager
def serving(
    condition: Condition, models: Sequence[str], errors: list[str], patience: float
) -> Iterator[tuple[str, int]]:
    """The server's address ("": it did not start) and process; what it does wrong goes into `errors`."""
    command = [sys.executable, "-c", RUN, "serve", "--port", "0", "--slots", "3"]
    # Only exact texts are the same whoever ran beside them; by default they are where that costs next to nothing.
    command += ["--ctx", "256", "--threads", "1", "--queue", "64", "--exact"]
    if condition.folder is not None:
        command += ["--models-dir", str(condition.folder), "--max-loaded", "2", "--pin", condition.models[0]]
    else:
        command += models
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
        if not ready.wait(patience) or not any(" at http://" in line for line in log):
            errors.append(f"it did not start: {''.join(log)[-500:]}")
            yield "", 0
            return
        url = next(line for line in log if " at http://" in line).rsplit(" at ", 1)[1].strip().removesuffix("/v1")
        yield url, process.pid
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(patience)
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


def run(
    name: str,
    requests: int,
    seed: int,
    models: Sequence[str] = (),
    timed: bool = False,
    patience: float = PATIENCE,
    cache: Path | None = None,
    first: str = "",
) -> tuple[dict[str, int], list[str], list[str]]:
    """One condition: how many requests of each kind there were, what was wrong, and what else there is to say."""
    wrong: list[str] = []
    told: list[str] = []
    counts: dict[str, int] = {}
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        condition = conditions(Path(folder), cache, first)[name]
        with serving(condition, models, wrong, patience) as (url, pid):
            if not url:
                return counts, wrong, told
            before = reference(url, patience)
            stranger = Stranger(url, patience)  # its longest pause is the outage of a client that does no harm
            stranger.start()
            names, memory = plan(requests, chance, condition.harm), list[int]()
            parts = max(1, min(PARTS, requests // AT_ONCE))
            for part in range(parts):
                chosen = names[part * requests // parts : (part + 1) * requests // parts]
                some, failed = asyncio.run(storm(url, pid, chosen, chance, condition.models, patience))
                wrong += failed
                counts = {kind: counts.get(kind, 0) + some.get(kind, 0) for kind in {**counts, **some}}
                memory.append(resident(pid))
            told.append(stranger.end())
            wrong += stranger.wrong + ([told[-1]] if timed and stranger.late and not condition.harm else [])
            told.append("memory, MiB: " + " ".join(f"{n / 2**20:.1f}" for n in memory))
            if not condition.harm and requests >= ENOUGH and memory[-1] > memory[PARTS // 2] * (1 + GROWTH):
                wrong.append(f"memory grew: {told[-1]}")
            looks = idle(url, patience), None if condition.models else all_slots(url, patience)
            wrong += [line for line in looks if line]
            wrong += failures(url, patience)
            if reference(url, patience) != before:
                wrong.append("the same seed gives another text than before")
    return counts, wrong, told


@click.command()
@click.argument("model", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option("--draft", type=click.Path(exists=True, dir_okay=False))
@click.option("--requests", type=click.IntRange(4), default=1000, show_default=True, help="Under all conditions.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--only", multiple=True, help="One of the conditions (repeatable).")
@click.option("--timed", is_flag=True, help="A stranger's stream may not pause for long.")
@click.option(
    "--patience",
    type=float,
    default=PATIENCE,
    show_default=True,
    help="Seconds to wait for anything. More where this program may be stopped meanwhile.",
)
def main(
    model: str | None,
    draft: str | None,
    requests: int,
    seed: int,
    only: tuple[str, ...],
    timed: bool,
    patience: float,
) -> None:
    """Harass the server."""
    models = [*([model] if model else []), *(["--draft", draft] if draft else [])]
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        names = list(conditions(Path(folder)))
    for name in names:
        if only and name not in only:
            continue
        share = requests // 2 if name == STEADY else requests // 2 // (len(names) - 1)
        counts, wrong, told = run(name, share, seed, models, timed, patience)
        click.echo(f"{name}: {', '.join(f'{n} {kind}' for kind, n in sorted(counts.items()))}; {len(wrong)} wrong")
        for line in [*told, *wrong[:10]]:
            click.echo(f"  {line}")
        found += len(wrong)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
