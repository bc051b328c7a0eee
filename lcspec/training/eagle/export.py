"""An EAGLE-3 head as a GGUF, in the layout that llama.cpp reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lcspec.modelfiles.modelfile import read_header
from lcspec.training.eagle.network import HeadSizes
from lcspec.training.export import Export, Facts
from lcspec.training.tensors import Weights

ARCHITECTURE = "eagle3"


def write_head(
    path: Path,
    target: Path,
    sizes: HeadSizes,
    weights: Weights,
    kept: NDArray[np.int64],
    layers: Sequence[int],
    facts: Facts,
    storage: str = "q8_0",
) -> None:
    """Write a head for the model `target`, whole or not at all.

    Args:
        path: the file.
        target: the model, whose tokenizer goes with it. Embeddings are not stored: the library takes the target's.
        sizes: its shape.
        weights: see HeadSizes.shapes.
        kept: the token of the target for every token of the head, int64 [sizes.vocab].
        layers: layers of the target whose inputs it reads.
        facts: told below `lcspec.eagle.` in its metadata.
        storage: one of STORAGE, for matrices.
    """
    file = Export(path, target, ARCHITECTURE, f"EAGLE-3 head for {read_header(target).name or target.stem}", storage)
    file.layers(sizes, 1)
    file.writer.add_array(f"{ARCHITECTURE}.target_layers", list(layers))
    file.writer.add_uint32(f"{ARCHITECTURE}.target_hidden_size", sizes.width)
    file.facts("lcspec.eagle", facts)
    file.tokenizer(template=False)
    file.weights({name: weights[name] for name in sizes.shapes()})
    file.writer.add_tensor("d2t", np.ascontiguousarray(kept, np.int64))
    file.finish()
