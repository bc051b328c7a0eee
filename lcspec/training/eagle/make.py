"""From collected texts to a head's file: train, measure, write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lcspec.modelfiles.modelfile import read_header
from lcspec.training.clock import FINAL_ROWS, Trained
from lcspec.training.eagle.dataset import make_dataset
from lcspec.training.eagle.export import write_head
from lcspec.training.eagle.initial import embeddings, head_sizes, head_tokens, head_weights, initial_weights
from lcspec.training.eagle.network import Head
from lcspec.training.eagle.train import RATE, RATE_FURTHER, Trainer, measure
from lcspec.training.task import TrainingTask
from lcspec.training.tensors import Weights


@dataclass(frozen=True)
class TrainedHead(Trained):
    """A head that was written: its vocabulary in tokens, and the share of the model's words in that."""

    vocab: int
    coverage: float


def make_head(task: TrainingTask, layers: Sequence[int], vocab: int, further: Path | None = None) -> TrainedHead:
    """Train a head that reads the inputs of those layers and write it.

    `vocab`: the most tokens that a new head says. `further`: a head to start from, whose tokens stay. The first look
    at held-out texts, before training, is in the progress's history.

    Raises:
        UsageError: there is too little to learn from.
        UnsupportedModel: the target's embeddings or output matrix or the weights of `further` cannot be read.
        KeyboardInterrupt: it was stopped; the checkpoint is written.
    """
    target = task.target
    kept = vocab if further is None else head_tokens(further)
    data = make_dataset(task.store.open(), task.store.held_out(), kept, embeddings(target))
    task.start(data)
    sizes = head_sizes(further or target, len(data.kept))

    def start() -> Weights:
        if further is None:
            return initial_weights(target, sizes, data.kept, data.scale, task.seed)
        return head_weights(further, sizes, data.scale)

    rate = RATE if further is None else RATE_FURTHER
    trainer = Trainer(data, sizes, start, task.seconds, task.seed, task.work, rate)
    trainer.run(task.show)
    found = measure(Head(sizes, trainer.best), data, FINAL_ROWS)
    trained = TrainedHead(found, trainer.progress, len(data.kept), data.coverage)
    facts = {
        **task.facts(trained),
        "target_block_count": read_header(target).block_count or 0,
        "coverage": data.coverage,
    }
    if further is not None:
        facts["continued"] = further.name
    weights = {**trainer.best, "fc.weight": trainer.best["fc.weight"] / data.scale}
    write_head(task.out, target, sizes, weights, data.kept, layers, facts, task.storage)
    return trained
