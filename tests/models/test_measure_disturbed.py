"""Measuring T(n) while something else uses the machine: found out, repeated, said."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcspec.planner.learned import prepare
from lcspec.profiles.step_cost import Meter, load_curve, measure
from lcspec.session import open_session
from tests.models.running import options

WIDTHS = (1, 2, 4, 8)


def disturbed_meter(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """The first `times` decodes of one token seem to take a second each; the widths that were timed, in order."""
    real, widths = Meter.time, list[int]()

    def time(self: Meter, width: int, offset: int = 0) -> float:
        seconds = real(self, width, offset)
        widths.append(width)
        return 1.0 if width == 1 and widths.count(1) <= times else seconds

    monkeypatch.setattr(Meter, "time", time)
    return widths


def test_a_moment_of_disturbance_is_measured_again(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_session(options(llama)) as session:
        seq = session.engine.pool.take()
        disturbed_meter(monkeypatch, times=4)  # the first decode, and three rounds
        curve = measure(session.engine.context, seq, widths=WIDTHS, repeat=3)
        session.engine.pool.give(seq)
    assert 1 in curve.retaken
    assert all(seconds < 0.5 for seconds in curve.points[1].values())


def test_a_machine_that_stays_busy_is_told_and_nothing_is_stored(
    llama: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))
    with open_session(options(llama, ctx=384)) as session:
        disturbed_meter(monkeypatch, times=10_000)
        planner = prepare(session.engine.context, session.engine.padding.seq, session.engine.drafting.env, [])
        assert 1 in planner.curve.unsteady
        assert load_curve(session.engine.context) is None
