"""Shapes of token trees, and how many tokens a step with them emits on average (numpy only).

A shape says which ranks are drafted below which: node v is the `ranks[v]`-th most likely child of `parents[v]`. If the
acceptance of a child depends only on its place in the tree, the expected acceptance length of a shape is

    1 + sum over drafted nodes of the product of the acceptances along the node's path

There are two ways to choose one: `sparse_shape` (Medusa, Cai et al. 2024, arXiv:2401.10774: greedy, acceptance by depth
and rank) and `top_shape` (EAGLE-2, Li et al. 2024, arXiv:2406.16858: the most probable nodes, acceptance by path). Path
products never grow along a path, so the greedy choice is the best one for any acceptance; that includes acceptance by
rank alone, for which Sequoia (Chen et al. 2024, arXiv:2402.12374) uses dynamic programming.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

Path = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """A tree of ranks. Node 0 is the pending token (parent -1, rank -1); parents come before their children."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that it is a tree.

        Raises:
            ValueError: it is none, or two children of a node have the same rank.
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
        """Make a shape from the rank paths of the drafted nodes; a path's prefixes must come before it."""
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
        """A chain: the most likely child, `depth` times."""
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
        """The shape of the first `n` drafted nodes; parents come first, so it is a tree."""
        return Shape(self.parents[: n + 1], self.ranks[: n + 1])


def expected_length(shape: Shape, acceptance: Callable[[Path], float]) -> float:
    """Mean tokens that a step emits: 1 + sum of path products. `acceptance(path)` is P(node, given its parent)."""
    reach = [1.0]
    for parent, path in zip(shape.parents[1:], shape.paths[1:]):
        reach.append(reach[parent] * acceptance(path))
    return sum(reach)


def by_depth_and_rank(table: ArrayLike) -> Callable[[Path], float]:
    """Acceptance [depth, rank] as a function of a path; 0 outside the table."""
    rows = np.asarray(table, dtype=np.float64)

    def acceptance(path: Path) -> float:
        depth, rank = len(path) - 1, path[-1]
        return float(rows[depth, rank]) if depth < rows.shape[0] and rank < rows.shape[1] else 0.0

    return acceptance


def top_shape(acceptance: Callable[[Path], float], n: int, depth: int, branch: int) -> Shape:
    """The `n` most probable nodes of the tree of all paths (`depth` levels, `branch` children of a node).

    Nodes come in the order of their probability, so that `first(m)` is the best tree of m nodes.
    """
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


def sparse_shape(table: ArrayLike, n: int) -> Shape:
    """Medusa's sparse tree: `n` nodes, added greedily by the product of accuracies [depth, rank] along their paths."""
    rows = np.asarray(table, dtype=np.float64)
    return top_shape(by_depth_and_rank(rows), n, rows.shape[0], rows.shape[1])


def random_shape(n: int, depth: int, branch: int, rng: np.random.Generator) -> Shape:
    """A random tree of `n` drafted nodes (fewer if there is no room), to compare others with."""
    paths: list[Path] = []
    free: list[Path] = [(r,) for r in range(branch)] if depth > 0 else []
    while free and len(paths) < n:
        path = free.pop(int(rng.integers(len(free))))
        paths.append(path)
        if len(path) < depth:
            free += [(*path, r) for r in range(branch)]
    return Shape.of_paths(paths)
