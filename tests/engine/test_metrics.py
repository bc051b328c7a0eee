"""Totals of an engine: what requests did, added up, while they run and after they ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lcspec.engine.events import RequestStats
from lcspec.engine.metrics import Counters
from lcspec.engine.sequence import ActiveSequence
from lcspec.planner.auto import AutoPlanner
from lcspec.profiles.cost_curve import CostCurve


@dataclass
class Ran:
    """What is counted of a request: a prompt of `n_prompt` tokens of which `reused` were there, and its cache's."""

    n_prompt: int = 10
    length: int = 14
    reused: int = 0
    started: bool = True
    generated: int = 5
    stats: RequestStats = field(default_factory=RequestStats)

    @property
    def prompt(self) -> Any:
        return SimpleNamespace(started=self.started, reused=self.reused)

    @property
    def cache(self) -> Any:
        return SimpleNamespace(length=self.length)


def sequences(*some: Ran) -> list[ActiveSequence]:
    return cast("list[ActiveSequence]", list(some))


def drafted(steps: int, by_depth: list[int], accepted: list[int], **drafters: tuple[int, int]) -> RequestStats:
    return RequestStats(
        target_steps=steps,
        drafted=sum(by_depth),
        accepted=sum(accepted),
        drafted_by_depth=by_depth,
        accepted_by_depth=accepted,
        by_drafter={name: {"drafted": d, "accepted": a} for name, (d, a) in drafters.items()},
    )


def test_nothing_happened_yet() -> None:
    got = Counters().totals([], 0, 4, None)
    assert got.done == got.steps == got.by_drafter == {} and got.decode_tokens == got.mixed_steps == 0
    assert (got.waiting, got.running, got.slots) == (0, 0, 4)
    assert got.plain_seconds is got.speedup is got.rate is None


def test_steps_are_counted_by_width_and_those_that_read_a_prompt_apart() -> None:
    counters = Counters()
    for width, seconds, decoding_only in ((1, 0.01, True), (4, 0.02, True), (1, 0.01, True), (40, 0.5, False)):
        counters.stepped(width, seconds, decoding_only)
    got = counters.totals([], 0, 1, None)
    assert got.steps == {1: 2, 4: 1} and got.mixed_steps == 1
    assert got.decode_seconds == pytest.approx(0.04) and got.mixed_seconds == pytest.approx(0.5)


def test_a_request_counts_the_same_before_and_after_its_end() -> None:
    ran = Ran(n_prompt=10, length=14, reused=3, stats=drafted(4, [3, 1], [2], ngram=(3, 2), model=(1, 0)))
    counters = Counters()
    (while_running,) = (counters.totals(sequences(ran), 0, 1, None),)
    counters.ended("stop", sequences(ran)[0])
    after = counters.totals([], 0, 1, None)
    assert (while_running.running, while_running.done) == (1, {}) and (after.running, after.done) == (0, {"stop": 1})
    for got in (while_running, after):
        assert (got.prompt_evaluated, got.prompt_reused, got.decode_tokens, got.decode_steps) == (7, 3, 5, 4)
        assert (got.drafted, got.accepted, got.drafted_by_depth, got.accepted_by_depth) == (4, 2, [3, 1], [2])
        assert got.by_drafter == {"ngram": {"drafted": 3, "accepted": 2}, "model": {"drafted": 1, "accepted": 0}}


def test_requests_of_different_depths_and_drafters_add_up() -> None:
    counters = Counters()
    counters.ended("stop", sequences(Ran(stats=drafted(2, [2], [1], ngram=(2, 1))))[0])
    counters.ended("length", sequences(Ran(stats=drafted(3, [2, 2, 1], [2, 1], ngram=(1, 1), model=(4, 2))))[0])
    counters.ended("cancelled")  # one that had no slot yet
    got = counters.totals(sequences(Ran(stats=drafted(1, [1], []))), 2, 3, None)
    assert got.done == {"stop": 1, "length": 1, "cancelled": 1}
    assert got.drafted_by_depth == [5, 2, 1] and got.accepted_by_depth == [3, 1]
    assert got.by_drafter == {"ngram": {"drafted": 3, "accepted": 2}, "model": {"drafted": 4, "accepted": 2}}
    assert (got.decode_steps, got.decode_tokens, got.waiting, got.running) == (6, 15, 2, 1)


@pytest.mark.parametrize(
    ("ran", "evaluated", "reused"),
    [
        (Ran(n_prompt=10, length=4), 4, 0),  # it is being read
        (Ran(n_prompt=10, length=4, reused=4), 0, 4),  # it was there, and nothing else has been read
        (Ran(n_prompt=10, length=30, reused=9), 1, 9),  # generated tokens are no prompt
        (Ran(n_prompt=10, length=0, reused=4), 0, 4),  # its cells are gone
        (Ran(n_prompt=10, length=4, reused=4, started=False), 0, 0),  # not begun: what was there may still be lost
    ],
)
def test_prompt_tokens_are_those_in_the_cache_that_were_not_there_before(ran: Ran, evaluated: int, reused: int) -> None:
    got = Counters().totals(sequences(ran), 0, 1, None)
    assert (got.prompt_evaluated, got.prompt_reused) == (evaluated, reused)


def test_a_snapshot_shares_nothing_with_what_goes_on() -> None:
    counters, ran = Counters(), Ran(stats=drafted(1, [1], [1], ngram=(1, 1)))
    counters.ended("stop", sequences(ran)[0])
    before = counters.totals([], 0, 1, None)
    before.done["stop"] = before.steps[9] = before.by_drafter["ngram"]["drafted"] = 99
    before.drafted_by_depth.append(99)
    counters.ended("stop", sequences(ran)[0])
    after = counters.totals([], 0, 1, None)
    assert after.done == {"stop": 2} and after.steps == {} and after.drafted_by_depth == [2]
    assert after.by_drafter == {"ngram": {"drafted": 2, "accepted": 2}}
    assert ran.stats.by_drafter == {"ngram": {"drafted": 1, "accepted": 1}} and ran.stats.drafted_by_depth == [1]


@pytest.mark.parametrize(("speedup", "rate"), [(1.5, 150.0), (None, None)])
def test_the_rate_of_a_lone_stream(speedup: float | None, rate: float | None) -> None:
    curve = CostCurve({1: {32: 0.01}, 2: {32: 0.012}})
    planner = cast(AutoPlanner, SimpleNamespace(curve=curve, speedup=speedup))
    got = Counters().totals([], 0, 1, planner)
    assert got.plain_seconds == pytest.approx(0.01) and got.speedup == speedup
    assert got.rate == (None if rate is None else pytest.approx(rate))
