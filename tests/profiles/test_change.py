"""What a change of width costs the steps after it."""

from __future__ import annotations

import random

import pytest

from lcspec.profiles.change import Change
from lcspec.profiles.cost_curve import CostCurve

PLAIN, WIDE, FIRST, SECOND = 0.010, 0.014, 0.008, 0.003


def steps(curve: CostCurve, n: int, every: int, seed: int = 0) -> None:
    """Steps of which one in `every` drafts, on a machine where plain ones after it take longer."""
    rng, since = random.Random(seed), 2
    for i in range(n):
        if i % every == 0:
            curve.observe(4, 0, WIDE * rng.lognormvariate(0.0, 0.05), False)
            since = 0
        else:
            seconds = PLAIN + (FIRST, SECOND, 0.0)[since]
            curve.observe(1, 0, seconds * rng.lognormvariate(0.0, 0.05), True)
            since = min(2, since + 1)


def test_what_a_draft_costs_later_steps_is_learned_apart_from_the_machine_s_speed() -> None:
    some = CostCurve({1: {0: PLAIN}, 4: {0: WIDE}})
    steps(some, 400, every=8)
    assert some.change.extra == pytest.approx([FIRST, SECOND], rel=0.25)
    assert some.seconds(1, 0) == pytest.approx(PLAIN, rel=0.06)
    assert some.seconds(4, 0) == pytest.approx(WIDE, rel=0.06)


def test_a_draft_pays_for_what_it_makes_longer_and_for_nothing_twice() -> None:
    """Behind plain steps for both that follow; right behind another draft for none, as they would be longer anyway."""
    change = Change([FIRST, SECOND])
    assert change.price == pytest.approx(FIRST + SECOND)
    change.took(4, False, WIDE, WIDE)
    assert change.price == 0.0
    change.took(1, True, PLAIN + FIRST, PLAIN)
    assert change.price == pytest.approx(FIRST, rel=0.1)
    change.took(1, True, PLAIN + SECOND, PLAIN)
    assert change.price == pytest.approx(FIRST + SECOND, rel=0.1)


def test_what_a_step_is_spared_that_is_as_wide_as_the_one_before_is_learned_apart_from_its_width() -> None:
    some, rng, spared = CostCurve({1: {0: PLAIN}, 4: {0: WIDE}, 6: {0: WIDE}}), random.Random(1), 0.003
    for i in range(600):
        width = rng.choice([4, 6])
        seconds = WIDE - spared * (width == some.change.last)
        some.observe(width, 0, seconds * rng.lognormvariate(0.0, 0.05), False)
        assert some.change.last == width, i
    assert some.change.same == pytest.approx(spared, rel=0.35)
    assert some.seconds(4, 0) == pytest.approx(WIDE, rel=0.06)
    some.observe(4, 0, WIDE, False)
    some.observe(4, 0, 0.0005, False)  # a clock that jumps teaches little
    assert some.change.same == pytest.approx(spared, rel=0.5)


def test_a_change_among_plain_steps_is_one_too() -> None:
    """As when another request begins or ends."""
    change = Change([FIRST, SECOND])
    for _ in range(3):
        change.took(2, True, PLAIN, PLAIN)
    assert change.since == 2
    change.took(3, True, PLAIN, PLAIN)
    assert change.since == 1


def test_an_interruption_teaches_little() -> None:
    change = Change()
    change.took(4, False, WIDE, WIDE)
    assert change.took(1, True, 1000 * PLAIN, PLAIN) <= PLAIN


@pytest.mark.parametrize("data", [None, [1.0], [1.0, 2.0, 3.0], ["x", 1.0], [float("nan"), 0.0], {}])
def test_damaged_data_is_refused(data: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Change.from_list(data)


def test_it_is_kept_with_the_curve() -> None:
    some = CostCurve({1: {0: PLAIN}}, change=Change([FIRST, SECOND]))
    assert CostCurve.from_dict(some.as_dict()).change == some.change
    old = some.as_dict()
    del old["change"]
    assert CostCurve.from_dict(old).change == Change()
