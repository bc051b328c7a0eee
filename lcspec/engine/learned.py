"""A context's planner: what it starts with, and what is stored of what it learned."""

from __future__ import annotations

import contextlib
from typing import Iterable, Sequence

from lcspec.drafters.base import Drafter, DrafterEnv
from lcspec.errors import DecodeError
from lcspec.llama import Branching, Context
from lcspec.planner.auto import AutoPlanner
from lcspec.profiles import history
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.step_cost import Progress, load_curve, measure, save_curve

# The longest measurement at the first use of a model, seconds.
QUICK_SECONDS = 3.0
# How many steps of a draft model are timed before it is first asked.
DRAFT_STEPS = 3


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
                planner.restore(stored, names)
    return planner


def meet(planner: AutoPlanner, drafters: Iterable[Drafter]) -> None:
    """Time the draft models that `planner` has never asked. The first ask of a request says little about later ones,
    because it also reads the text and runs with cold caches. Call it only between requests.
    """
    for drafter in drafters:
        if drafter.costly and not planner.costly.level_seconds(drafter.name):
            with contextlib.suppress(DecodeError):
                if (seconds := drafter.step_seconds(DRAFT_STEPS)) is not None:
                    planner.costly.record(drafter).level_seconds = seconds


def keep(planner: AutoPlanner | None, context: Context, env: DrafterEnv, names: Sequence[str]) -> None:
    """Store what the planner learned; `names` as in `prepare`."""
    if planner is None or not planner.decode_seconds:
        return
    save_curve(context, planner.curve)
    if env.history:
        learned = planner.as_dict(names)
        history.save(context.options.path, env.draft, history.pair_key(env.draft), learned)
