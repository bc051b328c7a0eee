"""A thousand requests and more, many of them cancelled, cut off or malformed: nothing may leak, everyone is answered.

    python scripts/soak_server.py --requests 2000 [MODEL.gguf --draft DRAFT.gguf] [--threads 2]

Runs the server in this process, so that its slots, sequence ids and cells can be looked at, with the very requests of
the tests (tests/server/test_disorder.py). Prints resident memory after every tenth of the requests; ends with code 1 if
something leaked or memory kept growing.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lcspec.config import ModelOptions
from lcspec.engine_thread import EngineThread
from lcspec.server.app import create_app
from lcspec.server.lifecycle import Background
from lcspec.server.settings import ServerSettings
from lcspec.session import ModelPair
from tests.server.leaks import state_of, wait_idle
from tests.server.test_disorder import disorder

ROUNDS = 10
# Growth of the second half that is still called flat, bytes.
FLAT = 16 * 1024 * 1024


def resident() -> int:
    """Bytes of memory this process holds."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        # The peak, where nothing better is told: it may only stay as it is.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


@click.command()
@click.argument("model", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--draft", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--requests", type=click.IntRange(ROUNDS), default=1000, show_default=True)
@click.option("--slots", type=click.IntRange(1), default=3, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(model: Path | None, draft: Path | None, requests: int, slots: int, threads: int, seed: int) -> None:
    """Soak the server."""
    pair = ModelPair.resolve(model, (draft,) if draft else ())
    worker = EngineThread(ModelOptions(pair.target, ctx=256, slots=slots, threads=threads), pair.draft)
    app = create_app(worker, ServerSettings(queue=32))
    app.state.models.only.warm_up()
    server = Background(app)
    before, memory, start = state_of(server), list[int](), time.monotonic()
    for i in range(ROUNDS):
        asyncio.run(disorder(server, requests // ROUNDS, seed + i))
        wait_idle(server)
        state = state_of(server)
        memory.append(resident())
        click.echo(f"{(i + 1) * (requests // ROUNDS):6d} requests, {memory[-1] / 2**20:.1f} MiB, {state}")
        if state != before:
            raise SystemExit(f"something leaked: it was {before}")
    done = dict(worker.ready.result().engine.counters.done)
    click.echo(f"texts ended by: {done}; {time.monotonic() - start:.0f} s")
    server.close()
    worker.close(timeout=60)
    growth = memory[-1] - memory[len(memory) // 2]
    if growth > FLAT:
        raise SystemExit(f"memory grew by {growth / 2**20:.1f} MiB in the second half")


if __name__ == "__main__":
    main()
