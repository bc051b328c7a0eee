"""Texts as rows for the head: the reduced vocabulary, its map, and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lcspec.training.clock import CHOICE
from lcspec.training.device import moved
from lcspec.training.eagle.network import Rows
from lcspec.training.texts import Text, TextSet

# Texts that are looked at for the size of features.
SCALE_TEXTS = 64


@dataclass(frozen=True)
class Dataset(TextSet):
    """What was collected, ready to be dealt out.

    Attributes:
        kept: the head's vocabulary as the target's ids, ascending, int64 [n].
        reduced: the target's id -> the head's, -1 where it has none, int64 [n_vocab].
        coverage: share of the target's first choices that it holds.
        embeddings: the target's, float16 [n_vocab, width].
        scale: usual size of every feature, float32 [3 * width]. Some are thousands of times as large as others, so the
            network sees them divided by it.
    """

    kept: NDArray[np.int64]
    reduced: NDArray[np.int64]
    coverage: float
    embeddings: NDArray[np.float16]
    scale: NDArray[np.float32]

    def batches(self, tokens: int, rng: np.random.Generator) -> Iterator[Rows]:
        """One shuffled pass over the texts for training, about `tokens` rows at a time."""
        order = rng.permutation(self.part(False)).tolist()
        while order:
            batch, size = [order.pop()], 0
            size = len(self.texts[batch[0]])
            while order and size + len(self.texts[order[-1]]) <= tokens:
                batch.append(order.pop())
                size += len(self.texts[batch[-1]])
            yield self.rows(batch)

    def rows(self, which: Sequence[int]) -> Rows:
        """Some texts as rows."""
        texts = [self.texts[i] for i in which]
        tokens = np.concatenate([t.tokens[1:] for t in texts])
        ids = np.concatenate([t.ids[1:] for t in texts])
        shares = np.concatenate([t.shares[1:] for t in texts]).astype(np.float32)
        before = np.concatenate([t.ids[:-1, 0] for t in texts])
        learn = shares[:, 0] > 0
        top = np.where(learn, self.reduced[ids[:, 0]], -1)
        shares *= (1.0 - CHOICE) / np.maximum(shares.sum(axis=1, keepdims=True), 1e-6)  # of these tokens alone
        shares[:, 0] += CHOICE * learn
        known = self.reduced[ids]
        shares[known < 0] = 0.0
        lengths = [len(t) - 1 for t in texts]
        features = np.concatenate([t.features[:-1] for t in texts])
        return Rows(
            features=moved(torch.from_numpy(features)).float() / moved(torch.from_numpy(self.scale)),
            embeddings=moved(torch.from_numpy(self.embeddings[tokens])).float(),
            positions=moved(torch.from_numpy(np.concatenate([np.arange(n) for n in lengths]))),
            shares=moved(torch.from_numpy(shares)),
            ids=moved(torch.from_numpy(np.maximum(known, 0))),
            top=torch.from_numpy(top),
            learn=torch.from_numpy(learn),
            reached=torch.from_numpy(tokens == before),
            starts=[0, *np.cumsum(lengths).tolist()],
        )


def make_dataset(
    texts: Sequence[Text],
    held_out: Sequence[bool],
    vocab: int | NDArray[np.int64],
    embeddings: NDArray[np.float16],
) -> Dataset:
    """Prepare texts. `vocab`: the head's vocabulary as ids of the target, int64 [n], or how many tokens it has at most,
    those that the target says most often."""
    n_vocab = len(embeddings)
    counts = np.zeros(n_vocab, np.int64)
    for text in texts:
        counts += np.bincount(text.ids[text.shares[:, 0] > 0, 0], minlength=n_vocab)
    if isinstance(vocab, int):
        order = np.argsort(-counts, kind="stable")[:vocab]
        kept = np.sort(order[counts[order] > 0]).astype(np.int64)
    else:
        kept = vocab
    reduced = np.full(n_vocab, -1, np.int64)
    reduced[kept] = np.arange(len(kept))
    coverage = float(counts[kept].sum() / max(1, counts.sum()))
    return Dataset(texts, held_out, kept, reduced, coverage, embeddings, _scale(texts))


def _scale(texts: Sequence[Text]) -> NDArray[np.float32]:
    """Root mean square of every feature. First tokens are left out: there some are far larger than anywhere else."""
    some = [t.features[1:].astype(np.float32) for t in texts[:: max(1, len(texts) // SCALE_TEXTS)]]
    total = sum((part**2).sum(axis=0, dtype=np.float64) for part in some)
    size = np.sqrt(total / max(1, sum(len(part) for part in some)))
    return np.asarray(np.maximum(size, 1e-3 * max(1e-3, float(np.mean(size)))), np.float32)
