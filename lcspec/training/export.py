"""Writing what was trained as a GGUF: the target's tokenizer, facts about the training, and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize

from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.modelfile import ModelHeader, read_header
from lcspec.modelfiles.prune import copy_field
from lcspec.training.layer_sizes import LayerSizes
from lcspec.training.tensors import Weights

STORAGE = ("q8_0", "f16", "f32")
# Numbers in a block of q8_0; rows of another length are stored as f16.
BLOCK = 32
_KINDS = {
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}

Facts = Mapping[str, str | int | float | Sequence[float]]


class Export:
    """A GGUF being written beside `path`, which `finish` puts in its place, whole or not at all."""

    def __init__(self, path: Path, target: Path, architecture: str, name: str, storage: str) -> None:
        """Write a file of `architecture` for the model `target`, matrices stored as `storage` (one of STORAGE).

        `name` is what the file calls itself. Licence and length of the context are the target's.

        Raises:
            ModelFileError: the target cannot be read.
        """
        self.path, self.target, self.storage = path, target, storage
        self.temporary = path.with_name(path.name + ".tmp")
        self.header: ModelHeader = read_header(target)
        self.writer = gguf.GGUFWriter(self.temporary, architecture)
        self.writer.add_name(name)
        if self.header.licence:
            self.writer.add_license(self.header.licence)
        self.writer.add_file_type(_KINDS[storage][1])
        self.writer.add_context_length(self.header.context_length or 4096)
        self.writer.add_vocab_size(self.header.n_vocab)

    def layers(self, sizes: LayerSizes, n: int) -> None:
        """Tell that the network has `n` layers of such sizes."""
        writer = self.writer
        writer.add_embedding_length(sizes.width)
        writer.add_block_count(n)
        writer.add_feed_forward_length(sizes.feed_forward)
        writer.add_head_count(sizes.heads)
        writer.add_head_count_kv(sizes.kv_heads)
        writer.add_key_length(sizes.head_dim)
        writer.add_value_length(sizes.head_dim)
        writer.add_layer_norm_rms_eps(sizes.epsilon)
        writer.add_rope_dimension_count(sizes.head_dim)
        writer.add_rope_freq_base(sizes.rope_base)

    def facts(self, prefix: str, facts: Facts) -> None:
        """Tell facts in the metadata, below `prefix`."""
        for name, value in facts.items():
            key = f"{prefix}.{name}"
            if isinstance(value, str):
                self.writer.add_string(key, value)
            elif isinstance(value, int):
                self.writer.add_uint32(key, value)
            elif isinstance(value, float):
                self.writer.add_float32(key, value)
            else:
                self.writer.add_array(key, [float(x) for x in value])

    def tokenizer(self, template: bool) -> None:
        """Copy the target's tokenizer, key by key; `template`: with the chat template."""
        for field in gguf.GGUFReader(self.target).fields.values():
            if field.name.startswith("tokenizer.chat_template") and not template:
                continue
            if field.name.startswith("tokenizer."):
                copy_field(self.writer, field, field.contents())

    def weights(self, weights: Weights) -> None:
        """Add tensors: vectors as they are, matrices as they are to be stored."""
        kind = _KINDS[self.storage][0]
        for name, values in weights.items():
            data = np.ascontiguousarray(values, np.float32)
            if data.ndim == 1 or self.storage == "f32":
                self.writer.add_tensor(name, data)
            elif self.storage == "f16" or data.shape[1] % BLOCK:
                self.writer.add_tensor(name, data.astype(np.float16))
            else:
                self.writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)

    def finish(self) -> None:
        """Write everything, read it as whoever opens it will, and put it in its place."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        read_gguf(self.temporary)
        self.temporary.replace(self.path)
