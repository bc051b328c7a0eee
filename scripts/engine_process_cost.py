"""What it costs that `lcspec serve` runs its engine in a process of its own, and how long it is away when that dies.

    python scripts/engine_process_cost.py smollm2.gguf --prompts prompts.jsonl --out results/

Two servers, one with and one without, are up at once and take turns on the same requests, other ones in every round
(the load of scripts/compare_server.py), plain decoding. Rates and first texts are medians of the rounds' ratios. Then
the engine's process of one server is killed a few times while nothing runs: seconds until `/health` is 200 again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import click
from compare_server import body_of, lengths
from peers.prompts import balanced, read_prompts
from servers.load import run
from servers.start import Contender, Setup, running

from lcspec.llama.threads import default_threads

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.engine_faults import children_of

APART = Contender("process of its own", True, ("--speculate", "off"))
INSIDE = Contender("in the server's", True, ("--speculate", "off", "--in-process"))


@click.command()
@click.argument("target", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--streams", default="1,8", show_default=True)
@click.option("--requests", type=click.IntRange(1), default=16, show_default=True)
@click.option("-n", "n", type=click.IntRange(2), default=64, show_default=True, help="Tokens of an answer on average.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--deaths", type=click.IntRange(0), default=5, show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path))
def main(
    target: Path, prompts: Path, streams: str, requests: int, n: int, rounds: int, deaths: int, out: Path | None
) -> None:
    """Compare, kill, print."""
    setup = Setup(None, target, None, default_threads(), 1024)
    texts = [p.text[:2000] for p in balanced(read_prompts(prompts, ()))]
    results: dict[str, Any] = {"target": target.name, "levels": []}
    for level in (int(s) for s in streams.split(",")):
        rates, firsts = [], []
        with contextlib.ExitStack() as stack:
            ports = {one.name: stack.enter_context(running(one, setup, level)) for one in (APART, INSIDE)}
            for port in ports.values():
                run("127.0.0.1", port, [body_of("Hello", 8)], 1, 600.0)
            for round_ in range(rounds):
                found = {}
                asked = [texts[(round_ * requests + i) % len(texts)] for i in range(requests)]
                bodies = [body_of(text, k) for text, k in zip(asked, lengths(n, requests))]
                for name in list(ports) if round_ % 2 == 0 else list(ports)[::-1]:
                    found[name] = run("127.0.0.1", ports[name], bodies, level, 1800.0)
                apart, inside = found[APART.name], found[INSIDE.name]
                rates.append(apart.rate / inside.rate)
                firsts.append(statistics.median(a.first for a in apart.answers) - statistics.median(
                    a.first for a in inside.answers))  # fmt: skip
        row = {
            "streams": level,
            "rate": statistics.median(rates),
            "rates": rates,
            "first_ms": [1e3 * f for f in firsts],
        }
        results["levels"].append(row)
        shown = " ".join(f"{r:.3f}" for r in rates)
        later = 1e3 * statistics.median(firsts)
        click.echo(
            f"{level} streams: {row['rate']:.3f} of the rate in one process ({shown}), first text {later:+.1f} ms"
        )
    results["away"] = away(setup, deaths)
    if results["away"]:
        worst = max(results["away"])
        click.echo(f"killed {deaths} times: away for {statistics.median(results['away']):.2f} s, {worst:.2f} s at most")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "engine_process.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def away(setup: Setup, deaths: int) -> list[float]:
    """Seconds from the death of the engine's process to the next 200 of /health, by death."""
    found = []
    for _ in range(deaths):  # a fresh server for each: the second death of one waits before it starts again
        with running(APART, setup, 1) as port:
            run("127.0.0.1", port, [body_of("Hello", 8)], 1, 600.0)
            for server in children_of(os.getpid()):
                for engine in children_of(server):
                    os.kill(engine, signal.SIGKILL)
            start = time.perf_counter()
            while status(port) == 200 and time.perf_counter() - start < 0.5:
                time.sleep(0.005)
            while status(port) != 200:
                time.sleep(0.01)
            found.append(time.perf_counter() - start)
    return found


def status(port: int) -> int:
    """What /health answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return int(error.code)


if __name__ == "__main__":
    main()
