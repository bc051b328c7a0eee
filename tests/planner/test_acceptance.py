"""Calibrated acceptance: which nodes are tested, what is learned from them, how fast, and what a file may contain."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.planner.acceptance import EDGES, Acceptance, Offsets, key_of, kind_of
from lcspec.planner.acceptance import tested as fates
from lcspec.planner.calibrator import Trend
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


def step(acceptance: Acceptance, offsets: Offsets, stated: float, hit: bool, feature: int = 0) -> None:
    tree = TokenTree.root(0)
    tree.add(0, 1, stated, 1, feature)
    acceptance.observe(tree, [1 if hit else 2], offsets)


def estimate(acceptance: Acceptance, offsets: Offsets, stated: float, feature: int = 0) -> float:
    tree = TokenTree.root(0)
    return acceptance.estimate(tree, tree.add(0, 1, stated, 1, feature), offsets)


def test_before_anything_is_known_the_drafter_is_believed() -> None:
    assert estimate(Acceptance(), Offsets(), 0.37) == pytest.approx(0.37)


def test_estimates_converge_to_the_truth_where_raw_confidences_lie() -> None:
    rng = random.Random(1)
    acceptance, offsets = Acceptance(), Offsets()
    truth = {0.95: 0.4, 0.55: 0.7, 0.15: 0.02}
    for _ in range(1500):
        stated = rng.choice(list(truth))
        step(acceptance, offsets, stated, rng.random() < truth[stated])
    for stated, p in truth.items():
        assert estimate(acceptance, offsets, stated) == pytest.approx(p, abs=0.09)
    # The cells alone, for a new request, as well.
    for stated, p in truth.items():
        assert estimate(acceptance, Offsets(), stated) == pytest.approx(p, abs=0.09)


def test_features_are_told_apart() -> None:
    rng = random.Random(2)
    acceptance, offsets = Acceptance(), Offsets()
    for _ in range(1500):
        feature = rng.choice([2, 9])
        step(acceptance, offsets, 0.5, rng.random() < (0.9 if feature == 9 else 0.2), feature)
    assert estimate(acceptance, offsets, 0.5, 9) - estimate(acceptance, offsets, 0.5, 2) > 0.5


def test_old_observations_are_forgotten() -> None:
    acceptance, offsets = Acceptance(), Offsets()
    for _ in range(2000):
        step(acceptance, offsets, 0.5, True)
    assert estimate(acceptance, Offsets(), 0.5) > 0.95
    for _ in range(600):
        step(acceptance, offsets, 0.5, False)
    assert estimate(acceptance, Offsets(), 0.5) < 0.1


def test_a_request_s_offset_follows_within_twenty_observations_and_leaves_others_alone() -> None:
    acceptance = Acceptance()
    for i in range(2000):
        step(acceptance, Offsets(), 0.5, i % 10 < 7)
    usual = estimate(acceptance, Offsets(), 0.5)
    assert usual == pytest.approx(0.7, abs=0.05)
    mine = Offsets()
    for _ in range(20):
        step(acceptance, mine, 0.5, False)
    assert estimate(acceptance, mine, 0.5) < 0.4
    assert estimate(acceptance, Offsets(), 0.5) > 0.6


def test_an_offset_settles_but_keeps_following() -> None:
    offsets = Offsets()
    for i in range(400):
        offsets.learn((1, 0), 0.5, i % 2 == 0)
    assert abs(offsets.by_source[1, 0]) < 0.1
    for _ in range(100):
        offsets.learn((1, 0), 0.5, True)
    assert offsets.by_source[1, 0] > 1.0
    for _ in range(1000):
        offsets.learn((1, 0), 0.5, True)
    assert offsets.by_source[1, 0] <= 2.5


def test_deeper_cells_start_from_what_the_first_level_showed() -> None:
    acceptance, offsets = Acceptance(), Offsets()
    tree = TokenTree.chain(0, [1, 2, 3, 4, 5], [0.5] * 5, source=1)
    for _ in range(100):
        acceptance.observe(tree, [1], offsets)  # plain decoding: one token a step
    assert acceptance.path_probs(tree, Offsets())[5] > 0.7
    for _ in range(300):
        acceptance.observe(tree, [1, 7], offsets)  # but the second token is never right
    reach = acceptance.path_probs(tree, Offsets())
    assert reach[1] > 0.9 and reach[2] < 0.15


def test_where_drafters_disagree_they_are_judged_apart() -> None:
    alone, both = TokenTree.root(0), TokenTree.root(0)
    alone.add(0, 1, 0.5, source=1)
    both.add(0, 1, 0.5, source=1)
    both.add(0, 2, 0.5, source=2)
    agreed = TokenTree.root(0)
    agreed.add(0, 1, 0.5, source=3)
    keys = {key_of(alone, 1), key_of(both, 1), key_of(both, 2), key_of(agreed, 1)}
    assert len(keys) == 4
    acceptance, offsets = Acceptance(), Offsets()
    for i in range(200):
        acceptance.observe(alone, [1], offsets)
        acceptance.observe(both, [1 if i % 2 else 2], offsets)
    assert acceptance.estimate(alone, 1, offsets) > 0.9
    assert acceptance.estimate(both, 1, offsets) == pytest.approx(0.5, abs=0.15)


def proposed(sources: int, stated: float, rivals: int = 0) -> TokenTree:
    """A node by `sources`, and another in its place by `rivals`."""
    tree = TokenTree.root(0)
    tree.add(0, 1, stated, sources)
    if rivals:
        tree.add(0, 2, 0.01, rivals)
    return tree


@pytest.mark.parametrize(
    ("sources", "rivals", "moved"),
    [(1, 0, True), (1 | 4, 0, True), (2, 0, False), (1, 4, False), (2 | 4, 0, False)],
)
def test_a_new_company_begins_with_what_its_like_has_shown(sources: int, rivals: int, moved: bool) -> None:
    acceptance, offsets = Acceptance(), Offsets()
    for _ in range(30):
        acceptance.observe(proposed(1, 0.3), [1], offsets)  # it is right much more often than it says
    found = acceptance.estimate(proposed(sources, 0.3, rivals), 1, Offsets())
    assert found > 0.7 if moved else found == pytest.approx(0.3)
    # Whatever it began with, what it shows itself decides.
    for _ in range(30):
        acceptance.observe(proposed(sources, 0.3, rivals), [7], offsets)
    assert acceptance.estimate(proposed(sources, 0.3, rivals), 1, Offsets()) < 0.55


def test_of_those_alike_the_one_with_most_in_common_counts() -> None:
    acceptance = Acceptance()
    for _ in range(30):
        acceptance.observe(proposed(1, 0.5), [7], Offsets())
        acceptance.observe(proposed(1 | 2, 0.5), [1], Offsets())
    assert acceptance.estimate(proposed(1 | 2 | 4, 0.5), 1, Offsets()) > 0.8
    assert acceptance.estimate(proposed(1 | 4, 0.5), 1, Offsets()) < 0.2


def test_siblings_of_one_drafter_are_not_rivals() -> None:
    tree = TokenTree.root(0)
    tree.add(0, 1, 0.5, source=1)
    tree.add(0, 2, 0.3, source=1, feature=1)
    assert key_of(tree, 1)[1] == key_of(tree, 2)[1] == 0


def test_path_probs_multiply_along_the_path() -> None:
    tree, acceptance, offsets = forked(), Acceptance(), Offsets()
    for i in range(60):
        acceptance.observe(tree, [[1, 3, 4], [5], [1, 2]][i % 3], offsets)
    reach = acceptance.path_probs(tree, offsets)
    assert reach[0] == 1.0
    for v in range(1, len(tree)):
        assert reach[v] == pytest.approx(reach[tree.parents[v]] * acceptance.estimate(tree, v, offsets))


@fixed
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=60),
    st.floats(0, 1),
)
def test_estimates_stay_probabilities(seen: list[tuple[float, int, int, bool]], stated: float) -> None:
    acceptance, offsets = Acceptance(), Offsets()
    for prob, source, feature, hit in seen:
        tree = TokenTree.root(0)
        tree.add(0, 1, prob, source, feature)
        acceptance.observe(tree, [1 if hit else 2], offsets)
    tree = TokenTree.root(0)
    for source in range(4):
        tree.add(0, source + 1, stated, source)
    assert all(0.0 <= p <= 1.0 for p in acceptance.path_probs(tree, offsets))


def learned() -> Acceptance:
    acceptance, offsets = Acceptance(), Offsets()
    tree = TokenTree.root(0)
    tree.add(0, 1, 0.5, source=1)
    tree.add(0, 2, 0.5, source=2)
    tree.add(0, 3, 0.5, source=3)
    for i in range(30):
        acceptance.observe(tree, [1 + i % 2], offsets)
    return acceptance


def test_round_trip() -> None:
    acceptance = learned()
    again = Acceptance.from_dict(json.loads(json.dumps(acceptance.as_dict(["a", "b"]))), ["a", "b"])
    assert again.cells == acceptance.cells and again.trends == acceptance.trends


def test_counts_in_other_bins_are_refused() -> None:
    for edges in ([0.5], None, list(EDGES[:-1])):
        with pytest.raises(ValueError, match="bins"):
            Acceptance.from_dict({**learned().as_dict(["a", "b"]), "edges": edges}, ["a", "b"])


def test_sure_estimates_are_told_apart() -> None:
    """What a chain of 15 is worth depends on whether each of its tokens is right in 95 or in 99 of 100 cases."""
    acceptance, truth = Acceptance(), {0.92: 0.8, 0.98: 0.95, 0.995: 1.0}
    rng = random.Random(1)
    for _ in range(400):
        for stated, right in truth.items():
            tree = TokenTree.root(0)
            tree.add(0, 1, stated, source=1)
            acceptance.observe(tree, [1 if rng.random() < right else 2], Offsets())
    for stated, right in truth.items():
        assert estimate(acceptance, Offsets(), stated) == pytest.approx(right, abs=0.04)


def test_drafters_are_renumbered_and_unknown_ones_dropped() -> None:
    acceptance = learned()
    data = acceptance.as_dict(["a", "b"])
    swapped = Acceptance.from_dict(data, ["b", "new", "a"])
    turn = {0: 0, 1: 4, 2: 1, 3: 5}
    assert swapped.cells == {(turn[k[0]], turn[k[1]], *k[2:]): v for k, v in acceptance.cells.items()}
    only = TokenTree.root(0)
    only.add(0, 1, 0.5, source=1)
    acceptance.observe(only, [1], Offsets())
    rest = Acceptance.from_dict(acceptance.as_dict(["a", "b"]), ["a"])
    key = key_of(only, 1)
    assert set(rest.cells) == {key} and set(rest.trends) == {kind_of(key)}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@fixed
@given(JSON, st.sampled_from(["", "edges", "drafters", "cells", "cell", "number", "trends", "trend", "line"]))
def test_junk_is_a_value_error_or_sound_counts(junk: Any, where: str) -> None:
    data: Any = {
        "drafters": ["a", "b"],
        "edges": list(EDGES),
        "cells": [[1, 0, 0, 1, 5, 2.0, 3.0]],
        "trends": [[1, 0, 0, *Trend().as_list()]],
    }
    if where == "cell":
        data["cells"] = [junk]
    elif where == "number":
        data["cells"] = [[1, 0, junk, 1, 5, 2.0, 3.0], [1, 0, 0, 1, 5, junk, junk]]
    elif where == "trend":
        data["trends"] = [junk]
    elif where == "line":
        data["trends"] = [[1, 0, 0, junk, 1.0, junk, 0.0, 0.2], [junk, 0, 0, 0.0, 1.0, 4.0, 0.0, 0.2]]
    else:
        data = {**data, where: junk} if where else junk
    try:
        found = Acceptance.from_dict(data, ["b", "a"])
    except ValueError:
        return
    assert all(0.0 <= hits <= n for hits, n in found.cells.values())
    assert all(0.0 <= trend.value(p) <= 1.0 for trend in found.trends.values() for p in (0.0, 0.5, 1.0))


@pytest.mark.parametrize("counts", [[5.0, 3.0], [-1.0, 3.0], [1.0, 1e9], [float("nan"), 3.0], ["x", 3.0]])
def test_impossible_counts_are_refused(counts: list[Any]) -> None:
    with pytest.raises(ValueError):
        Acceptance.from_dict(
            {"edges": list(EDGES), "drafters": ["a"], "cells": [[1, 0, 0, 1, 5, *counts]], "trends": []}, ["a"]
        )
