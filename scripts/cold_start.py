"""What a first answer gains when its planner knows nothing, and what it would gain if another model had taught it.

    python scripts/cold_start.py smollm2.rec.gz smollm2-t08.rec.gz demo.rec.gz stories.rec.gz

Every answer of a recording (see `scripts/record_drafts.py`) is decoded with a planner of its own, in virtual time, on
the machines of `scripts/ablate_planner.py`. Recordings whose names begin alike are of one model, and teach it nothing
here. Only drafters that run no model are asked. Nothing is timed, so it may run beside anything. lcspec's planner does
not learn from other models, because that brought nothing (docs/planner-ablation.md).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lcspec.engine.learned import as_dict, restore
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.calibrator import SHIFT_VARIANCE, SLOPE_VARIANCE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.ablate_planner import FREE, MACHINES, Figures, mean
from scripts.planner_replay import Clock, Machine, Replayed, View, decode, virtual
from scripts.recordings import Answer, Recording

NAMES = ("suffix",)
NOISE = 0.03


def taught(recording: Recording, machine: Machine) -> dict[str, Any]:
    """What a planner has learned when it has decoded all answers."""
    planner = AutoPlanner(machine.curve())
    for number, answer in enumerate(recording.answers):
        decoded(planner, answer, machine, number)
    return as_dict(planner, NAMES)


def decoded(planner: AutoPlanner, answer: Answer, machine: Machine, number: int) -> Any:
    """One answer."""
    clock, rng = Clock(), random.Random(number)
    view = View(number, answer, [Replayed(name, 0.0, clock, machine) for name in NAMES])
    with virtual(clock):
        result = decode(planner, view, machine, clock, lambda: rng.lognormvariate(0.0, NOISE))
        planner.forget(view)  # type: ignore[arg-type]
    return result


def first_answers(recording: Recording, machine: Machine, data: dict[str, Any] | None) -> Figures:
    """Every answer as the first one of a session, which may start with `data`."""
    results = []
    for number, answer in enumerate(recording.answers):
        planner = AutoPlanner(machine.curve())
        if data is not None:
            restore(planner, data, NAMES)
            for line in planner.acceptance.calibrators.values():  # what another model taught counts for little
                line.var_shift, line.var_both = max(line.var_shift, SHIFT_VARIANCE / 4), 0.0
                line.var_slope = max(line.var_slope, SLOPE_VARIANCE / 4)
        results.append(decoded(planner, answer, machine, number))
    return Figures.of(results)


def model_of(recording: Recording) -> str:
    """What is before the first hyphen of its name."""
    return recording.name.split("-")[0]


@click.command()
@click.argument("recordings", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def main(recordings: Sequence[Path]) -> None:
    """Print a table: over plain decoding, and in brackets the worst kind of text."""
    loaded = [Recording.load(path) for path in recordings]
    click.echo("| recording | machine | knows nothing | taught by another model | by which |\n|---|---|---|---|---|")
    ratios = []
    for machine in (MACHINES[name] for name in FREE):
        lessons = {recording.name: taught(recording, machine) for recording in loaded}
        for recording in loaded:
            cold = first_answers(recording, machine, None)
            for other in loaded:
                if model_of(other) != model_of(recording):
                    found = first_answers(recording, machine, lessons[other.name])
                    ratios.append(found.mean / cold.mean)
                    click.echo(
                        f"| {recording.name} | {machine.name} | {cold.mean:.3f} ({cold.kind:.3f}) | {found.mean:.3f} "
                        f"({found.kind:.3f}) | {other.name} |"
                    )
    if ratios:
        click.echo(
            f"\nTaught over not, {len(ratios)} pairs: {mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
