"""Training the heads: Adam by the clock, early stopping on held-out text, checkpoints to go on from after a kill."""

from __future__ import annotations

import json
import math
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lcspec.drafters.medusa.network import DISCOUNT, Parameters, Sizes, gradients
from lcspec.training.data import Dataset
from lcspec.training.measure import Measured, measure

BATCH = 512
RATE = 2e-3
WARM_UP = 50  # steps
FINAL_SHARE = 0.03  # of the learning rate
BETAS, EPSILON = (0.9, 0.99), 1e-8
CLIP = 1.0
# The held-out loss is looked at this many times in a run; so many looks without progress end it.
LOOKS = 24
PATIENCE = 4
LOOK_ROWS = 2048
FINAL_ROWS = 20_000
CHECKPOINT_SECONDS = 30.0
# Passes over the data after which a run ends even if there is time left.
MAX_PASSES = 40

Progress = Callable[[float], None]


@dataclass
class State:
    """Everything a checkpoint holds."""

    params: Parameters
    first: Parameters
    second: Parameters
    best: Parameters
    best_loss: float = math.inf
    stale: int = 0
    step: int = 0
    seconds: float = 0.0
    looks: int = 0
    passes: int = 0
    history: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def start(cls, params: Parameters) -> State:
        """A run that has not begun."""
        zeros = {k: np.zeros_like(v) for k, v in params.items()}
        return cls(params, zeros, {k: v.copy() for k, v in zeros.items()}, {k: v.copy() for k, v in params.items()})


GROUPS = ("params", "first", "second", "best")
SCALARS = ("best_loss", "stale", "step", "seconds", "looks", "passes", "history")


class Trainer:
    """Trains one network on one dataset."""

    def __init__(self, data: Dataset, sizes: Sizes, state: State, seconds: float, seed: int, folder: Path) -> None:
        """`seconds`: training time in all, earlier runs included."""
        self.data = data
        self.sizes = sizes
        self.state = state
        self.seconds = seconds
        self.seed = seed
        self.path = folder / "train.npz"
        self.rate = RATE
        self.max_passes = MAX_PASSES

    def run(self, progress: Progress = lambda _: None) -> None:
        """Train until the time is over, the held-out loss stops falling, or the data has been seen often enough."""
        state, began, before = self.state, time.monotonic(), self.state.seconds
        saved = began
        for rows in self._batches():
            state.seconds = before + time.monotonic() - began
            share = state.seconds / self.seconds if self.seconds > 0 else 1.0
            if share * LOOKS >= state.looks + 1 or share >= 1.0:
                self._look()
                state.looks = int(share * LOOKS)
            if share >= 1.0 or state.stale >= PATIENCE:
                break
            losses, grads = gradients(self.state.params, self.sizes, *self.data.take(rows))
            self._update(grads, share)
            progress(min(1.0, share))
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.save()
                saved = time.monotonic()
        else:
            self._look()
        self.save()
        progress(1.0)

    def _batches(self) -> Iterator[NDArray[np.int64]]:
        state = self.state
        while state.passes < self.max_passes:
            rng = np.random.default_rng([self.seed, state.passes])
            yield from self.data.train_rows(BATCH, rng)
            state.passes += 1

    def _update(self, grads: Parameters, share: float) -> None:
        """One step of Adam (Kingma and Ba 2015) with a clipped gradient, warm-up and a cosine."""
        state = self.state
        state.step += 1
        norm = math.sqrt(sum(float(np.vdot(g, g)) for g in grads.values()))
        clip = min(1.0, CLIP / max(norm, 1e-12))
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))
        rate = self.rate * min(1.0, state.step / WARM_UP) * (FINAL_SHARE + (1.0 - FINAL_SHARE) * cosine)
        b1, b2 = BETAS
        rate *= math.sqrt(1.0 - b2**state.step) / (1.0 - b1**state.step)
        for name, g in grads.items():
            if clip < 1.0:
                g *= np.float32(clip)
            m, v = state.first[name], state.second[name]
            m += np.float32(1.0 - b1) * (g - m)
            np.square(g, out=g)
            v += np.float32(1.0 - b2) * (g - v)
            np.sqrt(v, out=g)
            g += np.float32(EPSILON)
            np.divide(m, g, out=g)
            g *= np.float32(rate)
            state.params[name] -= g

    def _look(self) -> None:
        """Compare the held-out loss with the best so far."""
        found = self.measured(self.state.params, LOOK_ROWS)
        loss = float((DISCOUNT ** np.arange(1, self.sizes.heads + 1) * found.losses).sum())
        state = self.state
        state.history.append((round(state.seconds, 1), round(loss, 4)))
        if loss < state.best_loss or not found.positions:
            state.best_loss, state.stale = loss, 0
            state.best = {k: v.copy() for k, v in state.params.items()}
        else:
            state.stale += 1

    def measured(self, params: Parameters | None = None, rows: int = FINAL_ROWS) -> Measured:
        """Held-out figures, of the best parameters if nothing else is said."""
        batches = self.data.batches(self.data.valid_rows(rows))
        return measure(self.state.best if params is None else params, self.sizes, batches)

    def save(self) -> None:
        """Write the checkpoint atomically."""
        state = self.state
        arrays: dict[str, Any] = {}
        for group in GROUPS:
            arrays |= {f"{group}/{name}": value for name, value in getattr(state, group).items()}
        arrays["scalars"] = np.array(json.dumps({name: getattr(state, name) for name in SCALARS}))
        temporary = self.path.with_suffix(".tmp.npz")
        np.savez(temporary, **arrays)
        temporary.replace(self.path)


def load_state(folder: Path, sizes: Sizes) -> State | None:
    """The checkpoint in a work folder; None if there is no sound one for a network of these sizes."""
    try:
        with np.load(folder / "train.npz", allow_pickle=False) as file:
            params, first, second, best = (
                {name: file[f"{group}/{name}"] for name in sizes.shapes()} for group in GROUPS
            )
            scalars = json.loads(str(file["scalars"]))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, EOFError):
        return None
    if any(value.shape != sizes.shapes()[k] for group in (params, first, second, best) for k, value in group.items()):
        return None
    state = State(params, first, second, best)
    for name in SCALARS:
        setattr(state, name, scalars[name])
    return state
