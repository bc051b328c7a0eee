"""Token trees: building, merging, pruning, and the order in which they are decoded."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.sampling.distribution import Distribution
from lcspec.spec import cutting
from lcspec.spec.token_tree import TokenTree, Trial

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=150)
fixed = settings.get_profile("fixed")

# (parent, token, prob, source) of every further node; the parent is taken modulo the nodes there are.
NODE = st.tuples(
    st.integers(0, 30),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5, 0.9, 1.0]),
    st.sampled_from([1, 2, 4]),
)
NODES = st.lists(NODE, max_size=24)


def build(nodes: list[tuple[int, int, float, int]]) -> TokenTree:
    tree = TokenTree.root(7)
    for parent, token, prob, source in nodes:
        tree.add(parent % len(tree), token, prob, source)
    return tree


trees = NODES.map(build)


def spelled(tree: TokenTree) -> dict[tuple[int, ...], tuple[float, int]]:
    """A tree whatever its nodes' numbers: the text of every path, with the estimate and sources of its last node."""
    return {tuple(tree.tokens[v] for v in tree.path_to(i)): (tree.probs[i], tree.sources[i]) for i in range(len(tree))}


def check(tree: TokenTree) -> None:
    """The invariants in the module's docstring."""
    n = len(tree)
    assert n == len(tree.parents) == len(tree.depths) == len(tree.probs) == len(tree.sources) == tree.n_drafted + 1
    assert tree.parents[0] == -1 and tree.depths[0] == 0
    for i in range(1, n):
        assert 0 <= tree.parents[i] < i
        assert tree.depths[i] == tree.depths[tree.parents[i]] + 1
        assert tree.child(tree.parents[i], tree.tokens[i]) == i
    for i in range(n):
        assert tree.children(i) == [j for j in range(n) if tree.parents[j] == i]
        assert len({tree.tokens[j] for j in tree.children(i)}) == len(tree.children(i))
    assert tree.leaves() == [i for i in range(n) if i not in tree.parents]
    for parent, trials in tree.trials.items():
        assert {t.child for t in trials} == set(tree.children(parent))


@fixed
@given(trees)
def test_random_trees_keep_the_invariants(tree: TokenTree) -> None:
    check(tree)
    reach = tree.path_probs()
    for i in range(len(tree)):
        path = tree.path_to(i)
        assert path[0] == 0 and path[-1] == i and len(path) == tree.depths[i] + 1
        assert [tree.parents[v] for v in path[1:]] == path[:-1]
        assert reach[i] == pytest.approx(np.prod([tree.probs[v] for v in path]), rel=1e-5)


def test_adding_a_child_twice_merges_it() -> None:
    tree = TokenTree.root(7)
    a = tree.add(0, 1, 0.2, source=1)
    assert tree.add(0, 1, 0.6, source=4) == a
    assert tree.add(0, np.int32(1), 0.3, source=0) == a
    assert (len(tree), tree.probs[a], tree.sources[a]) == (2, 0.6, 5)
    assert type(tree.tokens[a]) is int


def test_chain() -> None:
    tree = TokenTree.chain(7, [1, 2, 2], [0.9, 0.8, 0.7], source=2)
    assert (tree.tokens, tree.parents, tree.depths) == ([7, 1, 2, 2], [-1, 0, 1, 2], [0, 1, 2, 3])
    assert (tree.probs, tree.sources) == ([1.0, 0.9, 0.8, 0.7], [0, 2, 2, 2])
    assert tree.leaves() == [3] and tree.path_to(3) == [0, 1, 2, 3]
    assert TokenTree.chain(7, []).leaves() == [0]
    assert TokenTree.chain(7, iter([1, 2])).probs == [1.0, 1.0, 1.0]


def test_trees_share_nothing() -> None:
    TokenTree.root(1).add(0, 2)
    assert TokenTree.root(1).n_drafted == 0 and TokenTree.root(1).children(0) == []


# --- merge ------------------------------------------------------------------------------------------------------------


