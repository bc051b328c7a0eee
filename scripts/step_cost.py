"""What Python does in a step: time, calls and bytecodes beside the target's decode, plain and with text drafts.

    python scripts/step_cost.py smollm2.gguf
    python scripts/step_cost.py smollm2.gguf --against ../other-checkout

The decode runs in between as it always does, so Python starts every step with cold caches. Calls and bytecodes do not
depend on what else the machine does; times do, so of two checkouts only the relation counts: they take turns on one
core. Calls are those of Python functions, of built-in functions, and of the library.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Iterator

import click

WARM, COUNTED = 24, 32
TEXT = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return "
# name -> slots, --speculate, whether steps with drafts count, or those without
CASES = {
    "plain, 1 slot": (1, "off", False),
    "auto, nothing drafted": (1, "auto", False),
    "text drafts, 1 slot": (1, "ngram", True),
    "plain, 4 slots": (4, "off", False),
    "plain, 8 slots": (8, "off", False),
}


@contextlib.contextmanager
def library_counted(counts: Counter[str]) -> Iterator[None]:
    """Inside, count calls of the library (all but that of `logits_address`, one in a step)."""
    from lcspec.llama.lib import C

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            counts["library"] += 1
            return function(*args)

        return call

    functions = {name: found for name in dir(C) if isinstance(found := getattr(C, name), ctypes._CFuncPtr)}
    for name, function in functions.items():
        setattr(C, name, counting(function))
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(C, name, function)


def calls_in(step: Callable[[], Any], counts: Counter[str]) -> Any:
    """Run `step` and count its calls."""

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        counts[event] += 1

    sys.setprofile(profile)
    try:
        return step()
    finally:
        sys.setprofile(None)


def bytecodes_in(step: Callable[[], Any], counts: Counter[str]) -> Any:
    """Run `step` and count its bytecodes."""

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counts[event] += 1
        return trace

    sys.settrace(trace)
    try:
        return step()
    finally:
        sys.settrace(None)


def measure(target: Path, slots: int, speculate: str, drafted: bool, steps: int) -> dict[str, float]:
    """Per step: Python calls, built-in calls, library calls, bytecodes; milliseconds beside the decode."""
    from lcspec.config import ModelOptions
    from lcspec.engine.events import StepStats
    from lcspec.engine.request import Request
    from lcspec.sampling.parameters import SamplingParams
    from lcspec.session import open_session, parse_speculation

    options = ModelOptions(target, ctx=2048, slots=slots, threads=1, attention="library", exact=False)
    beside, decodes = list[float](), list[float]()
    with open_session(options, history=False) as session:
        engine, prompt = session.engine, session.prompt_ids(TEXT * 3)
        spec = parse_speculation(speculate)
        for i in range(slots):
            sampling = SamplingParams(temperature=0.0, seed=i)
            request = Request((*prompt, 100 + i), sampling, spec, max_tokens=2000 - len(prompt), ignore_end=True)
            engine.submit(request)
        for _ in range(WARM):
            engine.step()
        found: dict[str, list[float]] = {name: [] for name in ("python", "builtin", "library", "bytecodes")}
        for i in range(2 * COUNTED + steps):
            if not engine.busy:
                break
            counts = Counter[str]()
            start, decode = time.perf_counter(), engine.context.decode_seconds
            if i < COUNTED:
                with library_counted(counts):
                    events = calls_in(engine.step, counts)
            elif i < 2 * COUNTED:
                events = bytecodes_in(engine.step, counts)
            else:
                events = engine.step()
            seconds, decode = time.perf_counter() - start, engine.context.decode_seconds - decode
            if drafted != any(isinstance(e, StepStats) and e.tree.n_drafted for e in events):
                continue
            if i < COUNTED:
                found["python"].append(counts["call"] - counts["library"])
                found["builtin"].append(counts["c_call"])
                found["library"].append(counts["library"])
            elif i < 2 * COUNTED:
                found["bytecodes"].append(counts["opcode"])
            else:
                beside.append(1e3 * (seconds - decode))
                decodes.append(1e3 * decode)
    out = {name: statistics.mean(values) for name, values in found.items() if values}
    beside.sort()
    times = {"least": beside[len(beside) // 50], "median": statistics.median(beside)}
    return out | times | {"decode": statistics.median(decodes), "steps": len(beside)}


def elsewhere(checkout: Path, case: str, target: Path, steps: int) -> dict[str, float]:
    """`measure` with the code of another checkout, in a process of its own."""
    command = [sys.executable, __file__, str(target), "--case", case, "--steps", str(steps), "--json"]
    ran = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(checkout)}, capture_output=True, text=True, check=True
    )
    return dict(json.loads(ran.stdout))


def line(name: str, found: dict[str, float]) -> str:
    """A row of the table."""
    keys = ("python", "builtin", "library", "bytecodes")
    counts = " ".join(f"{found.get(key, 0):9.1f}" for key in keys)
    return f"{name:32} {counts} {found['least']:9.3f} {found['median']:9.3f} {found['decode']:9.2f}"


@click.command()
@click.argument("target", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--case", "cases", multiple=True, type=click.Choice(list(CASES)), help="Only these.")
@click.option("--steps", type=click.IntRange(8), default=300, show_default=True, help="Steps to time.")
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Turns of each checkout.")
@click.option("--json", "as_json", is_flag=True)
def main(target: Path, cases: tuple[str, ...], steps: int, against: Path | None, rounds: int, as_json: bool) -> None:
    """Measure, print a table."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if as_json:
        print(json.dumps(measure(target, *CASES[cases[0]], steps)))
        return
    heads = ("calls", "built-in", "library", "bytecodes", "least ms", "median ms", "decode ms")
    click.echo(" " * 32 + "".join(f" {head:>9}" for head in heads))
    here = Path(__file__).resolve().parents[1]
    for case in cases or CASES:
        checkouts = {case: here} if against is None else {f"{case}, before": against.resolve(), case: here}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
        for _ in range(rounds):
            for name, checkout in checkouts.items():
                runs[name].append(elsewhere(checkout, case, target, steps))
        for name, found in runs.items():
            click.echo(line(name, {key: min(run[key] for run in found) for key in found[0]}))


if __name__ == "__main__":
    main()
