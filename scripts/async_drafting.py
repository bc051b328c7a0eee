"""Drafting while the target decodes, against drafting before it: tokens per second, same threads.

    python scripts/async_drafting.py [TARGET.gguf DRAFT.gguf] [--speculate auto] [--temperature 0.8]

The target has one core and one thread. The draft model has one thread: on the target's core, before every step
(`before`); on a core of its own, during the step as well (`own core`); or during the step but on the target's core
(`same core`), where the planner must find out that it does not pay. Without files a copy of the bundled pair is made at
the cost of 0.5 B and 50 M parameters. Needs Linux and two cores on which nothing else runs.

With `--gpu THREADS` the target is on the GPU. The draft model is there as well before every step (`before`), or on so
many threads of the processor during the step (`own core`).

With `--rtt MS` the target is on a `lcspec worker` so many milliseconds away, which has one core; the draft model and
everything else have the other one, before every step and during it. Only with `--speculate auto`.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from lcspec.bench.builtin import builtin_prompts
from lcspec.bench.prompts import read_prompts, spread
from lcspec.config import DraftFiles, ModelOptions
from lcspec.engine.events import Finished, StepStats, Tokens
from lcspec.engine.request import Request
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.placement import Placement
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session, parse_speculation

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.rpc_speedup import Proxies, worker
from scripts.scale_model import scale_model

MODES = ("before", "own core", "same core")
WARM_UP = 160  # tokens; after the first steps, in which nothing is drafted ahead, the other thread starts


@dataclass
class Way:
    """One way to draft, and what it gave: tokens per second and token ids by (prompt, repetition)."""

    session: Session
    thread: int | None = None  # of the draft model
    rates: dict[tuple[int, int], float] = field(default_factory=dict)
    texts: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    steps: int = 0
    tokens: int = 0
    drafting: float = 0.0
    decoding: float = 0.0
    seconds: float = 0.0

    def run(self, request: Request, where: tuple[int, int]) -> None:
        """Run one request and note its rate after the first token."""
        ids, began = list[int](), 0.0
        for event in self.session.engine.run(request):
            if isinstance(event, Tokens):
                began = began or time.perf_counter()
                ids += [info.id for info in event.tokens]
            elif isinstance(event, StepStats):
                self.steps += 1
                self.drafting += event.draft_seconds
                self.decoding += event.target_seconds
            elif isinstance(event, Finished):
                seconds = time.perf_counter() - began
        self.rates[where], self.texts[where] = (len(ids) - 1) / seconds, ids
        self.tokens += len(ids) - 1
        self.seconds += seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Drafting while the target decodes, against drafting before it.")
    parser.add_argument("files", nargs="*", type=Path, help="target and draft model")
    parser.add_argument("--speculate", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--quant", help="quantization of the copies (default: Q8_0, as the bundled pair)")
    parser.add_argument("--sizes", default="0.5b,50m", help="parameters of the copies")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--questions", type=Path, metavar="FILE", help="JSON lines, as a user's messages")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("-n", type=int, default=96, help="tokens an answer")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--cores", default="0,1", help="of the target and of the draft model")
    parser.add_argument("--gpu", type=int, default=0, metavar="THREADS", help="the target is on the GPU")
    parser.add_argument("--rtt", type=float, metavar="MS", help="the target is on a worker, so far away")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LCSPEC_CACHE_DIR"] = folder  # T(n) is measured anew
        files = o.files or copies(Path(folder), o.sizes.split(","), o.quant)
        measure(o, *files)


def copies(folder: Path, sizes: list[str], quant: str | None) -> list[Path]:
    """Copies of the bundled pair that cost as much as larger models."""
    made = [folder / "target.gguf", folder / "draft.gguf"]
    for source, path, size in zip((DEMO_TARGET, DEMO_DRAFT), made, sizes):
        scale_model(demo_path(source), path, size, quant)
    return made


def measure(o: argparse.Namespace, target: Path, draft: Path) -> None:
    """Run all ways interleaved, and print what came out."""
    elsewhere = o.gpu or o.rtt is not None
    modes = [mode.strip() for mode in o.modes.split(",") if not elsewhere or mode.strip() != "same core"]
    cores = [int(core) for core in o.cores.split(",")]
    known_prompts = read_prompts(o.questions) if o.questions else builtin_prompts()
    prompts = [prompt.text for prompt in spread(known_prompts, o.prompts)]

    def ids(session: Session, text: str) -> tuple[int, ...]:
        return session.chat_ids([{"role": "user", "content": text}])[0] if o.questions else session.prompt_ids(text)

    sampling = SamplingParams(temperature=o.temperature, seed=1)
    files = DraftFiles((draft,))
    speculation = parse_speculation(o.speculate, files)
    with ExitStack() as stack:
        ways = {}
        for mode in modes:
            apart = mode != "before"
            if o.gpu:
                given = Placement(draft_devices=() if apart else None, draft_threads=o.gpu * apart)
            elif o.rtt is not None:
                given = Placement(workers=(far_worker(stack, o.rtt / 1000, cores[0]),), draft_devices=())
            else:
                given = Placement(devices=(), draft_threads=int(apart))
            options = ModelOptions(target, ctx=1024, threads=1, gpu_layers=None if elsewhere else 0, placement=given)
            known = {thread.native_id for thread in threading.enumerate()}
            way = ways[mode] = Way(stack.enter_context(open_session(options, files, history=False)))
            warm = Request(ids(way.session, prompts[0]), sampling, speculation, WARM_UP, ignore_end=True)
            for _ in way.session.engine.run(warm):
                pass
            fresh = [t.native_id for t in threading.enumerate() if t.native_id not in known and "draft-ahead" in t.name]
            way.thread = fresh[0] if fresh else None
            if way.thread is None and mode != "before":
                raise SystemExit("the draft model was never asked, so there is nothing to compare")
            if o.rtt is not None and not apart:
                overlap = way.session.engine.drafting.auto.overlap
                overlap.balance, overlap.pauses = -math.inf, True  # for ever
        for mode, way in ways.items():
            if way.thread is not None and not elsewhere:
                os.sched_setaffinity(way.thread, {cores[mode == "own core"]})
        if not elsewhere:
            os.sched_setaffinity(threading.get_native_id(), {cores[0]})
        for repetition in range(o.repeat):
            for number, text in enumerate(prompts):
                turn = (repetition + number) % len(modes)
                for mode in modes[turn:] + modes[:turn]:
                    way = ways[mode]
                    asked = Request(ids(way.session, text), sampling, speculation, o.n, ignore_end=True)
                    way.run(asked, (number, repetition))
        report(ways)


def far_worker(stack: ExitStack, rtt: float, core: int) -> str:
    """Start a worker on `core`, `rtt` seconds away; returns its address. It ends with `stack`."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    address = stack.enter_context(worker())
    os.sched_setaffinity(0, mine - {core})
    proxies = Proxies([address])
    proxies.delay(rtt)
    return proxies.addresses[0]


