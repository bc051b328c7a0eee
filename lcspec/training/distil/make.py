"""From collected texts to a draft's file: train, measure, write."""

from __future__ import annotations

from pathlib import Path

from lcspec.training.clock import FINAL_ROWS, Trained
from lcspec.training.distil.dataset import Dataset
from lcspec.training.distil.export import write_draft
from lcspec.training.distil.initial import draft_weights, initial_weights
from lcspec.training.distil.network import Draft
from lcspec.training.distil.shape import DraftShape
from lcspec.training.distil.train import RATE, RATE_FURTHER, Trainer, measure
from lcspec.training.task import TrainingTask
from lcspec.training.tensors import Weights


def make_draft(task: TrainingTask, shape: DraftShape, further: Path | None) -> Trained:
    """Train a draft of that shape and write it; `further`: a draft to start from.

    The first look at held-out texts, before training, is in the progress's history.

    Raises:
        UsageError: there is too little to learn from.
        UnsupportedModel: the weights of `further` cannot be read.
        KeyboardInterrupt: it was stopped; the checkpoint is written.
    """
    data = Dataset(task.store.open(), task.store.held_out())
    task.start(data)

    def start() -> Weights:
        return initial_weights(task.target, shape, task.seed) if further is None else draft_weights(further, shape)

    rate = RATE if further is None else RATE_FURTHER
    trainer = Trainer(data, shape, start, task.seconds, task.seed, task.work, rate)
    trainer.run(task.show)
    trained = Trained(measure(Draft(shape, trainer.best), data, FINAL_ROWS), trainer.progress)
    facts = task.facts(trained)
    if further is not None:
        facts["continued"] = further.name
    write_draft(task.out, task.target, shape, trainer.best, facts, task.storage)
    return trained