@fixed
@given(NODES, NODES, NODES)
def test_merge_is_a_union(
    a: list[tuple[int, int, float, int]], b: list[tuple[int, int, float, int]], c: list[tuple[int, int, float, int]]
) -> None:
    left, right, twice, nested = build(a), build(b), build(a), build(a)
    left.merge(build(b))
    right.merge(build(a))
    twice.merge(build(a))
    check(left)
    assert set(spelled(left)) == set(spelled(build(a))) | set(spelled(build(b)))
    assert spelled(left) == spelled(right)
    assert spelled(twice) == spelled(build(a))
    assert (twice.tokens, twice.parents) == (build(a).tokens, build(a).parents)
    left.merge(build(c))
    bc = build(b)
    bc.merge(build(c))
    nested.merge(bc)
    assert spelled(left) == spelled(nested)


@fixed
@given(NODES, NODES)
def test_merge_keeps_numbers_and_leaves_the_other_alone(
    a: list[tuple[int, int, float, int]], b: list[tuple[int, int, float, int]]
) -> None:
    tree, other, before = build(a), build(b), spelled(build(b))
    tokens, parents = list(tree.tokens), list(tree.parents)
    tree.merge(other)
    assert (tree.tokens[: len(tokens)], tree.parents[: len(parents)]) == (tokens, parents)
    assert spelled(other) == before


def test_merge_takes_the_larger_estimate_and_both_sources() -> None:
    tree = TokenTree.chain(7, [1, 2], [0.5, 0.9], source=1)
    tree.merge(TokenTree.chain(7, [1, 3], [0.8, 0.1], source=2))
    assert spelled(tree) == {(7,): (1.0, 0), (7, 1): (0.8, 3), (7, 1, 2): (0.9, 1), (7, 1, 3): (0.1, 2)}


def test_merge_refuses_another_pending_token() -> None:
    with pytest.raises(ValueError, match="pending"):
        TokenTree.root(1).merge(TokenTree.root(2))


# --- cutting ----------------------------------------------------------------------------------------------------------


@fixed
@given(trees, st.integers(-1, 26))
def test_best_is_the_n_likeliest_nodes_and_a_tree(tree: TokenTree, n: int) -> None:
    best = cutting.best(tree, n)
    check(best)
    assert best.n_drafted == max(0, min(n, tree.n_drafted))
    kept, everything = spelled(best), spelled(tree)
    assert kept.items() <= everything.items()
    reach = sorted(tree.path_probs()[1:].tolist(), reverse=True)
    assert sorted(best.path_probs()[1:].tolist(), reverse=True) == reach[: best.n_drafted]


@fixed
@given(trees, st.integers(1, 12))
def test_with_leaves_keeps_whole_branches_with_the_most_tokens(tree: TokenTree, n: int) -> None:
    cut = cutting.with_leaves(tree, n)
    check(cut)
    leaves = tree.leaves()
    assert len(cut.leaves()) == min(n, len(leaves))
    assert spelled(cut).items() <= spelled(tree).items()
    ends = {tuple(tree.tokens[v] for v in tree.path_to(i)) for i in leaves}
    assert {tuple(cut.tokens[v] for v in cut.path_to(i)) for i in cut.leaves()} <= ends
    reach = tree.path_probs()
    others = itertools.islice(itertools.combinations(leaves, min(n, len(leaves))), 200)
    most = max(sum(reach[v] for v in {v for leaf in some for v in tree.path_to(leaf)}) for some in others)
    assert cut.path_probs().sum() >= most - 1e-5


def test_a_long_chain_is_better_than_a_short_one_that_is_surer() -> None:
    tree = TokenTree.chain(7, [1, 2, 3], [0.6, 0.6, 0.6])
    tree.merge(TokenTree.chain(7, [4], [0.3]))
    assert cutting.with_leaves(tree, 1).tokens == [7, 1, 2, 3]


@fixed
@given(trees, st.data())
def test_pruned_keeps_exactly_what_it_is_told(tree: TokenTree, data: st.DataObject) -> None:
    keep = {0}
    for i in range(1, len(tree)):
        if tree.parents[i] in keep and data.draw(st.booleans()):
            keep.add(i)
    out = cutting.pruned(tree, data.draw(st.permutations(sorted(keep))))
    check(out)
    names = {tuple(tree.tokens[v] for v in tree.path_to(i)) for i in keep}
    assert spelled(out) == {k: v for k, v in spelled(tree).items() if k in names}


