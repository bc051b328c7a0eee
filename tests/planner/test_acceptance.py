"""Calibrated acceptance: which nodes are tested, what is learned from them, how fast, and what a file may contain."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.engine.learned import as_dict, restore
from lcspec.planner.acceptance import Acceptance
from lcspec.planner.acceptance import tested as fates
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.calibrator import Calibrator
from lcspec.profiles.cost_curve import CostCurve
from lcspec.spec.token_tree import TokenTree

fixed = settings(derandomize=True, deadline=None, max_examples=200)


def forked() -> TokenTree:
    """9 -> (1 -> (2, 3 -> 4), 5 -> 6)."""
    tree = TokenTree.root(9)
    one = tree.add(0, 1, 0.5, 1)
    tree.add(one, 2, 0.5, 1)
    three = tree.add(one, 3, 0.5, 1)
    five = tree.add(0, 5, 0.5, 1)
    tree.add(three, 4, 0.5, 1)
    tree.add(five, 6, 0.5, 1)
    return tree


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], {}),
        ([7], {1: False, 5: False}),
        ([1], {1: True, 5: False}),
        ([1, 7], {1: True, 5: False, 2: False, 3: False}),
        ([1, 3, 4, 8], {1: True, 5: False, 2: False, 3: True, 4: True}),
        ([5, 6], {1: False, 5: True, 6: True}),
        ([7, 1, 3], {1: False, 5: False}),
    ],
)
def test_only_nodes_whose_parent_was_emitted_are_tested(tokens: list[int], expected: dict[int, bool]) -> None:
    tree = forked()
    assert {tree.tokens[node]: hit for node, hit in fates(tree, tokens)} == expected


def step(acceptance: Acceptance, stated: float, hit: bool) -> None:
    """One drafted node and what became of it."""
    tree = TokenTree.root(0)
    tree.add(0, 1, stated, source=1)
    acceptance.observe(tree, [1 if hit else 2])


def estimate(acceptance: Acceptance, stated: float) -> float:
    tree = TokenTree.root(0)
    tree.add(0, 1, stated, source=1)
    return acceptance.path_probs(tree)[1]


def test_before_anything_is_known_the_drafter_is_believed() -> None:
    assert estimate(Acceptance(), 0.37) == pytest.approx(0.37)


def test_estimates_converge_to_the_truth_where_raw_confidences_lie() -> None:
    rng = random.Random(1)
    acceptance = Acceptance()
    truth = {0.95: 0.7, 0.55: 0.4, 0.15: 0.05}
    for _ in range(1500):
        stated = rng.choice(list(truth))
        step(acceptance, stated, rng.random() < truth[stated])
    for stated, p in truth.items():
        assert estimate(acceptance, stated) == pytest.approx(p, abs=0.09)


def test_old_observations_are_forgotten() -> None:
    acceptance = Acceptance()
    for _ in range(2000):
        step(acceptance, 0.5, True)
    assert estimate(acceptance, 0.5) > 0.95
    for _ in range(600):
        step(acceptance, 0.5, False)
    assert estimate(acceptance, 0.5) < 0.1


def test_deeper_nodes_start_from_what_the_first_level_showed() -> None:
    acceptance = Acceptance()
    tree = TokenTree.chain(0, [1, 2, 3, 4, 5], [0.5] * 5, source=1)
    for _ in range(100):
        acceptance.observe(tree, [1])  # plain decoding: one token a step
    assert acceptance.path_probs(tree)[5] > 0.7


def test_what_drafters_agree_on_is_judged_apart() -> None:
    alone, agreed = TokenTree.root(0), TokenTree.root(0)
    alone.add(0, 1, 0.5, source=1)
    agreed.add(0, 1, 0.5, source=3)
    acceptance = Acceptance()
    for i in range(200):
        acceptance.observe(agreed, [1])
        acceptance.observe(alone, [1 if i % 2 else 2])
    assert acceptance.path_probs(agreed)[1] > 0.9
    assert acceptance.path_probs(alone)[1] == pytest.approx(0.5, abs=0.15)


def test_path_probs_multiply_along_the_path() -> None:
    tree, acceptance = forked(), Acceptance()
    for i in range(60):
        acceptance.observe(tree, [[1, 3, 4], [5], [1, 2]][i % 3])
    reach = acceptance.path_probs(tree)
    assert reach[0] == 1.0
    for v in range(1, len(tree)):
        expected = acceptance.expected(tree.sources[v], tree.probs[v])
        assert reach[v] == pytest.approx(reach[tree.parents[v]] * expected)


@fixed
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.booleans()), max_size=60),
    st.floats(0, 1),
)
def test_estimates_stay_probabilities(seen: list[tuple[float, int, bool]], stated: float) -> None:
    acceptance = Acceptance()
    for prob, source, hit in seen:
        tree = TokenTree.root(0)
        tree.add(0, 1, prob, source)
        acceptance.observe(tree, [1 if hit else 2])
    tree = TokenTree.root(0)
    for source in range(4):
        tree.add(0, source + 1, stated, source)
    assert all(0.0 <= p <= 1.0 for p in acceptance.path_probs(tree))


def learned() -> Acceptance:
    acceptance = Acceptance()
    tree = TokenTree.root(0)
    tree.add(0, 1, 0.5, source=1)
    tree.add(0, 2, 0.5, source=2)
    tree.add(0, 3, 0.5, source=3)
    for i in range(30):
        acceptance.observe(tree, [1 + i % 2])
    return acceptance


def stored(acceptance: Acceptance) -> Any:
    """As a file holds it for the drafters a and b."""
    return json.loads(json.dumps(as_dict(AutoPlanner(CostCurve(), acceptance), ["a", "b"])))


def restored(data: Any, names: list[str]) -> Acceptance:
    planner = AutoPlanner(CostCurve())
    restore(planner, data, names)
    return planner.acceptance


def test_round_trip() -> None:
    acceptance = learned()
    again = restored(stored(acceptance), ["a", "b"])
    assert again.calibrators == acceptance.calibrators and again.calibrators


@pytest.mark.parametrize("kind", [[1, 0], [1, 0, 0]])
def test_what_an_earlier_version_kept_is_refused(kind: list[int]) -> None:
    """It also told apart nodes by the length of a match, or by the drafters that proposed a sibling."""
    data = {"acceptance": {"drafters": ["a"], "trends": [[*kind, *astuple(Calibrator())]]}, "records": {}}
    with pytest.raises(ValueError, match="not a planner's record"):
        restored(data, ["a"])


def test_drafters_are_renumbered_and_unknown_ones_dropped() -> None:
    acceptance = learned()
    swapped = restored(stored(acceptance), ["b", "new", "a"])
    turn = {0: 0, 1: 4, 2: 1, 3: 5}
    assert swapped.calibrators == {turn[k]: v for k, v in acceptance.calibrators.items()}
    only = TokenTree.root(0)
    only.add(0, 1, 0.5, source=1)
    acceptance.observe(only, [1])
    rest = restored(stored(acceptance), ["a"])
    assert set(rest.calibrators) == {1}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@fixed
@given(JSON, st.sampled_from(["", "drafters", "trends", "calibrator", "line"]))
def test_junk_is_a_value_error_or_sound_trends(junk: Any, where: str) -> None:
    data: Any = {"drafters": ["a", "b"], "trends": [[1, *astuple(Calibrator())]]}
    if where == "calibrator":
        data["trends"] = [junk]
    elif where == "line":
        data["trends"] = [[1, junk, 1.0, junk, 0.0, 0.2], [junk, 0.0, 1.0, 4.0, 0.0, 0.2]]
    else:
        data = {**data, where: junk} if where else junk
    planner = AutoPlanner(CostCurve())
    with contextlib.suppress(ValueError):
        restore(planner, {"acceptance": data, "records": {}}, ["b", "a"])
    found = planner.acceptance.calibrators.values()
    assert all(0.0 <= calibrator.value(p) <= 1.0 for calibrator in found for p in (0.0, 0.5, 1.0))
