"""What a refusal costs where a memory cannot be taken back, and what the planner makes of it."""

from __future__ import annotations

import pytest

from lcspec.commands.calibrate import break_even, speedup
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.base import Limits
from lcspec.planner.record import DrafterRecord
from lcspec.planner.worth import Item, choose
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.stake import Stake
from tests.simulate import Q4_0, UNIT, Clock, FakeDrafter, clock, curve_of, slot_of, steady

__all__ = ["clock"]

COSTS = {n: (1.0 + 0.1 * (n - 1), n) for n in range(1, 17)}


def test_a_chain_that_is_sure_costs_the_save_alone() -> None:
    assert Stake(0.25, 9.0).seconds(COSTS, 1, 1, [1.0, 1.0]) == 0.25
    assert Stake(0.25, 9.0).seconds(COSTS, 1, 1, []) == 0.0


def test_a_refusal_costs_the_load_and_the_rows_that_come_again() -> None:
    # Certainly refused, after exactly one accepted token: that and the pending one are two more rows.
    assert Stake(0.25, 0.5).seconds(COSTS, 1, 1, [1.0, 0.0]) == pytest.approx(0.25 + 0.5 + 0.2)
    # Tokens that were to be decoded again anyway come once more.
    assert Stake(0.25, 0.5).seconds(COSTS, 4, 4, [0.0]) == pytest.approx(0.25 + 0.5 + 0.4)
    half = Stake(0.25, 0.5).seconds(COSTS, 1, 1, [0.5])
    assert half == pytest.approx(0.25 + 0.5 * (0.5 + 0.1))
    assert Stake(0.0, 0.0).seconds({1: (1.0, 1), 2: (1.1, 2)}, 1, 1, [0.9] * 30) <= 0.1  # beyond the widest width


def test_break_even_counts_the_state() -> None:
    free, dear = CostCurve.flat(1.0, 16), CostCurve.flat(1.0, 16)
    dear.stake = Stake(0.5, 0.5)
    hopeless = CostCurve.flat(1.0, 16)
    hopeless.stake = Stake(20.0, 20.0)
    without, counted = break_even(free, 0, 0.0), break_even(dear, 0, 0.0)
    assert without is not None and counted is not None and without < 0.01 < 0.3 < counted
    assert break_even(hopeless, 0, 0.0) is None
    assert speedup(dear, 0, 1.0, 0.0) == pytest.approx(16 / 1.5)


@pytest.mark.parametrize("state, kept", [(0.0, 1), (5.0, 0)])
def test_drafts_are_kept_where_they_pay_for_the_state(state: float, kept: int) -> None:
    beside = [Stake(state, state).seconds(COSTS, 1, 1, [0.9])]
    chosen, considered = choose([Item(-0.9, 0, 1)], COSTS, 1, 1, 1.0, 0.0, beside)
    assert chosen == kept
    assert considered[1][2] == pytest.approx(COSTS[2][0] + state + 0.1 * (state + 0.1))


def test_the_seldomer_drafts_are_accepted_the_dearer_is_a_chain() -> None:
    stake = Stake(0.1, 0.5)
    cheap, dear = (stake.table(COSTS, 1, hope) for hope in (0.99, 0.2))
    assert cheap[1] == dear[1] == COSTS[1]
    assert all(COSTS[n][0] + stake.save <= cheap[n][0] < dear[n][0] for n in range(2, 17))


@pytest.mark.parametrize("skill, asked", [(0.95, True), (0.3, False)])
def test_a_costly_drafter_is_asked_where_its_drafts_pay_for_the_state(skill: float, asked: bool, clock: Clock) -> None:
    drafter = FakeDrafter("model", steady(skill, skill), clock, 0.05 * UNIT)
    curve = curve_of(Q4_0)
    curve.stake = Stake(0.1 * UNIT, 0.1 * UNIT)
    planner = AutoPlanner(curve)
    planner.costly.records["model"] = DrafterRecord(skill, 50, 0.05 * UNIT)
    sequence = slot_of([drafter])
    sequence.n_uncached = 1
    [proposal] = planner.propose([sequence], [Limits(8, 8, 1)], 0)
    assert (proposal.tree.n_drafted > 0) is asked


def test_a_stored_curve_knows_the_state() -> None:
    curve = CostCurve.flat(1.0, 4)
    assert CostCurve.from_dict(curve.as_dict()).stake is None
    curve.stake = Stake(0.25, 0.5)
    assert CostCurve.from_dict(curve.as_dict()).stake == Stake(0.25, 0.5)
    for bad in ([1.0], [-1.0, 1.0], "x", [1.0, float("nan")]):
        with pytest.raises(ValueError):
            CostCurve.from_dict({**curve.as_dict(), "state": bad})
