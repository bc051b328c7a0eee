"""Speed-up by speculation against the round trip to the workers, as figures and a chart.

    python scripts/rpc_speedup.py MODEL.gguf [--rtt 0,2,10,50] [--server llama-server] [--out folder]

Starts two `lcspec worker` on this machine and a delaying proxy before each, and runs the same prompts with and without
speculation at every delay. Without workers they run first, to see whether the texts are the same. `--server` runs
llama-server with the same workers as well, plain and with n-grams. Needs a library built with -DGGML_RPC=on
(docs/distributed.md), a llama-server as well. Nothing else may run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator

from lcspec.bench.builtin import builtin_prompts
from lcspec.bench.prompts import spread
from lcspec.bench.svg import Plot, Series
from lcspec.config import ModelOptions
from lcspec.engine.events import Finished, Tokens
from lcspec.engine.request import Request
from lcspec.llama.rpc_relay import NoAnswer, greet
from lcspec.placement import Placement
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session, parse_speculation

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.rpc_delay import DelayProxy
from scripts.servers.start import Contender, Setup, running

SVG = "http://www.w3.org/2000/svg"
STYLE = "text{font:12px sans-serif} .grid{stroke:#ccc} .line{fill:none;stroke:#26c;stroke-width:2} .dot{fill:#26c}"
START_SECONDS = 20.0
WORKER = "from lcspec.cli import main; main()"
CTX = 2048
# What llama-server gets beside --rpc: its drafts of n-grams as scripts/compare_server.py has them.
THEIRS = {
    "server_plain": (),
    "server_ngram": (
        "--spec-type",
        "ngram-simple",
        "--spec-ngram-simple-size-n",
        "3",
        "--spec-ngram-simple-size-m",
        "7",
    ),
}


@dataclass
class Rate:
    """Tokens per second after each first token, over all prompts, and the token ids of every text."""

    tokens: int = 0
    seconds: float = 0.0
    texts: list[list[int]] = field(default_factory=list)

    @property
    def value(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@contextlib.contextmanager
def worker(threads: int = 1) -> Iterator[str]:
    """A worker on loopback in a process of its own; its HOST:PORT."""
    command = [sys.executable, "-c", WORKER, "worker", "--listen", "127.0.0.1:0", "--threads", str(threads)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if " at " not in line:
            raise SystemExit(f"the worker did not start: {line.strip() or 'see above'}")
        address = line.split(" at ")[1].split()[0]
        threading.Thread(target=process.stdout.read, daemon=True).start()
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                greet(address)
                break
            except NoAnswer:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


class Proxies:
    """Delaying proxies on a thread of their own."""

    def __init__(self, targets: list[str]) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        pairs = [target.rpartition(":") for target in targets]
        self.proxies = [DelayProxy((host, int(port)), 0.0) for host, _, port in pairs]
        self.addresses = [f"127.0.0.1:{self._run(proxy)}" for proxy in self.proxies]

    def _run(self, proxy: DelayProxy) -> int:
        return asyncio.run_coroutine_threadsafe(proxy.start(), self.loop).result()

    def delay(self, rtt: float) -> None:
        """Seconds per round trip from now on."""
        for proxy in self.proxies:
            proxy.rtt = rtt


def ours(session: Session, prompts: list[str], speculate: str, n: int) -> Rate:
    """Run all prompts, one after another."""
    found, speculation = Rate(), parse_speculation(speculate)
    for prompt in prompts:
        request = Request(
            session.prompt_ids(prompt), SamplingParams(temperature=0.0, seed=1), speculation, n, ignore_end=True
        )
        ids: list[int] = []
        began = 0.0
        for event in session.engine.run(request):
            if isinstance(event, Tokens):
                began = began or time.perf_counter()
                ids += [info.id for info in event.tokens]
            elif isinstance(event, Finished):
                found.seconds += time.perf_counter() - began
        found.tokens += len(ids) - 1
        found.texts.append(ids)
    return found


def both(options: argparse.Namespace, prompts: list[str], workers: tuple[str, ...]) -> tuple[Rate, Rate]:
    """Without and with speculation; no workers: on this machine alone, with the kernels that workers have."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LCSPEC_CACHE_DIR"] = folder  # T(n) is measured anew, through this delay
        threads = 0 if workers else options.threads
        placement = Placement(workers=workers)
        given = ModelOptions(options.model, ctx=CTX, threads=threads, repack=False, placement=placement)
        with open_session(given, history=False) as session:
            plain = ours(session, prompts, "off", options.n)
            ours(session, prompts[:1], options.speculate, options.n)  # measures T(n)
            return plain, ours(session, prompts, options.speculate, options.n)