def test_pruned_refuses_orphans() -> None:
    tree = TokenTree.chain(7, [1, 2, 3])
    with pytest.raises(ValueError, match="node 2 .* parent 1"):
        cutting.pruned(tree, [2])
    with pytest.raises(ValueError, match="node 3"):
        cutting.pruned(tree, [1, 3])
    assert cutting.pruned(tree, []).n_drafted == 0


def test_estimates_travel() -> None:
    tree = TokenTree.root(7)
    tree.add(tree.add(0, 1, 0.5), 2, 0.9)
    tree.add(0, 3, 0.1)
    other = TokenTree.root(7)
    other.add(0, 1, 0.6)
    other.add(0, 3, 0.05)
    assert cutting.best(tree, 2).probs == [1.0, 0.5, 0.9]
    tree.merge(other)
    assert tree.probs == [1.0, 0.6, 0.9, 0.1]


# --- the order of the batch -------------------------------------------------------------------------------------------


@fixed
@given(trees)
def test_batch_order_is_the_likeliest_path_then_the_rest_parents_first(tree: TokenTree) -> None:
    order = tree.batch_order()
    assert sorted(order) == list(range(len(tree))) and order[0] == 0
    place = {v: i for i, v in enumerate(order)}
    assert all(place[tree.parents[v]] < place[v] for v in order[1:])
    spine = [0]
    while kids := tree.children(spine[-1]):
        spine.append(max(kids, key=lambda v: tree.probs[v]))  # max takes the first among equals
    assert order[: len(spine)] == spine


# --- drawn children ---------------------------------------------------------------------------------------------------


Q = Distribution(np.array([1, 2, 3], dtype=np.int32), np.array([0.5, 0.3, 0.2]))
R = Distribution(np.array([1, 2, 3], dtype=np.int32), np.array([0.1, 0.1, 0.8]))


def trials(tree: TokenTree, node: int = 0) -> list[tuple[int, str]]:
    """Tokens tried below `node`, and whether they were drawn from Q or R or are certain."""
    names = {id(Q): "Q", id(R): "R", id(None): "-"}
    return [(tree.tokens[t.child], names[id(t.draft)]) for t in tree.trials_of(node)]


def drawn(*tokens: int, dist: Distribution = Q) -> TokenTree:
    tree = TokenTree.root(7)
    for token in tokens:
        tree.add_sampled(0, token, dist)
    return tree


def test_every_draw_is_recorded_even_of_the_same_token() -> None:
    tree = drawn(2, 2, 1)
    check(tree)
    assert tree.tokens == [7, 2, 1] and tree.probs == [1.0, 0.3, 0.5]
    assert trials(tree) == [(2, "Q"), (2, "Q"), (1, "Q")]


def test_certain_children_before_and_after_the_draws_are_tried_in_that_order() -> None:
    tree = TokenTree.root(7)
    tree.add(0, 3)
    tree.add_sampled(0, 3, Q)
    tree.add(0, 3)
    tree.add(0, 1)
    tree.add(0, 1)
    assert trials(tree) == [(3, "-"), (3, "Q"), (1, "-")]
    assert trials(tree, 1) == []


def test_trials_of_undrawn_children_are_their_order() -> None:
    tree = TokenTree.root(7)
    tree.add(0, 3)
    tree.add(0, 1)
    assert tree.trials_of(0) == [Trial(1, None), Trial(2, None)]
    assert tree.trials == {}


@pytest.mark.parametrize("token", [1, 2, 3])
def test_merging_never_drops_a_trial_because_of_the_token_drawn(token: int) -> None:
    # a drop that depends on the token drawn biases the sampling verifiers: the number of trials must not depend on it
    certain = TokenTree.chain(7, [2])
    certain.merge(drawn(token))
    assert trials(certain) == [(2, "-"), (token, "Q")]
    sampled = drawn(token)
    sampled.merge(TokenTree.chain(7, [2]))
    assert trials(sampled) == [(token, "Q"), (2, "-")]
    sampled.merge(drawn(1, 3, dist=R))
    assert trials(sampled) == [(token, "Q"), (2, "-"), (1, "R"), (3, "R")]
    sampled.merge(TokenTree.chain(7, [2]))
    assert len(trials(sampled)) == 4
    for tree in (certain, sampled):
        check(tree)


