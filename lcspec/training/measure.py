"""How good heads are on text they were not trained on: accuracy by rank, confidence, and the tree that follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lcspec.drafters.medusa.network import Floats, Ints, Parameters, Sizes, forward
from lcspec.spec.tree_shapes import Shape, sparse_shape
from lcspec.training.states import NONE

# Ranks whose accuracy is kept, and nodes of the stored tree.
RANKS = 10
TREE_NODES = 64
# Scales tried for each head's logits, so that its probabilities are as sure as it is right.
SCALES = np.geomspace(0.5, 1.6, 15)

Batches = Iterator[tuple[Floats, Ints, Ints]]


@dataclass(frozen=True)
class Measured:
    """Figures of heads on some positions.

    Attributes:
        table: share of positions at which the token of that rank is right, float64 [heads, RANKS].
        losses: mean cross entropy where the label is in the reduced vocabulary, float64 [heads].
        scales: factors for the logits that minimise it, float64 [heads].
        positions: labelled positions of the first head.
    """

    table: NDArray[np.float64]
    losses: NDArray[np.float64]
    scales: NDArray[np.float64]
    positions: int

    def top(self, k: int) -> list[float]:
        """Top-k accuracy of every head."""
        return [float(row[:k].sum()) for row in self.table]

    def tree(self, nodes: int = TREE_NODES) -> Shape:
        """The sparse tree. What was never right counts for a little, so that few positions give a full tree, too."""
        return sparse_shape(self.table + 0.1 / max(1, self.positions), nodes)


def measure(params: Parameters, sizes: Sizes, batches: Batches) -> Measured:
    """Run the heads over batches of (states, pending, labels); a label OUTSIDE the reduced vocabulary is a miss."""
    hits = np.zeros((sizes.heads, RANKS))
    count, known_count = np.zeros(sizes.heads), np.zeros(sizes.heads)
    loss = np.zeros((sizes.heads, len(SCALES)))
    one = int(np.abs(SCALES - 1.0).argmin())
    for states, pending, labels in batches:
        logits, _ = forward(params, sizes, states, pending)
        for k in range(sizes.heads):
            count[k] += int((labels[k] != NONE).sum())
            rows = np.flatnonzero(labels[k] >= 0)
            if not rows.size:
                continue
            z, right = logits[k, rows], labels[k, rows]
            value = z[np.arange(len(rows)), right][:, None]
            before = np.arange(sizes.vocab) < right[:, None]
            rank = ((z > value) | ((z == value) & before)).sum(axis=1)
            hits[k] += np.bincount(rank[rank < RANKS], minlength=RANKS)
            known_count[k] += len(rows)
            z = z - z.max(axis=1, keepdims=True)
            right_z = z[np.arange(len(rows)), right]
            for s, scale in enumerate(SCALES):
                loss[k, s] += float((np.log(np.exp(z * np.float32(scale)).sum(axis=1)) - scale * right_z).sum())
    loss /= np.maximum(1.0, known_count)[:, None]
    return Measured(
        table=hits / np.maximum(1.0, count)[:, None],
        losses=loss[:, one],
        scales=SCALES[loss.argmin(axis=1)] if known_count.all() else np.ones(sizes.heads),
        positions=int(count[0]),
    )
