"""The measurement: a grid on a few prompts, then everybody's best setting on all of them, prompt by prompt."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .contenders import Contender, Setting
from .outputs import Run
from .prompts import Prompt
from .runners import RunError, Runner

TUNING_SHARE = 0.4  # of the budget, at most
GIVE_UP = 3  # failures in a row in the main part
IMPOSSIBLE = 2.0  # times plain decoding, for a run that had no draft accepted


@dataclass
class Entry:
    """A contender while it is measured.

    Attributes:
        contender: who.
        tuning: a run by setting and prompt id, from the grid.
        best: the setting chosen by the tuning.
        runs: the best setting's runs by prompt id, from the main part.
        walls: seconds that runs took, loading and prompt included, by setting.
        failures: reasons by setting in the tuning, by prompt id in the main part.
        note: what a reader of the table has to know.
        out: it takes no part in the main part.
    """

    contender: Contender
    tuning: dict[str, dict[str, Run]] = field(default_factory=dict)
    best: Setting | None = None
    runs: dict[str, list[Run]] = field(default_factory=dict)
    walls: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    note: str = ""
    out: bool = False

    def rates(self) -> dict[str, float]:
        """Median tokens per second by prompt id; of the tuning for those that were left out of the main part."""
        if self.runs or self.best is None:
            return {prompt: statistics.median(run.rate for run in runs) for prompt, runs in self.runs.items()}
        return {prompt: run.rate for prompt, run in self.tuning[self.best.label].items()}

    def wall(self, setting: Setting | None = None) -> float:
        """Seconds to expect for a run: those of `setting` so far, else those of any."""
        walls = self.walls.get(setting.label, []) if setting else []
        walls = walls or [wall for some in self.walls.values() for wall in some]
        return statistics.fmean(walls) if walls else 0.0

    def choose(self) -> None:
        """Settle on the setting with the highest geometric mean among those that never failed."""
        scores = {
            setting: geometric_mean(run.rate for run in self.tuning[setting.label].values())
            for setting in self.contender.settings
            if self.tuning.get(setting.label) and setting.label not in self.failures
        }
        if scores:
            self.best = max(scores, key=lambda setting: scores[setting])
        else:
            self.note, self.out = "failed: " + next(iter(self.failures.values()), "it never ran"), True


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
        save: Callable[[Measurement], None],
    ) -> None:
        """Prepare.

        Args:
            contenders: who takes part; the first one is plain decoding.
            prompts: in the order to run them.
            make: makes a runner for a contender with a setting.
            tune_prompts: prompts (the first ones) that the grids run on.
            repeat: repetitions of every prompt in the main part.
            budget: seconds for everything from now on; None = no limit.
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
            for entry in self.entries:
                if entry.best is None and not entry.out:
                    entry.choose()
            self._stop_all()
            self.save(self)

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return math.inf if self.budget is None else self.start + self.budget - time.monotonic()

    # ------------------------------------------------------------------ the parts

    def _pilot(self) -> None:
        """Everybody's first setting on the first prompt: who works at all, and how long things take."""
        self.report(f"trying {len(self.entries)} contenders on one prompt ...")
        for entry in self.entries:
            self._try(entry, entry.contender.settings[0], self.prompts[0])
        one = sum(entry.wall() * len(entry.contender.settings) for entry in self.entries)
        if self.budget is not None and one > 0:
            self.tune_prompts = max(1, min(self.tune_prompts, int(TUNING_SHARE * self.budget / one)))
        main = sum(entry.wall() for entry in self.entries) * self.repeat * len(self.prompts)
        self.report(
            f"estimate without a budget: tuning on {self.tune_prompts} prompts {_minutes(one * self.tune_prompts)}, "
            f"then {len(self.prompts)} prompts x {self.repeat} {_minutes(main)}; the very slow are left out of that"
        )

    def _tune(self) -> None:
        """The grids, prompt by prompt; then everybody's best setting."""
        for number, prompt in enumerate(self.prompts[: self.tune_prompts], 1):
            self.report(f"tuning on prompt {number} of {self.tune_prompts} ({prompt.category}) ...")
            for entry in self.entries:
                for setting in entry.contender.settings:
                    if setting.label not in entry.failures and prompt.id not in entry.tuning.get(setting.label, {}):
                        self._try(entry, setting, prompt)
            self.save(self)
        for entry in self.entries:
            entry.choose()
        plain = geometric_mean(self.entries[0].rates().values())
        for entry in self.entries[1:]:
            slower = plain / geometric_mean(entry.rates().values())
            if slower > self.slow_factor:
                entry.out, entry.note = True, f"{slower:.1f} times slower than plain: tuning prompts only"

    def _main(self) -> None:
        """Best settings on every prompt: A, B, ... on prompt 1, again for each repetition, then prompt 2."""
        pace = sum(entry.wall(entry.best) for entry in self.entries if not entry.out) * self.repeat
        fits = len(self.prompts)
        if pace > 0:
            fits = int(max(1, min(fits, self.left() / pace)))
        self.report(f"main part: {fits} of {len(self.prompts)} prompts x {self.repeat}, about {_minutes(pace * fits)}")
        in_a_row = {entry.contender.name: 0 for entry in self.entries}
        for number, prompt in enumerate(self.prompts, 1):
            if self.done and pace > self.left():
                self.report(f"the budget ends here, after {len(self.done)} of {len(self.prompts)} prompts")
                break
            start = time.monotonic()
            for _ in range(self.repeat):
                for entry in self.entries:
                    if entry.out or entry.best is None:
                        continue
                    run = self._run(entry, entry.best, prompt, prompt.id)
                    if run is not None:
                        entry.runs.setdefault(prompt.id, []).append(run)
                    self._count_failures(entry, in_a_row, run is None)
            self.done.append(prompt.id)
            spent = time.monotonic() - start
            self.report(f"prompt {number} of {fits} ({prompt.category}, {prompt.n_tokens} tokens): {spent:.1f} s")
            pace = max(spent, 0.8 * pace + 0.2 * spent)
            self.save(self)

    # ------------------------------------------------------------------ one run

    def _try(self, entry: Entry, setting: Setting, prompt: Prompt) -> None:
        """A run of the tuning; its runner goes at once, so that only one program is in memory beside lcspec."""
        run = self._run(entry, setting, prompt, setting.label)
        if run is not None:
            entry.tuning.setdefault(setting.label, {})[prompt.id] = run
        self._stop_all()

    def _run(self, entry: Entry, setting: Setting, prompt: Prompt, failure_key: str) -> Run | None:
        key = (entry.contender.name, setting.label)
        start = time.monotonic()
        try:
            if key not in self.runners:
                self.runners[key] = self.make(entry.contender, setting)
            run = self.runners[key].run(prompt)
            self._check(run)
        except RunError as error:
            if failure_key not in entry.failures:
                entry.failures[failure_key] = str(error)
                self.report(f"  {entry.contender.name} ({setting.label}) on {prompt.id}: {error}")
            return None
        entry.walls.setdefault(setting.label, []).append(time.monotonic() - start)
        return run

    def _check(self, run: Run) -> None:
        """A run cannot be far ahead of plain decoding with no draft accepted: its decodes fail, and nobody says so.

        Raises:
            RunError: this one is.
        """
        first = self.entries[0]
        rates = [one.rate for runs in first.runs.values() for one in runs]
        rates = rates or [one.rate for runs in first.tuning.values() for one in runs.values()]
        plain = geometric_mean(rates)
        if run.drafted and not run.accepted and run.rate > IMPOSSIBLE * plain:  # false while plain is unknown (nan)
            raise RunError(
                f"it reports {run.rate:.0f} tokens/s with none of {run.drafted} drafted tokens accepted: "
                "its decodes must have failed"
            )

    def _count_failures(self, entry: Entry, in_a_row: dict[str, int], failed: bool) -> None:
        name = entry.contender.name
        in_a_row[name] = in_a_row[name] + 1 if failed else 0
        if in_a_row[name] >= GIVE_UP:
            entry.out, entry.note = True, f"given up after {GIVE_UP} failures: {list(entry.failures.values())[-1]}"

    def _stop_all(self) -> None:
        for runner in self.runners.values():
            runner.close()
        self.runners.clear()

    # ------------------------------------------------------------------ results

    def as_dict(self) -> dict[str, Any]:
        """Everything measured, ready for JSON."""
        return {
            "prompts_done": self.done,
            "repeat": self.repeat,
            "tuning_prompts": [prompt.id for prompt in self.prompts[: self.tune_prompts]],
            "seconds": time.monotonic() - self.start,
            "contenders": [_entry_dict(entry) for entry in self.entries],
        }


def geometric_mean(values: Iterable[float]) -> float:
    """exp of the mean log; nan of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def _entry_dict(entry: Entry) -> dict[str, Any]:
    contender, best = entry.contender, entry.best
    return {
        "name": contender.name,
        "program": contender.program,
        "method": contender.method,
        "strategy": contender.strategy,
        "best": best.label if best else None,
        "args": list(best.args) if best else [],
        "note": entry.note,
        "failures": entry.failures,
        "tuning": {label: {p: vars(run) for p, run in runs.items()} for label, runs in entry.tuning.items()},
        "runs": {prompt: [vars(run) for run in runs] for prompt, runs in entry.runs.items()},
    }


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
