"""Replaying recorded drafts: a recording made by hand, on machines made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.ablate_planner import Case, Figures, changed, constant, measured
from scripts.planner_replay import Machine, replay
from scripts.recordings import Answer, Recording, Tree


def chain(tokens: list[int], prob: float) -> Tree:
    n = len(tokens)
    return list(range(n)), tokens, [prob] * n


def recording(right: bool, costly: float = 0.0) -> Recording:
    """Two texts; a drafter that is right about four tokens everywhere, or never about the first."""
    answers = []
    for start in (0, 1000):
        text = list(range(start, start + 205))
        drafts = [chain(text[i + 1 : i + 5] if right else [7777, 1, 2, 3], 0.9) for i in range(4, 204)]
        answers.append(Answer("counting", 4, text, {"d": drafts}))
    return Recording("made", {"d": costly} if costly else {}, answers)


FLAT = "1:10,16:11"


@pytest.mark.parametrize("costly", [0.0, 0.02])
def test_right_drafts_are_worth_what_they_save(costly: float) -> None:
    found = replay(recording(True, costly), Machine.of("flat", FLAT), ["d"])
    assert [r.tokens for r in found] == [200, 200]
    assert found[1].speedup > (4.5 if not costly else 3.5)


def test_wrong_drafts_cost_next_to_nothing() -> None:
    python = {"bare": 0.1e-3, "step": 0.5e-3, "node": 50e-6}
    found = replay(recording(False), Machine.of("steep", "1:10,32:320", change=2e-3, **python), ["d"])
    assert all(r.speedup > 0.96 for r in found) and found[1].speedup > 0.985


def test_a_replay_comes_out_the_same_every_time(tmp_path: Path) -> None:
    made = recording(True)
    made.save(tmp_path / "made.rec.gz")
    again = Recording.load(tmp_path / "made.rec.gz")
    times = [
        [r.seconds for r in replay(some, Machine.of("flat", FLAT), ["d"], noise=0.03)] for some in (made, made, again)
    ]
    assert times[0] == times[1] == times[2]


def test_a_change_is_taken_back_after_its_measurement() -> None:
    from lcspec.planner import auto

    case, before = Case(recording(True), "GPU"), auto.FREE_NODES
    base = measured(case, 1)
    (one,) = constant(auto, "FREE_NODES", 1)
    with changed(one):
        assert measured(case, 1).mean < base.mean
    assert before == auto.FREE_NODES and isinstance(base, Figures)


def test_a_change_of_width_takes_its_time() -> None:
    machine = Machine.of("m", "1:10,4:12", change=1e-3)
    assert [round(machine.decode(width) * 1e3, 3) for width in (1, 4, 4, 1)] == [10.0, 13.0, 12.0, 11.0]
