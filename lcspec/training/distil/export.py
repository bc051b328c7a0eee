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
    writer = file.writer
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    file.facts(DISTILLED, facts)
    file.tokenizer(template=True)
    file.weights({name: weights[name] for name in shape.shapes()})
    file.finish()
