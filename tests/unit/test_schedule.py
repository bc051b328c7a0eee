"""Who gets how much of a step: prompts one after another, in pieces that are neither long nor dear."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.engine.prefill_budget import BLOCK, DEAR, FIRST_CHUNK, HARDLY, LONG, PAUSE, UNNOTICED, PrefillBudget, _best
from scripts import simulate_schedule as sim
from tests.simulate import CURVES, curve_of


def machine(relative: list[float], unit: float) -> list[float]:
    """Seconds of a step by width, up to 1024 tokens: the measured curve, then a straight line."""
    slope = (relative[31] - relative[15]) / 16
    return [unit * (relative[n - 1] if n <= 32 else relative[31] + slope * (n - 32)) for n in range(1, 1025)]


@pytest.mark.parametrize("unit", [0.002, 0.02, 0.2])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", list(CURVES))
def test_pieces_of_a_prompt_are_neither_long_nor_dear(name: str, slots: int, known: bool, unit: float) -> None:
    took = machine(CURVES[name], unit)
    curve = curve_of([s * unit / 0.02 for s in CURVES[name]]) if known else None
    pace, rng = PrefillBudget(), random.Random(1)
    pace.observe(slots, took[slots - 1])
    pace.observe(512, took[511])  # the first prompt had the machine for itself
    rooms = []
    for _ in range(60):
        room = min(512, pace.room(slots, 0, curve))
        pace.observe(slots + room, took[slots + room - 1] * rng.lognormvariate(0, 0.01))
        rooms.append(room)

    def each(n: int) -> float:
        return took[slots + n - 1] / n

    best = min(map(each, range(1, 513)))
    for room in rooms[-20:]:
        seconds = took[slots + room - 1]
        # What it knows of widths between those it has seen is a straight line, hence the tenth.
        assert each(room) <= 1.1 * DEAR * best or seconds >= 0.9 * UNNOTICED
        long = seconds > 1.1 * UNNOTICED and each(room) < 0.9 * HARDLY * best
        slow = seconds > 1.1 * PAUSE and each(room) < 0.9 * DEAR * best
        assert not long and not slow


def usual(pace: PrefillBudget) -> int:
    """The room beside two decodes, trials apart."""
    return min(pace.room(2, 0) for _ in range(2))


def test_nothing_is_known_at_first() -> None:
    assert usual(PrefillBudget()) == FIRST_CHUNK
    pace = PrefillBudget()
    pace.observe(400, 4.0)  # a hundredth of a second a token, as far as anybody knows; so narrow steps are tried
    assert usual(pace) == FIRST_CHUNK
    pace.observe(34, 1.0)  # ... and found to be dear
    assert usual(pace) > 2 * FIRST_CHUNK


def test_pieces_of_a_prompt_are_alike() -> None:
    pace = PrefillBudget()
    for width in (1, 16, 32, 64, 128, 256, 512, 512):
        pace.observe(width, 0.030 + 0.005 * width)
    room = usual(pace)
    for left in (room + 3, 2 * room + 7, 5 * room - 2):
        pieces = []
        while left > 0:
            pieces.append(min(left, min(pace.room(2, 0, None, left) for _ in range(2))))
            left -= pieces[-1]
        blocks = [math.ceil((2 + piece) / BLOCK) for piece in pieces]
        assert max(blocks) <= min(blocks) + 1 and max(pieces) < 2 * room + BLOCK


def test_steps_fill_their_blocks_where_those_have_a_price() -> None:
    machine, pace = sim.Machine(sim.BLOCKS, BLOCK), PrefillBudget()
    for width in (1, 8, 16, 32):
        pace.observe(width, machine.seconds(width))
    rooms = []
    for left in (262, 90, 70, 340, 533, 140, 262):
        while left > 0:
            room = min(left, pace.room(1, 0, None, left))
            pace.observe(1 + room, machine.seconds(1 + room))
            left -= room
            rooms.append((room, left))
    some = [1 + room for room, left in rooms[3:] if left]
    assert all(width % BLOCK == 0 for width in some if width > BLOCK) and min(some) <= 2 * BLOCK
    for width in (96, 75, 100, 128, 110, 45, 80, 50, 100, 40):  # short prompts
        pace.observe(width, machine.seconds(width))
    _, seconds = pace._seconds(0, None)
    assert seconds[70 - 1] == pytest.approx(machine.seconds(96), rel=0.1), "a begun block costs what a full one does"
    assert pace.riders(70, 1, 0) >= 96 - 70, "and others' tokens fill it for nothing"
    smooth = PrefillBudget()
    for width in (512, 96, 128, 64, 70, 40, 110, 75, 50):
        smooth.observe(width, 0.01 * width)
    assert smooth._seconds(0, None)[1][70 - 1] == pytest.approx(0.7, rel=0.02), "no price"


def test_the_first_use_of_memory_is_no_measure() -> None:
    pace = PrefillBudget()
    for width in (2, 16, 32):
        pace.observe(width, 0.1 + 0.01 * width)
    pace.observe(300, 9.0)  # 30 ms a token, where 32 tokens take 13 ms each
    before = usual(pace)
    assert usual(pace) > 25, "nobody believes that wide steps are that dear"
    pace.observe(290, 3.0)  # now it is a measure
    assert usual(pace) > before
    pace.observe(290, 9.0)
    pace.observe(290, 9.0)
    assert usual(pace) < 40, "and so is this: the machine is busy with something else"


def test_what_the_curve_says_is_not_doubted() -> None:
    curve = curve_of([float(n) if n <= 8 else 3.0 * n for n in range(1, 33)])  # from 9 rows on thrice as dear
    pace = PrefillBudget()
    pace.observe(16, 1.0)
    assert pace._seconds(0, curve)[1][15] == pytest.approx(curve.seconds(16, 0))


def test_wider_pieces_are_tried_now_and_then_and_kept_if_they_are_cheaper() -> None:
    # Steps just beyond 32 tokens are dear, and from 64 on they are the cheapest: nobody would get there by small steps.
    def took(width: int) -> float:
        return 0.030 + 0.005 * width if width <= 32 else max(0.3, 0.0045 * width)

    pace = PrefillBudget()
    for width in (2, 16, 32, 33, 34, 36):
        pace.observe(width, took(width))
        pace.observe(width, took(width))
    assert _best(2, LONG, *pace._seconds(0, None))[0] <= 32
    rooms = []
    for _ in range(40):
        rooms.append(min(512, pace.room(2, 0)))
        pace.observe(2 + rooms[-1], took(2 + rooms[-1]))
    assert sum(room >= 60 for room in rooms[-16:]) >= 12
    assert all(took(2 + room) <= 1.1 * PAUSE for room in rooms)


def test_who_rides_along_delays_the_first_by_less_than_the_others_gain() -> None:
    pace = PrefillBudget()
    assert pace.riders(20, 3, 0) == 0  # nothing is known
    pace.observe(512, 9.0)
    for width in range(1, 513):  # 30 ms a step and 5 ms a token
        pace.observe(width, 0.030 + 0.005 * width)
    assert pace.riders(20, 0, 0) == 0
    few, many = pace.riders(20, 1, 0), pace.riders(20, 7, 0)
    assert 4 <= few <= 8 and 30 <= many <= 60, "a step's fixed part is worth six tokens; seven times that for seven"
    flat = PrefillBudget()
    for width in (512, 1, 8, 64, 512):
        flat.observe(width, 0.1)
    assert flat.riders(20, 1, 0) > 400, "where width costs nothing everybody comes along"


def test_a_short_prompt_does_not_wait_for_the_rest_of_a_long_one() -> None:
    machine, rule = sim.Machine(sim.POINTS), sim.scheduled()
    long, short = stream(0, 900, 1), stream(1, 12, 1)
    for running in ([long], [long, short]):
        parts, took = rule(running)
        width = sum(length - s.cache.length for s, length in parts)
        took(machine.seconds(width))
        for s, length in parts:
            s.advance(length, 0.0)
    assert not short.prefilling and long.prefilling and width < 40


# --- whole runs in virtual time: see the script ---------------------------------------------------------------------


def firsts(found: list[sim.Stream]) -> list[float]:
    return sorted(s.times[0] - s.asked for s in found)


@pytest.mark.parametrize("streams", [2, 4, 8])
def test_first_tokens_come_as_soon_as_if_streams_stood_still_for_prompts(streams: int) -> None:
    machine = sim.Machine(sim.POINTS)
    ours, whole = list[sim.Stream](), list[sim.Stream]()
    for seed in range(6):
        ours += sim.run(machine, sim.scheduled(), streams, 6 * streams, 64, seed)
        whole += sim.run(machine, sim.whole, streams, 6 * streams, 64, seed)
    gap, other = (max(b - a for s in found for a, b in zip(s.times, s.times[1:])) for found in (ours, whole))
    first, their = firsts(ours), firsts(whole)
    assert sum(first) <= 1.02 * sum(their)
    assert first[len(first) // 2] <= 1.2 * their[len(their) // 2]
    assert gap <= 1.1 * PAUSE < 0.5 * other


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 900), min_size=1, max_size=6), st.integers(0, 3))
def test_every_prompt_is_read_in_order_and_to_its_end(lengths: list[int], streams: int) -> None:
    machine, rule, now = sim.Machine(sim.POINTS), sim.scheduled(), 0.0
    running = [stream(-1 - i, 1, 10**6) for i in range(streams)]
    running += [stream(i, n, 1) for i, n in enumerate(lengths)]
    order: list[sim.Stream] = []
    while any(s.prefilling for s in running):
        parts, took = rule(running)
        reading = [s for s, _ in parts if s.prefilling]
        assert reading and len(parts) - len(reading) == sum(not s.prefilling for s in running)
        width = sum(length - s.cache.length for s, length in parts)
        assert width <= sim.BATCH + 64
        now += machine.seconds(width)
        took(machine.seconds(width))
        for s, length in parts:
            s.advance(length, now)
        order += [s for s in reading if not s.prefilling]
    mine = [s for s in order if s.id >= 0]
    assert [len(s.ids) for s in mine] == sorted(lengths)  # they came together, so the shortest goes first


def test_a_long_prompt_is_not_passed_for_ever() -> None:
    """Short prompts keep coming: the long one still gets on, because each has to be shorter by what has been read."""
    machine, rule = sim.Machine(sim.POINTS), sim.scheduled()
    long, now, passed = stream(0, 900, 1), 0.0, 0
    running = [long]
    rule(running)  # it has come
    while long.prefilling:
        running = [long, *(s for s in running[1:] if s.prefilling)]
        while len(running) < 4:
            passed += 1
            running.append(stream(passed, 100, 1))
        parts, took = rule(running)
        now += 1.0
        took(machine.seconds(sum(length - s.cache.length for s, length in parts)))
        for s, length in parts:
            s.advance(length, now)
        assert passed < 40
    assert passed > 3  # they did pass it at first


def test_the_beginning_that_others_wait_for_is_read_in_their_turn() -> None:
    rule = sim.scheduled()
    long, short, follower = stream(0, 900, 1), stream(1, 300, 1), stream(2, 120, 1)
    rule([stream(-1, 1, 9), long, short, follower])
    follower.prompt.follows = (long, 100)
    parts, _ = rule([decoding(), long, short, follower])
    reading: list[Any] = [s for s, _ in parts if s.prefilling]
    assert reading[0] is long and follower not in reading


def stream(number: int, prompt: int, answer: int) -> sim.Stream:
    return sim.Stream(number, [number + 10] * prompt, answer, 0.0)


def decoding() -> sim.Stream:
    s = stream(-1, 1, 9)
    s.advance(1, 0.0)
    return s
