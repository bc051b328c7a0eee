"""The n-gram drafter against a search of the whole text."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.config import DrafterSpec
from lcspec.drafters import Budget, Drafter, DrafterEnv
from lcspec.drafters.base import create
from lcspec.drafters.suffix import NgramDrafter
from lcspec.drafters.text_index import TextIndex
from lcspec.errors import UsageError
from lcspec.sampling.parameters import SamplingParams
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

fixed = settings(derandomize=True, deadline=None, max_examples=200)
ENV = cast(DrafterEnv, SimpleNamespace())
TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=30)


@dataclass
class View:
    """A slot as a drafter sees it."""

    tokens: list[int]
    id: int = 1
    n_prompt: int = 0
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    draws: int = 0
    prediction: tuple[int, ...] = ()

    def forced_text(self, limit: int) -> str:
        return ""


def budget(nodes: int = 8, depth: int = 8, branch: int = 1, **more: Any) -> Budget:
    return Budget(nodes, depth, branch, **more)


def started(text: list[int], spec: str = "ngram", number: int = 1) -> tuple[NgramDrafter, View]:
    drafter, view = NgramDrafter(ENV), View(list(text), number)
    drafter.begin(view, DrafterSpec.parse(spec))
    return drafter, view


def draft(text: list[int], spec: str = "ngram", **limits: int) -> TokenTree:
    drafter, view = started(text, spec)
    return drafter.draft(view, budget(**limits))


def texts(tree: TokenTree) -> set[tuple[int, ...]]:
    """The drafted continuations, every path from its first drafted token."""
    return {tuple(tree.tokens[v] for v in tree.path_to(i)[1:]) for i in range(1, len(tree))}


def places(text: list[int], n: int) -> list[int]:
    """Every earlier position that follows the text's last `n` tokens, newest first; by looking everywhere."""
    return [at for at in range(len(text) - 1, n - 1, -1) if n <= len(text) and text[at - n : at] == text[-n:]]


def test_a_repeated_phrase_is_continued() -> None:
    tree = draft([1, 2, 3, 4, 5, 9, 1, 2, 3])
    # ... and once it has caught up with the end, so is what was drafted
    assert tree.tokens[0] == 3 and tree.tokens[1:] == [4, 5, 9, 1, 2, 3, 4, 5]
    assert tree.depths == list(range(9))


def test_nothing_to_say() -> None:
    for text in ([1], [1, 2], [1, 2, 3, 4], [2, 2]):
        assert draft(text).n_drafted == 0
    assert draft([5, 6, 7, 5], "ngram:min_n=1", depth=3).tokens == [5, 6, 7, 5]


def test_the_text_s_own_end_is_no_match() -> None:
    # [2, 2, 2]: the last two tokens occur before, one position earlier, and only there
    assert draft([2, 2, 2]).tokens == [2] * 9
    assert draft([1, 1, 1], "ngram:min_n=3").n_drafted == 0


def test_the_longest_match_comes_first() -> None:
    # after (2, 3): 7, more recently; after (1, 2, 3): 4
    text = [1, 2, 3, 4, 8, 2, 3, 7, 0, 1, 2, 3]
    assert draft(text, nodes=1).tokens == [3, 4]
    assert draft(text, "ngram:max_n=2", nodes=1).tokens == [3, 7]
    assert texts(draft(text, nodes=8, depth=1, branch=2)) == {(4,), (7,)}
    assert draft([*text[:8], 9, 2, 3, 7, 0, 1, 2, 3], nodes=1).tokens == [3, 7], (
        "two of two tokens outweigh one of three"
    )


def test_the_most_frequent_then_the_newest_continuation() -> None:
    often = [1, 2, 5, 0, 1, 2, 5, 3, 1, 2, 6, 4, 1, 2]
    assert draft(often, nodes=1).tokens == [2, 5]
    once_each = [1, 2, 5, 0, 1, 2, 6, 4, 1, 2]
    assert draft(once_each, nodes=1).tokens == [2, 6]


def test_several_continuations_become_one_tree() -> None:
    text = [1, 2, 3, 4, 0, 1, 2, 3, 5, 9, 1, 2, 7, 8, 6, 1, 2]
    tree = draft(text, nodes=8, depth=2, branch=2)
    assert texts(tree) == {(3,), (7,), (3, 4), (3, 5), (7, 8)}
    child = tree.child(0, 3)
    assert child is not None and tree.probs[child] == pytest.approx(4 / 7)


def test_a_chain_ends_where_most_occurrences_disagree() -> None:
    text = [1, 2, 3, 4, 7, 1, 2, 3, 5, 8, 1, 2, 3, 6, 9, 1, 2]
    assert draft(text).tokens == [2, 3]
    assert texts(draft(text, depth=2, branch=3)) == {(3,), (3, 4), (3, 5), (3, 6)}
    assert draft([*text[:10], 1, 2], depth=2).tokens == [2, 3, 5], "half of them is enough"


@pytest.mark.parametrize("branch", [1, 2])
def test_a_short_period_goes_on(branch: int) -> None:
    tree = draft([9, 7, 8, 7, 8], nodes=12, depth=12, branch=branch)
    assert tree.tokens == [8] + [7, 8] * 6 and max(tree.depths) == 12


