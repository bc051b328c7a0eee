"""Drafts grown from earlier texts and from the text itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.config import DrafterSpec
from lcspec.drafters import suffix as module
from lcspec.drafters.base import Budget, DrafterEnv
from lcspec.drafters.suffix import SuffixDrafter
from lcspec.errors import UsageError
from lcspec.spec.token_tree import TokenTree

fixed = settings(derandomize=True, deadline=None, max_examples=200)
TEXT = st.lists(st.integers(0, 2), max_size=20)
TEXTS = st.lists(TEXT, max_size=4)


@dataclass
class View:
    """A slot as the drafter sees it."""

    tokens: list[int]
    id: int = 1
    n_prompt: int = 0
    prediction: tuple[int, ...] = field(default=())


def drafter() -> SuffixDrafter:
    return SuffixDrafter(cast(DrafterEnv, SimpleNamespace(target=SimpleNamespace(n_vocab=50))))


def begun(text: list[int], number: int = 1, of: SuffixDrafter | None = None) -> tuple[SuffixDrafter, Any]:
    one, view = of or drafter(), View(list(text), number)
    one.begin(cast(Any, view), DrafterSpec("suffix"))
    return one, view


def draft(one: SuffixDrafter, view: Any, nodes: int = 8, depth: int = 8, branch: int = 1) -> TokenTree:
    return one.draft(view, Budget(nodes, depth, branch, 4))


def spoken(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.tokens[v] for v in tree.path_to(leaf)[1:]) for leaf in tree.leaves()} - {()}


def emit(one: SuffixDrafter, view: Any, *tokens: int) -> None:
    view.tokens += tokens
    one.observe(view, TokenTree.root(0), cast(Any, None))


def test_a_chain_continues_the_longest_match() -> None:
    one, view = begun([1, 2, 3, 4, 5, 9, 2, 3, 7, 1, 2, 3])
    tree = draft(one, view)
    assert spoken(tree) == {(4, 5, 9, 2, 3, 7, 1, 2)}
    assert tree.tokens[0] == 3 and tree.sources[1] == 4


def test_weights_are_shares_of_the_occurrences() -> None:
    one, view = begun([1, 2, 5, 0, 1, 2, 5, 8, 1, 2, 6, 9, 1, 2])
    tree = draft(one, view, branch=3)
    five, six = tree.child(0, 5), tree.child(0, 6)
    assert five is not None and six is not None
    assert tree.probs[five] == pytest.approx(4 / 7) and tree.probs[six] == pytest.approx(2 / 7)
    under = tree.children(five)
    assert sorted(tree.tokens[v] for v in under) == [0, 8]
    assert all(tree.probs[v] == pytest.approx(3 / 7) for v in under)


@fixed
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30), TEXTS, st.integers(0, 9), st.integers(0, 5), st.integers(1, 3)
)
def test_drafts_keep_to_the_budget_and_to_what_was_seen(
    text: list[int], earlier: list[list[int]], nodes: int, depth: int, branch: int
) -> None:
    one = drafter()
    for other in earlier:
        one.remember(other)
    _, view = begun(text, of=one)
    tree = draft(one, view, nodes, depth, branch)
    assert tree.n_drafted <= nodes and max(tree.depths) <= depth
    assert all(len(tree.children(v)) <= branch for v in range(len(tree)))
    least = 1 if branch > 1 else 2
    for path in spoken(tree):
        # After the text's last tokens this was once written; at the end of the text it goes on with itself.
        whole, tail = [*text, *path], [*text[-least:], *path]
        starts = [(other, i) for other in earlier for i in range(len(other))] + [
            (whole, i) for i in range(len(text) - least)
        ]
        assert len(text) >= least and any(other[i : i + len(tail)] == tail for other, i in starts)


@fixed
@given(st.lists(st.integers(0, 1), min_size=4, max_size=30), st.integers(1, 6), st.integers(1, 3))
def test_the_most_probable_nodes_come_first(text: list[int], nodes: int, branch: int) -> None:
    one, view = begun(text)
    reach = draft(one, view, nodes, 6, branch).path_probs()
    whole = draft(one, view, 200, 6, branch).path_probs()
    assert sorted(reach[1:].tolist()) == pytest.approx(sorted(whole[1:].tolist(), reverse=True)[: len(reach) - 1][::-1])


def test_no_match_of_two_tokens_no_chain() -> None:
    one, view = begun([1, 2, 3, 2])
    assert draft(one, view).n_drafted == 0
    assert draft(one, view, branch=2).tokens[1] == 3, "a tree has room for what is not likely"
    emit(one, view, 3)
    assert spoken(draft(one, view, depth=3)) == {(2, 3, 2)}


def test_earlier_texts_help_a_later_request() -> None:
    one, first = begun([1, 2, 3, 4, 5])
    emit(one, first, 6, 7)
    assert draft(one, first).n_drafted == 0
    one.end(first)
    _, second = begun([9, 4, 5], 2, one)
    assert spoken(draft(one, second)) == {(6, 7)}


def test_the_longer_of_the_two_matches_speaks_first() -> None:
    one = drafter()
    one.remember([1, 2, 3, 8, 8])
    _, view = begun([2, 3, 5, 1, 2, 3], of=one)
    assert draft(one, view, nodes=1).tokens[1] == 8
    one.remember([4])
    both = draft(one, view, nodes=8, branch=2)
    assert {both.tokens[v] for v in both.children(0)} == {8, 5}


def test_slots_side_by_side_do_not_see_each_other() -> None:
    one, a = begun([1, 2, 3, 1, 2], 1)
    _, b = begun([1, 2, 7, 7, 1, 2], 2, one)
    assert spoken(draft(one, a, depth=3)) == {(3, 1, 2)}
    assert spoken(draft(one, b, depth=4)) == {(7, 7, 1, 2)}
    emit(one, a, 3)
    emit(one, b, 7)
    assert draft(one, a).tokens[1] == 1 and draft(one, b).tokens[1] == 7
    one.end(a)
    assert draft(one, b).tokens[1] == 7


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 40)
    one, view = begun([100, 101, 0, 3], 99)
    for i in range(12):
        one.remember([i, *range(200 + 10 * i, 209 + 10 * i)])
        assert sum(map(len, one._texts)) <= 40
        assert len(one._earlier.tokens) <= 2 * 40
        emit(one, view, i)  # its place in the automaton must stay valid whatever was dropped
        draft(one, view)
    emit(one, view, 310, 311)
    assert draft(one, view).tokens[1] == 312
    emit(one, view, 200, 201)
    assert draft(one, view).n_drafted == 0, "the oldest text should be gone"
    one.remember(list(range(1000, 1100)))
    assert sum(map(len, one._texts)) <= 40


def test_a_text_that_is_over_says_nothing_about_the_next() -> None:
    one = drafter()
    one.remember([1, 2])
    one.remember([3, 4])
    _, view = begun([9, 1, 2], of=one)
    assert draft(one, view, branch=3).n_drafted == 0


def test_improbable_paths_are_not_drafted() -> None:
    one, view = begun([token for i in range(20) for token in (7, 10 + i)] + [7])
    assert draft(one, view, branch=3).n_drafted == 3
    assert max(draft(one, view, nodes=30, branch=30).depths) <= 1
    probs = one.draft(view, Budget(30, 8, 30, floor=0.2)).path_probs()
    assert len(probs) == 1 or min(probs) >= 0.2


def test_unknown_options_are_refused() -> None:
    with pytest.raises(UsageError, match="suffix has no option 'depth'"):
        drafter().begin(cast(Any, View([1])), DrafterSpec.parse("suffix:depth=3"))
