"""Tree shapes against brute force: every tree of a size is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from lcspec.spec.tree_shapes import (
    Path,
    Shape,
    by_depth_and_rank,
    expected_length,
    random_shape,
    sparse_shape,
    top_shape,
)


def all_paths(depth: int, branch: int) -> list[Path]:
    paths: list[Path] = [()]
    for path in paths:
        if len(path) < depth:
            paths += [(*path, r) for r in range(branch)]
    return sorted(paths[1:], key=len)


def all_shapes(n: int, depth: int, branch: int) -> Iterator[Shape]:
    """Every tree of `n` drafted nodes, once: paths are taken in one order, each only below a path that was taken."""

    def grow(chosen: list[Path], open_: list[Path]) -> Iterator[list[Path]]:
        if len(chosen) == n:
            yield chosen
            return
        for i, path in enumerate(open_):
            below = [(*path, r) for r in range(branch)] if len(path) < depth else []
            yield from grow([*chosen, path], open_[i + 1 :] + below)

    for chosen in grow([], [(r,) for r in range(branch)]):
        yield Shape.of_paths(chosen)


def best_by_brute_force(n: int, depth: int, branch: int, acceptance: Callable[[Path], float]) -> float:
    return max(expected_length(shape, acceptance) for shape in all_shapes(n, depth, branch))


def rows(seed: int, depth: int, branch: int) -> np.ndarray:
    """Accuracies as heads have them: they fall with the rank and sum to less than 1."""
    rng = np.random.default_rng(seed)
    return -np.sort(-rng.dirichlet(np.ones(branch + 1), depth)[:, :branch], axis=1)


def test_brute_force_sees_every_tree() -> None:
    shapes = [frozenset(s.paths) for s in all_shapes(2, 2, 2)]
    assert len(shapes) == len(set(shapes)) == 5  # two children; either child with either grandchild
    shapes = [frozenset(s.paths) for s in all_shapes(4, 4, 2)]
    assert len(shapes) == len(set(shapes)) == 42  # binary trees of five nodes: a Catalan number


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_the_sparse_tree_is_the_best_one(seed: int, n: int) -> None:
    table = rows(seed, 3, 2)
    acceptance = by_depth_and_rank(table)
    found = sparse_shape(table, n)
    assert found.n_drafted == n
    assert expected_length(found, acceptance) == pytest.approx(best_by_brute_force(n, 3, 2, acceptance))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [1, 3, 5])
def test_the_top_tree_is_the_best_one_for_any_acceptance(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    chance = {p: float(rng.uniform(0.05, 0.9)) for p in all_paths(3, 2)}
    found = top_shape(lambda p: chance[p], n, 3, 2)
    assert expected_length(found, lambda p: chance[p]) == pytest.approx(
        best_by_brute_force(n, 3, 2, lambda p: chance[p])
    )


def test_the_first_nodes_are_the_best_smaller_tree() -> None:
    table = rows(5, 4, 6)
    large = sparse_shape(table, 40)
    for n in (1, 5, 17):
        assert large.first(n) == sparse_shape(table, n)


def test_expected_length_by_hand() -> None:
    shape = Shape.of_paths([(0,), (1,), (0, 0), (0, 1)])
    table = [[0.5, 0.2], [0.4, 0.1]]
    assert expected_length(shape, by_depth_and_rank(table)) == pytest.approx(1 + 0.5 + 0.2 + 0.5 * 0.4 + 0.5 * 0.1)
    assert expected_length(Shape.chain(3), lambda path: 0.5) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert expected_length(shape, by_depth_and_rank([[0.5]])) == pytest.approx(1.5)  # nothing is known of the others


def test_expected_length_is_what_a_simulation_emits() -> None:
    """Draws at every depth which rank is right, independently, and counts."""
    table = rows(2, 3, 3)
    shape = sparse_shape(table, 9)
    children = {(p, r): v for v, (p, r) in enumerate(zip(shape.parents, shape.ranks)) if v}
    rng = np.random.default_rng(0)
    drawn = np.stack([rng.choice(4, size=40_000, p=[*row, 1 - row.sum()]) for row in table])
    emitted = 0
    for column in drawn.T:
        node: int | None = 0
        emitted += 1
        for rank in column:
            node = children.get((node, int(rank)))  # type: ignore[arg-type]
            if node is None:
                break
            emitted += 1
    assert emitted / drawn.shape[1] == pytest.approx(expected_length(shape, by_depth_and_rank(table)), rel=0.02)


def test_random_trees_have_their_size_and_bounds() -> None:
    shape = random_shape(30, 4, 5, np.random.default_rng(1))
    assert shape.n_drafted == 30
    assert max(len(p) for p in shape.paths) <= 4
    assert max(shape.ranks) < 5
    assert random_shape(30, 2, 2, np.random.default_rng(1)).n_drafted == 6  # there is room for no more


@pytest.mark.parametrize(
    ("parents", "ranks"),
    [((), ()), ((0,), (0,)), ((-1, 1), (-1, 0)), ((-1, 0, 0), (-1, 0, 0)), ((-1, 0), (-1, -1)), ((-1, 0), (-1,))],
)
def test_what_is_no_tree_is_refused(parents: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        Shape(parents, ranks)
    with pytest.raises(ValueError):
        Shape.of_paths([(0, 1)])
