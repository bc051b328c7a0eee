"""A GGUF of a few layers with given heads and next to nothing else: for timing attention alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

# Width of a layer, and what the file says of its context (more tokens are no problem for timing).
N_EMBD = 64
CONTEXT_LENGTH = 4096


class Heads(NamedTuple):
    """The shape of a model's attention: query heads, key/value heads, numbers in a key and in a value."""

    queries: int
    keys: int
    key_length: int
    value_length: int


def write_layers(path: Path, heads: Heads, layers: int = 1) -> None:
    """Write a model of `layers` with such heads, random weights and a vocabulary of bytes.

    Raises:
        OSError: the file cannot be written.
    """
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(N_EMBD)
    writer.add_head_count(heads.queries)
    writer.add_head_count_kv(heads.keys)
    writer.add_key_length(heads.key_length)
    writer.add_value_length(heads.value_length)
    writer.add_rope_dimension_count(heads.key_length)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([int(kind) for kind in kinds])
    q, k, v = heads.queries * heads.key_length, heads.keys * heads.key_length, heads.keys * heads.value_length
    shapes = {"token_embd": (len(tokens), N_EMBD), "output": (len(tokens), N_EMBD)}  # rows are outputs
    for n in range(layers):
        shapes |= {
            f"blk.{n}.attn_q": (q, N_EMBD),
            f"blk.{n}.attn_k": (k, N_EMBD),
            f"blk.{n}.attn_v": (v, N_EMBD),
            f"blk.{n}.attn_output": (N_EMBD, heads.queries * heads.value_length),
            f"blk.{n}.ffn_gate": (N_EMBD, N_EMBD),
            f"blk.{n}.ffn_up": (N_EMBD, N_EMBD),
            f"blk.{n}.ffn_down": (N_EMBD, N_EMBD),
        }
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        weights = random.standard_normal(shape, dtype=np.float32) / np.sqrt(np.float32(shape[1]))
        writer.add_tensor(f"{name}.weight", weights)
    norms = [f"blk.{n}.{kind}_norm" for n in range(layers) for kind in ("attn", "ffn")]
    for name in (*norms, "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(N_EMBD, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
