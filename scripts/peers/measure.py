"""The measurement: a grid on a few prompts, then everybody's best setting on all of them, prompt by prompt."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .contenders import Contender, Setting
from .outputs import Run
from .prompts import Prompt
from .runners import RunError, Runner

TUNING_SHARE = 0.4  # of the budget, at most


@dataclass
class Entry:
    """A contender while it is measured.

    Attributes:
        contender: who.
        runs: runs by setting and prompt id, in the order they were made.
        walls: seconds each run took, loading and prompt included, by setting.
        failures: why a setting failed, the first time it did; it is not tried again in the tuning.
        best: the setting chosen by the tuning prompts.
        note: what a reader of the table has to know.
    """

    contender: Contender
    runs: dict[str, dict[str, list[Run]]] = field(default_factory=dict)
    walls: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    best: Setting | None = None
    note: str = ""
    slow: bool = False

    def rates(self) -> dict[str, float]:
        """Median tokens per second of the best setting, by prompt id."""
        runs = self.runs.get(self.best.label, {}) if self.best else {}
        return {prompt: statistics.median(run.rate for run in done) for prompt, done in runs.items() if done}

    def wall(self, setting: Setting | None = None) -> float:
        """Seconds to expect for a run."""
        walls = self.walls.get(setting.label, []) if setting else []
        walls = walls or [wall for some in self.walls.values() for wall in some]
        return statistics.fmean(walls) if walls else 0.0


def geometric_mean(values: list[float]) -> float:
    """exp of the mean log; nan of nothing."""
    return math.exp(statistics.fmean(math.log(v) for v in values)) if values else math.nan


class Measurement:
    """Runs the whole comparison and keeps what it has at every moment."""

    def __init__(
        self,
        contenders: list[Contender],
        prompts: list[Prompt],
        make: Callable[[Contender, Setting], Runner],
        *,
        tune_prompts: int,
        repeat: int,
        budget: float | None,
        slow_factor: float,
        report: Callable[[str], None],
        save: Callable[[], None],
    ) -> None:
        """
        Args:
            contenders: who takes part; the first one is plain decoding.
            prompts: in the order to run them.
            make: makes a runner for a contender with a setting.
            tune_prompts: prompts (the first ones) that the grids run on.
            repeat: repetitions of every prompt in the main part.
            budget: seconds for everything from now on.
            slow_factor: a contender this many times slower than plain in the tuning runs no further.
            report: called with lines about the progress.
            save: called whenever there is something new worth keeping.
        """
        self.entries = [Entry(contender) for contender in contenders]
        self.prompts = prompts
        self.make = make
        self.tune_prompts = min(tune_prompts, len(prompts))
        self.repeat = repeat
        self.slow_factor = slow_factor
        self.report = report
        self.save = save
        self.start = time.monotonic()
        self.deadline = None if budget is None else self.start + budget
        self.budget = budget
        self.done: list[str] = []
        self.runners: dict[tuple[str, str], Runner] = {}

    def run(self) -> None:
        """Everything. KeyboardInterrupt passes through; what was measured stays."""
        try:
            self._pilot()
            self._tune()
            self._main()
        finally:
            for runner in self.runners.values():
                runner.close()

    # ------------------------------------------------------------------ the parts

    def _pilot(self) -> None:
        """Everybody's first setting on the first prompt: who works at all, and how long things take."""
        self.report(f"trying {len(self.entries)} contenders on one prompt ...")
        for entry in self.entries:
            self._once(entry, entry.contender.settings[0], self.prompts[0])
            self._stop_others(None)
        pilot = sum(entry.wall() for entry in self.entries)
        tuning = sum(self._cells(entry) * entry.wall() for entry in self.entries)
        if self.budget is not None and tuning * self.tune_prompts > TUNING_SHARE * self.budget:
            self.tune_prompts = max(1, int(TUNING_SHARE * self.budget / tuning))
        main = pilot * self.repeat * len(self.prompts)
        self.report(
            f"estimate: tuning {_minutes(tuning * self.tune_prompts)} ({self.tune_prompts} prompts), then "
            f"{_minutes(main)} for {len(self.prompts)} prompts x {self.repeat}; fewer if somebody is very slow"
        )
        self.save()

    def _cells(self, entry: Entry) -> int:
        """Settings to try for every tuning prompt; a contender with a single one needs no tuning but gives a pace."""
        return len(entry.contender.settings)

    def _tune(self) -> None:
        """The grids, prompt by prompt; then everybody's best setting by geometric mean."""
        for number, prompt in enumerate(self.prompts[: self.tune_prompts], 1):
            self.report(f"tuning on prompt {number} of {self.tune_prompts} ({prompt.category}) ...")
            for entry in self.entries:
                for setting in entry.contender.settings:
                    if prompt.id not in entry.runs.get(setting.label, {}) and setting.label not in entry.failures:
                        self._once(entry, setting, prompt)
                    self._stop_others(None)
            self.save()
        for entry in self.entries:
            self._choose(entry)
        self._drop_slow()
        self.save()

    def _choose(self, entry: Entry) -> None:
        scores = {}
        for setting in entry.contender.settings:
            runs = entry.runs.get(setting.label, {})
            if runs and setting.label not in entry.failures:
                scores[setting.label] = geometric_mean([run.rate for done in runs.values() for run in done])
        if scores:
            label = max(scores, key=lambda name: scores[name])
            entry.best = next(s for s in entry.contender.settings if s.label == label)
        else:
            entry.note = "failed: " + next(iter(entry.failures.values()), "it never ran")

    def _drop_slow(self) -> None:
        plain = geometric_mean(list(self.entries[0].rates().values()))
        for entry in self.entries[1:]:
            rate = geometric_mean(list(entry.rates().values()))
            if rate * self.slow_factor < plain:
                entry.slow = True
                entry.note = f"{plain / rate:.1f} times slower than plain: tuning prompts only"

    def _main(self) -> None:
        """Best settings on every prompt: A, B, ... on prompt 1, again for each repetition, then prompt 2."""
        active = [entry for entry in self.entries if entry.best is not None and not entry.slow]
        for entry in active:  # the tuning's runs of the best setting would count twice
            entry.runs[entry.best.label] = {}  # type: ignore[union-attr]
        pace = sum(entry.wall(entry.best) for entry in active) * self.repeat
        fits = len(self.prompts)
        if self.deadline is not None and pace > 0:
            fits = max(1, min(fits, int((self.deadline - time.monotonic()) / pace)))
        self.report(f"main part: {fits} of {len(self.prompts)} prompts x {self.repeat}, about {_minutes(pace * fits)}")
        longest = 0.0
        for number, prompt in enumerate(self.prompts, 1):
            start = time.monotonic()
            if self.done and self.deadline is not None and start + max(pace, longest) > self.deadline:
                self.report(f"the budget ends here: {len(self.done)} of {len(self.prompts)} prompts")
                break
            for _ in range(self.repeat):
                for entry in active:
                    if entry.best is not None:
                        self._once(entry, entry.best, prompt)
            self.done.append(prompt.id)
            spent = time.monotonic() - start
            longest = max(spent, 0.9 * longest)
            self.report(f"prompt {number} of {fits} ({prompt.category}, {prompt.n_tokens} tokens): {_seconds(spent)}")
            self.save()

    # ------------------------------------------------------------------ one run

    def _once(self, entry: Entry, setting: Setting, prompt: Prompt) -> None:
        key = (entry.contender.name, setting.label)
        start = time.monotonic()
        try:
            if key not in self.runners:
                self.runners[key] = self.make(entry.contender, setting)
            run = self.runners[key].run(prompt)
        except RunError as error:
            if setting.label not in entry.failures:
                entry.failures[setting.label] = str(error)
                self.report(f"  {entry.contender.name} ({setting.label}) on {prompt.id}: {error}")
            return
        entry.runs.setdefault(setting.label, {}).setdefault(prompt.id, []).append(run)
        entry.walls.setdefault(setting.label, []).append(time.monotonic() - start)

    def _stop_others(self, keep: tuple[str, str] | None) -> None:
        """End the servers of settings that are not needed now."""
        for key in [key for key in self.runners if key != keep]:
            self.runners.pop(key).close()

    # ------------------------------------------------------------------ results

    def as_dict(self) -> dict[str, Any]:
        """Everything measured, ready for JSON."""
        return {
            "prompts_done": self.done,
            "repeat": self.repeat,
            "tune_prompts": [prompt.id for prompt in self.prompts[: self.tune_prompts]],
            "seconds": time.monotonic() - self.start,
            "contenders": [
                {
                    "name": entry.contender.name,
                    "program": entry.contender.program,
                    "method": entry.contender.method,
                    "strategy": entry.contender.strategy,
                    "best": entry.best.label if entry.best else None,
                    "args": list(entry.best.args) if entry.best else [],
                    "note": entry.note,
                    "failures": entry.failures,
                    "runs": {
                        label: {prompt: [vars(run) for run in done] for prompt, done in prompts.items()}
                        for label, prompts in entry.runs.items()
                    },
                }
                for entry in self.entries
            ],
        }


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s"
