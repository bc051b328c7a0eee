"""Figures of speculation: counted from steps with known trees."""

from __future__ import annotations

import pytest

from lcspec.engine.events import RequestStats, Step, StepStats
from lcspec.planner.base import Plan
from lcspec.spec.token_tree import TokenTree
from lcspec.tui.inspector_text import steps_content, totals_content
from lcspec.tui.speculation import SpeculationLog, accepted_nodes, expected_accepted

pytestmark = pytest.mark.tui

NAMES = ("ngram", "model")


def tree() -> TokenTree:
    """5 -> 6 -> 7 (both drafters, then the model) and 5 -> 8 (n-gram)."""
    out = TokenTree.root(5)
    six = out.add(0, 6, 0.9, source=0b11)
    out.add(six, 7, 0.5, source=0b10)
    out.add(0, 8, 0.1, source=0b01)
    return out


def step(emitted: tuple[int, ...], accepted: int, plan: Plan | None = None, plain: float | None = 0.010) -> Step:
    stats = StepStats(1, 4, tree(), accepted, emitted, 0.012, 0.002, 0.001, plan or Plan())
    return Step(stats, NAMES, plain, plan.seconds if plan else None)


def test_the_accepted_path_is_found_from_the_emitted_tokens() -> None:
    assert accepted_nodes(tree(), (6, 7, 9), 2) == [1, 2]
    assert accepted_nodes(tree(), (8, 3), 1) == [3]
    assert accepted_nodes(tree(), (4,), 0) == []


def test_counts_by_drafter_and_depth() -> None:
    log = SpeculationLog()
    log.add(step((6, 7, 9), 2))
    log.add(step((8, 3), 1))
    assert log.by_drafter == {"ngram": [4, 2], "model": [4, 2]}
    assert log.depth_rates() == [(1, 4, 2), (2, 2, 1)]
    assert (log.count, log.emitted, log.drafted, log.accepted) == (2, 5, 6, 3)
    assert log.tokens_per_step == 2.5
    assert log.acceptance == 0.5


def plain_step(seconds: float, measured: float = 0.010) -> Step:
    """A step without drafts that took `seconds`, where plain decoding was measured to take `measured`."""
    return Step(StepStats(1, 1, TokenTree.root(5), 0, (6,), seconds, 0.0, 0.0, Plan()), NAMES, measured, measured)


def test_seconds_saved_are_those_of_plain_decoding_less_those_taken() -> None:
    log = SpeculationLog()
    log.add(step((6, 7, 9), 2, plain=0.010))
    assert abs(log.saved_seconds - (3 * 0.010 - 0.015)) < 1e-12
    log.add(step((4,), 0, plain=None))  # nobody measured: it counts for nothing
    assert abs(log.saved_seconds - 0.015) < 1e-12
    assert log.saved == log.saved_seconds


def test_without_drafts_nothing_is_saved_and_nothing_lost_however_slow_the_machine_is_now() -> None:
    log = SpeculationLog()
    for _ in range(40):
        log.add(plain_step(0.120))
    assert log.saved_seconds == 0.0 and log.saved is None
    assert "nothing drafted" in totals_content(log).plain


def test_steps_with_drafts_are_compared_with_the_plain_steps_beside_them() -> None:
    log = SpeculationLog()
    for i in range(8):
        log.add(plain_step(0.020 + 0.0001 * (i % 2)))  # the machine is half as fast as when it was measured
    log.add(step((6, 7, 9), 2, plain=0.010))  # 15 ms for what takes 60 ms
    assert log.saved is not None and abs(log.saved - (3 * 0.02005 - 0.015)) < 1e-9


def test_what_may_be_noise_is_not_shown() -> None:
    log = SpeculationLog()
    for i in range(8):
        log.add(plain_step(0.002 if i % 2 else 0.018))  # 10 ms, give or take 80 %
    log.add(step((6, 7), 1, plain=0.010))  # 15 ms for what takes 20 ms, or 14
    assert log.saved_seconds > 0 and log.saved is None
    assert "no difference" in totals_content(log).plain


