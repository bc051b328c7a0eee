"""Tiny heads that draft for the tiny models of tests/tiny_families.py, and models whose heads are always right.

target = write_family("llama", tmp_path / "llama.gguf", change=forget_context)
head = write_eagle(tmp_path / "head.gguf", knows="llama")             # drafts what that target says
write_assistant(tmp_path / "assistant.gguf")                           # for gemma4
write_family("qwen35", tmp_path / "qwen35.gguf", change=mtp_that_knows)
write_mtp_part("qwen35", tmp_path / "mtp.gguf")                        # its layers for prediction alone
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests import tiny_gguf as tiny
from tests.tiny_families import FAMILIES, FF, HEAD, HEADS, KV_HEADS, VOCAB, WIDTH, WINDOW, Net, write_family
from tests.tiny_layers import CONTEXT

# What a block adds to the stream that goes through it.
_ADDED = ("attn_output", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp", "shortconv.out_proj")
LAYERS = (0, 1, 2)


def forget_context(net: Net) -> None:
    """Every block adds nothing: what comes next follows from the last token alone."""
    # A large constant, which the output does not look at: all embeddings are of nearly the same length.
    net.tensors["token_embd.weight"][:, 0] = 40.0
    net.tensors["output.weight"] *= np.float32(5.0)
    net.tensors["output.weight"][:, 0] = 0.0
    for name, values in net.tensors.items():
        if any(name.endswith(f".{added}.weight") for added in _ADDED):
            values[:] = 0.0


def mtp_that_knows(net: Net) -> None:
    """`forget_context`, and layers for multi-token prediction that look at the token and so are always right."""
    forget_context(net)
    for name in list(net.tensors):
        if name.endswith("nextn.eh_proj.weight"):
            net.tensors[name] = np.eye(WIDTH, 2 * WIDTH, dtype=np.float32)
            block = name.removesuffix(".nextn.eh_proj.weight")
            net.tensors[f"{block}.nextn.enorm.weight"][:] = 1.0
            net.tensors[f"{block}.nextn.shared_head_norm.weight"] = net.tensors["output_norm.weight"].copy()


def write_mtp_part(name: str, path: Path, *, change: Callable[[Net], None] | None = None, **keys: Any) -> Path:
    """The layers for multi-token prediction of a family, with embeddings and output matrix, without its own layers.

    `change` and `keys` as in `write_family`.
    """
    first = {"qwen35": 2, "step35": 2}[name]

    def drop(net: Net) -> None:
        for tensor in list(net.tensors):
            if tensor.startswith("blk.") and int(tensor.split(".")[1]) < first:
                del net.tensors[tensor]
        if change is not None:
            change(net)

    return write_family(name, path, change=drop, **keys)


def write_eagle(
    path: Path,
    *,
    seed: int = 0,
    vocab: tiny.Vocab | None = None,
    kept: Sequence[int] | None = None,
    knows: str | None = None,
    without: Sequence[str] = (),
    d2t: Sequence[int] | None = None,
    change: Callable[[Net], None] | None = None,
    **keys: Any,
) -> Path:
    """An EAGLE-3 head for a tiny model of width 64 with two layers.

    Args:
        path: where to write it.
        seed: of its weights.
        vocab: its vocabulary, that of the family "llama" if nothing is said.
        kept: the target's tokens that it drafts; None = all, with no map between them. `d2t` replaces the map.
        knows: drafts what this family says, if that forgets its context.
        without: tensors to leave out.
        change: alters the weights before they are written.
        keys: metadata to replace.
    """
    net, vocab = Net(seed), vocab or FAMILIES[knows or "llama"].vocab
    net.matrix("fc", WIDTH, 3 * WIDTH)
    net.norm("output_norm", WIDTH)
    net.matrix("output", VOCAB, WIDTH, gain=2.5)
    net.matrix("token_embd", VOCAB, WIDTH, gain=WIDTH**0.5)
    net.norms("blk.0", "attn_norm", "attn_norm_2", "ffn_norm")
    net.matrix("blk.0.attn_q", HEADS * HEAD, 2 * WIDTH)
    net.matrix("blk.0.attn_k", HEADS * HEAD, 2 * WIDTH)
    net.matrix("blk.0.attn_v", HEADS * HEAD, 2 * WIDTH)
    net.matrix("blk.0.attn_output", WIDTH, HEADS * HEAD)
    net.feed_forward("blk.0", WIDTH, FF)
    if knows is not None:
        _look_at_the_token(net, knows)
    if change is not None:
        change(net)
    tensors: dict[str, np.ndarray] = {k: v for k, v in net.tensors.items() if k.removesuffix(".weight") not in without}
    if kept is not None:
        tensors["output.weight"] = np.ascontiguousarray(tensors["output.weight"][list(kept)])
        tensors["d2t"] = np.array(kept if d2t is None else d2t, dtype=np.int64)
    metadata = {
        "vocab_size": VOCAB,
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "block_count": 1,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD,
        "rope.freq_base": 10000.0,
        "target_layers": list(LAYERS),
        "target_hidden_size": WIDTH,
        **keys,
    }
    return tiny._write(path, "eagle3", metadata, tensors, vocab=vocab)


def write_assistant(
    path: Path,
    *,
    seed: int = 0,
    vocab: tiny.Vocab | None = None,
    change: Callable[[Net], None] | None = None,
    **keys: Any,
) -> Path:
    """A companion of the tiny gemma4 (gemma4-assistant): two layers of width 32 that look at the target's cells.

    `change` and `keys` as in `write_family`.
    """
    net, width, full = Net(seed), WIDTH // 2, 2 * HEAD
    net.matrix("token_embd", VOCAB, width, gain=2.5)
    net.norm("output_norm", width)
    net.matrix("nextn.post_projection", WIDTH, width)
    net.matrix("nextn.pre_projection", width, 2 * WIDTH)
    net.constant("rope_freqs.weight", np.ones(full // 2))
    for i in range(2):
        block, head = f"blk.{i}", full if i % 2 else HEAD
        net.norms(block, "attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", size=width)
        net.matrix(f"{block}.attn_q", HEADS * head, width, gain=2.0)
        net.norm(f"{block}.attn_q_norm", head)
        net.matrix(f"{block}.attn_output", width, HEADS * head)
        net.constant(f"{block}.layer_output_scale.weight", np.ones(1))
        net.feed_forward(block, width, FF)
    if change is not None:
        change(net)
    metadata: Mapping[str, Any] = {
        "vocab_size": VOCAB,
        "context_length": CONTEXT,
        "embedding_length": width,
        "embedding_length_out": WIDTH,
        "block_count": 2,
        "nextn_predict_layers": 2,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.shared_kv_layers": 2,
        "attention.key_length": full,
        "attention.value_length": full,
        "attention.key_length_swa": HEAD,
        "attention.value_length_swa": HEAD,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [True, False],
        "rope.dimension_count": full,
        "rope.dimension_count_swa": HEAD,
        "rope.freq_base": 10000.0,
        "rope.freq_base_swa": 10000.0,
        **keys,
    }
    return tiny._write(path, "gemma4-assistant", metadata, net.tensors, vocab=vocab or FAMILIES["gemma4"].vocab)


def _look_at_the_token(net: Net, family: str) -> None:
    """Every position attends to itself alone and gets its own embedding, of which the target's output makes its own.

    The constant first number of every embedding makes queries and keys the same everywhere, so that nothing but the
    distance of two positions counts.
    """
    target = Net(0)
    FAMILIES[family].build(target)
    forget_context(target)
    for name in ("token_embd", "output", "output_norm"):
        net.tensors[f"{name}.weight"] = target.tensors[f"{name}.weight"]
    for name in ("fc", "blk.0.ffn_down", "blk.0.attn_q", "blk.0.attn_k"):
        net.tensors[f"{name}.weight"][:] = 0.0
    for name in ("attn_q", "attn_k"):
        net.tensors[f"blk.0.{name}.weight"][:, 0] = 4.0
    net.tensors["blk.0.attn_v.weight"] = np.eye(WIDTH, 2 * WIDTH, dtype=np.float32)
    net.tensors["blk.0.attn_output.weight"] = np.eye(WIDTH, dtype=np.float32)
    net.tensors["blk.0.attn_norm.weight"][:] = 1.0
