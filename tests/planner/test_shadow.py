"""What drafters would have said ends a pause, where it has come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lcspec.planner.auto import AutoPlanner
from lcspec.planner.shadow import LOOK, Shadows
from lcspec.spec.token_tree import TokenTree
from tests.simulate import Clock, FakeDrafter, clock, curve_of, run, slot_of, steady, switching

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
