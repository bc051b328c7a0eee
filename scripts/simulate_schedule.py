"""Several streams on a machine made of numbers: how long first tokens take, and how long streams stand still.

The scheduler is the real one, the clock is not: a step takes what its width is said to take, and nothing else takes any
time. Every stream sends its next request when it has the answer to the last one, as `scripts/compare_server.py` does.
The rule it is compared with reads all prompts whole beside the decodes, as far as they fit into a batch.

    python scripts/simulate_schedule.py --streams 1,2,4,8
"""

from __future__ import annotations

import itertools
import random
import statistics
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Callable, cast

import click

from lcspec.engine.scheduler import Scheduler
from lcspec.engine.sequence import PromptProgress
from lcspec.llama import Branching

# Milliseconds of a step by width: a 1B model in Q4_0 on two cores.
POINTS = "1:21,2:40,4:62,8:98,16:134,32:250,64:460,128:900,512:3400"
BATCH = 512
# ... and on two cores with AMX, whose kernels take 32 rows at a time: 33 cost what 64 do.
BLOCKS = "1:27,4:35,8:54,12:70,16:83,22:100,32:137,64:263,96:393,128:532,160:671,192:788,256:1062,384:1598,512:2117"
# The other rule's batch; it is evaluated in pieces of BATCH tokens.
WHOLE = 2048


@dataclass(eq=False)
class Stream:
    """A request while it runs: what the scheduler sees of a slot."""

    id: int
    ids: list[int]
    answer: int
    asked: float
    times: list[float] = field(default_factory=list)  # of its tokens

    def __post_init__(self) -> None:
        self.request = SimpleNamespace(prompt=self.ids, speculation=SimpleNamespace(exact=False, auto=True))
        self.tokens = list(self.ids)
        self.cache = SimpleNamespace(length=0, max_leaves=0, next_pause=lambda stop: stop)
        self.prompt = PromptProgress(order=-1)
        self.drafters: list[Any] = []

    @property
    def generated(self) -> int:
        """Tokens of the answer."""
        return len(self.times)

    @property
    def prefilling(self) -> bool:
        """Whether the prompt is being read."""
        return not self.times

    strict = False

    @property
    def n_uncached(self) -> int:
        """Tokens that have not been evaluated."""
        return len(self.tokens) - self.cache.length

    def advance(self, length: int, now: float) -> None:
        """So many tokens have been evaluated."""
        self.cache.length = length
        if length == len(self.tokens):
            self.tokens.append(0)
            self.times.append(now)


Rule = Callable[[list[Stream]], tuple[list[tuple[Stream, int]], Callable[[float], None]]]


class Machine:
    """Takes the time that its points say, and straight lines between them; beyond `block`, in whole blocks."""

    def __init__(self, points: str, block: int = 1) -> None:
        self.block = block
        pairs = sorted((int(n), float(ms) / 1e3) for n, ms in (p.split(":") for p in points.split(",")))
        self.points = [(0, 0.0), *pairs]

    def seconds(self, width: int) -> float:
        """Seconds of a step of `width` tokens, in pieces of BATCH."""
        if width > BATCH:
            return self.seconds(BATCH) + self.seconds(width - BATCH)
        if width > self.block:
            width += -width % self.block
        (a, s), (b, t) = next(
            (pair for pair in itertools.pairwise(self.points) if width <= pair[1][0]), tuple(self.points[-2:])
        )
        return s + (t - s) * (width - a) / (b - a)


