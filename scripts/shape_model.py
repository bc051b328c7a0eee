"""Writes the first layers of a model that people run, with random weights, to measure what its steps cost.

    python scripts/shape_model.py gpt-oss-20b gpt-oss.gguf --quant MXFP4_MOE
    python scripts/compare_plain.py gpt-oss.gguf

Sizes are those of the model's published configuration; of its vocabulary there is the share that belongs to these
layers, so that the output matrix has its usual part in a step. Texts mean nothing, and whether drafts are accepted
says nothing either.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lcspec.errors import LcspecError
from lcspec.modelfiles.gguf_header import FILE_TYPES
from scripts.scale_model import quantize
from tests import tiny_gguf as tiny

Metadata = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Sizes of a model.

    Attributes:
        architecture: as the GGUF calls it.
        build: adds the layers to a file, and returns what metadata they need.
        layers: of the model; `taken`: of them, in the file.
        width: of what is passed from layer to layer; `ff`: of a feed-forward network or an expert.
        heads, kv_heads, head: of queries, of keys and values, and how long each is.
        vocab: tokens that the model knows.
        experts, used: in a layer, and for each token.
        tied: the output matrix is that of the embeddings.
    """

    architecture: str
    build: Callable[[Weights, Shape], Metadata]
    layers: int
    taken: int
    width: int
    ff: int
    heads: int
    kv_heads: int
    head: int
    vocab: int
    experts: int = 0
    used: int = 0
    tied: bool = True


