"""What a head starts from: the target's own last layer, embeddings and output matrix, or another head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lcspec.drafters.medusa.target import output_rows
from lcspec.errors import ModelFileError, UnsupportedModel
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.head_shape import token_map
from lcspec.modelfiles.modelfile import read_header
from lcspec.training.eagle.network import HeadSizes
from lcspec.training.tensors import check_further, read_tensor, read_weights, shapes_of

# Deviation of weights that start at random.
RANDOM = 0.02
HEAD_DIM = 64
# Architectures whose queries and keys are rotated as a head's are, in neighbouring pairs.
SAME_ROTATION = frozenset({"llama"})


def head_sizes(path: Path, vocab: int) -> HeadSizes:
    """A head as wide as its target's layers.

    Raises:
        ModelFileError: the file does not say how wide that is.
    """
    header = read_header(path)

    def number(key: str, otherwise: float) -> float:
        value = header.metadata.get(f"{header.architecture}.{key}")
        return value if isinstance(value, (int, float)) and value > 0 else otherwise

    width = header.embedding_length
    if not width:
        raise ModelFileError(f"{path.name} does not say how wide its layers are")
    heads = int(number("attention.head_count", max(1, width // HEAD_DIM)))
    dim = int(number("attention.key_length", width // heads))
    return HeadSizes(
        width=width,
        heads=heads,
        kv_heads=int(number("attention.head_count_kv", heads)),
        head_dim=dim - dim % 2,
        feed_forward=int(number("feed_forward_length", 3 * width)),
        vocab=vocab,
        rope_base=number("rope.freq_base", 10000.0),
        epsilon=number("attention.layer_norm_rms_epsilon", 1e-5),
    )


def initial_weights(
    path: Path, sizes: HeadSizes, kept: NDArray[np.int64], scale: NDArray[np.float32], seed: int
) -> dict[str, NDArray[np.float32]]:
    """Weights by their names in a head's GGUF, for features that are divided by `scale` (float32 [3 * width]).

    The residual stream starts as what goes into the target's last layer, but of size 1, the block as that layer, and
    the output as the target's. What is missing in the target, or has another shape there, starts at random.

    Raises:
        UnsupportedModel: it has no output matrix that can be read.
    """
    rng = np.random.default_rng(seed)
    n, layer = sizes.width, (read_header(path).block_count or 1) - 1
    out = {}
    for name, shape in sizes.shapes().items():
        if len(shape) == 1:
            out[name] = np.ones(shape, np.float32)
        else:
            out[name] = (RANDOM * rng.standard_normal(shape)).astype(np.float32)
    out["fc.weight"] *= np.float32(0.1)
    size = float(np.sqrt(np.mean(scale[2 * n :] ** 2)))
    out["fc.weight"][:, 2 * n :] += np.diag(scale[2 * n :] / size)
    rotated = read_header(path).architecture in SAME_ROTATION
    for part in ("attn_output", "ffn_gate", "ffn_up", "ffn_down", "ffn_norm"):
        _take(path, f"blk.{layer}.{part}.weight", out[f"blk.0.{part}.weight"])
    for part in ("attn_output", "ffn_down"):
        out[f"blk.0.{part}.weight"] /= np.float32(size)
    _take(path, f"blk.{layer}.attn_norm.weight", out["blk.0.attn_norm_2.weight"])
    _take(path, "output_norm.weight", out["output_norm.weight"])
    for part in ("attn_q", "attn_k", "attn_v"):
        matrix = out[f"blk.0.{part}.weight"]
        if part == "attn_v" or rotated:
            _take(path, f"blk.{layer}.{part}.weight", matrix[:, n:])
    out["output.weight"] = output_rows(path, kept.tolist())
    return out


def check_head(path: Path) -> None:
    """Refuse a head that cannot be trained further, told by its header.

    Raises:
        UnsupportedModel: it has other tensors than heads that are made here; says which.
    """
    vocab = shapes_of(path).get("d2t", (0,))[0]
    check_further(path, {**head_sizes(path, vocab).shapes(), "d2t": (vocab,)})


def head_tokens(path: Path) -> NDArray[np.int64]:
    """The target's token for every token of a head's file (see `check_head`), int64 [n]."""
    found = token_map(path.name, read_gguf(path))
    assert found is not None  # see check_head
    return found.astype(np.int64)


def head_weights(path: Path, sizes: HeadSizes, scale: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """The weights of a head's file (see `check_head`), for features that are divided by `scale` (float32
    [3 * width]).

    Raises:
        UnsupportedModel: a tensor is of a type that cannot be read here.
    """
    out = read_weights(path, sizes.shapes())
    out["fc.weight"] = out["fc.weight"] * scale
    return out


def embeddings(path: Path) -> NDArray[np.float16]:
    """The target's embeddings, float16 [n_vocab, width].

    Raises:
        UnsupportedModel: it has none, or of a type that cannot be read.
    """
    found = read_tensor(path, "token_embd.weight")
    if found is None:
        raise UnsupportedModel(f"{path.name} has no embeddings of tokens: name a whole model")
    return found.astype(np.float16)


def _take(path: Path, name: str, into: NDArray[np.float32]) -> None:
    """Copy the target's tensor `name` if it has the shape of `into`."""
    try:
        found = read_tensor(path, name)
    except UnsupportedModel:
        return
    if found is not None and found.shape == into.shape:
        into[:] = found
