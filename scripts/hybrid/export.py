"""The trained hybrid as a GGUF that llama.cpp loads."""

from __future__ import annotations

from pathlib import Path

from lcspec.training.export import Export, Facts
from lcspec.training.tensors import Weights

from .shape import ARCHITECTURE, KERNEL, HybridShape


def write_hybrid(path: Path, vocabulary: Path, shape: HybridShape, weights: Weights, facts: Facts) -> None:
    """Write the float32 GGUF, whole or not at all.

    Args:
        path: the file.
        vocabulary: the model whose tokenizer, chat template and length of context it gets.
        shape: the model's.
        weights: see HybridShape.shapes.
        facts: told below `lcspec.hybrid.` in its metadata.
    """
    file = Export(path, vocabulary, ARCHITECTURE, "small hybrid with multi-token prediction", "f32")
    writer, half, dim = file.writer, shape.head_dim // 2, shape.heads * shape.head_dim
    file.layers(shape, shape.layers + 1)
    writer.add_nextn_predict_layers(1)
    # Pairs of a head take turns between the three positions of an image's patch, which are one and the same for text.
    writer.add_rope_dimension_sections([(half + 2) // 3, (half + 1) // 3, half // 3, 0])
    writer.add_ssm_conv_kernel(KERNEL)
    writer.add_ssm_inner_size(dim)
    writer.add_ssm_state_size(shape.head_dim)
    writer.add_ssm_time_step_rank(shape.heads)
    writer.add_ssm_group_count(shape.heads)
    writer.add_full_attention_interval(shape.interval)
    file.facts("lcspec.hybrid", facts)
    file.tokenizer(template=True)
    file.weights({name: -abs(w) if name.endswith("ssm_a") else w for name, w in weights.items()})
    file.finish()
