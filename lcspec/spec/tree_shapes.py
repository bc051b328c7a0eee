"""Shapes of token trees, and how many tokens a step with them emits on average (numpy only).

A shape says which ranks are drafted below which: node v is the `ranks[v]`-th most likely child of `parents[v]`. With
acceptances that depend on nothing but the place of a child, the expected acceptance length of a shape is

    1 + sum over drafted nodes of the product of the acceptances along the node's path

Three ways to choose one: `sparse_shape` (Medusa, Cai et al. 2024, arXiv:2401.10774: greedy, acceptance by depth and
rank), `positional_shape` (Sequoia, Chen et al. 2024, arXiv:2402.12374: dynamic programming, acceptance by rank) and
`top_shape` (EAGLE-2, Li et al. 2024, arXiv:2406.16858: the most probable nodes, acceptance by path).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Path = tuple[int, ...]
Table = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """A tree of ranks. Node 0 is the pending token (parent -1, rank -1); parents come before their children."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that it is a tree.

        Raises:
            ValueError: it is not, or two children of a node have one rank.
        """
        n = len(self.parents)
        if n == 0 or len(self.ranks) != n or self.parents[0] != -1:
            raise ValueError("a shape begins with its root")
        if any(not 0 <= p < v or r < 0 for v, (p, r) in enumerate(zip(self.parents[1:], self.ranks[1:]), start=1)):
            raise ValueError("parents must come before their children, and ranks count from 0")
        if len(set(zip(self.parents[1:], self.ranks[1:]))) != n - 1:
            raise ValueError("two children of a node have the same rank")

    @classmethod
    def of_paths(cls, paths: Sequence[Path]) -> Shape:
        """From the rank paths of the drafted nodes; a path's beginnings must come before it."""
        place: dict[Path, int] = {(): 0}
        parents, ranks = [-1], [-1]
        for path in paths:
            if path[:-1] not in place:
                raise ValueError(f"the path {path} comes without its beginning")
            place[path] = len(parents)
            parents.append(place[path[:-1]])
            ranks.append(path[-1])
        return cls(tuple(parents), tuple(ranks))

    @classmethod
    def chain(cls, depth: int) -> Shape:
        """The most likely child, `depth` times."""
        return cls.of_paths([(0,) * d for d in range(1, depth + 1)])

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def n_drafted(self) -> int:
        """Nodes other than the pending token."""
        return len(self.parents) - 1

    @property
    def paths(self) -> list[Path]:
        """The rank path of every node; () for node 0."""
        out: list[Path] = [()]
        for parent, rank in zip(self.parents[1:], self.ranks[1:]):
            out.append((*out[parent], rank))
        return out

    def first(self, n: int) -> Shape:
        """The first `n` drafted nodes; a tree again, because parents come first."""
        return Shape(self.parents[: n + 1], self.ranks[: n + 1])


def expected_length(shape: Shape, acceptance: Callable[[Path], float]) -> float:
    """Mean tokens a step emits: 1 + sum of path products. `acceptance(path)` is P(node, given its parent)."""
    reach = [1.0]
    for parent, path in zip(shape.parents[1:], shape.paths[1:]):
        reach.append(reach[parent] * acceptance(path))
    return sum(reach)


def by_depth_and_rank(table: ArrayLike) -> Callable[[Path], float]:
    """Acceptance [depth, rank] as a function of the path; 0 outside the table."""
    rows = np.asarray(table, dtype=np.float64)

    def acceptance(path: Path) -> float:
        depth, rank = len(path) - 1, path[-1]
        return float(rows[depth, rank]) if depth < rows.shape[0] and rank < rows.shape[1] else 0.0

    return acceptance


def by_rank(row: ArrayLike) -> Callable[[Path], float]:
    """Acceptance [rank], the same at every depth: Sequoia's positional assumption."""
    values = np.asarray(row, dtype=np.float64)
    return lambda path: float(values[path[-1]]) if path[-1] < len(values) else 0.0


def top_shape(acceptance: Callable[[Path], float], n: int, depth: int, branch: int, beam: int | None = None) -> Shape:
    """The `n` most probable nodes of the tree of all paths (`depth` levels, `branch` children a node).

    Without a `beam` it is optimal: path products never grow along a path, so the n largest form a tree. With a beam
    only the `beam` most probable nodes of a level are looked below, as EAGLE-2 does to bound what drafting costs; the
    n best of what was seen are kept. Nodes come in the order of their probability, so that `first(m)` is the best tree
    of m nodes.
    """
    if beam is not None:
        return _top_by_levels(acceptance, n, depth, branch, beam)
    heap: list[tuple[float, Path]] = []

    def look_below(path: Path, reach: float) -> None:
        if len(path) < depth:
            for rank in range(branch):
                chance = reach * acceptance((*path, rank))
                if chance > 0.0:
                    heapq.heappush(heap, (-chance, (*path, rank)))

    look_below((), 1.0)
    paths: list[Path] = []
    while heap and len(paths) < n:
        reach, path = heapq.heappop(heap)
        paths.append(path)
        look_below(path, -reach)
    return Shape.of_paths(paths)


