"""Intervals, predictions and bounds on numbers whose answers are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lcspec.bench import predict
from lcspec.bench.records import Run, Step, first_difference
from lcspec.bench.stats import geometric_mean, median, ratios, speedups
from lcspec.profiles.cost_curve import CostCurve

T = {1: 1.0, 2: 1.4, 3: 1.9, 4: 1.3, 5: 1.9}


def curve(**seconds: float) -> CostCurve:
    return CostCurve({n: {0: s} for n, s in T.items()})


def step(position: int, emitted: int, *, width: int = 1, matched: int = 0, draft: float = 0.0, **rest: float) -> Step:
    values = {"drafted": width - 1, "depth": width - 1, "accepted": emitted - 1, "target": T.get(width, 1.0)}
    values |= {"overhead": 0.0, "plan_tokens": 0.0, "plan_seconds": 0.0, **rest}
    return Step(position=position, width=width, emitted=emitted, draft=draft, matched=matched, **values)  # type: ignore[arg-type]


def run_of(*steps: Step) -> Run:
    return Run("x", 0, 0, steps=list(steps))


def test_the_interval_holds_the_value_and_narrows() -> None:
    rng = np.random.default_rng(0)

    def width(n: int) -> float:
        rates = [[float(x)] for x in rng.lognormal(0.4, 0.2, size=n)]
        middle, mean = speedups(rates, [[1.0]] * n)
        for e in (middle, mean):
            assert e.low is not None and e.high is not None and e.low <= e.value <= e.high
        assert mean.low is not None and mean.high is not None
        return mean.high - mean.low

    assert width(200) < width(10)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, hits, trials = np.random.default_rng(5), 0, 100
    for _ in range(trials):
        _, mean = speedups([[float(x)] for x in rng.lognormal(0.3, 0.3, size=25)], [[1.0]] * 25)
        assert mean.low is not None and mean.high is not None
        hits += mean.low <= math.exp(0.3) <= mean.high
    assert hits >= 85


def test_repeats_are_compared_with_what_ran_beside_them() -> None:
    """The machine was slower twice while plain decoding ran, once while the other did: its speed says nothing."""
    plain, rates = [[150.0, 100.0, 100.0]], [[165.0, 110.0, 165.0]]
    assert ratios(rates[0], plain[0]) == pytest.approx([1.1, 1.1, 1.65])
    middle, mean = speedups(rates, plain)
    assert middle.value == mean.value == pytest.approx(1.1)
    assert middle.low == pytest.approx(1.1) and middle.high == pytest.approx(1.65)
    assert ratios([4.0, 6.0], [2.0, 3.0, 3.0]) == [pytest.approx(5 / 3)]  # one failed, nobody knows which


def test_one_figure_has_no_interval_and_nothing_is_nan() -> None:
    middle, mean = speedups([[3.0]], [[2.0]])
    assert middle.value == mean.value == 1.5 and middle.low is None
    assert speedups([[3.0, 3.2]], [[2.0, 2.0]])[0].low is not None
    assert math.isnan(median([])) and math.isnan(geometric_mean([]))
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_a_run_is_priced_by_its_widths_and_drafting() -> None:
    run = run_of(step(0, 3, width=4, draft=0.2), step(3, 1, width=1))
    assert predict.curve_seconds(run, 10, curve()) == pytest.approx(1.3 + 0.2 + 1.0)
    assert predict.curve_seconds(run_of(step(0, 1, width=40)), 10, curve()) is None


def test_rescaling_moves_all_widths_alike() -> None:
    moved = predict.rescaled(curve(), [run_of(step(0, 1, target=3.0), step(1, 1, target=1.0))], 10)
    assert all(moved.seconds(n, 5) == pytest.approx(2 * T[n]) for n in T)


def test_expected_tokens_is_the_sum_of_powers() -> None:
    for a in (0.0, 0.3, 0.9, 1.0):
        assert predict.expected_tokens(a, 4) == pytest.approx(sum(a**i for i in range(5)))


def test_chain_acceptance_recovers_the_rate() -> None:
    rng, steps = np.random.default_rng(2), []
    for _ in range(4000):
        accepted = int(np.argmin([*(rng.random(4) < 0.7), False]))
        steps.append(step(0, accepted + 1, width=5))
    assert predict.chain_acceptance(steps) == pytest.approx(0.7, abs=0.02)
    assert predict.chain_acceptance([step(0, 1)]) is None


def compositions(n: int, reach: list[int], at: int = 0) -> list[list[int]]:
    if at == n:
        return [[]]
    return [[w, *rest] for w in range(1, min(reach[at] + 1, n - at) + 1) for rest in compositions(n, reach, at + w)]


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_is_the_best_of_all_ways(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reach = [int(x) for x in rng.integers(0, 4, size=9)]
    price = predict.pricing(curve(), 10, None)
    every = []
    for widths in compositions(9, reach):
        starts = itertools.accumulate([0, *widths[:-1]])
        every.append(sum(price(q, w) for q, w in zip(starts, widths)))
    assert predict.cheapest(reach, price) == pytest.approx(min(every))


def test_perfect_drafter_takes_the_best_width() -> None:
    price = predict.pricing(curve(), 10, None)
    assert predict.perfect_drafter_seconds(8, price) == pytest.approx(2 * 1.3)
    assert predict.perfect_drafter_seconds(8, predict.pricing(curve(), 10, frozenset({1, 2}))) == pytest.approx(4 * 1.4)


def test_perfect_knowledge_never_loses_to_the_run_and_keeps_drafting_time() -> None:
    # Three proposals: one right to depth 3, one wrong, one right but cut off by the planner.
    run = run_of(
        step(0, 4, width=4, matched=3, draft=0.1), step(4, 1, width=3, draft=0.1), step(5, 1, matched=3), step(6, 3)
    )
    price = predict.pricing(curve(), 10, None)
    assert predict.perfect_knowledge_seconds(run, price) == pytest.approx(0.2 + 1.3 + 1.0 + 1.3)


def test_planner_ratios() -> None:
    assert predict.planner_ratios([step(0, 1)]) is None
    ratios = predict.planner_ratios(
        [step(0, 2, target=2.0, draft=0.5, overhead=0.5, plan_tokens=3.0, plan_seconds=1.0), step(2, 1)]
    )
    assert ratios == {"tokens": 1.5, "seconds": 0.5, "rate": pytest.approx((3 / 1.5) / (2 / 3)), "steps": 1.0}
