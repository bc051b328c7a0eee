"""An EAGLE-3 head as a GGUF, in the layout that llama.cpp reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from numpy.typing import NDArray

from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.prune import copy_field
from lcspec.training.eagle.network import HeadSizes, Weights

ARCHITECTURE = "eagle3"
STORAGE = ("q8_0", "f16", "f32")
# Numbers in a block of q8_0; rows of another length are stored as f16.
BLOCK = 32
_KINDS = {
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}

Facts = Mapping[str, str | int | float | Sequence[float]]


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
    header = read_header(target)
    temporary = path.with_name(path.name + ".tmp")
    writer = gguf.GGUFWriter(temporary, ARCHITECTURE)
    kind, file_type = _KINDS[storage]
    writer.add_name(f"EAGLE-3 head for {header.name or target.stem}")
    if header.licence:
        writer.add_license(header.licence)
    writer.add_file_type(file_type)
    context = header.metadata.get(f"{header.architecture}.context_length")
    writer.add_context_length(context if isinstance(context, int) else 4096)
    writer.add_embedding_length(sizes.width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(sizes.feed_forward)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_layer_norm_rms_eps(sizes.epsilon)
    writer.add_rope_dimension_count(sizes.head_dim)
    writer.add_rope_freq_base(sizes.rope_base)
    writer.add_vocab_size(header.n_vocab)
    writer.add_array(f"{ARCHITECTURE}.target_layers", list(layers))
    writer.add_uint32(f"{ARCHITECTURE}.target_hidden_size", sizes.width)
    _add_facts(writer, facts)
    for field in gguf.GGUFReader(target).fields.values():
        if field.name.startswith("tokenizer.") and not field.name.startswith("tokenizer.chat_template"):
            copy_field(writer, field, field.contents())
    for name in sizes.shapes():
        data = np.ascontiguousarray(weights[name], np.float32)
        if data.ndim == 1 or storage == "f32":
            writer.add_tensor(name, data)
        elif storage == "f16" or data.shape[1] % BLOCK:
            writer.add_tensor(name, data.astype(np.float16))
        else:
            writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)
    writer.add_tensor("d2t", np.ascontiguousarray(kept, np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read_gguf(temporary)  # as whoever opens it will
    temporary.replace(path)


def _add_facts(writer: gguf.GGUFWriter, facts: Facts) -> None:
    for name, value in facts.items():
        key = f"lcspec.eagle.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_array(key, [float(x) for x in value])
