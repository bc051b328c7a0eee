"""States that a head's rows still need."""

from __future__ import annotations

import numpy as np

from lcspec.drafters.known_states import KnownStates

WIDTH = 3


def states(start: int, stop: int) -> np.ndarray:
    return np.repeat(np.arange(start, stop, dtype=np.float32)[:, None], WIDTH, axis=1)


def test_states_come_and_go() -> None:
    """Whatever is added and dropped, each position has its own state."""
    rng = np.random.default_rng(0)
    known = KnownStates(7, states(7, 7))
    begin = end = 7
    for _ in range(200):
        more, gone = int(rng.integers(4)), int(rng.integers(3))
        known.append(states(end, end + more))
        end += more
        gone = min(gone, end - begin)
        known.drop(gone)
        begin += gone
        assert (known.begin, known.end, len(known)) == (begin, end, end - begin)
        assert np.array_equal(known.rows, states(begin, end))
    assert np.array_equal(known.before(begin + 1, end + 1), known.rows)


def test_a_step_copies_only_its_own_states() -> None:
    known = KnownStates(0, states(0, 1))
    copies = 0
    for at in range(1, 500):
        before = known.rows
        known.append(states(at, at + 1))
        copies += not np.shares_memory(before, known.rows)
    assert copies < 10


def test_what_is_given_is_copied() -> None:
    given = states(0, 2)
    known = KnownStates(0, given)
    given[:] = -1
    assert np.array_equal(known.rows, states(0, 2))
