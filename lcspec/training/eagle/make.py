"""From collected texts to a head's file: train, measure, write."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lcspec import __version__
from lcspec.errors import UsageError
from lcspec.modelfiles.identity import identify
from lcspec.modelfiles.modelfile import read_header
from lcspec.training.clock import FINAL_ROWS, Measured
from lcspec.training.eagle.dataset import make_dataset
from lcspec.training.eagle.export import write_head
from lcspec.training.eagle.initial import embeddings, head_sizes, initial_weights
from lcspec.training.eagle.network import Head
from lcspec.training.eagle.train import Trainer, measure
from lcspec.training.texts import TextStore


@dataclass(frozen=True)
class Made:
    """A head that was written: its figures, its vocabulary and the share of the model's words in that."""

    measured: Measured
    steps: int
    passes: int
    vocab: int
    coverage: float


def make_head(
    out: Path,
    target: Path,
    store: TextStore,
    layers: Sequence[int],
    work: Path,
    *,
    seconds: float,
    vocab: int,
    seed: int,
    threads: int,
    storage: str,
    sources: str,
    show: Callable[[float], None],
) -> Made:
    """Train a head for `target` on the texts in `store` for so many seconds in all, and write it to `out`.

    A checkpoint in `work` is gone on from. `sources` names what the prompts were made from.

    Raises:
        UsageError: there is too little to learn from.
        UnsupportedModel: the target's embeddings or output matrix cannot be read.
        KeyboardInterrupt: it was stopped; the checkpoint is written.
    """
    if threads:
        torch.set_num_threads(threads)
    data = make_dataset(store.open(), store.held_out(), vocab, embeddings(target))
    if not data.part(False) or not data.part(True):
        raise UsageError(
            f"{store.answers} answers with {len(store)} tokens are too few to learn from: give it more --minutes, or "
            "more --text"
        )
    sizes = head_sizes(target, len(data.kept))
    start = functools.partial(initial_weights, target, sizes, data.kept, data.scale, seed)
    trainer = Trainer(data, sizes, start, seconds, seed, work)
    trainer.run(show)
    head = Head(sizes, trainer.best)
    found = measure(head, data, FINAL_ROWS)
    identity, progress = identify(target), trainer.progress
    facts: dict[str, str | int | float | Sequence[float]] = {
        "by": f"lcspec {__version__}",
        "date": datetime.date.today().isoformat(),
        "target": identity.name,
        "target_file": target.name,
        "target_block_count": read_header(target).block_count or 0,
        "fingerprint": identity.fingerprint,
        "text": sources,
        "answers": store.answers,
        "tokens": len(store),
        "coverage": data.coverage,
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "acceptance": found.depths,
        "acceptance_length": found.length,
        "held_out": found.rows,
    }
    weights = {**trainer.best, "fc.weight": trainer.best["fc.weight"] / data.scale}
    write_head(out, target, sizes, weights, data.kept, layers, facts, storage)
    return Made(found, progress.step, progress.passes, len(data.kept), data.coverage)
