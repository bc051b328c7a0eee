"""Who gets how much of a step: fair shares of the prompt chunk, and a chunk that lasts no longer than it should."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.pace import FIRST_CHUNK, STALL, UNNOTICED, Pace
from lcspec.schedule import shares
from tests.simulate import CURVES, curve_of

fixed = settings(derandomize=True, deadline=None, max_examples=300)


@fixed
@given(st.lists(st.integers(0, 5000), max_size=12), st.integers(0, 2000))
def test_shares_are_max_min_fair(wants: list[int], total: int) -> None:
    out = shares(wants, total)
    assert all(0 <= got <= want for got, want in zip(out, wants))
    assert sum(out) <= total
    # nothing is left over while somebody wants more, but for a remainder smaller than the number of prompts
    unserved = [i for i, (got, want) in enumerate(zip(out, wants)) if got < want]
    assert not unserved or total - sum(out) < len(wants)
    # nobody who goes short gets less than anybody else, but for that remainder
    for i in unserved:
        assert out[i] >= max(out) - 1


def test_a_short_prompt_beside_a_long_one_is_read_at_once() -> None:
    assert shares([10_000, 20], 512) == [492, 20]
    assert shares([10_000, 400], 512) == [256, 256]
    assert shares([7, 7, 7], 3) == [1, 1, 1]


def machine(relative: list[float], unit: float) -> list[float]:
    """Seconds of a step by width, up to 1024 tokens: the measured curve, then a straight line."""
    slope = (relative[31] - relative[15]) / 16
    return [unit * (relative[n - 1] if n <= 32 else relative[31] + slope * (n - 32)) for n in range(1, 1025)]


@pytest.mark.parametrize("unit", [0.002, 0.02, 0.2])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", list(CURVES))
def test_steps_with_a_prompt_end_in_time_and_use_it(name: str, slots: int, known: bool, unit: float) -> None:
    took = machine(CURVES[name], unit)
    curve = curve_of([s * unit / 0.02 for s in CURVES[name]]) if known else None
    pace, rng = Pace(), random.Random(1)
    pace.decoded(slots, took[slots - 1])
    pace.observe(512, took[511])  # the first prompt had the machine for itself
    limit = max(STALL * took[slots - 1], UNNOTICED)
    late, widths = 0, []
    for _ in range(40):
        room = max(1, min(512, pace.room(slots, slots, 0, curve)))
        seconds = took[slots + room - 1] * rng.lognormvariate(0, 0.03)
        pace.observe(slots + room, seconds)
        late += seconds > 1.15 * limit
        widths.append(room)
    assert late <= 3  # while it is learning
    best = max((n for n in range(1, 513) if took[slots + n - 1] <= limit), default=1)
    assert sum(widths[20:]) / 20 > 0.5 * best


def test_nothing_is_known_at_first() -> None:
    assert Pace().room(2, 2, 0) == FIRST_CHUNK
    pace = Pace()
    pace.decoded(3, 0.01)
    assert pace.room(2, 2, 0) == FIRST_CHUNK
    pace.observe(100, 1.0)  # a hundredth of a second a token, and a tenth may pass
    assert 1 <= pace.room(2, 2, 0) + 2 <= 100
