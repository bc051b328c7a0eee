"""A draft as a GGUF of the architecture `llama`."""

from __future__ import annotations

from pathlib import Path

from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.pairing import DISTILLED
from lcspec.training.distil.shape import ARCHITECTURE, DraftShape
from lcspec.training.export import Export, Facts
from lcspec.training.tensors import Weights


def write_draft(
    path: Path, target: Path, shape: DraftShape, weights: Weights, facts: Facts, storage: str = "q8_0"
) -> None:
    """Write a draft for the model `target`, whole or not at all.

    Args:
        path: the file.
        target: the model, whose tokenizer and chat template go with it.
        shape: the draft's.
        weights: see DraftShape.shapes.
        facts: told below `lcspec.distil.` in its metadata.
        storage: one of STORAGE, for matrices.
    """
    name = f"draft distilled from {read_header(target).name or target.stem}"
    file = Export(path, target, ARCHITECTURE, name, storage)
    file.layers(shape, shape.layers)
    file.facts(DISTILLED, facts)
    file.tokenizer(template=True)
    file.weights({name: weights[name] for name in shape.shapes()})
    file.finish()
