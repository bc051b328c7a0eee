"""Training an EAGLE-3 head by the clock, and how good it is on texts it has not seen. Resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lcspec.training.clock import LOOK_ROWS, ClockTrainer, Measured, load_checkpoint
from lcspec.training.device import device
from lcspec.training.eagle.dataset import Dataset
from lcspec.training.eagle.network import Head, HeadSizes, Rows, step_loss
from lcspec.training.tensors import Weights

# Tokens unrolled, the weight of a step against the one before it, and the share of rows that are followed further.
STEPS, DISCOUNT, SHARE = 4, 0.8, 0.4
# Rows of an update: on a processor, and on a GPU, which takes more of them at no cost.
BATCH, GPU_BATCH = 800, 6400
# Of a new head, and of one that is trained further: it is near where it should be.
RATE, RATE_FURTHER = 1e-3, 2e-4
FILE = "head.pt"


class Trainer(ClockTrainer[Head, Rows]):
    """Trains until `seconds` have been spent, over several runs."""

    def __init__(
        self,
        data: Dataset,
        sizes: HeadSizes,
        initial: Callable[[], Weights],
        seconds: float,
        seed: int,
        folder: Path,
        rate: float = RATE,
    ) -> None:
        """Go on from the checkpoint in `folder`, or begin with `initial()`."""
        self.data = data

        def make(weights: Weights) -> Head:
            return Head(sizes, weights)

        super().__init__(make, initial, sizes.key(), path=folder / FILE, seconds=seconds, seed=seed, rate=rate)

    def batches(self, rng: np.random.Generator) -> Iterator[Rows]:
        return self.data.batches(GPU_BATCH if device().type == "cuda" else BATCH, rng)

    def losses(self, batch: Rows) -> tuple[Tensor, Tensor]:
        losses = [step_loss(step, batch) for step in self.network.unroll(batch, STEPS, SHARE)]
        weights = [DISCOUNT**i for i in range(len(losses))]
        loss = torch.stack([w * part for w, part in zip(weights, losses)]).sum() / sum(weights)
        return loss, losses[0]

    def measured(self) -> Measured:
        return measure(self.network, self.data, LOOK_ROWS)


def load(folder: Path, sizes: HeadSizes) -> dict[str, Any] | None:
    """The checkpoint in a work folder; None if there is no sound one for a head of these sizes."""
    return load_checkpoint(folder / FILE, sizes.key())


def measure(head: Head, data: Dataset, limit: int, depth: int = STEPS) -> Measured:
    """Draft greedily after held-out tokens, about `limit` of them, where the text is what the target itself says."""
    right, seen, branches = np.zeros(depth), np.zeros(depth), 0
    for which in data.part(True):
        rows = data.rows([which])
        with torch.no_grad():
            steps = head.unroll(rows, depth)
        alive = torch.zeros(len(rows.learn), dtype=torch.bool)
        # A branch counts if the next `depth` tokens exist and are what the target says.
        for base in steps[-1].base.tolist() if len(steps) == depth else []:
            alive[base] = bool(rows.reached[base + 1 : base + depth].all())
        branches += int(alive.sum())
        for i, step in enumerate(steps):
            mine = alive[step.base]
            hit = (step.logits.argmax(1).cpu() == rows.top[step.rows]) & mine
            seen[i] += int(mine.sum())
            right[i] += int(hit.sum())
            alive = torch.zeros_like(alive)
            alive[step.base[hit]] = True
        if branches >= limit:
            break
    return Measured.of(right, seen, branches)