def scheduled() -> Rule:
    """The scheduler's rule."""
    options = SimpleNamespace(batch=BATCH, max_width=64, slots=8)
    memory = SimpleNamespace(branching=Branching.TREE)
    context = SimpleNamespace(batch=SimpleNamespace(n_max=BATCH + 64), options=options, memory=memory)
    prefix_cache = SimpleNamespace(context=context, sharing=False)
    exact = SimpleNamespace(certificate=None, reuse=lambda request, apart: None)
    drafting = SimpleNamespace(auto=None, planners=())
    scheduler = Scheduler(cast(Any, prefix_cache), cast(Any, exact), cast(Any, drafting))

    def rule(running: list[Stream]) -> tuple[list[tuple[Stream, int]], Callable[[float], None]]:
        for stream in running:
            if stream.prompt.order < 0:
                scheduler.enter(cast(Any, stream), cast(Any, running))
        scheduler.renew()  # answers may have ended
        plan = scheduler.schedule(cast(Any, running))
        width = sum(part.end - part.sequence.cache.length for part in plan.parts)
        parts = [(cast(Stream, part.sequence), part.end) for part in plan.parts]
        return parts, lambda seconds: scheduler.budget.observe(width, seconds)

    return rule


def whole(running: list[Stream]) -> tuple[list[tuple[Stream, int]], Callable[[float], None]]:
    """Everything that fits into a batch, decodes first, then prompts in the order they came."""
    left, parts = WHOLE, []
    for stream in sorted(running, key=lambda s: s.prefilling):
        n = min(left, stream.n_uncached)
        left -= n
        if n:
            parts.append((stream, stream.cache.length + n))
    return parts, lambda seconds: None


def run(machine: Machine, rule: Rule, streams: int, requests: int, tokens: int, seed: int) -> list[Stream]:
    """Everybody's answers; the first requests of all streams come at once, and answers have half to 1.5 x `tokens`."""
    rng, now = random.Random(seed), 0.0
    waiting = [  # no two begin alike
        Stream(i, [i + 1] * rng.randint(50, 500), rng.randint(tokens // 2, tokens * 3 // 2), 0.0)
        for i in range(requests)
    ]
    running, done = list[Stream](), list[Stream]()
    while waiting or running:
        while waiting and len(running) < streams:
            running.append(waiting.pop(0))
            running[-1].asked = now
        parts, took = rule(running)
        seconds = machine.seconds(sum(length - stream.cache.length for stream, length in parts))
        took(seconds)
        now += seconds
        for stream, length in parts:
            stream.advance(length, now)
        done += [s for s in running if s.generated >= s.answer]
        running = [s for s in running if s.generated < s.answer]
    return done


def row(name: str, streams: int, found: list[list[Stream]]) -> str:
    """A line of the table, over several runs."""
    every = [s for answers in found for s in answers]
    first = [s.times[0] - s.asked for s in every]
    gaps = [b - a for s in every for a, b in itertools.pairwise(s.times)]
    rate = sum(s.generated for s in every) / sum(max(s.times[-1] for s in answers) for answers in found)

    def high(values: list[float]) -> float:
        return statistics.quantiles(values, n=20, method="inclusive")[-1]

    return (
        f"{streams:7d}  {name:9s}  {statistics.median(first):6.2f}  {statistics.fmean(first):5.2f}  {high(first):5.2f}"
        f"  {high(gaps):7.2f}  {max(gaps):7.2f}  {rate:5.1f}"
    )


@click.command()
@click.option("--streams", default="1,2,4,8", show_default=True, help="Numbers of streams, separated by commas.")
@click.option("--rounds", default=6, show_default=True, help="Requests of a stream.")
@click.option("--tokens", default=64, show_default=True, help="Tokens of an answer, on average.")
@click.option("--runs", default=20, show_default=True, help="Runs, each with prompts of its own.")
@click.option("--points", default=POINTS, show_default=True, help="width:milliseconds of a step.")
@click.option("--block", default=1, show_default=True, help="Rows of a block: a begun one costs what a whole one does.")
def main(streams: str, rounds: int, tokens: int, runs: int, points: str, block: int) -> None:
    """Print a table: seconds to the first token, seconds between tokens, tokens a second."""
    machine = Machine(points, block)
    click.echo("streams  prompts    median   mean    p95  gap p95  longest  tok/s")
    for n in map(int, streams.split(",")):
        for name, make in (("scheduled", scheduled), ("whole", lambda: whole)):
            found = [run(machine, cast(Rule, make()), n, n * rounds, tokens, seed) for seed in range(runs)]
            click.echo(row(name, n, found))


if __name__ == "__main__":
    main()