class Weights:
    """Random weights in 16 bits, all cut from the same numbers; vectors are in 32 bits."""

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self._pool = np.random.default_rng(0).standard_normal(1 << 22, np.float32).astype(np.float16)

    def matrix(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """`shape` ends with what is multiplied."""
        start = len(self.tensors) * 65537 % len(self._pool)
        values = np.resize(np.roll(self._pool, start), shape)
        self.tensors[f"{name}.weight"] = values * np.float16(gain / shape[-1] ** 0.5)

    def vector(self, name: str, *shape: int, value: float = 1.0) -> None:
        self.tensors[name if name.endswith(("_a", ".bias")) else f"{name}.weight"] = np.full(shape, value, np.float32)

    def attention(
        self, block: str, shape: Shape, *, gated: bool = False, norms: bool = True, bias: bool = False
    ) -> None:
        queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
        sizes = {"q": queries * (2 if gated else 1), "k": keys, "v": keys}
        for name, size in sizes.items():
            self.matrix(f"{block}.attn_{name}", size, shape.width)
        self.matrix(f"{block}.attn_output", shape.width, queries)
        if norms:
            self.vector(f"{block}.attn_q_norm", shape.head)
            self.vector(f"{block}.attn_k_norm", shape.head)
        if bias:
            for name, size in {**sizes, "output": shape.width}.items():
                self.vector(f"{block}.attn_{name}.bias", size, value=0.1)

    def feed_forward(self, block: str, shape: Shape) -> None:
        for name in ("gate", "up"):
            self.matrix(f"{block}.ffn_{name}", shape.ff, shape.width)
        self.matrix(f"{block}.ffn_down", shape.width, shape.ff)

    def experts(self, block: str, shape: Shape, *, bias: bool = False) -> None:
        sizes = {"gate": (shape.ff, shape.width), "up": (shape.ff, shape.width), "down": (shape.width, shape.ff)}
        self.matrix(f"{block}.ffn_gate_inp", shape.experts, shape.width, gain=2.0)
        self.tensors[f"{block}.ffn_gate_inp.weight"] = self.tensors[f"{block}.ffn_gate_inp.weight"].astype(np.float32)
        if bias:
            self.vector(f"{block}.ffn_gate_inp.bias", shape.experts, value=0.1)
        for name, (n_out, n_in) in sizes.items():
            self.matrix(f"{block}.ffn_{name}_exps", shape.experts, n_out, n_in)
            if bias:
                self.vector(f"{block}.ffn_{name}_exps.bias", shape.experts, n_out, value=0.1)


def _blocks(shape: Shape) -> list[str]:
    return [f"blk.{i}" for i in range(shape.taken)]


def _llama(weights: Weights, shape: Shape) -> Metadata:
    for block in _blocks(shape):
        weights.vector(f"{block}.attn_norm", shape.width)
        weights.vector(f"{block}.ffn_norm", shape.width)
        weights.attention(block, shape, norms=False)
        weights.feed_forward(block, shape)
    return {"rope.dimension_count": shape.head}


def _qwen3moe(weights: Weights, shape: Shape) -> Metadata:
    for block in _blocks(shape):
        weights.vector(f"{block}.attn_norm", shape.width)
        weights.vector(f"{block}.ffn_norm", shape.width)
        weights.attention(block, shape)
        weights.experts(block, shape)
    return {"expert_feed_forward_length": shape.ff, "rope.dimension_count": shape.head}


def _gemma3(weights: Weights, shape: Shape) -> Metadata:
    """Five of six layers see 1 024 positions."""
    for block in _blocks(shape):
        for name in ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"):
            weights.vector(f"{block}.{name}", shape.width)
        weights.attention(block, shape)
        weights.feed_forward(block, shape)
    return {"attention.sliding_window": 1024, "attention.sliding_window_pattern": 6, "rope.freq_base_swa": 10000.0}


def _gpt_oss(weights: Weights, shape: Shape) -> Metadata:
    """Every other layer sees 128 positions."""
    for block in _blocks(shape):
        weights.vector(f"{block}.attn_norm", shape.width)
        weights.vector(f"{block}.post_attention_norm", shape.width)
        weights.attention(block, shape, norms=False, bias=True)
        weights.vector(f"{block}.attn_sinks", shape.heads, value=0.0)
        weights.experts(block, shape, bias=True)
    return {
        "expert_feed_forward_length": shape.ff,
        "attention.sliding_window": 128,
        "rope.dimension_count": shape.head,
    }


def _qwen35(weights: Weights, shape: Shape) -> Metadata:
    """Three of four layers are gated delta nets, of 16 key and 32 value heads of 128."""
    head, n_keys, n_values = 128, 16, 32
    inner = 2 * n_keys * head + n_values * head
    for i, block in enumerate(_blocks(shape)):
        weights.vector(f"{block}.attn_norm", shape.width)
        weights.vector(f"{block}.post_attention_norm", shape.width)
        if i % 4 == 3:
            weights.attention(block, shape, gated=True)
        else:
            weights.matrix(f"{block}.attn_qkv", inner, shape.width)
            weights.matrix(f"{block}.attn_gate", n_values * head, shape.width)
            weights.matrix(f"{block}.ssm_beta", n_values, shape.width)
            weights.matrix(f"{block}.ssm_alpha", n_values, shape.width)
            weights.vector(f"{block}.ssm_conv1d", inner, 4, value=0.25)
            weights.vector(f"{block}.ssm_dt.bias", n_values)
            weights.vector(f"{block}.ssm_a", n_values, value=-1.0)
            weights.vector(f"{block}.ssm_norm", head)
            weights.matrix(f"{block}.ssm_out", shape.width, n_values * head)
        weights.feed_forward(block, shape)
    return {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": n_values * head,
        "ssm.state_size": head,
        "ssm.time_step_rank": n_values,
        "ssm.group_count": n_keys,
        "full_attention_interval": 4,
        "rope.dimension_count": shape.head // 4,
        "rope.dimension_sections": [11, 11, 10, 0],
    }


def _lfm2(weights: Weights, shape: Shape) -> Metadata:
    """Two short convolutions before the first attention, and after it."""
    attends = [i % 4 == 2 for i in range(shape.taken)]
    for block, with_attention in zip(_blocks(shape), attends):
        weights.vector(f"{block}.attn_norm", shape.width)
        weights.vector(f"{block}.ffn_norm", shape.width)
        if with_attention:
            weights.attention(block, shape)
        else:
            weights.matrix(f"{block}.shortconv.in_proj", 3 * shape.width, shape.width)
            weights.matrix(f"{block}.shortconv.out_proj", shape.width, shape.width)
            weights.vector(f"{block}.shortconv.conv", shape.width, 3, value=0.5)
        weights.feed_forward(block, shape)
    kv_heads = [shape.kv_heads if attention else 0 for attention in attends]
    return {"shortconv.l_cache": 3, "attention.head_count_kv": kv_heads, "rope.dimension_count": shape.head}


SHAPES = {
    "llama-3.2-1b": Shape("llama", _llama, 16, 8, 2048, 8192, 32, 8, 64, 128256),
    "qwen3.5-4b": Shape("qwen35", _qwen35, 32, 8, 2560, 9216, 16, 4, 256, 248320),
    "gemma-3-4b": Shape("gemma3", _gemma3, 34, 6, 2560, 10240, 8, 4, 256, 262208),
    "gpt-oss-20b": Shape("gpt-oss", _gpt_oss, 24, 2, 2880, 2880, 64, 8, 64, 201088, 32, 4, False),
    "qwen3-30b-a3b": Shape("qwen3moe", _qwen3moe, 48, 3, 2048, 768, 32, 4, 128, 151936, 128, 8, False),
    "lfm2-1.2b": Shape("lfm2", _lfm2, 16, 8, 2048, 8192, 32, 8, 64, 65536),
}


def write_shape(name: str, path: Path, quant: str) -> None:
    """Writes the layers of the model called `name`, quantized to llama.cpp's file type `quant`.

    Raises KeyError for an unknown name, and what `quantize` raises.
    """
    shape, weights = SHAPES[name], Weights()
    bytes_only = tiny.byte_bpe_vocab()
    more = shape.vocab * shape.taken // shape.layers // 32 * 32 - len(bytes_only)
    tokens, types = (*bytes_only.tokens, *(f"<{i}>" for i in range(more))), (*bytes_only.types, *[tiny.NORMAL] * more)
    vocab = replace(bytes_only, tokens=tokens, types=types)
    weights.matrix("token_embd", len(vocab), shape.width, gain=shape.width**0.5)
    if not shape.tied:
        weights.matrix("output", len(vocab), shape.width)
    weights.vector("token_embd_norm" if shape.architecture == "lfm2" else "output_norm", shape.width)
    metadata = {
        "block_count": shape.taken,
        "vocab_size": len(vocab),
        "context_length": 32768,
        "embedding_length": shape.width,
        "feed_forward_length": shape.ff,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head,
        "attention.value_length": shape.head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        **({"expert_count": shape.experts, "expert_used_count": shape.used} if shape.experts else {}),
        **shape.build(weights, shape),
    }
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        whole = Path(folder) / "f16.gguf"
        writer = gguf.GGUFWriter(whole, shape.architecture)
        writer.add_name(f"layers of {name}")
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        for key, value in metadata.items():
            tiny._add(writer, f"{shape.architecture}.{key}", value)
        for key, value in vocab.metadata().items():
            tiny._add(writer, key, value)
        writer.add_chat_template(tiny.CHATML_TEMPLATE)
        for tensor, values in weights.tensors.items():
            writer.add_tensor(tensor, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        quantize(whole, path, quant)


@click.command(help=__doc__.partition("\n")[0])
@click.argument("name", type=click.Choice(sorted(SHAPES)))
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--quant", default="Q4_K_M", show_default=True, type=click.Choice(sorted(FILE_TYPES.values())))
def main(name: str, path: Path, quant: str) -> None:
    try:
        write_shape(name, path, quant)
    except LcspecError as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"{path}: {SHAPES[name].taken} of {SHAPES[name].layers} layers of {name}, {path.stat().st_size >> 20} MiB"
    )


if __name__ == "__main__":
    main()
