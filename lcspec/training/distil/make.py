"""From collected texts to a draft's file: train, measure, write."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lcspec import __version__
from lcspec.errors import UsageError
from lcspec.modelfiles.identity import identify
from lcspec.training.clock import FINAL_ROWS, Measured
from lcspec.training.distil.dataset import Dataset
from lcspec.training.distil.export import write_draft
from lcspec.training.distil.initial import draft_weights, initial_weights
from lcspec.training.distil.network import Draft
from lcspec.training.distil.shape import DraftShape
from lcspec.training.distil.train import RATE, RATE_FURTHER, Trainer, measure
from lcspec.training.tensors import Weights
from lcspec.training.texts import TextStore


@dataclass(frozen=True)
class Made:
    """A draft that was written: its figures, the tokens a step it gave before it was trained, and whether any look at
    held-out texts was better than that."""

    measured: Measured
    before: float
    better: bool
    steps: int
    passes: int


def make_draft(
    out: Path,
    target: Path,
    store: TextStore,
    shape: DraftShape,
    work: Path,
    *,
    further: Path | None,
    seconds: float,
    seed: int,
    threads: int,
    storage: str,
    sources: str,
    show: Callable[[float], None],
) -> Made:
    """Train a draft for `target` on the texts in `store` for so many seconds in all, and write it to `out`.

    A checkpoint in `work` is gone on from. `further`: a draft to start from. `sources` names what the prompts were
    made from.

    Raises:
        UsageError: there is too little to learn from.
        UnsupportedModel: the weights of `further` cannot be read.
        KeyboardInterrupt: it was stopped; the checkpoint is written.
    """
    if threads:
        torch.set_num_threads(threads)
    data = Dataset(store.open(), store.held_out())
    if not data.part(False) or not data.part(True):
        raise UsageError(
            f"{store.answers} answers with {len(store)} tokens are too few to learn from: give it more --minutes, or "
            "more --text"
        )

    def start() -> Weights:
        return initial_weights(target, shape, seed) if further is None else draft_weights(further, shape)

    trainer = Trainer(data, shape, start, seconds, seed, work, RATE if further is None else RATE_FURTHER)
    trainer.run(show)
    found = measure(Draft(shape, trainer.best), data, FINAL_ROWS)
    identity, progress = identify(target), trainer.progress
    facts: dict[str, str | int | float | Sequence[float]] = {
        "by": f"lcspec {__version__}",
        "date": datetime.date.today().isoformat(),
        "target": identity.name,
        "target_file": target.name,
        "fingerprint": identity.fingerprint,
        "text": sources,
        "answers": store.answers,
        "tokens": len(store),
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "acceptance": found.depths,
        "acceptance_length": found.length,
        "held_out": found.rows,
    }
    if further is not None:
        facts["continued"] = further.name
    write_draft(out, target, shape, trainer.best, facts, storage)
    before = progress.history[0][2]
    return Made(found, before, progress.best > before, progress.step, progress.passes)