def test_shares_never_reach_1() -> None:
    tree = draft([1, 2, 3] * 6, nodes=5)
    assert tree.tokens[1:] == [1, 2, 3, 1, 2]
    assert all(0.5 <= p < 1.0 for p in tree.probs[1:])
    assert draft([1, 2, 3, 9, 1, 2], nodes=1).probs[1] == pytest.approx(2 / 3)


@fixed
@given(TEXT, st.integers(0, 6), st.integers(0, 4), st.integers(1, 3))
def test_budgets_are_respected_and_every_path_was_seen(text: list[int], nodes: int, depth: int, branch: int) -> None:
    tree = draft(text, nodes=nodes, depth=depth, branch=branch)
    assert tree.tokens[0] == text[-1]
    assert tree.n_drafted <= nodes
    assert max(tree.depths) <= depth
    assert all(len(tree.children(i)) <= branch for i in range(len(tree)))
    assert not tree.trials
    for path in texts(tree):
        # what followed an earlier place, which may run on into the draft itself
        assert any((*text[at:], *path)[: len(path)] == path for at in places(text, 2))
    if nodes and depth and branch > 1:
        assert (tree.n_drafted > 0) == bool(places(text, 2))
    if tree.n_drafted:
        weights: dict[int, int] = {}
        for at in places(text, 2):
            longest = next((n for n in (4, 3) if at in places(text, n)), 2)
            weights[text[at]] = weights.get(text[at], 0) + longest
        assert tree.tokens[1] == max(weights, key=lambda token: weights[token]), "of equals the newest"


@fixed
@given(TEXT, st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=8))
def test_an_index_that_grows_equals_one_from_scratch(prompt: list[int], steps: list[list[int]]) -> None:
    drafter, view = started(prompt, "ngram:min_n=1")
    for emitted in steps:
        tree = drafter.draft(view, budget(branch=2))
        view.tokens += emitted
        drafter.observe(view, tree, Verdict([], emitted, False))
        fresh, other = started(view.tokens, "ngram:min_n=1")
        assert vars(drafter._slots[1].index) == vars(fresh._slots[1].index)
        ours, theirs = drafter.draft(view, budget(branch=2)), fresh.draft(other, budget(branch=2))
        assert (ours.tokens, ours.parents, ours.probs) == (theirs.tokens, theirs.parents, theirs.probs)


@fixed
@given(TEXT, st.integers(1, 2), st.integers(1, 5), st.integers(1, 6))
def test_places_are_those_a_search_finds(text: list[int], n: int, least: int, longest: int) -> None:
    index = TextIndex(n)
    index.extend(text)
    found = index.places(text[-longest:], 16, least, below=len(text))
    assert [at for _, at, _ in found] == (places(text, max(n, least)) if max(n, least) <= longest else [])[:16]
    for length, at, _ in found:
        assert length == max(k for k in range(1, longest + 1) if at in places(text, k))


def test_slots_are_apart_and_end() -> None:
    drafter, one = started([1, 2, 3, 1, 2])
    two = View([4, 5, 6, 4, 5], 2)
    drafter.begin(two, DrafterSpec("ngram"))
    assert drafter.draft(one, budget(1)).tokens == [2, 3]
    assert drafter.draft(two, budget(1)).tokens == [5, 6]
    drafter.end(one)
    drafter.end(one)
    assert drafter.draft(two, budget(1)).tokens == [5, 6]
    again = View([7, 8, 9], 1)
    drafter.begin(again, DrafterSpec("ngram"))
    assert drafter.draft(again, budget(1)).n_drafted == 0


def test_options() -> None:
    for spec in ("ngram:max_n=0", "ngram:min_n=17", "ngram:min_n=3:max_n=2", "ngram:nonsense=1", "ngram:max_n=x"):
        with pytest.raises(UsageError):
            started([1, 2], spec)
    assert draft([1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5], "ngram:min_n=5").tokens[1] == 9


def test_the_registry_knows_it() -> None:
    drafter: Drafter = create("ngram", ENV)
    assert drafter.name == "ngram" and not drafter.wants_hidden
    with pytest.raises(UsageError, match="ngram"):
        create("nonsense", ENV)


# --- continuations of a text that is only drafted so far --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "more", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [], ([3, 4, 5, 1], 2)),
        ([1, 2, 3, 4, 5, 1], [2, 3], ([4, 5, 1, 2], 3)),
        ([1, 2, 3, 4, 5, 9], [1, 2], ([3, 4, 5, 9], 2)),
        ([7, 8, 7, 8], [], ([7, 8, 7, 8], 2)),
        ([7, 8, 7], [8, 7], ([8, 7, 8, 7], 3)),
        ([1, 2, 3], [9, 9], ([], 0)),
        ([1], [], ([], 0)),
    ],
)
def test_a_continuation_of_what_is_only_drafted(
    text: list[int], more: list[int], expected: tuple[list[int], int]
) -> None:
    drafter, view = started(text)
    assert drafter.continuation(view, more, 4) == expected
    assert drafter.continuation(view, more, 0)[0] == []
