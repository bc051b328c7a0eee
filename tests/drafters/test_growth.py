"""A draft tree while it grows: who gets a level below, and what stays of it."""

from __future__ import annotations

import pytest

from lcspec.drafters.base import Budget
from lcspec.drafters.growth import Growth
from lcspec.spec.token_tree import TokenTree

THREE = [(5, 0.6, None), (6, 0.3, None), (7, 0.05, None)]


def grown(**budget: float) -> tuple[Growth, list[int]]:
    growth = Growth(TokenTree.root(1), Budget(8, 8, 3, 1, **budget), 0.0)  # type: ignore[arg-type]
    return growth, growth.add(0, THREE)


@pytest.mark.parametrize(("below", "tokens"), [(0.0, [5, 6, 7]), (0.1, [5, 6]), (0.5, [5]), (0.9, [5])])
def test_a_level_below_is_for_the_likeliest_node_and_for_whom_it_pays(below: float, tokens: list[int]) -> None:
    growth, fresh = grown(below=below)
    assert [growth.tree.tokens[v] for v in growth.next_level(fresh, 3)] == tokens
    assert growth.tree.n_drafted == 3, "those it does not pay for are drafts all the same"


def test_what_cannot_be_worth_its_row_is_no_draft_but_the_best_is() -> None:
    growth, fresh = grown(floor=0.2)
    assert [growth.tree.tokens[v] for v in fresh] == [5, 6]
    growth, fresh = grown(floor=0.9)
    assert [growth.tree.tokens[v] for v in fresh] == [5]


def test_the_likeliest_nodes_stay() -> None:
    growth = Growth(TokenTree.root(1), Budget(3, 8, 3, 1), 0.0)
    fresh = growth.add(0, THREE)
    newer = growth.add(fresh[0], [(8, 0.9, None), (9, 0.02, None)])
    assert sorted(growth.best().tokens[1:]) == [5, 6, 8]
    assert [growth.tree.tokens[v] for v in growth.next_level(newer, 3)] == [8]


def test_nobody_asks_about_siblings_of_one_that_is_no_draft() -> None:
    asked: list[float] = []

    def expects(prob: float) -> float:
        asked.append(prob)
        return prob

    growth, fresh = grown(floor=0.4, expects=expects)  # type: ignore[arg-type]
    assert [growth.tree.tokens[v] for v in fresh] == [5]
    assert asked == [0.6, 0.3]