def test_a_single_slow_step_is_noise() -> None:
    log = SpeculationLog()
    for i in range(70):
        log.add(plain_step((0.017, 0.018, 0.019, 0.030)[i % 4]))  # some plain steps take long, too
    refused = StepStats(1, 4, tree(), 0, (9,), 0.031, 0.0, 0.0, Plan())
    log.add(Step(refused, NAMES, 0.010))
    assert log.saved_seconds < 0 and log.saved is None
    assert "lost" not in totals_content(log).plain


def test_what_nobody_would_notice_is_not_shown() -> None:
    log = SpeculationLog()
    for _ in range(200):
        log.add(plain_step(0.020))
    refused = StepStats(1, 4, tree(), 0, (9,), 0.060, 0.0, 0.0, Plan())
    log.add(Step(refused, NAMES, 0.010))
    assert abs(log.saved_seconds + 0.040) < 1e-9 and log.saved is None, "40 ms of four seconds"
    log.add(Step(refused, NAMES, 0.010))
    log.add(Step(refused, NAMES, 0.010))
    assert log.saved is not None and abs(log.saved + 0.120) < 1e-9


def test_tokens_a_step_are_shown_where_there_is_a_gain() -> None:
    log = SpeculationLog()
    for _ in range(3):
        log.add(plain_step(0.01))
    log.settle(RequestStats(target_steps=3, step_tokens=2))  # the third step brought the end of the answer
    assert "2 tokens in 3 steps" in totals_content(log).plain and "a step" not in totals_content(log).plain


def test_an_answer_has_one_figure_for_its_tokens_a_step() -> None:
    log = SpeculationLog()
    log.add(step((6, 7, 9), 2))  # the text ended at 7: what was verified behind it is no part of the answer
    log.settle(RequestStats(target_steps=1, step_tokens=2))
    assert log.tokens_per_step == RequestStats(target_steps=1, step_tokens=2).mean_acceptance_length == 2.0


def test_expected_figures_come_from_the_plan_where_there_is_one() -> None:
    planned = step((6, 9), 1, Plan(tokens=2.2, seconds=0.020))
    assert abs(expected_accepted(planned) - 1.2) < 1e-9
    assert abs(expected_accepted(step((6, 9), 1)) - (0.9 + 0.45 + 0.1)) < 1e-6
    log = SpeculationLog()
    log.add(planned)
    assert log.expected_rate is not None and abs(log.expected_rate - 110.0) < 1e-6
    assert log.measured_rate is not None and abs(log.measured_rate - 2 / 0.012) < 1e-6


def test_the_inspector_shows_the_tree_and_its_accepted_path() -> None:
    log = SpeculationLog()
    assert "No step yet" in totals_content(log).plain
    log.add(step((6, 7, 9), 2))
    shown = totals_content(log).plain + steps_content(log, lambda token: f"t{token}").plain
    assert "● 't6' 0.90 ngram+model" in shown
    assert "● 't7'" in shown and "○ 't8' 0.10 ngram" in shown
    assert "target's own: 't9'" in shown
    assert " 1 ███████░░░░░░░  50% of 2" in shown


def test_the_inspector_keeps_to_a_few_lines_however_wide_the_tree() -> None:
    wide = TokenTree.root(1)
    for token in range(2, 60):
        wide.add(0, token, 0.01, source=1)
    log = SpeculationLog()
    log.add(Step(StepStats(1, 59, wide, 0, (99,), 0.01, 0.0, 0.0, Plan()), NAMES))
    shown = steps_content(log, str).plain
    assert "and 42 more nodes" in shown
    assert len(shown.splitlines()) < 30


def test_the_inspector_says_whether_guesses_can_change_the_text() -> None:
    log = SpeculationLog()
    log.add(step((6, 7, 9), 2))
    assert "Guesses change no bit" in totals_content(log, exact=True).plain
    assert "--exact rules that out" in totals_content(log, exact=False).plain
    assert totals_content(log).plain == totals_content(log, exact=None).plain and "bit" not in totals_content(log).plain
