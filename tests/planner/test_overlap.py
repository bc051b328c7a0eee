"""Drafting ahead in simulated machines: it goes on where it pays, and stops where it does not (virtual time)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lcspec.drafters.base import Budget
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.base import Limits
from lcspec.planner.loss_budget import SHARE
from lcspec.planner.overlap import CREDIT, EVERY, KEPT, Overlap
from lcspec.spec.token_tree import TokenTree
from tests.simulate import Q4_0, UNIT, Clock, FakeDrafter, clock, curve_of, emitted, slot_of, steady

__all__ = ["clock"]
ROOM = Limits(31, 64, 32)
# Steps at the start of a session in which nothing is drafted ahead.
FIRST = 8


@dataclass
class AheadDrafter(FakeDrafter):
    """Has levels ready, in a share of the steps, if it could go on during the step before."""

    levels: int = 6
    went: bool = False
    steps: int = 0

    def levels_ready(self, sequence: Any) -> int:
        return self.levels if self.went and self.steps % 4 else 0

    def draft_batch(self, sequences: Sequence[Any], budgets: Sequence[Budget]) -> list[TokenTree]:
        if not self.levels_ready(sequences[0]):
            return super().draft_batch(sequences, budgets)
        [sequence], [budget] = sequences, budgets
        start, node, right, tree = len(sequence.tokens), 0, True, TokenTree.root(sequence.tokens[-1])
        for i in range(min(self.levels, budget.nodes)):
            hit, stated, _ = self.at(start + i)
            right = right and hit
            node = tree.add(node, start + i if right else -(start + i), stated, budget.source)
        assert budget.keep_going is not None
        budget.keep_going(tree, [node])
        return [tree]


def run(planner: AutoPlanner, drafter: AheadDrafter, clock: Clock, tokens: int, slower: float, waited: float) -> float:
    """Tokens per unit; a decode beside the drafter takes `slower` times as long, and then the engine waits."""
    slot, began = slot_of([drafter]), clock.now
    while len(slot.tokens) < 8 + tokens:
        start = clock.now
        if (rest := planner.backoff(1)) is not None:
            clock.now += UNIT * Q4_0[max(1, rest.width) - 1]
            slot.tokens.append(len(slot.tokens))
            drafter.went = False
            planner.timed(max(1, rest.width), 8, clock.now - start)
            planner.observe_overhead(0.0)
            continue
        [proposal] = planner.propose([slot], [ROOM], 0)
        plan = planner.select([proposal], 1, 8)
        assert proposal.kept is not None
        width = max(1 + proposal.kept.n_drafted, plan.width)
        drafter.went, seconds = planner.overlap.start(), UNIT * Q4_0[width - 1]
        drafter.steps += 1
        if drafter.went:
            seconds *= slower
            clock.now += waited
            planner.overlap.gained -= waited
        clock.now += seconds
        new = emitted(proposal.kept, range(len(slot.tokens), len(slot.tokens) + 64))
        slot.tokens += new
        planner.observe(proposal, new)
        planner.timed(width, 8, seconds)
        planner.observe_overhead(clock.now - start - seconds)
    return tokens / (clock.now - began) * UNIT


def rates(clock: Clock, slower: float, waited: float = 0.0) -> tuple[float, float, Overlap]:
    """Tokens per unit with and without drafting ahead, and the balance."""
    found = []
    for levels in (6, 0):
        planner = AutoPlanner(curve_of(Q4_0))
        drafter = AheadDrafter("model", steady(0.85, 0.85), clock, level_seconds=0.1 * UNIT, levels=levels)
        if not levels:
            planner.overlap.start = lambda: False  # type: ignore[method-assign]
        found.append((run(planner, drafter, clock, 3000, slower, waited), planner.overlap))
    return found[0][0], found[1][0], found[0][1]


def test_it_goes_on_where_the_draft_model_has_cores_of_its_own(clock: Clock) -> None:
    with_it, without, balance = rates(clock, slower=1.0)
    assert with_it > 1.1 * without and not balance.pauses


def test_a_little_slower_is_worth_it_if_more_is_saved(clock: Clock) -> None:
    with_it, without, balance = rates(clock, slower=1.03)
    assert with_it > 1.05 * without and not balance.pauses


@pytest.mark.parametrize("slower, waited", [(1.6, 0.0), (3.0, 0.0), (30.0, 0.0), (1.0, UNIT)])
def test_it_stops_where_it_costs_more_than_it_saves(clock: Clock, slower: float, waited: float) -> None:
    with_it, without, balance = rates(clock, slower, waited)
    # a trial costs a step beside the drafter at least, however slow that is
    assert with_it > 0.99 * without * (1.0 if slower < 10.0 else 0.9) and balance.pauses


def test_what_a_decode_takes_by_itself_is_learned_from_steps_without_it(clock: Clock) -> None:
    planner = AutoPlanner(curve_of(Q4_0))
    drafter = AheadDrafter("model", steady(0.85, 0.85), clock, level_seconds=0.1 * UNIT)
    run(planner, drafter, clock, 1500, 1.03, 0.0)
    assert all(abs(planner.curve.seconds(n, 8) - UNIT * Q4_0[n - 1]) < 0.005 * UNIT for n in range(1, 9))


def test_the_first_steps_and_some_later_ones_are_for_comparison() -> None:
    overlap, went = Overlap(), list[bool]()
    for _ in range(3 * EVERY):
        went.append(overlap.start())
        overlap.finish(1.0)
    assert not any(went[:FIRST]) and went[FIRST:].count(False) == 3


def test_it_pauses_until_a_trial_is_paid_for() -> None:
    overlap = Overlap()
    for _ in range(FIRST):
        overlap.start()
        overlap.finish(1.0)
    assert overlap.start()
    overlap.gained = -1.5 * CREDIT
    overlap.finish(1.0)
    assert overlap.pauses and overlap.balance < 0
    steps = 0
    while overlap.pauses:
        assert not overlap.start()
        overlap.finish(1.0)
        steps += 1
    assert steps == pytest.approx(1.5 * CREDIT / SHARE, abs=1)


def test_some_of_what_was_gained_may_be_lost_again() -> None:
    """Six drafts in a row that found nothing ended it for 400 steps, where it gained a third of a step as a rule."""
    overlap = Overlap()
    for gained in [0.0] * FIRST + [0.3] * 200:
        overlap.start()
        overlap.gained = gained * overlap.running
        overlap.finish(1.0)
    lost = 0.0
    while not overlap.pauses:
        if overlap.start():
            overlap.gained = -0.5
            lost += 0.5
        overlap.finish(1.0)
    assert 3 * CREDIT < lost <= KEPT
