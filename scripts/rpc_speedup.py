"""Speed-up by speculation against the round trip to the workers, as figures and a chart.

    python scripts/rpc_speedup.py MODEL.gguf [--rtt 0,2,10,50] [--out folder]

Starts two `lcspec worker` on this machine and a delaying proxy before each, and runs the same prompts with and without
speculation at every delay. Needs a library built with -DGGML_RPC=on (docs/distributed.md). Nothing else may run.
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
from pathlib import Path
from typing import Iterator

from lcspec.bench.builtin import builtin_prompts
from lcspec.bench.prompts import spread
from lcspec.bench.svg import Plot, Series
from lcspec.config import ModelOptions, SpeculationParams
from lcspec.engine.events import Finished, Tokens
from lcspec.engine.request import Request
from lcspec.llama.rpc_relay import NoAnswer, greet
from lcspec.placement import Placement
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session, parse_speculation
from scripts.rpc_delay import DelayProxy

SVG = "http://www.w3.org/2000/svg"
STYLE = "text{font:12px sans-serif} .grid{stroke:#ccc} .line{fill:none;stroke:#26c;stroke-width:2} .dot{fill:#26c}"
START_SECONDS = 20.0
WORKER = "from lcspec.cli import main; main()"


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


def rate(session: Session, prompts: list[str], speculation: SpeculationParams, n: int) -> tuple[float, list[list[int]]]:
    """Tokens per second after each first token, over all prompts, and the texts."""
    tokens, seconds, texts = 0, 0.0, []
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
                seconds += time.perf_counter() - began
        tokens += len(ids) - 1
        texts.append(ids)
    return tokens / seconds, texts


def main() -> None:
    """Measure and write rpc.json and rpc.svg."""
    parser = argparse.ArgumentParser(description="Speed-up against the round trip to the workers.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--rtt", default="0,2,10,50", help="milliseconds added per round trip")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("-n", type=int, default=64, help="tokens an answer")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--speculate", default="auto")
    parser.add_argument("--out", type=Path, default=Path("work"))
    options = parser.parse_args()
    prompts = [prompt.text for prompt in spread(builtin_prompts(), options.prompts)]
    rows = []
    with worker(options.threads) as one, worker(options.threads) as two:
        proxies = Proxies([one, two])
        for rtt in map(float, options.rtt.split(",")):
            proxies.delay(rtt / 1000)
            with tempfile.TemporaryDirectory() as folder:
                os.environ["LCSPEC_CACHE_DIR"] = folder  # T(n) is measured anew, through this delay
                given = ModelOptions(options.model, ctx=2048, placement=Placement(workers=tuple(proxies.addresses)))
                with open_session(given, history=False) as session:
                    plain, texts = rate(session, prompts, parse_speculation("off"), options.n)
                    rate(session, prompts[:1], parse_speculation(options.speculate), options.n)  # measures T(n)
                    fast, others = rate(session, prompts, parse_speculation(options.speculate), options.n)
            rows.append({"rtt_ms": rtt, "plain": plain, "speculative": fast, "same_texts": texts == others})
            print(f"{rtt:5g} ms: plain {plain:7.1f} t/s, speculative {fast:7.1f} t/s, {fast / plain:5.2f} times")
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
