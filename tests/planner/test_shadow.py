"""What drafters would have said ends a pause, where it has come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lcspec.planner.auto import AutoPlanner
from lcspec.planner.shadow import LOOK, Shadows
from lcspec.spec.token_tree import TokenTree
from tests.simulate import Clock, FakeDrafter, clock, confident, curve_of, run, slot_of, steady, switching

__all__ = ["clock"]
# A draft that is wrong costs much here, as behind a long text.
DEAR = [1.0, 2.2, 2.8, 3.4, 4.0, 4.6, 5.2, 5.8, 6.4, 7.0, 7.6, 8.2, 8.8, 9.4, 10.0, 10.6]


def text(number: int, tokens: list[int]) -> Any:
    return SimpleNamespace(id=number, tokens=tokens)


def test_half_of_what_was_said_must_have_come() -> None:
    for right, expected in ((LOOK, True), (LOOK // 2, True), (LOOK // 2 - 1, False), (0, False)):
        shadows, one = Shadows(), text(1, [5])
        assert not shadows.were_right([one]), "nothing was said yet"
        tree = TokenTree.root(5)
        tree.add_path(0, range(LOOK))
        shadows.keep([one], [tree])
        one.tokens += [*range(right), *[99] * (LOOK - right)]
        assert shadows.were_right([one]) is expected


@pytest.mark.parametrize("asked, expected", [(1, True), (2, False)])
def test_who_has_nothing_to_say_is_not_right(asked: int, expected: bool) -> None:
    shadows, both = Shadows(), [text(1, [5]), text(2, [7])]
    tree = TokenTree.root(5)
    tree.add_path(0, range(LOOK // 2))
    shadows.keep(both, [tree, TokenTree.root(7)])
    for each in both:
        each.tokens += range(LOOK)
    assert shadows.were_right(both[:asked]) is expected


def test_the_likeliest_path_is_what_counts() -> None:
    shadows, one, tree = Shadows(), text(1, [5]), TokenTree.root(5)
    tree.add(0, 11, 0.3)
    likely = tree.add(0, 1, 0.6)
    tree.add_path(likely, range(2, LOOK + 1))
    shadows.keep([one], [tree])
    one.tokens += range(1, LOOK + 1)
    assert shadows.were_right([one])


@pytest.mark.parametrize("share, gap", [(0.0, LOOK), (0.08, LOOK), (0.5, 25), (7.0, 50)])
def test_looks_take_a_bounded_share_of_the_time(share: float, gap: int) -> None:
    """On a fast GPU asking takes as long as a step."""
    shadows, one, looks = Shadows(), text(1, [0]), list[int]()
    for step in range(300):
        if shadows.due():
            assert shadows.were_right([one]) is bool(looks), "it says what comes"
            looks.append(step)
            tree = TokenTree.root(step)
            tree.add_path(0, range(step + 1, step + 1 + LOOK))
            shadows.keep([one], [tree])
            shadows.took(share)
        one.tokens.append(step + 1)
    assert {later - look for look, later in zip(looks[1:], looks[2:])} == {gap}


@pytest.mark.parametrize("streams", [1, 2])
def test_a_part_that_is_easy_to_guess_ends_a_pause(clock: Clock, streams: int) -> None:
    """Drafts are useless for 300 tokens, and right from then on."""

    def rate(later: float) -> float:
        skill = switching(steady(0.0, 0.2), steady(later, 0.9), 300)
        drafters = [FakeDrafter("f", skill, clock, seed=i) for i in range(streams)]
        slots = [slot_of([drafter], number) for number, drafter in enumerate(drafters, 1)]
        planner = AutoPlanner(curve_of(DEAR))
        run(planner, slots, DEAR, 290, clock)
        planner.budget.balance = -1.28
        return run(planner, slots, DEAR, 150, clock).rate

    assert rate(1.0) > 1.25 * rate(0.0)


def drafted(planner: AutoPlanner, drafters: list[FakeDrafter], curve: list[float], clock: Clock, text: int = 1) -> int:
    """In how many steps of a text of 60 tokens the target evaluates drafts."""
    slot = slot_of(drafters, text)
    out = run(planner, [slot], curve, 60, clock)
    planner.forget(slot)
    return sum(steps for width, steps in out.widths.items() if width > 1)


def test_a_text_is_looked_at_first_where_half_right_drafts_would_not_pay(clock: Clock) -> None:
    short = FakeDrafter("f", steady(1.0, 0.6), clock, chain=LOOK // 2 - 1)  # too little for a look
    planner = AutoPlanner(curve_of(DEAR))
    assert drafted(planner, [short], DEAR, clock) <= 1, "the first step, when no cost is known"
    assert drafted(planner, [short], DEAR, clock, text=2) == 0
    model = AutoPlanner(curve_of(DEAR))
    model.costly.record(short)  # as if it ran a model
    flat = [1.0 + 0.3 * n for n in range(16)]
    for planner, curve in ((model, DEAR), (AutoPlanner(curve_of(flat)), flat)):
        assert drafted(planner, [short], curve, clock) > 10


def test_drafts_that_would_have_come_are_made_from_then_on(clock: Clock) -> None:
    planner = AutoPlanner(curve_of(DEAR))
    assert drafted(planner, [FakeDrafter("f", steady(1.0, 0.3), clock)], DEAR, clock) > 1


def test_a_text_that_drafters_are_sure_of_is_drafted_at_once(clock: Clock) -> None:
    planner = AutoPlanner(curve_of(DEAR))
    taught = slot_of([FakeDrafter("f", confident(0.8), clock)])
    run(planner, [taught], DEAR, 400, clock)
    planner.forget(taught)
    known = slot_of([FakeDrafter("f", steady(1.0, 0.99), clock)], 2)
    assert run(planner, [known], DEAR, LOOK, clock).steps < LOOK / 2
