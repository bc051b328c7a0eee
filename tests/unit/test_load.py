"""Speculation under load: with 1 to 8 slots on steep and flat cost curves it never costs more than it brings."""

from __future__ import annotations

import pytest

from lcspec.auto import AutoPlanner
from tests.simulate import CURVES, UNIT, Clock, FakeDrafter, clock, confident, curve_of, run, slot_of, steady

__all__ = ["clock"]  # a fixture

TOKENS = 300
SKILLS = {"never": steady(0.0), "seldom": steady(0.2), "half": steady(0.5), "mixed": confident(0.6)}


def plain_seconds(relative: list[float], slots: int, tokens: int) -> float:
    """What plain decoding takes, which is not padded and keeps its slots in step."""
    return tokens * relative[slots - 1] * UNIT


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
@pytest.mark.parametrize("name", list(CURVES))
@pytest.mark.parametrize("skill", list(SKILLS))
@pytest.mark.parametrize("level", [0.0, 0.1])
def test_never_slower_than_plain_by_more_than_two_percent(
    slots: int, name: str, skill: str, level: float, clock: Clock
) -> None:
    relative = CURVES[name]
    planner = AutoPlanner(curve_of(relative))
    drafters = [FakeDrafter("d", SKILLS[skill], clock, level * UNIT)]
    views = [slot_of(drafters, number) for number in range(slots)]
    out = run(planner, views, relative, TOKENS, clock, noise=0.0)
    assert out.seconds <= plain_seconds(relative, slots, TOKENS) / 0.98


@pytest.mark.parametrize("name", ["Q4_K_M", "Q8_0", "GPU"])
def test_it_fades_as_load_rises(name: str, clock: Clock) -> None:
    drafted = []
    for slots in (1, 2, 4, 8):
        planner = AutoPlanner(curve_of(CURVES[name]))
        views = [slot_of([FakeDrafter("d", steady(0.6), clock)], number) for number in range(slots)]
        out = run(planner, views, CURVES[name], TOKENS, clock, noise=0.0)
        drafted.append(sum((width - slots) * n for width, n in out.widths.items()) / out.steps / slots)
    assert drafted[0] > drafted[-1]
