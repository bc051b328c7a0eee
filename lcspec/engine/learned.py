"""A context's planner: what it starts with, and what is stored of what it learned."""

from __future__ import annotations

import contextlib
import math
from dataclasses import astuple
from typing import Any, Iterable, Sequence

from lcspec.drafters.base import Drafter, DrafterEnv
from lcspec.errors import DecodeError
from lcspec.llama import Branching, Context
from lcspec.planner.acceptance import Acceptance
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.calibrator import SHIFT_VARIANCE, SLOPE_VARIANCE, Calibrator
from lcspec.planner.record import DrafterRecord
from lcspec.profiles import history
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.step_cost import Progress, load_curve, measure, save_curve

# The longest measurement at the first use of a model, seconds.
QUICK_SECONDS = 3.0
# How many steps of a draft model are timed before it is first asked.
DRAFT_STEPS = 3
# Seconds that a level takes beside such a step: in Python, and with caches that the target went through (SmolLM2's
# head on two cores of Zen 4: 0.24 ms by itself, 0.55 ms in an answer).
BESIDE = 0.3e-3
# What is stored of a DrafterRecord.
RECORD = ("acceptance", "tested", "level_seconds")


def prepare(
    context: Context, seq: int, env: DrafterEnv, names: Sequence[str], progress: Progress | None = None
) -> AutoPlanner:
    """Make the planner of a context, with the stored cost curve; at first use, after a short measurement.

    Args:
        context: a context in which nothing runs.
        seq: an unused sequence id.
        env: what drafters are made from.
        names: the names of the drafters, in the order of their bits.
        progress: called with the share of the measurement that is done.
    """
    curve = load_curve(context)
    if curve is None:
        try:
            curve = measure(context, seq, budget=QUICK_SECONDS, progress=progress)
            save_curve(context, curve)
        except DecodeError:
            curve = CostCurve()  # no room for a measurement: with an empty curve, nothing is speculated
    memory = context.memory
    planner = AutoPlanner(curve, in_turn=memory.streams or memory.branching is not Branching.TREE)
    if env.history:
        stored = history.load(context.options.path, env.draft, history.pair_key(env.draft))
        if stored is not None:
            with contextlib.suppress(ValueError):
                restore(planner, stored, names)
    return planner


def meet(planner: AutoPlanner, drafters: Iterable[Drafter]) -> None:
    """Time the draft models that `planner` has never asked. The first ask of a request says little about later ones,
    because it also reads the text. Call it only between requests.
    """
    for drafter in drafters:
        if drafter.costly and not planner.costly.level_seconds(drafter.name):
            with contextlib.suppress(DecodeError):
                if (seconds := drafter.step_seconds(DRAFT_STEPS)) is not None:
                    planner.costly.record(drafter).level_seconds = seconds + BESIDE


def keep(planner: AutoPlanner | None, context: Context, env: DrafterEnv, names: Sequence[str]) -> None:
    """Store what the planner learned; `names` as in `prepare`."""
    if planner is None or not planner.decode_seconds:
        return
    save_curve(context, planner.curve)
    if env.history:
        history.save(context.options.path, env.draft, history.pair_key(env.draft), as_dict(planner, names))


def as_dict(planner: AutoPlanner, names: Sequence[str]) -> dict[str, Any]:
    """What a planner learned. `names[i]` is the drafter of bit i; a later session may number the drafters anew."""
    trends = [[source, *astuple(calibrator)] for source, calibrator in planner.acceptance.calibrators.items()]
    known = planner.costly.records.items()
    records = {name: {key: getattr(record, key) for key in RECORD} for name, record in known}
    return {"acceptance": {"drafters": list(names), "trends": trends}, "records": records}


def restore(planner: AutoPlanner, data: Any, names: Sequence[str]) -> None:
    """Let a planner start with what `as_dict` gave, with the bits changed to those of `names`; what other drafters
    taught is dropped.

    Raises:
        ValueError: the data has another form, or impossible numbers; nothing has changed.
    """
    try:
        acceptance = data["acceptance"]
        bits = {1 << i: 1 << list(names).index(n) for i, n in enumerate(acceptance["drafters"]) if n in names}
        calibrators = {}
        for source, *line in acceptance["trends"]:
            calibrator, known = _calibrator(*map(float, line)), [bit for bit in bits if source & bit]
            if source == sum(known):
                calibrators[sum(bits[bit] for bit in known)] = calibrator
        records = {str(name): _record(*(float(told[key]) for key in RECORD)) for name, told in data["records"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a planner's record: {error}") from error
    planner.acceptance = Acceptance(calibrators)
    planner.costly.records = {name: record for name, record in records.items() if name in names}


def _calibrator(shift: float, slope: float, a: float, b: float, c: float) -> Calibrator:
    sound = 0.0 < a <= 2 * SHIFT_VARIANCE and 0.0 < c <= 2 * SLOPE_VARIANCE and b * b <= a * c
    if not (sound and abs(shift) + abs(slope) <= 100.0):
        raise ValueError("bad numbers")
    return Calibrator(shift, slope, a, b, c)


def _record(acceptance: float, tested: float, level_seconds: float) -> DrafterRecord:
    """It counts as an earlier text's."""
    if not (0.0 <= acceptance <= 1.0 and tested >= 0 and 0.0 <= level_seconds < math.inf):
        raise ValueError("bad numbers")
    record = DrafterRecord(acceptance, int(tested), level_seconds)
    record.renew()
    return record
