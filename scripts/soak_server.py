"""Hours of use without the pauses: many requests are cancelled, cut off or malformed, nothing may leak, and everyone is
answered.

    python scripts/soak_server.py --requests 7200 [MODEL.gguf --draft DRAFT.gguf] [--threads 2]

7200 requests are those of six hours in which one comes every three seconds, and the clock goes on by that much. They
are those of scripts/chaos_server.py, through all APIs. The server runs in this process, so that its slots, sequence ids
and cells can be seen. Prints resident memory after every tenth of the requests. Ends with code 1 if something leaked,
an answer was wrong, memory is more than 2 % above that after the first tenth, or the same seeds do not give the texts
that they gave before.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import click
import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lcspec.config import ModelOptions
from lcspec.engine_thread import EngineThread
from lcspec.server.app import create_app
from lcspec.server.lifecycle import Background
from lcspec.server.settings import ServerSettings
from lcspec.session import ModelPair
from scripts.chaos_server import PATIENCE, plan, storm
from tests.server.leaks import state_of, wait_idle
from tests.server.running import CHAT, CODE

ROUNDS = 10
# Seconds between two requests in the hours that are told.
PACE = 3.0
# Growth of memory that is still called flat.
FLAT = 0.02
SEEDS = 5


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


def texts(server: Background, patience: float) -> list[str]:
    """Texts of a few prompts and seeds, with all drafters, when nobody else asks."""
    found = []
    for content in (CHAT, CODE):
        for seed in range(SEEDS):
            asked = [{"role": "user", "content": content}]
            body = {"messages": asked, "seed": seed, "temperature": 0.9, "max_tokens": 48, "ignore_eos": True}
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=patience)
            found.append(str(answer.raise_for_status().json()["choices"][0]["message"]["content"]))
    return found


@click.command()
@click.argument("model", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--draft", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--requests", type=click.IntRange(ROUNDS), default=1000, show_default=True)
@click.option("--slots", type=click.IntRange(1), default=3, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--patience", type=float, default=PATIENCE, show_default=True, help="Seconds to wait for an answer.")
def main(
    model: Path | None, draft: Path | None, requests: int, slots: int, threads: int, seed: int, patience: float
) -> None:
    """Soak the server."""
    pair = ModelPair.resolve(model, (draft,) if draft else ())
    worker = EngineThread(
        ModelOptions(pair.target, ctx=256, slots=slots, threads=threads, exact=True, cache_ram=16), pair.draft
    )
    app = create_app(worker, ServerSettings(queue=32, exact=True))
    app.state.models.only.warm_up()
    server = Background(app)
    before, memory, start = state_of(server), list[int](), time.monotonic()
    chance, kinds, wrong = random.Random(seed), Counter[str](), list[str]()
    clock, ahead = time.time, [0.0]
    time.time = lambda: clock() + ahead[0]
    said = texts(server, patience)
    if len(set(said)) < 2:
        raise SystemExit("every seed gives the same text, so texts show nothing: use another model")
    for i in range(ROUNDS):
        names = plan(requests // ROUNDS, chance, harm=False)
        some, failed = asyncio.run(storm(server.url, 0, names, chance, patience=patience))
        kinds, wrong = kinds + Counter(some), wrong + failed
        wait_idle(server, patience)
        state = state_of(server)
        memory.append(resident())
        n = (i + 1) * (requests // ROUNDS)
        ahead[0] = n * PACE
        click.echo(f"{n:6d} requests ({n * PACE / 3600:.1f} h), {memory[-1] / 2**20:.1f} MiB, {state}")
        if state != before:
            raise SystemExit(f"something leaked: it was {before}")
    done = dict(worker.ready.result().engine.counters.done)
    click.echo(", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())) + f"; {len(wrong)} wrong")
    for line in wrong[:10]:
        click.echo(f"  {line}")
    click.echo(f"texts ended by: {done}; {time.monotonic() - start:.0f} s")
    same = sum(a == b for a, b in zip(texts(server, patience), said))
    growth = memory[-1] / memory[0] - 1
    click.echo(f"{same} of {len(said)} seeds give the same text as before; memory {100 * growth:+.2f} %")
    server.close()
    worker.close(timeout=60)
    if wrong or same < len(said) or growth > FLAT:
        raise SystemExit("an answer was wrong, the texts have changed, or memory kept growing")


if __name__ == "__main__":
    main()
