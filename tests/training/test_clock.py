"""The stopwatch of training runs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs PyTorch (lcspec[train])")

from lcspec.training import clock


def test_a_stopped_process_is_not_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laps count as they are while the process runs, alone or beside another; while it is stopped, they do not."""
    now = {"wall": 100.0, "ran": 5.0}
    monkeypatch.setattr(clock.time, "monotonic", lambda: now["wall"])
    monkeypatch.setattr(clock.time, "process_time", lambda: now["ran"])
    watch = clock.Stopwatch(30.0)
    for wall, ran, seconds in ((2.0, 2.0, 32.0), (2.0, 1.0, 34.0), (600.0, 1.0, 35.0), (1.0, 4.0, 36.0)):
        now["wall"] += wall
        now["ran"] += ran
        assert watch.lap() == pytest.approx(seconds)
