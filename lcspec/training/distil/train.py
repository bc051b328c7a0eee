"""Training a draft by the clock, and how often it is right on texts it has not seen. Resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lcspec.training.clock import LOOK_ROWS, ClockTrainer, Measured
from lcspec.training.distil.dataset import Dataset
from lcspec.training.distil.network import Batch, Draft
from lcspec.training.distil.shape import DraftShape
from lcspec.training.tensors import Weights
from lcspec.training.texts import Text

DEPTH = 4
BATCH = 2048
# Of a new draft, and of one that is trained further: it is near where it should be.
RATE, RATE_FURTHER = 3e-3, 6e-4
FILE = "draft.pt"
# Logits that are computed at a time while measuring.
LOGITS = 1 << 24


class Trainer(ClockTrainer[Draft, Batch]):
    """Trains until `seconds` have been spent, over several runs."""

    undecayed = ("token_embd.weight", "output.weight")

    def __init__(
        self,
        data: Dataset,
        shape: DraftShape,
        initial: Callable[[], Weights],
        seconds: float,
        seed: int,
        folder: Path,
        rate: float = RATE,
    ) -> None:
        """Go on from the checkpoint in `folder`, or begin with `initial()`."""
        self.data = data

        def make(weights: Weights) -> Draft:
            return Draft(shape, weights)

        super().__init__(make, initial, shape.key(), path=folder / FILE, seconds=seconds, seed=seed, rate=rate)

    def batches(self, rng: np.random.Generator) -> Iterator[Batch]:
        return self.data.batches(BATCH, rng)

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss = self.network.loss(batch)
        return loss, loss

    def measured(self) -> Measured:
        return measure(self.network, self.data, LOOK_ROWS)


def measure(draft: Draft, data: Dataset, limit: int, depth: int = DEPTH) -> Measured:
    """Draft greedily after held-out tokens, about `limit` of them, where the text is what the target itself says.

    There a chain that is right so far is the text itself, so that reading the text once says what every chain does.
    """
    right, seen, branches = np.zeros(depth), np.zeros(depth), 0
    for which in data.part(True):
        text = data.texts[which]
        alive = followed(text, depth)
        branches += int(alive.sum())
        hits = agreement(draft, data, which)
        for i in range(depth):
            seen[i] += int(alive.sum())
            alive = alive & hits[i : i + len(alive)]
            right[i] += int(alive.sum())
        if branches >= limit:
            break
    return Measured.of(right, seen, branches)


def followed(text: Text, depth: int) -> NDArray[np.bool_]:
    """After which tokens a chain can be compared with the text: those with `depth` known choices ahead, each of which
    but the last was written. bool [known choices - depth + 1]."""
    choices = text.ids[text.first :, 0]
    written = text.tokens[text.first + 1 :] == choices[:-1]
    n = max(0, len(choices) - depth + 1)
    out = np.ones(n, np.bool_)
    for i in range(depth - 1):
        out &= written[i : i + n]
    return out


def agreement(draft: Draft, data: Dataset, which: int) -> NDArray[np.bool_]:
    """Whether the draft's first choice is the target's, after every token of a text whose choice is known."""
    batch = data.batch([which])
    rows = max(1, LOGITS // draft.shape.vocab)
    with torch.no_grad():
        states = draft(batch.tokens)[0, batch.learn]
        found = [(part @ draft.output.T).argmax(1) for part in states.split(rows)]
    hits: NDArray[np.bool_] = (torch.cat(found) == batch.ids[:, 0]).cpu().numpy()
    return hits
