"""A planner for a context: what it begins with, and what is kept of what it learned."""

from __future__ import annotations

import contextlib
from typing import Iterable, Sequence

from lcspec.drafters.base import Drafter, DrafterEnv
from lcspec.errors import DecodeError
from lcspec.llama import Context
from lcspec.planner.auto import AutoPlanner
from lcspec.profiles import history
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.step_cost import Progress, load_curve, measure, save_curve

# What the first use of a model may spend on measuring, seconds.
QUICK_SECONDS = 3.0
# Steps of a draft model that are timed before it is first asked.
DRAFT_STEPS = 3


def prepare(
    context: Context, seq: int, env: DrafterEnv, names: Sequence[str], progress: Progress | None = None
) -> AutoPlanner:
    """The planner for a context: with the stored cost curve, or after a short measurement on first use.

    Args:
        context: nothing runs in it.
        seq: a sequence id that nobody uses.
        env: what drafters are made from.
        names: the drafters there are, in the order of their bits.
        progress: told the share of the measurement that is done.
    """
    curve = load_curve(context)
    if curve is None:
        try:
            curve = measure(context, seq, budget=QUICK_SECONDS, progress=progress)
            if not curve.unsteady:
                save_curve(context, curve)
        except DecodeError:
            curve = CostCurve()  # no room to measure in: nothing is known, so nothing is speculated
    planner = AutoPlanner(curve)
    if env.history:
        stored = history.load(context.options.path, env.draft, history.pair_key(env.draft))
        if stored is not None:
            with contextlib.suppress(ValueError):
                planner.restore(stored, names)
    return planner


def meet(planner: AutoPlanner, drafters: Iterable[Drafter]) -> None:
    """Time the draft models that `planner` has never asked: what a first ask takes says little about later ones, since
    it also reads the text and finds everything cold. Only between requests.
    """
    for drafter in drafters:
        if drafter.costly and not planner.costly.knows(drafter.name):
            with contextlib.suppress(DecodeError):
                if (seconds := drafter.step_seconds(DRAFT_STEPS)) is not None:
                    planner.costly.step_seconds[drafter.name] = seconds


def keep(planner: AutoPlanner | None, context: Context, env: DrafterEnv, names: Sequence[str]) -> None:
    """Store what the planner learned; `names` as for `prepare`."""
    if planner is None or not planner.decode_seconds:
        return
    if not planner.curve.unsteady:
        save_curve(context, planner.curve)
    if env.history:
        learned = planner.as_dict(names)
        history.save(context.options.path, env.draft, history.pair_key(env.draft), learned)
