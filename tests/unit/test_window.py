"""The rule that sizes windows of probes: its formula, and what comes of it on simulated machines."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lcspec.config import DrafterSpec
from lcspec.drafters.base import create
from lcspec.drafters.lookahead import LookaheadDrafter
from lcspec.kv_cache.sequence_cache import SequencePool
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.base import Limits, Proposal
from lcspec.planner.fixed import FixedPlanner
from lcspec.planner.lookahead_budget import (
    COLUMN_SECONDS,
    FIRST_EFFORT,
    FIRST_GAIN,
    TRIAL_STEPS,
    LookaheadBudget,
    Offer,
    Yield,
    feed,
    marginal,
    marginal_sum,
)
from lcspec.profiles.cost_curve import CostCurve
from lcspec.spec.token_tree import TokenTree
from tests.markov import Target, View, decode
from tests.simulate import CURVES, GPU, Q4_0, Q8_0, STEEP, UNIT, Clock, clock, curve_of

__all__ = ["clock"]
ENV = cast(Any, SimpleNamespace(target=SimpleNamespace(n_vocab=1 << 16)))
FLAT = [1.0 + 1e-5 * i for i in range(32)]
# A machine whose widths are cheap in blocks of eight.
BLOCKS = [1.0 + 0.9 * ((n - 1) // 8) for n in range(1, 33)]
MACHINES = {**CURVES, "FLAT": FLAT, "BLOCKS": BLOCKS}
ROOM = Limits(31, 64, 64)


def view_of(specs: str, text: list[int], number: int = 1, drafters: list[Any] | None = None) -> Any:
    options = [DrafterSpec.parse(part) for part in specs.split(",")]
    drafters = drafters or [create(spec.name, ENV) for spec in options]
    view = View(list(text), drafters, number, options=options)
    for drafter, spec in zip(drafters, options):
        drafter.begin(cast(Any, view), spec)
    return view


def proposal(limits: Limits = ROOM, specs: str = "lookahead:n=4", number: int = 1) -> Proposal:
    return Proposal(view_of(specs, [1, 2], number), TokenTree.root(2), limits)


def costs(relative: list[float]) -> dict[int, tuple[float, int]]:
    return curve_of(relative).effective(0)


# --- the formula ------------------------------------------------------------------------------------------------------


def test_a_window_s_worth_is_what_it_brought_for_the_effort() -> None:
    figures = Yield()
    assert figures.worth == pytest.approx(FIRST_GAIN / FIRST_EFFORT)
    for _ in range(20):
        figures.fed(9)
        figures.gained(0.5)
    effort = 20 * math.log(10)
    assert figures.worth == pytest.approx((FIRST_GAIN + 10) / (FIRST_EFFORT + effort), rel=0.1)
    for _ in range(1000):
        figures.fed(9)
    assert 0 <= figures.worth < 0.01, "what was gained long ago does not count"
    figures.gained(-50.0)
    assert figures.worth == 0.0


def test_columns_add_up_to_the_window() -> None:
    assert sum(marginal(0.3, c) for c in range(1, 16)) == pytest.approx(marginal_sum(0.3, 15))
    assert marginal_sum(0.3, 15) == pytest.approx(0.3 * math.log(16))


def test_offers_are_whole_columns_in_the_order_of_their_worth() -> None:
    offers = LookaheadBudget().offers([proposal()], costs(GPU), 1, 1 / UNIT)
    assert [o.rows for o in offers] == [2] + [3] * (len(offers) - 1), "the pending token is the first column's level 0"
    assert [o.tokens for o in offers] == sorted((o.tokens for o in offers), reverse=True)
    assert sum(o.rows for o in offers) <= 31 and all(isinstance(o, Offer) and o.tokens > 0 for o in offers)


@pytest.mark.parametrize(
    "limits", [Limits(31, 64, 1), Limits(1, 64, 64), Limits(0, 64, 64), Limits(31, 2, 64)], ids=str
)
def test_nothing_is_offered_where_it_cannot_be_used(limits: Limits) -> None:
    assert LookaheadBudget().offers([proposal(limits)], costs(GPU), 1, 1 / UNIT) == []
    assert LookaheadBudget().offers([proposal(specs="lookahead:n=4:w=5")], costs(GPU), 1, 1 / UNIT) == [], (
        "the user chose"
    )
    assert LookaheadBudget().offers([proposal(specs="ngram")], costs(GPU), 1, 1 / UNIT) == []


def test_no_more_columns_than_leaves_or_positions_left() -> None:
    assert len(LookaheadBudget().offers([proposal(Limits(31, 64, 4))], costs(GPU), 1, 1 / UNIT)) == 3
    assert len(LookaheadBudget().offers([proposal(Limits(31, 5, 64))], costs(GPU), 1, 1 / UNIT)) == 5


def test_the_bookkeeping_of_a_column_is_not_forgotten() -> None:
    """Where a decode takes no longer than moving a few sequence ids, windows stay narrow."""
    fast = CostCurve({n: {0: 0.0002} for n in range(1, 33)}).effective(0)
    slow = CostCurve({n: {0: 0.02} for n in range(1, 33)}).effective(0)
    sizer = LookaheadBudget()
    assert len(sizer.offers([proposal()], fast, 1, 1 / 0.0002)) < len(sizer.offers([proposal()], slow, 1, 1 / 0.02))


def test_a_drafter_that_brings_nothing_is_tried_now_and_then_only() -> None:
    sizer, table = LookaheadBudget(), costs(GPU)
    figures = sizer.yields.setdefault("lookahead", Yield())
    for _ in range(300):
        figures.fed(9)
    p, offered, streak, longest = proposal(), 0, 0, 0
    for _ in range(4000):
        best = sizer.offers([p], table, 1, 1 / UNIT)
        paying = sum(o.tokens for o in best) > (table[1 + sum(o.rows for o in best)][0] - table[1][0]) / UNIT
        streak = streak + 1 if best and paying else 0
        longest = max(longest, streak)
        offered += bool(best and paying)
        sizer.timed(UNIT)
    assert 0 < offered < 800 and longest >= TRIAL_STEPS, "a few steps in a row, or the window never gets warm"


def test_trials_keep_to_their_share_of_the_time() -> None:
    for name in ("GPU", "Q4_0", "BLOCKS", "FLAT"):
        sizer, table, spent = LookaheadBudget(), costs(MACHINES[name]), 0.0
        sizer.yields["lookahead"] = Yield(-FIRST_GAIN, 100.0)
        p = proposal()
        for _ in range(5000):
            if sizer.offers([p], table, 1, 1 / UNIT):
                rows = 3 * sizer.trial_columns - 1
                spent += table[1 + rows][0] - table[1][0] + sizer.trial_columns * COLUMN_SECONDS
            sizer.timed(UNIT)
        assert spent <= 0.0031 * 5000 * UNIT + 200 * 0.0031 * UNIT


# --- what goes into a step --------------------------------------------------------------------------------------------


def selected(relative: list[float], draft: TokenTree, worth: float | None = None) -> tuple[Proposal, Any]:
    planner = AutoPlanner(curve_of(relative))
    if worth is not None:
        planner.windows.yields["lookahead"] = Yield(worth * (100 + FIRST_EFFORT) - FIRST_GAIN, 100.0)
    view = view_of("lookahead:n=4", [1, 2])
    p = Proposal(view, draft, Limits(len(relative) - 1, 64, 64))
    return p, planner.select([p], 1, 2)


def test_rows_that_a_step_has_anyway_are_filled() -> None:
    # Width 4 is cheaper than 2 and 3 here: a lone draft leaves two rows, which a column of three levels fits.
    p, plan = selected(Q4_0, TokenTree.chain(2, [9], [0.95]))
    assert cast(TokenTree, p.kept).n_drafted == 1 and plan.width == 4 and p.probe_rows == 2
    p, plan = selected(Q4_0, TokenTree.root(2))
    assert plan.width == 1 and p.probe_rows == 0


def test_drafts_and_columns_compete_for_rows() -> None:
    sure, unsure = TokenTree.chain(2, range(10, 35), [0.99] * 25), TokenTree.root(2)
    for i in range(30):
        unsure.add(0, 10 + i, 0.02)
    first, _ = selected(FLAT, sure, worth=0.5)
    second, _ = selected(FLAT, unsure, worth=0.5)
    assert cast(TokenTree, first.kept).n_drafted == 25 > cast(TokenTree, second.kept).n_drafted
    assert second.probe_rows > first.probe_rows > 0
    assert cast(TokenTree, second.kept).n_drafted + second.probe_rows <= 31


def test_a_plan_promises_this_step_s_tokens_only() -> None:
    p, plan = selected(FLAT, TokenTree.chain(2, [9], [0.5]), worth=0.3)
    estimate = (
        1 + AutoPlanner(curve_of(FLAT)).acceptance.path_probs(p.tree, cast(Any, SimpleNamespace(by_source={})))[1]
    )
    assert p.probe_rows > 0 and plan.tokens == pytest.approx(estimate)


def test_several_slots_share_rows_and_ids() -> None:
    planner, pool = AutoPlanner(curve_of(FLAT)), SequencePool(12)
    drafter = LookaheadDrafter(ENV)
    proposals = []
    for number in range(3):
        view = view_of("lookahead:n=4", [1, 2], number, [drafter])
        view.cache.max_leaves = 1 + pool.free
        proposals.append(Proposal(view, TokenTree.root(2), Limits(29, 64, 13)))
    planner.select(proposals, 3, 2)
    assert sum(p.probe_rows for p in proposals) <= 29
    feed(proposals, 29, pool)
    assert sum(p.n_probes for p in proposals) <= 29
    assert 0 < sum(len(p.evaluated.leaves()) for p in proposals) <= 12 + 3


def test_the_user_s_width_takes_half_of_a_narrow_step_at_most() -> None:
    view = view_of("lookahead:w=10:n=4:g=9:pool_from_prompt", [2, 1, 2, 3, 2, 4, 2, 5, 2, 6, 7, 8, 2])
    for nodes in (0, 5, 12, 60):
        p = FixedPlanner().propose([view], [Limits(nodes, 64, 64)], 0)[0]
        FixedPlanner().select([p], 1, 0)
        assert p.probe_rows + cast(TokenTree, p.kept).n_drafted <= nodes
        assert p.probe_rows == min(29, max(nodes // 2, nodes - p.tree.n_drafted))


# --- simulated machines -----------------------------------------------------------------------------------------------


def rate(
    name: str, specs: str, target: Target, clock: Clock, tokens: int = 1000, requests: int = 4, auto: bool = True
) -> float:
    """Speed over plain decoding of some requests in a row, planned by a planner that knew nothing before."""
    relative = MACHINES[name]
    planner = AutoPlanner(curve_of(relative))
    drafters = [create(part.partition(":")[0], ENV) for part in specs.split(",")]
    seconds = done = 0.0
    for number in range(requests):
        view = view_of(specs, [number % 7, 1, 2, 3], number, drafters)
        out = decode(target, view, planner, relative, tokens // requests, clock, column_seconds=60e-6)
        seconds, done = seconds + out.seconds, done + out.tokens
        planner.forget(view)
    return done / seconds * UNIT


TEXTS = {
    "repetitive": Target(20, 0.02, seed=1),
    "mixed": Target(30, 0.25, seed=2),
    "novel": Target(400, 0.9, seed=3),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", MACHINES)
def test_lookahead_alone_is_never_much_slower_than_plain(name: str, text: str, clock: Clock) -> None:
    assert rate(name, "lookahead", TEXTS[text], clock) >= 0.95


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", MACHINES)
def test_auto_loses_next_to_nothing_by_having_it(name: str, text: str, clock: Clock) -> None:
    without = rate(name, "ngram,suffix", TEXTS[text], clock)
    assert rate(name, "ngram,suffix,lookahead:pool_from_answer=0", TEXTS[text], clock) >= 0.99 * without


@pytest.mark.parametrize("name", ["FLAT", "GPU", "BLOCKS"])
def test_where_width_is_cheap_it_pays(name: str, clock: Clock) -> None:
    assert rate(name, "lookahead", TEXTS["mixed"], clock) >= 1.15


def test_jacobi_alone_is_never_much_slower_than_plain(clock: Clock) -> None:
    for name in MACHINES:
        assert rate(name, "jacobi", TEXTS["novel"], clock) >= 0.95


def test_where_every_row_costs_as_much_as_a_step_nothing_is_fed(clock: Clock) -> None:
    planner, view = AutoPlanner(curve_of(STEEP)), view_of("lookahead", [1, 2, 3])
    out = decode(TEXTS["repetitive"], view, planner, STEEP, 400, clock)
    assert out.widths.get(1, 0) >= 0.97 * out.steps
    wide = decode(TEXTS["repetitive"], view_of("lookahead", [1, 2, 3]), AutoPlanner(curve_of(FLAT)), FLAT, 400, clock)
    assert max(wide.widths) > 16
    assert Q8_0[0] < Q8_0[1]
