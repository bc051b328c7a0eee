"""Speculation under load: with 1 to 8 slots on steep and flat cost curves it never costs more than it brings."""

from __future__ import annotations

import pytest

from lcspec.planner.auto import AutoPlanner
from lcspec.planner.base import Limits
from tests.simulate import (
    CURVES,
    UNIT,
    Clock,
    FakeDrafter,
    clock,
    confident,
    curve_of,
    emitted,
    run,
    slot_of,
    steady,
)

__all__ = ["clock"]  # a fixture

SKILLS = {"never": steady(0.0), "half": steady(0.5), "mixed": confident(0.6)}


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 2, 4, 8])
@pytest.mark.parametrize("name", list(CURVES))
@pytest.mark.parametrize("skill", list(SKILLS))
@pytest.mark.parametrize("level", [0.0, 0.1])
def test_hardly_ever_slower_than_plain(slots: int, name: str, skill: str, level: float, clock: Clock) -> None:
    """The bound is 2 %, and 1 % for the scatter of so short a run where drafting just about pays for itself."""
    relative = CURVES[name]
    planner = AutoPlanner(curve_of(relative))
    drafters = [FakeDrafter("d", SKILLS[skill], clock, level * UNIT)]
    views = [slot_of(drafters, number) for number in range(slots)]
    run(planner, views, relative, 100, clock, noise=0.0, together=True)
    out = run(planner, views, relative, 200, clock, noise=0.0, together=True)
    assert out.rate >= 0.97 * slots / relative[slots - 1]


def test_it_fades_as_load_rises(clock: Clock) -> None:
    drafted, gained = [], []
    for slots in (1, 2, 4, 8):
        planner = AutoPlanner(curve_of(CURVES["GPU"]))  # the width is free up to 16 tokens
        views = [slot_of([FakeDrafter("d", steady(0.6), clock)], number) for number in range(slots)]
        out = run(planner, views, CURVES["GPU"], 200, clock, noise=0.0, together=True)
        drafted.append(sum((width - slots) * n for width, n in out.widths.items()) / out.steps / slots)
        gained.append(out.rate / (slots / CURVES["GPU"][slots - 1]))
    assert drafted == sorted(drafted, reverse=True) and drafted[0] > 3 * drafted[-1]
    assert gained == sorted(gained, reverse=True) and gained[-1] > 1.0


def test_streams_that_draft_nothing_are_not_made_to_pay(clock: Clock) -> None:
    """One stream drafts beside fifteen that do not. Sixteen tokens are cheap here, and one more costs everybody."""
    drafted, relative = [], CURVES["GPU"]
    for others in (0, 15):
        planner, sequence = AutoPlanner(curve_of(relative)), slot_of([FakeDrafter("d", steady(0.7), clock)])
        nodes = 0
        for _ in range(200):
            proposal = planner.propose([sequence], [Limits(16, 64, 32)], others)[0]
            planner.select([proposal], 1 + others, len(sequence.tokens), 1 + others)
            assert proposal.kept is not None
            width = 1 + others + proposal.kept.n_drafted
            new = emitted(proposal.kept, range(len(sequence.tokens), len(sequence.tokens) + 64))
            sequence.tokens += new
            nodes += proposal.kept.n_drafted
            planner.observe(proposal, new)
            planner.timed(width, len(sequence.tokens), UNIT * relative[width - 1])
        drafted.append(nodes)
    assert drafted[0] > 500 and drafted[1] < 20


@pytest.mark.parametrize("slots", [2, 8])
def test_side_by_side_useless_drafters_are_asked_less(slots: int, clock: Clock) -> None:
    """To ask for all of them takes a tenth of a plain step: what they lose by that is bounded."""
    relative = CURVES["Q4_0"]
    asking = 0.1 * UNIT * relative[slots - 1] / slots
    planner, drafter = AutoPlanner(curve_of(relative)), FakeDrafter("d", steady(0.0), clock, extra=asking)
    views = [slot_of([drafter], number) for number in range(slots)]
    out = run(planner, views, relative, 1000, clock, noise=0.0, together=True)
    assert out.rate >= 0.98 * slots / relative[slots - 1]
    assert drafter.asked <= 0.2 * slots * 1000
