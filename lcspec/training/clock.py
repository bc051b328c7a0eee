"""Training by the clock, over several runs, and keeping what was best on texts that were held out."""

from __future__ import annotations

import math
import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lcspec.training.network import GGUFNetwork
from lcspec.training.tensors import Weights

FINAL_SHARE, WARM_UP, CLIP = 0.02, 30, 1.0
BETAS, DECAY = (0.9, 0.95), 0.01
# Seconds between two looks at held-out texts, and drafts that one look and the last one try.
LOOK_SECONDS, LOOK_ROWS, FINAL_ROWS = 120.0, 2000, 12000
# The part of the loss that wants the target's first choice; the rest wants its distribution. Drafts are single tokens.
CHOICE = 0.5

Batch = TypeVar("Batch")
Network = TypeVar("Network", bound=GGUFNetwork)


@dataclass(frozen=True)
class Measured:
    """A drafter on held-out texts, greedy.

    Attributes:
        depths: share of branches still right at every depth, all tokens before it being right, of those that were.
        length: tokens a target step gives with chains as deep as that, one more than are accepted on average.
        rows: branches looked at.
    """

    depths: tuple[float, ...]
    length: float
    rows: int

    @classmethod
    def of(cls, right: NDArray[np.float64], seen: NDArray[np.float64], branches: int) -> Measured:
        """From the branches right at every depth, and those of them whose tokens before were right: float64 [depth]."""
        depths = tuple((right / np.maximum(1.0, seen)).tolist())
        return cls(depths, 1.0 + float(right.sum()) / max(1, branches), branches)


@dataclass
class Progress:
    """What a checkpoint keeps beside weights. `history`: (seconds, loss in training, length on held-out texts)."""

    seconds: float = 0.0
    step: int = 0
    passes: int = 0
    best: float = 0.0
    history: list[tuple[float, float, float]] = field(default_factory=list)


class Stopwatch:
    """Seconds of training, without the time in which the process was stopped (SIGSTOP) or hardly got to run."""

    def __init__(self, seconds: float = 0.0) -> None:
        """`seconds`: from earlier runs."""
        self.seconds = seconds
        self._wall, self._ran = time.monotonic(), time.process_time()

    def lap(self) -> float:
        """Add what has passed since the last lap; returns all seconds. A lap with less than a quarter of its time on
        a processor counts as what it had there."""
        wall, ran = time.monotonic(), time.process_time()
        passed, used = wall - self._wall, ran - self._ran
        self.seconds += passed if used > passed / 4 else used
        self._wall, self._ran = wall, ran
        return self.seconds


@dataclass(frozen=True)
class Trained:
    """What came of training: figures on held-out texts, and how far it went."""

    measured: Measured
    progress: Progress


