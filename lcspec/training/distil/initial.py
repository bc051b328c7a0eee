"""What a draft starts from: the target's own output matrix in fewer dimensions, or the weights of a draft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lcspec.drafters.medusa.target import output_rows
from lcspec.errors import ModelFileError, UnsupportedModel
from lcspec.training.distil.shape import DraftShape
from lcspec.training.tensors import read_weights

# Deviation of weights that start at random.
RANDOM = 0.02
# Rows of the output matrix that are read at a time.
ROWS = 16384

Floats = NDArray[np.float32]


def initial_weights(target: Path, shape: DraftShape, seed: int) -> dict[str, Floats]:
    """Weights of a new draft by their names in its GGUF.

    Layers start at random, and small where they write, so that the draft begins as embeddings alone. Those are the
    target's: see `reduced`. Where the target's cannot be read, they are random as well.
    """
    rng = np.random.default_rng(seed)
    out: dict[str, Floats] = {}
    for name, size in shape.shapes().items():
        if len(size) == 1:
            out[name] = np.ones(size, np.float32)
        else:
            deviation = RANDOM / np.sqrt(2 * shape.layers) if name.endswith(_WRITING) else RANDOM
            out[name] = (deviation * rng.standard_normal(size)).astype(np.float32)
    try:
        tokens = reduced(target, shape.vocab, shape.width)
    except (UnsupportedModel, ModelFileError):
        return out
    embeddings = out["token_embd.weight"]
    embeddings[:, : tokens.shape[1]] = tokens
    embeddings *= np.float32(np.sqrt(shape.vocab) / max(1e-6, float(np.linalg.norm(embeddings))))
    return out


_WRITING = ("attn_output.weight", "ffn_down.weight")


def reduced(target: Path, vocab: int, width: int) -> Floats:
    """The rows of the target's output matrix along its `width` principal components, float32 [vocab, <= width].

    What all rows have in common is left out: it adds the same to every logit. No other projection onto so few
    dimensions keeps more of the differences between logits (in the mean square, over rows).

    Raises:
        UnsupportedModel: the target has no output matrix, or of a type that cannot be read.
        ModelFileError: it has fewer rows than the vocabulary.
    """
    parts = [range(i, min(i + ROWS, vocab)) for i in range(0, vocab, ROWS)]
    total, square = np.zeros(0), np.zeros(0)
    for part in parts:
        rows = output_rows(target, part)
        total = (total if total.size else 0.0) + rows.sum(axis=0, dtype=np.float64)
        square = (square if square.size else 0.0) + (rows.T @ rows).astype(np.float64)
    mean = total / vocab
    _, vectors = np.linalg.eigh(square - vocab * np.outer(mean, mean))
    axes = np.ascontiguousarray(vectors[:, ::-1][:, :width], np.float32)
    return np.concatenate([(output_rows(target, part) - mean.astype(np.float32)) @ axes for part in parts])


def draft_weights(draft: Path, shape: DraftShape) -> dict[str, Floats]:
    """The weights of a draft by their names, out of its GGUF.

    Raises:
        UnsupportedModel: a tensor is of a type that cannot be read.
    """
    return read_weights(draft, shape.shapes())
