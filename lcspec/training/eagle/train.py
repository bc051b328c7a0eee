"""Training an EAGLE-3 head by the clock, and how good it is on texts it has not seen. Resumable."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lcspec.training.eagle.dataset import Dataset
from lcspec.training.eagle.network import Head, HeadSizes, Rows, Weights, step_loss

# Tokens unrolled, the weight of a step against the one before it, and the share of rows that are followed further.
STEPS, DISCOUNT, SHARE = 4, 0.8, 0.4
BATCH = 800
RATE, FINAL_SHARE, WARM_UP, CLIP = 1e-3, 0.02, 30, 1.0
BETAS, DECAY = (0.9, 0.95), 0.01
# Seconds between two looks at held-out texts, and rows of one look and of the last.
LOOK_SECONDS, LOOK_ROWS, FINAL_ROWS = 120.0, 2000, 12000
FILE = "head.pt"


@dataclass(frozen=True)
class Measured:
    """A head on held-out texts, greedy.

    Attributes:
        depths: share of branches still right at every depth, all tokens before it being right, of those that were.
        length: tokens a target step gives with chains as deep as that, one more than are accepted on average.
        rows: branches looked at.
    """

    depths: tuple[float, ...]
    length: float
    rows: int


@dataclass
class Progress:
    """What a checkpoint keeps beside weights. `history`: (seconds, loss in training, length on held-out texts)."""

    seconds: float = 0.0
    step: int = 0
    passes: int = 0
    best: float = 0.0
    history: list[tuple[float, float, float]] = field(default_factory=list)


class Trainer:
    """Trains until `seconds` have been spent, over several runs."""

    def __init__(
        self, data: Dataset, sizes: HeadSizes, initial: Callable[[], Weights], seconds: float, seed: int, folder: Path
    ) -> None:
        """Go on from the checkpoint in `folder`, or begin with `initial()`."""
        self.data, self.seconds, self.seed, self.path = data, seconds, seed, folder / FILE
        kept = load(folder, sizes)
        self.head = Head(sizes, kept["weights"] if kept else initial())
        matrices = [p for p in self.head.parameters() if p.requires_grad and p.ndim > 1]
        vectors = [p for p in self.head.parameters() if p.requires_grad and p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS)
        self.progress = Progress()
        self.best: Weights = self.head.arrays()
        if kept:
            self.optimizer.load_state_dict(kept["optimizer"])
            self.progress, self.best = Progress(**kept["progress"]), kept["best"]

    def run(self, show: Callable[[float], None]) -> None:
        """Train; `show` is told the share of the time that is spent. A KeyboardInterrupt leaves a checkpoint."""
        progress, before, losses = self.progress, self.progress.seconds, [0.0]
        began = looked = time.monotonic()
        torch.manual_seed(self.seed + progress.step)
        try:
            for rows in self._rows():
                progress.seconds = before + time.monotonic() - began
                if progress.seconds >= self.seconds:
                    break
                losses.append(self._update(rows, progress.seconds / self.seconds))
                show(progress.seconds / self.seconds)
                if time.monotonic() - looked > min(LOOK_SECONDS, self.seconds / 4):
                    self._look(float(np.mean(losses[1:])))
                    self.save()
                    looked, losses = time.monotonic(), [0.0]
        finally:
            progress.seconds = before + time.monotonic() - began
            self._look(float(np.mean(losses[1:] or [0.0])))
            self.save()

    def _rows(self) -> Iterator[Rows]:
        while True:
            rng, found = np.random.default_rng([self.seed, self.progress.passes]), False
            for rows in self.data.batches(BATCH, rng):
                found = True
                yield rows
            if not found:
                return
            self.progress.passes += 1

    def _update(self, rows: Rows, spent: float) -> float:
        """One step of AdamW with a clipped gradient, warm-up and a cosine; returns the first token's loss."""
        self.progress.step += 1
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, spent)))
        rate = RATE * min(1.0, self.progress.step / WARM_UP) * (FINAL_SHARE + (1.0 - FINAL_SHARE) * cosine)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        losses = [step_loss(step, rows) for step in self.head.unroll(rows, STEPS, SHARE)]
        weights = [DISCOUNT**i for i in range(len(losses))]
        loss = torch.stack([w * part for w, part in zip(weights, losses)]).sum() / sum(weights)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), CLIP)
        self.optimizer.step()
        return float(losses[0].detach())

    def _look(self, loss: float) -> None:
        """Measure on held-out texts and keep the best weights."""
        found, progress = measure(self.head, self.data, LOOK_ROWS), self.progress
        progress.history.append((round(progress.seconds, 1), round(loss, 4), round(found.length, 4)))
        if found.length >= progress.best:
            progress.best, self.best = found.length, self.head.arrays()

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        temporary = self.path.with_suffix(".tmp")
        torch.save(
            {
                "sizes": self.head.sizes.key(),
                "weights": _tensors(self.head.arrays()),
                "best": _tensors(self.best),
                "optimizer": self.optimizer.state_dict(),
                "progress": vars(self.progress),
            },
            temporary,
        )
        temporary.replace(self.path)


def load(folder: Path, sizes: HeadSizes) -> dict[str, Any] | None:
    """The checkpoint in a work folder; None if there is no sound one for a head of these sizes."""
    try:
        kept = torch.load(folder / FILE, weights_only=True)
        if kept["sizes"] != sizes.key():
            return None
        return {**kept, **{name: {k: v.numpy() for k, v in kept[name].items()} for name in ("weights", "best")}}
    except (OSError, KeyError, ValueError, RuntimeError, EOFError, TypeError, pickle.UnpicklingError):
        return None


def measure(head: Head, data: Dataset, limit: int, depth: int = STEPS) -> Measured:
    """Draft greedily behind held-out tokens, about `limit` of them, where the text is what the target itself says."""
    right, seen, branches, accepted = np.zeros(depth), np.zeros(depth), 0, 0
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
            hit = (step.logits.argmax(1) == rows.top[step.rows]) & mine
            seen[i] += int(mine.sum())
            right[i] += int(hit.sum())
            accepted += int(hit.sum())
            alive = torch.zeros_like(alive)
            alive[step.base[hit]] = True
        if branches >= limit:
            break
    depths = tuple((right / np.maximum(1.0, seen)).tolist())
    return Measured(depths, 1.0 + accepted / max(1, branches), branches)


def _tensors(weights: Weights) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in weights.items()}
