"""What every constant and rule of the planner is worth, on recorded drafts in virtual time.

    python scripts/ablate_planner.py smollm2.rec.gz demo.rec.gz stories.rec.gz --orders 2

Every recording (see `scripts/record_drafts.py`) is decoded on the machines of `MACHINES`, once with the planner as it
is and once for each change; a figure is the geometric mean, over the answers, of the speed over plain decoding,
Python's time included. Nothing is timed, so it may run beside anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import click

from lcspec.planner import acceptance, auto, calibrator, loss_budget, policy, record, shadow
from lcspec.profiles import change as width_change
from lcspec.profiles import cost_curve, drift

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.planner_replay import Machine, Result, replay
from scripts.recordings import Recording

# Milliseconds of a step by width. A 135 M model (Q4_1) on two cores with AMX, and a change of width there; a model of
# 1 B (Q4_0) on AVX-512 without AMX and on an EPYC; Q8_0; a GPU with work to spare; the first model on a GPU (an
# H200) where Python counts; both models with lcspec's kernels on two cores of Zen 4, behind 250 tokens (of what a
# change of width takes there 0.2 ms are Python's, in a step with drafts).
PYTHON = {"bare": 0.10e-3, "step": 0.15e-3, "node": 6e-6}
COLD = {"bare": 0.20e-3, "step": 0.30e-3, "node": 6e-6}
MACHINES = {
    "135M AMX": Machine.of("135M AMX", "1:4.06,2:8.24,3:8.88,4:9.58,8:13.5,16:19.9,32:36", change=0.9e-3, **PYTHON),
    "1B AVX-512": Machine.of("1B AVX-512", "1:20,2:27,3:38,4:27,5:38,6:44,8:46,12:58,16:65,17:78,32:122", **PYTHON),
    "1B EPYC": Machine.of("1B EPYC", "1:60,2:108,3:162,4:216,8:300,16:440,32:800", **PYTHON),
    "1B Q8_0": Machine.of("1B Q8_0", "1:27,2:54,3:65,4:73,8:92,16:143,32:268", **PYTHON),
    "GPU": Machine.of("GPU", "1:6,16:7,17:9.6,32:11", change=0.2e-3, **PYTHON),
    "135M GPU": Machine.of(
        "135M GPU", "1:1.12,2:5.7,8:5.6,16:6.2,32:6.7", change=0.5e-3, bare=0.1e-3, step=1e-3, node=8e-6
    ),
    "135M Zen 4": Machine.of("135M Zen 4", "1:4.5,2:5.25,4:6.6,6:8.7,8:10.7,16:20,32:37", change=9e-4, **COLD),
    "1B Zen 4": Machine.of("1B Zen 4", "1:17.1,2:18.4,4:23.2,6:31.2,8:39,12:59,16:74,32:154", change=3e-4, **COLD),
}
# Machines for recordings with a draft model, and without.
DRAFTED = ("1B AVX-512", "1B Q8_0", "GPU", "1B Zen 4")
FREE = ("135M AMX", "1B AVX-512", "1B EPYC", "GPU", "135M GPU", "135M Zen 4", "1B Zen 4")
# Answers shorter than this say little about the worst one.
LONG = 60


class Change(NamedTuple):
    """A planner that differs in one thing: `patches` are (module or class, attribute, value)."""

    name: str
    patches: tuple[tuple[Any, str, Any], ...]


def constant(module: Any, name: str, *values: Any) -> list[Change]:
    """A constant with other values."""
    return [Change(f"{name} = {value:g}, not {getattr(module, name):g}", ((module, name, value),)) for value in values]


def beginning(cls: Any, name: str, *values: float) -> list[Change]:
    """A dataclass that begins with other values: its defaults were read when it was made."""
    names = [f.name for f in dataclasses.fields(cls) if f.init]
    place, now = names.index(name), cls.__init__.__defaults__
    return [
        Change(
            f"{cls.__name__}.{name} = {value:g} at first, not {now[place]:g}",
            ((cls.__init__, "__defaults__", (*now[:place], value, *now[place + 1 :])),),
        )
        for value in values
    ]


def _estimated(self: acceptance.Acceptance, tree: Any) -> list[float]:
    return [float(p) for p in tree.path_probs()]


_took = width_change.Change.took


def _not_spared(self: width_change.Change, *step: Any) -> float:
    seconds, self.same = _took(self, *step), 0.0
    return max(0.0, seconds)


CHANGES = [
    Change("estimates as drafters state them", ((acceptance.Acceptance, "path_probs", _estimated),)),
    *constant(calibrator, "MEMORY", 100.0, 1600.0),
    *constant(calibrator, "SUREST", 3.0, 8.0),
    *beginning(calibrator.Calibrator, "var_shift", 1.0),
    *beginning(calibrator.Calibrator, "var_slope", 0.06),
    *constant(auto, "BRANCH", 1, 2, 6),
    *[change._replace(name=f"{change.name}, of draft models") for change in constant(policy, "BRANCH", 1, 2, 6)],
    *constant(auto, "FREE_NODES", 12, 48),
    *constant(auto, "TABLE_STEPS", 1, 32),
    *constant(policy, "PROBE_SHARE", 0.0, 0.03),
    *constant(policy, "LOOKAHEAD", 1, 8),
    *constant(record, "RATE", 0.005, 0.05),
    *constant(record, "TIME_RATE", 0.03, 0.3),
    *constant(record, "EARLIER", 2, 50),
    *beginning(record.DrafterRecord, "acceptance", 0.4, 0.9),
    *constant(drift, "BEFORE", 0.05, 0.5),
    *constant(drift, "NOISE", 0.05, 0.5),
    *constant(drift, "KEPT", 0.99, 0.9999),
    *constant(cost_curve, "WIDTH_RATE", 0.0, 0.3),
    Change("a change of width costs nothing", ((width_change.Change, "price", 0.0),)),
    Change("a step as wide as the last is spared nothing", ((width_change.Change, "took", _not_spared),)),
    Change(
        "nothing bounds a text's loss", ((loss_budget.LossBudget, "pauses", property(lambda self: self.bare is None)),)
    ),
    *beginning(loss_budget.LossBudget, "balance", 1.0, 10.0),
    Change("a text that backs off asks nobody", ((shadow.Shadows, "due", lambda self: False),)),
    *constant(shadow, "LOOK", 4, 16),
    *constant(shadow, "LOOK_SHARE", 0.01, 1.0),
    *constant(shadow, "RIGHT", 0.25, 0.75),
    *constant(loss_budget, "MOST", 2.5, 20.0),
    *constant(loss_budget, "MOST_COSTLY", 5.0, 25.0),
    *constant(loss_budget, "SHARE", 0.0025, 0.02),
    *constant(loss_budget, "LEAST", -0.16, -5.12),
    *constant(loss_budget, "RATE", 0.03, 0.3),
]


class Case(NamedTuple):
    """A recording on a machine."""

    recording: Recording
    machine: str

    @property
    def names(self) -> tuple[str, ...]:
        """Its drafters."""
        return tuple(self.recording.answers[0].drafts)


class Figures(NamedTuple):
    """Speed over plain decoding: the mean over answers, the worst long answer, and the worst kind of text."""

    mean: float
    answer: float
    kind: float

    @classmethod
    def of(cls, results: Sequence[Result]) -> Figures:
        """Of a replay."""
        kinds: dict[str, list[Result]] = {}
        for r in results:
            kinds.setdefault(r.kind, []).append(r)
        return cls(
            mean([r.speedup for r in results]),
            min((r.speedup for r in results if r.tokens >= LONG), default=1.0),
            min(sum(r.plain for r in some) / sum(r.seconds for r in some) for some in kinds.values()),
        )


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


@contextlib.contextmanager
def changed(change: Change) -> Iterator[None]:
    """The planner with a change."""
    with contextlib.ExitStack() as stack:
        for place, name, value in change.patches:
            stack.enter_context(patch.object(place, name, value))
        yield


def measured(case: Case, every: int, names: Sequence[str] | None = None, orders: int = 1, leaves: int = 32) -> Figures:
    """Every so many answers of a case, decoded in so many orders, with trees of so many leaves."""
    results = list[Result]()
    for order in range(orders):
        answers = case.recording.answers[::every]
        if order:
            random.Random(order).shuffle(answers)
        some = Recording(case.recording.name, case.recording.costly, answers)
        results += replay(some, MACHINES[case.machine], names or case.names, noise=0.03, leaves=leaves)
    return Figures.of(results)


def row(name: str, figures: Sequence[Figures], base: Sequence[Figures]) -> str:
    """A line of the table."""
    ratios = [f.mean / b.mean for f, b in zip(figures, base)]
    cells = [f"{mean(ratios):.3f}", *(f"{r:.3f}" for r in ratios), f"{min(f.kind for f in figures):.3f}"]
    return f"| {name} | {' | '.join(cells)} |"


@click.command()
@click.argument("recordings", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Write the table into this page, after its last heading.")
@click.option("--every", default=1, show_default=True, help="Decode only every so many answers.")
@click.option("--orders", default=1, show_default=True, help="Decode the answers in so many orders.")
@click.option("--leaves", default=32, show_default=True, help="Leaves of a tree; 1: only chains can be verified.")
@click.option("--only", default="", help="Only changes whose name contains this.")
def main(recordings: tuple[Path, ...], out: Path | None, every: int, orders: int, leaves: int, only: str) -> None:
    """Print what every change does to the speed of every recording on every machine."""
    cases = list[Case]()
    for path in recordings:
        recording = Recording.load(path)
        cases += [Case(recording, machine) for machine in (DRAFTED if recording.costly else FREE)]
    base = [measured(case, every, orders=orders, leaves=leaves) for case in cases]
    lines = ["| recording | machine | over plain | worst answer | worst kind |", "|---|---|---|---|---|"]
    lines += [
        f"| {case.recording.name} | {case.machine} | {f.mean:.3f} | {f.answer:.3f} | {f.kind:.3f} |"
        for case, f in zip(cases, base)
    ]
    heads = [f"{case.recording.name}, {case.machine}" for case in cases]
    lines += ["", f"| change | all | {' | '.join(heads)} | worst kind |", "|---" * (len(cases) + 3) + "|"]
    for line in lines:
        click.echo(line)
    found = list[str]()
    for change in CHANGES:
        if only in change.name:
            with changed(change):
                found.append(
                    row(change.name, [measured(case, every, orders=orders, leaves=leaves) for case in cases], base)
                )
            click.echo(found[-1])
    for model in ("model", "model2"):
        drafted = [i for i, case in enumerate(cases) if model in case.names]
        if drafted and only in "cascade":
            swapped = [
                measured(
                    cases[i], every, orders, leaves, [n.replace(model, f"cascade{model[5:]}") for n in cases[i].names]
                )
                if i in drafted
                else base[i]
                for i in range(len(cases))
            ]
            found.append(row(f"cascade in place of {model}", swapped, base))
            click.echo(found[-1])
    if out is not None:
        text = (
            out.read_text(encoding="utf-8") if out.exists() else "# What the planner's parts are worth\n\n## Figures\n"
        )
        head = text[: text.rindex("\n## ") + 1]
        title = text[text.rindex("\n## ") + 1 :].split("\n", 1)[0]
        out.write_text(f"{head}{title}\n\n" + "\n".join(lines + found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