def _top_by_levels(acceptance: Callable[[Path], float], n: int, depth: int, branch: int, beam: int) -> Shape:
    level: list[tuple[float, Path]] = [(1.0, ())]
    seen: list[tuple[float, Path]] = []
    for _ in range(depth):
        below = [(reach * acceptance((*p, r)), (*p, r)) for reach, p in level for r in range(branch)]
        below = sorted((item for item in below if item[0] > 0.0), key=lambda item: (-item[0], item[1]))
        seen += below
        level = below[:beam]
    ranked = sorted(seen, key=lambda item: (-item[0], len(item[1]), item[1]))
    return Shape.of_paths([path for _, path in ranked[:n]])


def sparse_shape(table: ArrayLike, n: int) -> Shape:
    """Medusa's sparse tree: `n` nodes added greedily by the product of accuracies [depth, rank] along their paths."""
    rows = np.asarray(table, dtype=np.float64)
    return top_shape(by_depth_and_rank(rows), n, rows.shape[0], rows.shape[1])


def random_shape(n: int, depth: int, branch: int, rng: np.random.Generator) -> Shape:
    """A tree of `n` drafted nodes (fewer if there is no room) grown at random, to compare others with."""
    paths: list[Path] = []
    free: list[Path] = [(r,) for r in range(branch)] if depth > 0 else []
    while free and len(paths) < n:
        path = free.pop(int(rng.integers(len(free))))
        paths.append(path)
        if len(path) < depth:
            free += [(*path, r) for r in range(branch)]
    return Shape.of_paths(paths)


def positional_shape(acceptance: ArrayLike, n: int, depth: int | None = None) -> Shape:
    """Sequoia's tree: the best one of `n` drafted nodes when the i-th child is accepted with `acceptance[i]`.

    Dynamic programming as in section 4.1 of the paper. With best[d][s] the largest sum of path products of a tree of s
    nodes (root included) and at most d levels below its root,

        best[d][s] = 1 + split[d][0][s - 1]
        split[d][i][s] = max over t of  acceptance[i] * best[d - 1][t] + split[d][i + 1][s - t]

    where split[d][i][s] shares out s nodes among the children from the i-th on. O(depth * children * n^2) additions.
    """
    chance = np.asarray(acceptance, dtype=np.float64)
    levels = n if depth is None else min(depth, n)
    children = min(len(chance), n)
    worth: list[Table] = [np.array([-np.inf] + [1.0] + [-np.inf] * n)]  # no levels below: only a bare root
    choice: list[NDArray[np.int64]] = []
    for _ in range(levels):
        split = np.full((children + 1, n + 1), -np.inf)
        split[children, 0] = 0.0
        taken = np.zeros((children, n + 1), dtype=np.int64)
        for i in range(children - 1, -1, -1):
            for s in range(n + 1):
                # giving child i nothing ends the list: later children are never more likely
                options = np.concatenate([[0.0 if s == 0 else -np.inf], _shares(chance[i], worth[-1], split[i + 1], s)])
                taken[i, s] = int(options.argmax())
                split[i, s] = options[taken[i, s]]
        best = np.full(n + 2, -np.inf)
        best[1:] = 1.0 + split[0, : n + 1]
        worth.append(best)
        choice.append(taken)
    size = int(np.isfinite(worth[-1]).nonzero()[0].max())
    paths: list[Path] = []
    _read(choice, (), levels, size - 1, paths)
    return Shape.of_paths(sorted(paths, key=lambda p: (len(p), p)))


def _shares(chance: float, worth: Table, later: Table, s: int) -> Table:
    """Value of giving a child 1, 2 ... s of s nodes and the rest to the children after it."""
    return np.asarray(chance * worth[1 : s + 1] + later[:s][::-1])


def _read(choice: Sequence[NDArray[np.int64]], path: Path, levels: int, rest: int, out: list[Path]) -> None:
    """Follow the choices of `positional_shape` below `path`, with `rest` nodes to place."""
    rank = 0
    while rest > 0 and levels > 0:
        size = int(choice[levels - 1][rank, rest])
        out.append((*path, rank))
        _read(choice, (*path, rank), levels - 1, size - 1, out)
        rest -= size
        rank += 1
