"""The cost curve: padding to cheaper widths, contexts, corrections by real steps, and what a file may contain."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.profiles.cost_curve import OUTLIER, CostCurve
from lcspec.profiles.drift import Drift

fixed = settings(derandomize=True, deadline=None, max_examples=200)
SECONDS = st.floats(1e-4, 1.0)
POINTS = st.dictionaries(st.integers(1, 12), SECONDS, min_size=1)


def curve(seconds: dict[int, float]) -> CostCurve:
    return CostCurve({n: {0: s} for n, s in seconds.items()})


@fixed
@given(POINTS, st.none() | st.frozensets(st.integers(1, 12)))
def test_effective_is_the_cheapest_measured_and_allowed_width_that_is_wide_enough(
    seconds: dict[int, float], allowed: frozenset[int] | None
) -> None:
    usable = {n: s for n, s in seconds.items() if allowed is None or n in allowed}
    found = curve(seconds).effective(0, allowed)
    assert set(found) == set(range(1, max(usable, default=0) + 1))
    for need, (cost, width) in found.items():
        assert cost == min(s for n, s in usable.items() if n >= need)
        assert usable[width] == cost and width >= need


def test_a_jagged_curve_is_padded() -> None:
    found = curve({1: 1.0, 2: 1.36, 3: 1.92, 4: 1.33, 5: 1.89, 8: 2.8}).effective(0)
    assert found == {
        1: (1.0, 1), 2: (1.33, 4), 3: (1.33, 4), 4: (1.33, 4), 5: (1.89, 5), 6: (2.8, 8), 7: (2.8, 8), 8: (2.8, 8)
    }  # fmt: skip


def test_nothing_is_learned_where_nothing_was_measured() -> None:
    empty = CostCurve()
    empty.observe(4, 20, 0.01, False)
    assert empty.seconds(4, 20) == math.inf and empty == CostCurve()


def test_ties_go_to_any_width_of_that_cost_but_never_to_a_narrower_one() -> None:
    found = CostCurve.flat(0.5, 4).effective(0)
    assert all(cost == 0.5 and width >= need for need, (cost, width) in found.items())


def test_an_unmeasured_width_costs_infinity_and_is_never_used() -> None:
    some = curve({1: 1.0, 4: 2.0})
    assert math.isinf(some.seconds(2, 0))
    assert {width for _, width in some.effective(0).values()} == {1, 4}
    assert 5 not in some.effective(0)
    assert CostCurve().effective(0) == {} and CostCurve().max_width == 0


def test_the_context_is_interpolated_and_extrapolated_upwards() -> None:
    some = CostCurve({1: {100: 1.0, 300: 2.0, 500: 2.4}, 2: {100: 3.0}})
    assert some.measured(1, 100) == 1.0
    assert some.measured(1, 200) == pytest.approx(1.5)
    assert some.measured(1, 400) == pytest.approx(2.2)
    assert some.measured(1, 600) == pytest.approx(2.6)
    assert some.measured(1, 0) == pytest.approx(0.5)
    assert some.measured(2, 10_000) == 3.0


def test_a_curve_that_falls_with_the_context_is_noise() -> None:
    some = CostCurve({1: {100: 1.0, 500: 0.8}})
    assert some.measured(1, 300) == some.measured(1, 5000) >= 0.8


def test_observing_follows_a_machine_that_became_twice_as_slow_at_every_width() -> None:
    truth = {1: 0.01, 2: 0.014, 4: 0.013, 8: 0.03}
    some = curve(truth)
    rng = random.Random(1)
    for _ in range(200):
        n = rng.choice([1, 2, 4])
        some.observe(n, 0, 2 * truth[n] * rng.lognormvariate(0.0, 0.02))
    for n in (1, 2, 4):
        assert some.seconds(n, 0) == pytest.approx(2 * truth[n], rel=0.05)
    # A width that no step used has followed the machine, if not all the way.
    assert 1.2 * truth[8] < some.seconds(8, 0) < 2.2 * truth[8]


def test_what_makes_reading_slower_adds_the_same_to_every_width() -> None:
    """As when others use the memory: a few wide steps among many narrow ones show it."""
    truth = {1: 0.004, 4: 0.011, 8: 0.017, 16: 0.025}
    some, rng = curve(truth), random.Random(1)
    for i in range(200):
        n = 4 if i % 40 == 20 else 1
        some.observe(n, 0, (truth[n] + 0.0035) * rng.lognormvariate(0.0, 0.05))
    for n, seconds in truth.items():
        assert some.seconds(n, 0) == pytest.approx(seconds + 0.0035, rel=0.05 if n < 5 else 0.18)  # not 1.5 and more


def test_a_change_that_only_narrow_steps_have_seen_is_shared() -> None:
    some = curve({1: 0.004, 16: 0.025})
    for _ in range(200):
        some.observe(1, 0, 0.008)
    assert some.seconds(1, 0) == pytest.approx(0.008, rel=0.02)
    assert 0.025 + 0.004 < some.seconds(16, 0) < 2 * 0.025
    for _ in range(3):
        some.observe(16, 0, 0.050)
    assert some.seconds(16, 0) == pytest.approx(0.050, rel=0.12)
    assert some.seconds(1, 0) == pytest.approx(0.008, rel=0.1)


def test_observing_follows_a_single_width_that_was_measured_wrong() -> None:
    truth = {1: 0.01, 2: 0.014, 4: 0.013}
    some = curve({**truth, 2: 0.028})
    for i in range(300):
        n = (1, 2, 4)[i % 3]
        some.observe(n, 0, truth[n])
    for n, seconds in truth.items():
        assert some.seconds(n, 0) == pytest.approx(seconds, rel=0.05)


def test_a_disturbed_moment_does_not_rule_a_width_out_for_good() -> None:
    """Steps of two rows took twice as long for a while; since then only steps of five rows were made."""
    a = curve({1: 0.010, 2: 0.018, 5: 0.035})
    for _ in range(30):
        a.observe(2, 0, 0.036)
    assert a.seconds(2, 0) > 0.030
    for _ in range(900):
        a.observe(5, 0, 0.035)
    assert a.seconds(2, 0) == pytest.approx(0.018, rel=0.2)
    assert a.seconds(5, 0) == pytest.approx(0.035, rel=0.05)


def test_an_interrupted_step_hardly_moves_the_curve() -> None:
    some = curve({1: 0.01, 2: 0.02})
    for _ in range(50):
        some.observe(1, 0, 0.01)
    some.observe(1, 0, 100 * OUTLIER)
    assert 0.01 < some.seconds(1, 0) < 0.0107


def test_steps_nobody_can_place_are_ignored() -> None:
    some = curve({1: 0.01})
    some.observe(7, 0, 5.0)
    some.observe(1, 0, 0.0)
    some.observe(1, 0, -1.0)
    assert some.as_dict() == curve({1: 0.01}).as_dict()


@fixed
@given(
    st.dictionaries(st.integers(1, 40), st.dictionaries(st.integers(0, 9999), SECONDS, min_size=1), min_size=1),
    st.floats(0.1, 9),
    st.floats(-2, 2),
    st.dictionaries(st.integers(1, 40), st.floats(-2, 2)),
)
def test_round_trip(points: dict[int, dict[int, float]], scale: float, shift: float, bias: dict[int, float]) -> None:
    some = CostCurve({1: {0: 0.5}, **points}, Drift(scale, shift), bias)
    assert CostCurve.from_dict(json.loads(json.dumps(some.as_dict()))) == some


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@fixed
@given(JSON, st.sampled_from(["", "points", "drift", "bias"]))
def test_junk_is_a_value_error_or_a_sound_curve(junk: Any, where: str) -> None:
    data: Any = {**CostCurve({1: {0: 0.5}}).as_dict(), where: junk} if where else junk
    try:
        found = CostCurve.from_dict(data)
    except ValueError:
        return
    assert all(cost > 0 and math.isfinite(cost) for cost, _ in found.effective(100).values())


@pytest.mark.parametrize(
    "data",
    [
        {"points": {}, "drift": [1, 0], "bias": {}},
        {"points": {"2": {"0": 1.0}}, "drift": [1, 0], "bias": {}},
        {"points": {"1": {"0": 0.0}}, "drift": [1, 0], "bias": {}},
        {"points": {"1": {"0": float("nan")}}, "drift": [1, 0], "bias": {}},
        {"points": {"1": {"0": 1.0}}, "drift": [1, float("inf")], "bias": {}},
        {"points": {"1": {"0": 1.0}}, "drift": 0, "bias": {}},
        {"points": {"1": {}}, "drift": [1, 0], "bias": {}},
        {"points": {"1": {"0": 1.0}}, "drift": [1e6, 0], "bias": {}},
        {"points": {"1": {"0": 1.0}}, "drift": [1, 0], "bias": {"1": 1e6}},
    ],
)
def test_impossible_numbers_are_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="not a cost curve"):
        CostCurve.from_dict(data)
