"""From collected texts to a head's file: train, measure, write."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from lcspec.modelfiles.modelfile import read_header
from lcspec.training.clock import FINAL_ROWS, Trained
from lcspec.training.eagle.dataset import make_dataset
from lcspec.training.eagle.export import write_head
from lcspec.training.eagle.initial import embeddings, head_sizes, initial_weights
from lcspec.training.eagle.network import Head
from lcspec.training.eagle.train import Trainer, measure
from lcspec.training.task import TrainingTask


@dataclass(frozen=True)
class TrainedHead(Trained):
    """A head that was written: its vocabulary in tokens, and the share of the model's words in that."""

    vocab: int
    coverage: float


def make_head(task: TrainingTask, layers: Sequence[int], vocab: int) -> TrainedHead:
    """Train a head that reads the inputs of those layers and says at most `vocab` tokens, and write it.

    Raises:
        UsageError: there is too little to learn from.
        UnsupportedModel: the target's embeddings or output matrix cannot be read.
        KeyboardInterrupt: it was stopped; the checkpoint is written.
    """
    target = task.target
    data = make_dataset(task.store.open(), task.store.held_out(), vocab, embeddings(target))
    task.start(data)
    sizes = head_sizes(target, len(data.kept))
    start = functools.partial(initial_weights, target, sizes, data.kept, data.scale, task.seed)
    trainer = Trainer(data, sizes, start, task.seconds, task.seed, task.work)
    trainer.run(task.show)
    found = measure(Head(sizes, trainer.best), data, FINAL_ROWS)
    trained = TrainedHead(found, trainer.progress, len(data.kept), data.coverage)
    facts = {
        **task.facts(trained),
        "target_block_count": read_header(target).block_count or 0,
        "coverage": data.coverage,
    }
    weights = {**trainer.best, "fc.weight": trainer.best["fc.weight"] / data.scale}
    write_head(task.out, target, sizes, weights, data.kept, layers, facts, task.storage)
    return trained
