"""Which measured times cannot be right, and what is made of series taken twice."""

from __future__ import annotations

import pytest

from lcspec.profiles.steadiness import Presence, disturbance, disturbed, settled


def test_a_jagged_curve_is_left_alone() -> None:
    # Wider steps may cost less than narrower ones, where they fill the kernels' blocks of rows.
    steady = {1: [10.0, 10.1], 2: [18.0, 18.4], 4: [36.0, 36.0], 8: [31.0, 30.9], 16: [29.0, 29.5], 32: [40.0, 41.0]}
    assert disturbed(steady) == []


def test_a_flat_curve_is_left_alone() -> None:
    assert disturbed({w: [10.0 + 0.3 * (w % 3), 10.2] for w in range(1, 33)}) == []


def test_one_token_that_costs_more_than_nine_was_not_timed_in_peace() -> None:
    # "9 wide costs 0.00 x": the single token was interrupted for seconds, each time.
    assert disturbed({1: [4000.0, 4100.0], 2: [8.0, 8.2], 9: [12.0, 12.1]}) == [1]


def test_a_width_that_takes_several_times_its_shortest_was_disturbed() -> None:
    assert disturbed({1: [10.0, 10.0], 2: [12.0, 90.0, 95.0], 4: [14.0, 14.2]}) == [2]
    assert disturbed({1: [10.0, 10.0, 80.0], 2: [12.0, 12.0, 12.0]}) == [], "one odd decode does not move the median"
    assert disturbed({1: [10.0], 2: [60.0], 4: [15.0]}) == [2], "never so much more than a wider step"
    assert disturbed({1: [0.0, 1.0], 2: [2.0, 2.0]}) == [1]


def test_the_quieter_series_counts() -> None:
    assert settled([90.0, 95.0], [10.0, 11.0]) == [10.0, 11.0]
    assert settled([10.0, 11.0], [90.0, 95.0]) == [10.0, 11.0]
    assert settled([10.0], []) == [10.0]


def test_what_the_user_is_told() -> None:
    assert disturbance([], []) is None
    again = disturbance([1], [])
    assert again is not None and "a step of 1 token was measured again" in again
    still = disturbance([1, 9], [1, 9])
    assert still is not None and "for an hour at most" in still and "2 sizes" in still


@pytest.mark.parametrize(("had", "undisturbed"), [(2.0, True), (1.6, True), (1.0, False)])
def test_threads_that_shared_their_processors_were_disturbed(
    had: float, undisturbed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads, for a second."""
    monkeypatch.setattr("lcspec.profiles.steadiness.SHARE", 0.75)
    times = {"process_time": iter((5.0, 5.0 + had)), "perf_counter": iter((9.0, 10.0))}
    presence = Presence()
    with monkeypatch.context() as patch:
        for name, values in times.items():
            patch.setattr(f"lcspec.profiles.steadiness.time.{name}", lambda values=values: next(values))
        with presence.watched(2):
            pass
    assert presence.undisturbed is undisturbed and (presence.lasts is None) is undisturbed
