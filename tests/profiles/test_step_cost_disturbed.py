"""Measuring T(n) while something else uses the machine: found out, repeated, said, and used for an hour."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lcspec.engine.learned import prepare
from lcspec.profiles.steadiness import RETRIES
from lcspec.profiles.step_cost import Meter, load_curve, measure, save_curve
from lcspec.session import open_session
from tests.running import options

pytestmark = pytest.mark.model

WIDTHS = (1, 2, 4, 8)


@pytest.fixture(autouse=True)
def _in_no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcspec.profiles.step_cost.RETRIES", RETRIES)


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


def test_what_a_busy_machine_took_is_told_and_used_for_an_hour(
    llama: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))
    now = time.time()
    with open_session(options(llama, ctx=384)) as session:
        engine, context = session.engine, session.engine.context
        with pytest.MonkeyPatch.context() as patch:
            widths = disturbed_meter(patch, times=10_000)
            planner = prepare(context, engine.padding.seq, engine.drafting.env, [])
            assert 1 in planner.curve.unsteady
            took = len(widths)
            again = prepare(context, engine.padding.seq, engine.drafting.env, [])
            assert again.curve.unsteady == planner.curve.unsteady and len(widths) == took, "it was measured again"
        with monkeypatch.context() as patch:
            patch.setattr("lcspec.disk_cache.time.time", lambda: now + 7200)
            assert load_curve(context) is None
        steady = measure(context, engine.padding.seq, widths=WIDTHS)
        steady.unsteady = ()
        assert save_curve(context, steady) and save_curve(context, planner.curve)
        stored = load_curve(context)
        assert stored is not None and stored.points == steady.points, "a disturbed curve replaced a good one"
