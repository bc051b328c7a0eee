"""llama.cpp's programs where answers may end, at any temperature, tuned on prompts that are not in the table.

For real_bench.py; compare_peers.py bans end tokens instead and takes its tuning prompts from the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .contenders import OURS, PEERS, Contender, Setting, lcspec_contenders
from .measure import Measurement
from .outputs import Run
from .prompts import Prompt
from .runners import ExampleRunner, Job, RunError, Runner, ServerRunner

# Contenders this many times slower than plain run no further than the tuning.
SLOW = 4.0

# What lcspec does with a prompt and a strategy.
Answer = Callable[[Prompt, str], Run]


class OutOfTime(Exception):
    """The time is over; what is finished is kept, and the next call goes on from there."""


@dataclasses.dataclass(frozen=True)
class EndingJob(Job):
    """A job that stops at an end token. `temperature` and `seed` hold for every program."""

    temperature: float = 0.0
    seed: int = 1

    def common_args(self, draft: bool) -> list[str]:
        """See Job."""
        args = [arg for arg in super().common_args(draft) if arg != "--ignore-eos"]
        args[args.index("--temp") + 1] = f"{self.temperature:g}"
        return [*args, "--seed", str(self.seed)]


class EndingServer(ServerRunner):
    """llama-server under an EndingJob."""

    def _ask(self, path: str, body: dict[str, Any] | None, timeout: float) -> dict[str, Any]:
        if body is not None and isinstance(self.job, EndingJob):
            body = {**body, "ignore_eos": False, "temperature": self.job.temperature, "seed": self.job.seed}
        return super()._ask(path, body, timeout)


class OwnRunner:
    """One of lcspec's strategies, in this process."""

    def __init__(self, answer: Answer, contender: Contender) -> None:
        self.answer, self.contender = answer, contender

    def run(self, prompt: Prompt) -> Run:
        """See Runner."""
        return self.answer(prompt, self.contender.strategy)

    def close(self) -> None:
        """The session stays open."""


def make_runner(job: EndingJob, answer: Answer, contender: Contender, setting: Setting) -> Runner:
    """The runner for `contender`."""
    if contender.program == OURS:
        return OwnRunner(answer, contender)
    if contender.program == "llama-server":
        return EndingServer(job, contender, setting)
    return ExampleRunner(job, contender, setting)


def everybody(strategies: Sequence[str], draft: Path | None) -> list[Contender]:
    """lcspec's strategies, plain decoding first, and the peers that these files make possible."""
    ours = lcspec_contenders("; ".join(strategies))
    return [*ours, *(peer for peer in PEERS if draft is not None or not peer.draft)]


class HeldOut(Measurement):
    """Tunes on prompts of its own, stops when the time is over, and goes on from what an earlier call left."""

    def __init__(
        self,
        contenders: list[Contender],
        tuning: Sequence[Prompt],
        prompts: Sequence[Prompt],
        make: Callable[[Contender, Setting], Runner],
        *,
        earlier: Mapping[str, Any] | None,
        repeat: int,
        budget: float | None,
        report: Callable[[str], None],
        save: Callable[[Measurement], None],
    ) -> None:
        """`tuning`: prompts of the grids; `prompts`: those of the table; `earlier`: `as_dict` of the last call."""
        super().__init__(
            contenders,
            list(tuning),
            make,
            tune_prompts=len(tuning),
            repeat=repeat,
            budget=budget,
            slow_factor=SLOW,
            report=report,
            save=save,
        )
        self.tuning, self.table = list(tuning), list(prompts)
        self.tuned = False
        if earlier:
            self._restore(earlier)

    @property
    def complete(self) -> bool:
        """Whether every prompt of the table ran."""
        return self.tuned and {prompt.id for prompt in self.table} <= set(self.done)

    def _restore(self, earlier: Mapping[str, Any]) -> None:
        self.tuned, self.done = bool(earlier["tuned"]), list(earlier["prompts_done"])
        rows = {row["name"]: row for row in earlier["contenders"]}
        for entry in self.entries:
            row = rows.get(entry.contender.name)
            if row is None:
                continue
            entry.tuning = {s: {p: Run(**run) for p, run in runs.items()} for s, runs in row["tuning"].items()}
            entry.runs = {p: [Run(**run) for run in runs] for p, runs in row["runs"].items()}
            entry.failures = dict(row["failures"])
            if self.tuned:
                entry.best = next((s for s in entry.contender.settings if s.label == row["best"]), None)
                entry.note, entry.out = row["note"], bool(row["note"])

    def run(self) -> None:
        """See Measurement; the end of the time is no error."""
        try:
            super().run()
        except OutOfTime:
            self.report("the time ends here, while tuning")

    def _pilot(self) -> None:
        if not self.tuned and not any(entry.tuning for entry in self.entries):
            super()._pilot()
        self.tune_prompts = len(self.tuning)  # not fewer for a shorter part: the next one goes on

    def _tune(self) -> None:
        if not self.tuned:
            super()._tune()
            self.tuned = True

    def _try(self, entry: Any, setting: Setting, prompt: Prompt) -> None:
        if self.left() <= 0:
            raise OutOfTime
        super()._try(entry, setting, prompt)

    def _main(self) -> None:
        self.prompts = [prompt for prompt in self.table if prompt.id not in self.done]
        if self.prompts:
            super()._main()

    def as_dict(self) -> dict[str, Any]:
        """See Measurement; also whether the tuning is finished and everything ran."""
        known = {"tuned": self.tuned, "complete": self.complete, "tuning_prompts": [p.id for p in self.tuning]}
        return {**super().as_dict(), **known}


def run_of(rate: float, tokens: int, seconds: float, n_prompt: int, stats: Mapping[str, Any], text: str) -> Run:
    """lcspec's figures as those of any program.

    Raises:
        RunError: no decode step was made.
    """
    if tokens < 1 or seconds <= 0:
        raise RunError("the answer ends at once")
    return Run(rate, tokens, seconds, rate, n_prompt, stats["drafted"], stats["accepted"], text)