def test_merging_brings_draws_below_new_nodes() -> None:
    other = TokenTree.chain(7, [4])
    other.add_sampled(1, 2, Q)
    tree = TokenTree.chain(7, [5])
    tree.merge(other)
    check(tree)
    node = tree.child(0, 4)
    assert node is not None and trials(tree, node) == [(2, "Q")]
    assert trials(tree) == [(5, "-"), (4, "-")]


@pytest.mark.parametrize("tokens", [(1, 2), (2, 2)])
def test_cutting_keeps_the_first_draws_whatever_they_drew(tokens: tuple[int, int]) -> None:
    for tree in (cutting.best(drawn(*tokens), 1), cutting.with_leaves(drawn(*tokens), 1)):
        check(tree)
        assert trials(tree) == [(tokens[0], "Q")]
    for tree in (cutting.best(drawn(*tokens), 2), cutting.with_leaves(drawn(*tokens), 2)):
        check(tree)
        assert trials(tree) == [(tokens[0], "Q"), (tokens[1], "Q")]


@pytest.mark.parametrize("room", range(1, 6))
def test_another_drafter_never_leaves_less_to_verify(room: int) -> None:
    # all or none of a node's children used to be kept: with a room of 1, nothing was where two drafters had an idea
    one = drawn(1)
    one.add_sampled(1, 2, Q)
    for other in (TokenTree.chain(7, [3, 4]), drawn(2, 3), TokenTree.chain(7, [1, 2])):
        both = TokenTree.root(7)
        both.merge(one)
        both.merge(other)
        check(cutting.best(both, room))
        assert cutting.best(both, room).n_drafted >= cutting.best(one, room).n_drafted


def test_below_nodes_that_drew_nothing_the_most_probable_children_are_kept() -> None:
    tree = drawn(1)
    for token, prob in ((1, 0.1), (2, 0.6), (3, 0.3)):
        tree.add(1, token, prob)
    assert [cutting.best(tree, 3).tokens[v] for v in cutting.best(tree, 3).children(1)] == [2, 3]


def test_pruned_makes_drawn_children_certain() -> None:
    assert trials(cutting.pruned(drawn(1, 2), [1])) == [(1, "-")]
    assert trials(cutting.pruned(drawn(2, 2), [1])) == [(2, "-")]


@fixed
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3), st.booleans()), max_size=16),
    st.integers(0, 18),
    st.integers(1, 8),
)
def test_cut_trees_with_draws_are_closed_and_within_their_room(
    adds: list[tuple[int, int, bool]], n: int, leaves: int
) -> None:
    tree = TokenTree.root(7)
    for parent, token, sampled in adds:
        parent %= len(tree)
        if sampled:
            tree.add_sampled(parent, token, Q)
        else:
            tree.add(parent, token, 0.4)
    check(tree)
    best, narrow = cutting.best(tree, n), cutting.with_leaves(tree, leaves)
    for cut in (best, narrow):
        check(cut)
        for node in cut.trials:
            whole = next(
                trials(tree, i)
                for i in range(len(tree))
                if [tree.tokens[v] for v in tree.path_to(i)] == [cut.tokens[v] for v in cut.path_to(node)]
            )
            assert trials(cut, node) == whole[: len(trials(cut, node))]
    assert best.n_drafted <= n and len(narrow.leaves()) <= leaves
    assert spelled(cutting.best(tree, 99)) == spelled(tree)


@fixed
@given(trees)
def test_nothing_stands_below_the_end_of_the_text(tree: TokenTree) -> None:
    ended = cutting.ended(tree, frozenset({2}))
    check(ended)
    before = spelled(tree)
    # a path may hold the end (here token 2) as its last token only; all others stay as they were
    assert spelled(ended) == {path: what for path, what in before.items() if 2 not in path[1:-1]}


def test_draws_beside_the_end_of_the_text_stay_draws() -> None:
    draft = Distribution(np.arange(4, dtype=np.int32), np.full(4, 0.25))
    tree = TokenTree.root(7)
    first = tree.add_sampled(0, 1, draft)
    end = tree.add_sampled(0, 2, draft)
    tree.add_sampled(end, 3, draft)
    tree.add_sampled(first, 3, draft)
    ended = cutting.ended(tree, frozenset({2}))
    assert ended.n_drafted == 3 and not ended.children(ended.child(0, 2) or 0)
    assert [t.draft is draft for t in ended.trials[0]] == [True, True]
    assert cutting.ended(tree, frozenset({9})) is tree
