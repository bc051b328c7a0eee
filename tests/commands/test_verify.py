"""`lcspec verify`: what it promises is what the engine does, and what a longer look refutes is taken back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lcspec.commands import selfcheck
from lcspec.llama import can_fuse_row_by_row
from lcspec.profiles import certification
from lcspec.profiles.exactness import Certificate
from lcspec.profiles.independence import certified
from lcspec.profiles.step_cost import Meter
from lcspec.session import open_session
from tests.commands.test_command_line import ok
from tests.running import ROUNDS_ALIKE, options

pytestmark = [pytest.mark.model, pytest.mark.skipif(not ROUNDS_ALIKE, reason="nothing is independent on a GPU")]

SHORT = ("--threads", "1", "--positions", "32", "--prompts", "2", "-n", "8")


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 2])
def test_what_verify_says_is_what_the_engine_does(demo: tuple[Path, Path], slots: int) -> None:
    with open_session(options(demo[0], threads=1, slots=slots, exact=True)) as session:
        independent = session.engine.exact.independent
    told = json.loads(ok("verify", demo[0], *SHORT, "--slots", str(slots), "--json").stdout)
    assert independent and told["independent"] and told["widths"] == list(range(1, 33))
    assert told["slots"] == slots and [way["taken"] for way in told["ways"]].count(True) == 1
    assert all(way["independent"] for way in told["ways"]) and (len(told["ways"]) > 1 or not can_fuse_row_by_row())
    assert all(row["identical_exact"] == row["prompts"] == 2 for row in told["texts"])
    shown = ok("verify", demo[0], *SHORT, "--slots", str(slots)).stdout
    assert "every request" in shown and "the same bits at every width" in shown


def test_a_slow_model_is_compared_for_minutes_not_hours(
    demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_session(options(demo[0], threads=1)) as session:
        assert selfcheck.affordable(session, 64) == (320, 4)
        monkeypatch.setattr(Meter, "time", lambda self, width: 0.02)
        assert selfcheck.affordable(session, 64) == (320, 4)
        monkeypatch.setattr(Meter, "time", lambda self, width: 0.25)
        assert selfcheck.affordable(session, 64) == (32, 1)
        assert selfcheck.affordable(session, 8) == (32, 4)


def test_a_longer_look_refutes_a_short_one(
    demo: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "cache"))  # others rely on what this takes back
    measured = certification.measure_certificate

    def split(*args: object, **more: object) -> certification.Report:
        report = measured(*args, **more)  # type: ignore[arg-type]
        found = Certificate(((1,), tuple(range(2, 33))), 32, trees=True, repeatable=True)
        return replace(report, certificate=found)

    with open_session(options(demo[0], threads=1, exact=True)) as session:
        found = certified(session.model, session.engine.options)
        assert found is not None and found.independent
        monkeypatch.setattr(certification, "measure_certificate", split)
        result = {"independent": True}
        selfcheck.check(session, result, 32, quiet=True)
        assert result["refuted"] and not result["independent"]
        found = certified(session.model, session.engine.options)
        assert found is not None and not found.independent
