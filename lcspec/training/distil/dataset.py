"""Texts as batches for a draft: of like length side by side, with the shares that their tokens are wanted with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from lcspec.training.clock import CHOICE
from lcspec.training.device import moved
from lcspec.training.distil.network import Batch
from lcspec.training.texts import TextSet

# Texts that are sorted by length before they are put side by side.
SORTED = 64


class Dataset(TextSet):
    """What was collected, ready to be dealt out."""

    def batches(self, tokens: int, rng: np.random.Generator) -> Iterator[Batch]:
        """One shuffled pass over the texts for training, at most `tokens` places at a time."""
        order = rng.permutation(self.part(False))
        groups: list[list[int]] = []
        for start in range(0, len(order), SORTED):
            group: list[int] = []
            for i in sorted(order[start : start + SORTED].tolist(), key=lambda i: len(self.texts[i])):
                if group and (len(group) + 1) * len(self.texts[i]) > tokens:
                    groups.append(group)
                    group = []
                group.append(i)
            groups.append(group)
        for at in rng.permutation(len(groups)):
            yield self.batch(groups[at])

    def batch(self, which: Sequence[int]) -> Batch:
        """Some texts side by side."""
        texts = [self.texts[i] for i in which]
        length = max(len(text) for text in texts)
        tokens = np.zeros((len(texts), length), np.int64)
        for row, text in zip(tokens, texts):
            row[: len(text)] = text.tokens
        learn = [row * length + np.arange(text.first, len(text)) for row, text in enumerate(texts)]
        shares = np.concatenate([text.shares[text.first :] for text in texts]).astype(np.float32)
        shares *= 1.0 - CHOICE
        shares[:, 0] += CHOICE
        ids = np.concatenate([text.ids[text.first :] for text in texts]).astype(np.int64)
        parts = (tokens, np.concatenate(learn), ids, shares)
        return Batch(*(moved(torch.from_numpy(part)) for part in parts))
