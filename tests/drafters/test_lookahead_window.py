"""The window of lookahead decoding against a slow implementation of the paper's algorithm, its pool, and both drafters
on a target made of numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.config import DrafterSpec
from lcspec.drafters import Budget, DrafterEnv
from lcspec.drafters.base import create
from lcspec.drafters.jacobi import FIXED, MOVING
from lcspec.drafters.jacobi_window import JacobiWindow, NgramPool
from lcspec.drafters.lookahead import LookaheadDrafter
from lcspec.errors import UsageError
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.planner.base import Limits
from lcspec.planner.fixed import FixedPlanner
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict
from tests.markov import Target, View, answers, step

fixed = settings(derandomize=True, deadline=None, max_examples=60)
ENV = cast(DrafterEnv, SimpleNamespace())
ROOM = Limits(255, 200, 64)


# --- the window -------------------------------------------------------------------------------------------------------


def guess_of(seed: int, vocab: int) -> Callable[[int], int]:
    return lambda position: random.Random(f"{seed}:{position}").randrange(vocab)


class PaperWindow:
    """The algorithm as the paper has it, level by level and without a thought for speed.

    `levels[j][i]` is the guess of level j in column i; while the window is filled, levels are longer by the columns
    that fall off. Only for a text that goes on by one token a step, which is what the paper describes.
    """

    def __init__(self, w: int, n: int, guess: Callable[[int], int], at: int) -> None:
        self.w, self.n = w, n
        self.levels = [[guess(at + i) for i in range(w + n - 2)]]

    def step(self, target: Target, text: list[int]) -> list[tuple[int, tuple[int, ...]]]:
        self.levels[0][0] = text[-1]
        new = []
        for i in range(len(self.levels[0])):
            column = [level[i] for level in self.levels[1:]]
            new.append(target([*text, *self.levels[0][1 : i + 1], *column]))
        if len(self.levels) < self.n - 1:
            self.levels = [level[1:] for level in [*self.levels, new]]
            return []
        grams = [
            (self.levels[0][i], (*(level[i] for level in self.levels[1:]), new[i])) for i in range(len(self.levels[0]))
        ]
        self.levels = [*self.levels[1:], new]
        return grams


def evaluated(window: JacobiWindow, target: Target, text: Sequence[int], width: int) -> list[int]:
    """What the target says on top of the first `width` columns."""
    tree, tops = window.tree(width)
    return answers(target, text, tree, tops).tolist()


@pytest.mark.parametrize(("w", "n"), [(5, 4), (1, 3), (4, 3), (15, 5), (3, 7)])
@pytest.mark.parametrize("vocab", [3, 50])
def test_the_window_is_the_paper_s_after_every_step(w: int, n: int, vocab: int) -> None:
    target, text = Target(vocab), [0, 1, 2, 1]
    guess = guess_of(1, vocab)
    window, paper = JacobiWindow(n, guess), PaperWindow(w, n, guess, len(text) - 1)
    collected = 0
    for number in range(3 * n):
        columns = window.columns_for(10_000, w)
        window.widen(columns, len(text) - 1, text[-1])
        tops, token = evaluated(window, target, text, columns), target(text)
        expected = paper.step(target, text)
        text.append(token)
        assert window.advance(tops, [token]) == expected
        # The first token of level 0 has become part of the text.
        levels = [list(level) for level in zip(*window.columns)]
        assert [level[1:] for level in levels[:1]] + levels[1:] == [paper.levels[0][1:], *paper.levels[1:]]
        assert window.columns[0][0] == token
        assert window.warm == (number >= n - 3), "n - 2 steps fill the window"
        collected += len(expected)
    assert collected == w * (3 * n - (n - 2)), "then every column gives an n-gram a step"


def test_the_first_steps_by_hand() -> None:
    """W = 3, N = 4 on a target that counts, with wrong guesses to begin with."""
    count = cast(Target, lambda text: text[-1] + 1)
    window = JacobiWindow(4, lambda position: 50 + 10 * position)
    text = [1]

    def one() -> list[tuple[int, tuple[int, ...]]]:
        columns = window.columns_for(100, 3)
        window.widen(columns, len(text) - 1, text[-1])
        tree, tops = window.tree(columns)
        new = [tree.tokens[top] + 1 for top in tops]
        text.append(count(text))
        return window.advance(new, text[-1:])

    # Level 0 is the pending token and W + N - 3 guesses; each step
    # of filling the window adds a level and uses up a column.
    assert one() == [] and window.columns == [[2, 61], [70, 71], [80, 81], [90, 91]]
    assert one() == [] and window.columns == [[3, 71, 72], [80, 81, 82], [90, 91, 92]]
    # Then every step gives W n-grams, and the lowest level is dropped.
    assert one() == [(3, (71, 72, 73)), (80, (81, 82, 83)), (90, (91, 92, 93))]
    assert window.columns == [[4, 72, 73], [81, 82, 83], [91, 92, 93]]


@fixed
@given(st.data())
def test_every_token_of_the_window_stands_for_its_position(data: st.DataObject) -> None:
    """Texts that go on by several tokens, windows fed in part or not at all: the guesses stay at their positions."""
    n, vocab = data.draw(st.integers(3, 6)), data.draw(st.sampled_from([2, 30]))
    target, text = Target(vocab), [0, 1]
    # Guesses that name their position: a token of the window is a guess for a position or the target's after it.
    window = JacobiWindow(n, lambda position: 1000 + position)
    for _ in range(data.draw(st.integers(1, 14))):
        width = data.draw(st.integers(0, 6))
        tops: list[int] = []
        columns = window.columns_for(10_000, width) if width else 0
        if columns:
            window.widen(columns, len(text) - 1, text[-1])
            tree, nodes = window.tree(columns)
            assert all(tree.tokens[v] < 1000 or tree.tokens[v] == 1000 + len(text) - 1 + tree.depths[v] for v in nodes)
            # New tops carry their position as well, so that nothing is lost when they move.
            tops = [1000 + len(text) + tree.depths[v] for v in nodes]
        emitted = [target([*text]) for _ in range(data.draw(st.integers(1, 8)))]
        text += emitted
        for first, gram in window.advance(tops, emitted):
            assert len(gram) == n - 1
            assert list(gram) == list(range(gram[0], gram[0] + n - 1))
            assert first < 1000 or first == gram[0] - 1
        assert window.at == len(text) - 1 or not columns
        for i, column in enumerate(window.columns):
            assert len(column) == window.height <= n - 1
            start = window.at + i
            assert column == [1000 + start + j if i or j else text[-1] for j in range(len(column))]


def test_columns_that_agree_share_their_rows() -> None:
    window = JacobiWindow(4, lambda position: position)
    window.height = 3
    window.widen(4, 0, 0)
    tree, tops = window.tree(4)
    # Every column says what the trunk says: 0 1 2 3 and then 4, 5.
    assert tree.tokens == [0, 1, 2, 3, 4, 5] and tops == [2, 3, 4, 5]
    window.columns[1][1] = 77
    tree, tops = window.tree(4)
    assert tree.n_drafted == 7 and [tree.tokens[v] for v in tree.path_to(tops[1])] == [0, 1, 77, 3]


@fixed
@given(st.integers(1, 8), st.integers(3, 6), st.integers(0, 60))
def test_a_window_keeps_to_its_rows(width: int, n: int, rows: int) -> None:
    target, text = Target(40), [3, 4]
    window = JacobiWindow(n, guess_of(2, 40))
    for _ in range(2 * n):
        columns = window.columns_for(rows, width)
        if not columns:
            assert rows + 1 < window.height
            break
        window.widen(columns, len(text) - 1, text[-1])
        tree, tops = window.tree(columns)
        assert tree.n_drafted <= rows and len(tree.leaves()) <= columns
        text.append(target(text))
        window.advance(answers(target, text[:-1], tree, tops).tolist(), text[-1:])


# --- the pool ---------------------------------------------------------------------------------------------------------


def grams(pool: NgramPool, key: int) -> list[tuple[int, ...]]:
    return pool.after(key)


def test_the_pool_keeps_the_latest_used() -> None:
    pool = NgramPool(3)
    for gram in [(1, 1), (2, 2), (3, 3)]:
        assert pool.add(7, gram)
    assert not pool.add(7, (1, 1)), "known already, and used just now"
    assert grams(pool, 7) == [(1, 1), (3, 3), (2, 2)]
    pool.used(7, [2, 2, 9])
    assert pool.add(7, (4, 4))
    assert grams(pool, 7) == [(4, 4), (2, 2), (1, 1)], "the least recently used one is out"
    pool.used(7, [4])  # not long enough to say
    assert grams(pool, 7) == [(4, 4), (2, 2), (1, 1)]
    assert grams(pool, 8) == [] and len(pool) == 3


def test_the_pool_forgets_tokens_it_has_not_seen_for_long() -> None:
    pool = NgramPool(2, max_keys=2)
    for key in (1, 2):
        pool.add(key, (key,))
    pool.used(1, [1])
    pool.add(3, (3,))
    assert grams(pool, 2) == [] and grams(pool, 1) == [(1,)] and grams(pool, 3) == [(3,)]


def test_a_text_fills_the_pool() -> None:
    pool = NgramPool(5)
    pool.add_text([1, 2, 3, 1, 2, 4], 3)
    assert grams(pool, 1) == [(2, 4), (2, 3)] and grams(pool, 2) == [(3, 1)] and grams(pool, 3) == [(1, 2)]
    pool.add_text([1, 2], 3)
    assert len(pool) == 4


# --- the drafters -----------------------------------------------------------------------------------------------------


def started(spec: str, text: Sequence[int]) -> tuple[Any, Any]:
    drafter = create(spec.partition(":")[0], ENV)
    view = View(list(text), [drafter], options=[DrafterSpec.parse(spec)])
    drafter.begin(view, view.options[0])
    return drafter, view


def budget(nodes: int = 60, depth: int = 20, branch: int = 15) -> Budget:
    return Budget(nodes, depth, branch, 1)


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.tokens[v] for v in tree.path_to(leaf)[1:]) for leaf in tree.leaves() if leaf}


def test_what_is_drafted_are_the_pool_s_ngrams_after_the_pending_token() -> None:
    drafter, view = started("lookahead:n=4:pool_from_prompt", [5, 1, 2, 3, 5, 1, 2, 4, 5, 9, 9, 9, 5])
    tree = drafter.draft(view, budget(depth=3))
    assert paths(tree) == {(1, 2, 3), (1, 2, 4), (9, 9, 9)}
    assert tree.n_drafted == 7, "equal beginnings are shared"
    assert all(0.0 < p < 1.0 for p in tree.probs[1:]) and set(tree.sources[1:]) == {1}
    assert drafter.draft(view, budget(nodes=2)).n_drafted == 2
    assert max(drafter.draft(view, budget(depth=1)).depths) == 1
    assert len(drafter.draft(view, budget(branch=1)).leaves()) == 1
    empty, other = started("lookahead:n=4", [5, 1, 2, 3, 5])
    assert empty.draft(other, budget()).n_drafted == 0, "the prompt's n-grams only where they are asked for"


def test_where_an_ngram_ends_others_go_on() -> None:
    drafter, view = started("lookahead:n=3:pool_from_prompt", [1, 2, 3, 4, 5, 6, 1])
    assert paths(drafter.draft(view, budget(nodes=8))) == {(2, 3, 4, 5, 6, 1, 2, 3)}
    drafter, view = started("lookahead:n=3:pool_from_prompt", [1, 2, 3, 4, 5, 8, 5, 6, 7, 1])
    assert paths(drafter.draft(view, budget(depth=5))) == {(2, 3, 4, 5, 8)}, "the one that overlaps with most"


def test_ngrams_that_share_more_of_the_text_come_in_place_of_the_others() -> None:
    known = [7, 2, 4, 1, 2, 5]
    for end, expected in (([9, 2], {(4, 1), (5, 9)}), ([1, 2], {(5, 1)}), ([7, 2], {(4, 1)})):
        drafter, view = started("lookahead:n=3:pool_from_prompt", known + end)
        assert paths(drafter.draft(view, budget(depth=2))) == expected


def test_the_answer_s_own_ngrams_are_taken_unless_somebody_else_reads_it() -> None:
    for spec, expected in (("lookahead:n=3", {(2, 3), (6, 7)}), ("lookahead:n=3:pool_from_answer=0", set[Any]())):
        drafter, view = started(spec, [9, 9, 1])
        for new in ([2, 3], [1, 6], [7, 1]):
            kept = TokenTree.root(view.tokens[-1])
            view.tokens += new
            drafter.observe(view, kept, Verdict([], new, False))
        assert paths(drafter.draft(view, budget(depth=2))) == expected


def test_the_pool_holds_no_more_than_asked_for() -> None:
    drafter, view = started("lookahead:n=3:g=2:pool_from_prompt", [5, 1, 1, 5, 2, 2, 5, 3, 3, 5])
    assert paths(drafter.draft(view, budget(depth=2))) == {(3, 3), (2, 2)}


@pytest.mark.parametrize("spec", ["lookahead:w=4:n=4:g=4", "lookahead:w=15:n=5:g=15", "jacobi:w=5"])
def test_texts_are_the_target_s_own_and_come_sooner(spec: str) -> None:
    target = Target(3 if spec.startswith("jacobi") else 10, surprise=0.1, seed=4)
    _, view = started(spec, [1, 2])
    planner, pool, steps = FixedPlanner(), SequencePool(64), 0
    while len(view.tokens) < 200:
        probes, verdict, _ = step(target, view, planner, ROOM, pool)
        steps += 1
        assert set(verdict.path) <= set(range(1, len(probes.kept))), "probes are never accepted"
    text = [1, 2]
    while len(text) < len(view.tokens):
        text.append(target(text))
    assert view.tokens == text
    assert steps < 165


def test_probes_never_see_drafts_nor_drafts_probes() -> None:
    target = Target(6, surprise=0.2)
    drafter, view = started("lookahead:w=5:n=4:g=4", [1, 2, 3])
    both = 0
    for _ in range(40):
        probes, _, _ = step(target, view, FixedPlanner(), ROOM, SequencePool(64))
        tree, drafted = probes.evaluated, len(probes.kept)
        both += drafted > 1 and len(tree) > drafted
        for node in range(1, len(tree)):
            kinds = {v >= drafted for v in tree.path_to(node)[1:]}
            assert len(kinds) == 1
    assert both > 10


def test_nothing_is_fed_without_room() -> None:
    drafter, view = started("lookahead:w=5:n=4", [1, 2, 3])
    kept = TokenTree.root(3)
    assert drafter.window(view, kept, 0, 9).tree.n_drafted == 0
    assert drafter.window(view, kept, 50, 0).ask == ()
    assert len(drafter.window(view, kept, 50, 3).ask) == 3
    drafter.observe(view, kept, Verdict([], [7], False))


@pytest.mark.parametrize(
    "spec",
    ["lookahead:w=0", "lookahead:w=x", "lookahead:n=2", "lookahead:g=0", "lookahead:q=1", "jacobi:w=0", "jacobi:n=2"],
)
def test_options_are_checked(spec: str) -> None:
    with pytest.raises(UsageError):
        started(spec, [1, 2])


def test_jacobi_s_next_guesses_are_the_target_s_answers_to_the_last() -> None:
    target = Target(30)
    drafter, view = started("jacobi:w=6", [1, 2])
    guesses: list[int] = []
    for _ in range(12):
        tree = drafter.draft(view, budget())
        chain = tree.tokens[1:]
        assert chain[: len(guesses)] == guesses and len(chain) == 6
        expected = [target([*view.tokens, *chain[:i]]) for i in range(len(chain) + 1)]
        _, verdict, _ = step(target, view, FixedPlanner(), ROOM, SequencePool(64))
        guesses = expected[len(verdict.tokens) :]


def test_jacobi_s_fixed_points_are_what_is_accepted_and_what_is_likelier() -> None:
    target = Target(4, surprise=0.3, seed=2)
    drafter, view = started("jacobi:w=8", [1, 2])
    right: dict[bool, list[bool]] = {False: [], True: []}
    while len(view.tokens) < 500:
        tree = drafter.draft(view, budget())
        assert set(tree.probs[1:]) <= {FIXED, MOVING}
        chain, text = tree.tokens[1:], list(view.tokens)
        for node, guess in enumerate(chain, start=1):
            right[tree.probs[node] == FIXED].append(target(text) == guess)
            text.append(target(text))
        found = [target([*view.tokens, *chain[:i]]) for i in range(len(chain))]
        unchanged = next((i for i, (new, old) in enumerate(zip(found, chain)) if new != old), len(chain))
        _, verdict, _ = step(target, view, FixedPlanner(), ROOM, SequencePool(64))
        assert len(verdict.path) == unchanged, "guesses at their fixed point from the first on, and no others"
        # The others are told by whether this iteration changed them.
        rest = drafter.draft(view, budget())
        flags = [a == b for a, b in zip(found, chain)][len(verdict.tokens) :]
        assert [prob == FIXED for prob in rest.probs[1 : len(flags) + 1]] == flags
    share = {kind: sum(hits) / len(hits) for kind, hits in right.items()}
    assert min(map(len, right.values())) > 100 and share[1] > share[0] + 0.05


def test_jacobi_goes_on_when_the_planner_cut_its_draft() -> None:
    drafter, view = started("jacobi:w=4", [1, 2])
    target = Target(20)
    for nodes in (0, 2, 4, 1, 0, 0, 4):
        _, verdict, _ = step(target, view, FixedPlanner(), Limits(nodes, 9, 1), SequencePool(8))
        assert len(verdict.tokens) >= 1
    assert drafter.draft(view, budget()).n_drafted == 4


def test_requests_are_kept_apart_and_forgotten() -> None:
    drafter, view = started("lookahead:w=3:n=3", [1, 2])
    other = View([4, 5], [drafter], number=2, options=[DrafterSpec.parse("lookahead")])
    cast(LookaheadDrafter, drafter).begin(other, other.options[0])
    assert drafter.reserved_rows(view) == 5 and drafter.reserved_rows(other) == 15 * 4 - 1
    drafter.end(view)
    drafter.end(view)
    assert drafter._slots.keys() == {2}
    drafter.close()