class ClockTrainer(ABC, Generic[Network, Batch]):
    """Trains a network until `seconds` have been spent. Subclasses say what a batch and its loss are."""

    # Matrices whose weights do not decay; vectors never do.
    undecayed: tuple[str, ...] = ()
    # Whether what training begins with is measured, and kept if nothing better comes.
    looks_first = True

    def __init__(
        self,
        make: Callable[[Weights], Network],
        initial: Callable[[], Weights],
        sizes: Mapping[str, float],
        *,
        path: Path,
        seconds: float,
        seed: int,
        rate: float,
    ) -> None:
        """Go on from the checkpoint in `path` if it is of a network of those `sizes`, or begin with `initial()`.

        `rate`: the learning rate after the warm-up, from which it falls along a cosine.
        """
        self.path, self.sizes, self.seconds, self.seed, self.rate = path, dict(sizes), seconds, seed, rate
        kept = load_checkpoint(path, sizes)
        self.network: Network = make(kept["weights"] if kept else initial())
        named = [(name, self.network.of(name.removesuffix(".weight"))) for name in self.network.shapes]
        named = [(name, value) for name, value in named if value.requires_grad]
        matrices = [value for name, value in named if value.ndim > 1 and name not in self.undecayed]
        others = [value for name, value in named if value.ndim == 1 or name in self.undecayed]
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=True)
        self.progress = Progress()
        self.best: Weights = self.network.arrays()
        if kept:
            self.optimizer.load_state_dict(kept["optimizer"])
            self.progress, self.best = Progress(**kept["progress"]), kept["best"]
        if self.looks_first and not self.progress.history:
            self.look(0.0)

    @abstractmethod
    def batches(self, rng: np.random.Generator) -> Iterator[Batch]:
        """One shuffled pass over the texts for training."""

    @abstractmethod
    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss to lower, and the one to tell: cross entropy in nats a token."""

    @abstractmethod
    def measured(self) -> Measured:
        """The network as it is, on some held-out texts."""

    def run(self, show: Callable[[float], None]) -> None:
        """Train; `show` is told the share of the time that is spent. A KeyboardInterrupt leaves a checkpoint."""
        progress, losses = self.progress, list[Tensor]()
        watch, looked = Stopwatch(progress.seconds), progress.seconds
        torch.manual_seed(self.seed + progress.step)
        try:
            for batch in self._endless():
                progress.seconds = watch.lap()
                if progress.seconds >= self.seconds:
                    break
                losses.append(self._update(batch, progress.seconds / self.seconds))
                show(progress.seconds / self.seconds)
                if progress.seconds - looked > min(LOOK_SECONDS, self.seconds / 4):
                    self.look(_mean(losses))
                    self.save()
                    looked, losses = watch.lap(), []
        finally:
            progress.seconds = watch.lap()
            self.look(_mean(losses))
            self.save()

    def look(self, loss: float) -> None:
        """Measure on held-out texts and keep the best weights; `loss` in training goes into the history."""
        found, progress = self.measured(), self.progress
        progress.history.append((round(progress.seconds, 1), round(loss, 4), round(found.length, 4)))
        if found.length >= progress.best:
            progress.best, self.best = found.length, self.network.arrays()

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        temporary = self.path.with_suffix(".tmp")
        torch.save(
            {
                "sizes": self.sizes,
                "weights": _tensors(self.network.arrays()),
                "best": _tensors(self.best),
                "optimizer": self.optimizer.state_dict(),
                "progress": vars(self.progress),
            },
            temporary,
        )
        temporary.replace(self.path)

    def _endless(self) -> Iterator[Batch]:
        while True:
            rng, found = np.random.default_rng([self.seed, self.progress.passes]), False
            for batch in self.batches(rng):
                found = True
                yield batch
            if not found:
                return
            self.progress.passes += 1

    def _update(self, batch: Batch, spent: float) -> Tensor:
        """One step of AdamW with a clipped gradient, warm-up and a cosine; returns the loss to tell, which nobody waits
        for."""
        self.progress.step += 1
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, spent)))
        rate = self.rate * min(1.0, self.progress.step / WARM_UP) * (FINAL_SHARE + (1.0 - FINAL_SHARE) * cosine)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, told = self.losses(batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
        self.optimizer.step()
        return told.detach()


def load_checkpoint(path: Path, sizes: Mapping[str, float]) -> dict[str, Any] | None:
    """The checkpoint in a file; None if there is no sound one for a network of these sizes."""
    try:
        kept = torch.load(path, map_location="cpu", weights_only=True)
        if kept["sizes"] != dict(sizes):
            return None
        return {**kept, **{name: {k: v.numpy() for k, v in kept[name].items()} for name in ("weights", "best")}}
    except (OSError, KeyError, ValueError, RuntimeError, EOFError, TypeError, pickle.UnpicklingError):
        return None


def _mean(losses: list[Tensor]) -> float:
    return float(torch.stack(losses).mean()) if losses else 0.0


def _tensors(weights: Weights) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in weights.items()}
