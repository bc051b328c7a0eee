"""The calibrator between what drafters believe and what happens."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.engine.learned import as_dict, restore
from lcspec.planner.acceptance import Acceptance
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.calibrator import SHIFT_VARIANCE, SLOPE_VARIANCE, Calibrator, log_odds
from lcspec.profiles.cost_curve import CostCurve

fixed = settings(derandomize=True, deadline=None, max_examples=200)


@given(st.floats(0.01, 0.99))
def test_at_first_it_is_the_estimate(p: float) -> None:
    assert Calibrator().value(p) == pytest.approx(p)


def logistic(x: float) -> float:
    return 1.0 / (1.0 + 2.718281828459045**-x)


@pytest.mark.parametrize(("shift", "slope"), [(2.5, 0.6), (-2.0, 1.0), (0.0, 1.5), (1.0, 0.3)])
def test_it_finds_a_line(shift: float, slope: float) -> None:
    rng, calibrator = random.Random(3), Calibrator()
    for _ in range(3000):
        p = rng.uniform(0.02, 0.98)
        calibrator.learn(p, rng.random() < logistic(shift + slope * log_odds(p)))
    for p in (0.1, 0.5, 0.9):
        assert calibrator.value(p) == pytest.approx(logistic(shift + slope * log_odds(p)), abs=0.08)


def test_a_drafter_that_is_too_unsure_is_found_out_in_a_dozen_examples() -> None:
    rng, found = random.Random(4), []
    for _ in range(200):
        calibrator = Calibrator()
        for _ in range(12):
            calibrator.learn(0.1, rng.random() < 0.7)
        found.append(calibrator.value(0.1))
    assert 0.5 < sum(found) / len(found) < 0.75


@fixed
@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), max_size=200))
def test_whatever_it_sees_its_belief_stays_one(examples: list[tuple[float, bool]]) -> None:
    calibrator = Calibrator()
    for p, hit in examples:
        calibrator.learn(p, hit)
        assert 0.0 < calibrator.var_shift <= SHIFT_VARIANCE and 0.0 < calibrator.var_slope <= SLOPE_VARIANCE
        assert calibrator.var_both**2 <= calibrator.var_shift * calibrator.var_slope
        assert 0.0 <= calibrator.value(p) <= 1.0
    planner = AutoPlanner(CostCurve(), Acceptance({1: calibrator}))
    stored, again = as_dict(planner, ["a"]), AutoPlanner(CostCurve())
    restore(again, stored, ["a"])
    assert again.acceptance.calibrators == {1: calibrator}


def test_it_follows_a_change() -> None:
    calibrator = Calibrator()
    for _ in range(2000):
        calibrator.learn(0.5, True)
    for _ in range(300):
        calibrator.learn(0.5, False)
    assert calibrator.value(0.5) < 0.35
