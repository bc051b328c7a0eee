"""Batches for training and measuring: collected states, with pending tokens and labels in the reduced vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lcspec.drafters.medusa.network import Floats, Ints
from lcspec.training.states import HOLD_OUT, NONE, OUTSIDE, StateStore, labels

# Positions are read in runs of this many neighbours, which is much faster than one by one from a disk.
RUN = 16
MEASURE_BATCH = 256


@dataclass(frozen=True)
class Dataset:
    """What was collected, ready to be dealt out.

    Attributes:
        vocab: reduced vocabulary, most frequent tokens first, int32 [n].
        coverage: share of the labels that it holds.
        scale: deviation of the states.
    """

    states: NDArray[np.float16]
    pending: Ints
    labels: Ints
    held_out: NDArray[np.bool_]
    vocab: Ints
    coverage: float
    scale: float

    def take(self, rows: NDArray[np.int64]) -> tuple[Floats, Ints, Ints]:
        """(states in unit deviation, pending tokens, labels) of some positions."""
        states = self.states[rows].astype(np.float32)
        states *= np.float32(1.0 / self.scale)
        return states, self.pending[rows], self.labels[:, rows]

    def batches(self, rows: NDArray[np.int64], size: int = MEASURE_BATCH) -> Iterator[tuple[Floats, Ints, Ints]]:
        """Those positions in order."""
        for start in range(0, len(rows), size):
            yield self.take(rows[start : start + size])

    def valid_rows(self, limit: int) -> NDArray[np.int64]:
        """At most `limit` held-out positions, evenly spread."""
        rows = np.flatnonzero(self.held_out)
        return rows if len(rows) <= limit else rows[np.linspace(0, len(rows) - 1, limit).astype(np.int64)]

    def train_rows(self, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """One shuffled pass over the training positions in batches of `size`."""
        rows = np.flatnonzero(~self.held_out & (self.labels[0] != NONE))
        if not len(rows):
            return
        runs = [rows[i : i + RUN] for i in range(0, len(rows), RUN)]
        per_batch = max(1, size // RUN)
        order = rng.permutation(len(runs))
        for start in range(0, len(order), per_batch):
            yield np.concatenate([runs[i] for i in order[start : start + per_batch]])


def make_dataset(store: StateStore, n_vocab: int, heads: int, vocab: int) -> Dataset:
    """Prepare what is in `store`; the reduced vocabulary has at most `vocab` tokens, those that occur most often."""
    tokens, held_out, states = store.tokens(), store.held_out(), store.states()
    if held_out.all() or not held_out.any():  # too few prompts to split them: the last positions
        held_out = np.arange(len(tokens)) >= len(tokens) - len(tokens) // HOLD_OUT
    counts = np.bincount(tokens, minlength=n_vocab)
    order = np.argsort(-counts, kind="stable")[:vocab]
    kept: Ints = order[counts[order] > 0].astype(np.int32)
    reduced = np.full(n_vocab, OUTSIDE, dtype=np.int32)
    reduced[kept] = np.arange(len(kept), dtype=np.int32)
    wanted = labels(tokens, store.lengths(), heads)
    sample = states[:: max(1, len(states) // 4096)].astype(np.float32)
    return Dataset(
        states=states,
        pending=np.where(reduced[tokens] >= 0, reduced[tokens], len(kept)).astype(np.int32),
        labels=np.where(wanted == NONE, NONE, reduced[np.maximum(wanted, 0)]).astype(np.int32),
        held_out=held_out,
        vocab=kept,
        coverage=float(counts[kept].sum() / max(1, counts.sum())),
        scale=max(1e-6, float(sample.std())),
    )