def report(ways: dict[str, Way]) -> None:
    """One line for every way."""
    reference = next(iter(ways.values()))
    for mode, way in ways.items():
        ratios = [rate / reference.rates[where] for where, rate in way.rates.items()]
        total = way.tokens / way.seconds / (reference.tokens / reference.seconds)
        same = sum(way.texts[where] == ids for where, ids in reference.texts.items())
        auto = way.session.engine.drafting.auto
        print(
            f"{mode:10s} {statistics.median(way.rates.values()):7.2f} t/s, {statistics.median(ratios):5.3f} of "
            f"{next(iter(ways))} (all together {total:5.3f}); "
            f"{way.tokens / way.steps:4.2f} tokens a step of {1000 * way.decoding / way.steps:6.1f} ms, after "
            f"{1000 * way.drafting / way.steps:5.1f} ms of drafting; {same} of {len(ratios)} texts the same"
            + (f"; a level {1000 * auto.costly.records['model'].level_seconds:.1f} ms" if auto is not None else "")
            + ("; paused" if auto is not None and way.thread is not None and auto.overlap.pauses else "")
        )
    auto = reference.session.engine.drafting.auto
    if auto is not None:
        print("T(n), ms:", " ".join(f"{n}: {1000 * auto.curve.seconds(n, 200):.1f}" for n in auto.curve.widths[:12]))


if __name__ == "__main__":
    main()