def theirs(options: argparse.Namespace, prompts: list[list[int]], workers: list[str], args: tuple[str, ...]) -> float:
    """Tokens per second of llama-server, by its own clock, with all layers on the workers."""
    setup = Setup(options.server, options.model, None, options.threads, CTX)
    tokens, seconds = 0, 0.0
    contender = Contender("llama-server", False, ("--rpc", ",".join(workers), "-ngl", "99", *args))
    with running(contender, setup, 1) as port:
        for ids in prompts:
            body: dict[str, Any] = {"prompt": ids, "n_predict": options.n, "temperature": 0, "ignore_eos": True}
            data = json.dumps({**body, "cache_prompt": False}).encode()
            asked = urllib.request.Request(
                f"http://127.0.0.1:{port}/completion", data, {"content-type": "application/json"}
            )
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            timings = json.load(opener.open(asked))["timings"]
            tokens += timings["predicted_n"]
            seconds += timings["predicted_ms"] / 1000
    return tokens / seconds


def prompt_ids(model: Path, prompts: list[str]) -> list[list[int]]:
    """Token ids of the prompts, for the other program."""
    with open_session(ModelOptions(model, ctx=CTX), history=False) as session:
        return [list(session.prompt_ids(prompt)) for prompt in prompts]


def told(reference: list[list[int]], *rates: Rate) -> str:
    """How many texts are those without workers and without speculation."""
    same = sum(a == b for rate in rates for a, b in zip(rate.texts, reference))
    return f"{same} of {len(reference) * len(rates)} texts the same"


def main() -> None:
    """Measure and write rpc.json and rpc.svg."""
    parser = argparse.ArgumentParser(description="Speed-up against the round trip to the workers.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--rtt", default="0,2,10,50", help="milliseconds added per round trip")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("-n", type=int, default=64, help="tokens an answer")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--speculate", default="auto")
    parser.add_argument("--server", type=Path, help="a llama-server with the RPC backend")
    parser.add_argument("--out", type=Path, default=Path("work"))
    options = parser.parse_args()
    prompts = [prompt.text for prompt in spread(builtin_prompts(), options.prompts)]
    plain, fast = both(options, prompts, ())
    reference = plain.texts
    print(f" local: plain {plain.value:7.1f} t/s, speculative {fast.value:7.1f} t/s, {told(reference, plain, fast)}")
    rows: list[dict[str, Any]] = []
    with worker(options.threads) as one, worker(options.threads) as two:
        proxies = Proxies([one, two])
        for rtt in map(float, options.rtt.split(",")):
            proxies.delay(rtt / 1000)
            plain, fast = both(options, prompts, tuple(proxies.addresses))
            row: dict[str, Any] = {"rtt_ms": rtt, "plain": plain.value, "speculative": fast.value}
            line = f"{rtt:5g} ms: plain {plain.value:7.1f} t/s, speculative {fast.value:7.1f} t/s, "
            line += f"{fast.value / plain.value:5.2f} times, {told(reference, plain, fast)}"
            if options.server is not None:
                ids = prompt_ids(options.model, prompts)
                for name, args in THEIRS.items():
                    row[name] = theirs(options, ids, proxies.addresses, args)
                line += "; llama-server {server_plain:.1f} t/s, with n-grams {server_ngram:.1f} t/s".format(**row)
            row["same_texts"] = plain.texts == fast.texts == reference
            rows.append(row)
            print(line, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rpc.json").write_text(json.dumps(rows, indent=1))
    points = [(row["rtt_ms"], row["speculative"] / row["plain"]) for row in rows]
    top = max(1.0, *(y for _, y in points))
    labels = {"x_label": "milliseconds added per round trip", "y_label": "speed-up"}
    plot = Plot(max(1.0, *(x for x, _ in points)), 1.1 * top, **labels)
    plot.line(Series("speed-up", points, 0))
    plot.x_ticks([x for x, _ in points])
    drawn = plot.svg("speed-up against the round trip").replace("<svg ", f'<svg xmlns="{SVG}" ', 1)
    (options.out / "rpc.svg").write_text(drawn.replace(">", f"><style>{STYLE}</style>", 1))
    print(f"written to {options.out}/rpc.json and rpc.svg")


if __name__ == "__main__":
    main()
