"""Tiny models with random weights whose memory is not one KV cache: sliding windows and hybrids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests import tiny_gguf as tiny

# The library's attention takes a fifth of the time for heads of 32 numbers that it takes for twice as many of 16, which
# no vector instruction is made for: it counts where texts are long, as in most tests of windows.
WIDTH, HEADS, KV_HEADS, FF = 64, 2, 1, 128


def _metadata(n_layer: int, n_vocab: int, n_ctx: int, head: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": n_vocab,
        "context_length": n_ctx,
        "embedding_length": WIDTH,
        "block_count": n_layer,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": head,
        "rope.freq_base": 10000.0,
        **more,
    }


def write_gemma3(path: Path, *, window: int = 16, n_layer: int = 2, seed: int = 0, n_ctx: int = 4096) -> Path:
    """A `gemma3` model: of two layers the first sees the last `window` positions only."""
    vocab, weights, head = tiny.byte_bpe_vocab(), tiny._Weights(seed), WIDTH // HEADS
    weights.matrix("token_embd", len(vocab), WIDTH, gain=2.5)
    for i in range(n_layer):
        block = f"blk.{i}"
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            weights.norm(f"{block}.{name}", WIDTH)
        weights.attention(block, WIDTH, HEADS, KV_HEADS)
        weights.norm(f"{block}.attn_q_norm", head)
        weights.norm(f"{block}.attn_k_norm", head)
        weights.feed_forward(block, WIDTH, FF)
    weights.norm("output_norm", WIDTH)
    window_keys = {"attention.sliding_window": window, "attention.sliding_window_pattern": 2}
    metadata = _metadata(n_layer, len(vocab), n_ctx, head, **window_keys)
    return tiny._write(path, "gemma3", metadata, weights.tensors, vocab=vocab)


def write_gpt_oss(
    path: Path, *, window: int = 16, n_layer: int = 2, seed: int = 0, n_ctx: int = 4096, used: int = 2
) -> Path:
    """A `gpt-oss` model: every other layer has a window, attention has sinks, `used` of four experts work."""
    vocab, weights, head = tiny.byte_bpe_vocab(), tiny._Weights(seed), WIDTH // HEADS
    experts, n_ff = 4, 64
    weights.matrix("token_embd", len(vocab), WIDTH, gain=WIDTH**0.5)
    for i in range(n_layer):
        block = f"blk.{i}"
        weights.norm(f"{block}.attn_norm", WIDTH)
        weights.norm(f"{block}.post_attention_norm", WIDTH)
        weights.attention(block, WIDTH, HEADS, KV_HEADS)
        weights.constant(f"{block}.attn_output.bias", np.zeros(WIDTH))
        weights.constant(f"{block}.attn_sinks.weight", np.zeros(HEADS))
        weights.matrix(f"{block}.ffn_gate_inp", experts, WIDTH)
        weights.constant(f"{block}.ffn_gate_inp.bias", np.zeros(experts))
        for name, rows, columns in (("gate", n_ff, WIDTH), ("up", n_ff, WIDTH), ("down", WIDTH, n_ff)):
            stack = [weights._normal(f"{block}.{name}.{e}", (rows, columns)) / columns**0.5 for e in range(experts)]
            weights.constant(f"{block}.ffn_{name}_exps.weight", np.stack(stack))
            weights.constant(f"{block}.ffn_{name}_exps.bias", np.zeros((experts, rows)))
    weights.norm("output_norm", WIDTH)
    weights.matrix("output", len(vocab), WIDTH, gain=2.5)
    more = {"attention.sliding_window": window, "expert_count": experts, "expert_used_count": used}
    metadata = _metadata(n_layer, len(vocab), n_ctx, head, **more, **{"expert_feed_forward_length": n_ff})
    return tiny._write(path, "gpt-oss", metadata, weights.tensors, vocab=vocab)


def write_eight_layers(path: Path, architecture: str, *, window: int = 16, seed: int = 0, n_ctx: int = 4096) -> Path:
    """A `plamo3` model, of whose eight layers the last sees all positions, or a `granite_swa` or `spark2_5` model,
    which names those that do: the first four."""
    vocab, weights, head = tiny.byte_bpe_vocab(), tiny._Weights(seed), WIDTH // HEADS
    weights.matrix("token_embd", len(vocab), WIDTH, gain=WIDTH**0.5)
    for i in range(8):
        block = f"blk.{i}"
        weights.norm(f"{block}.attn_norm", WIDTH)
        weights.norm(f"{block}.ffn_norm", WIDTH)
        weights.attention(block, WIDTH, HEADS, KV_HEADS)
        weights.feed_forward(block, WIDTH, FF)
        if architecture == "granite_swa":
            weights.constant(f"{block}.attn_sinks.weight", np.zeros(HEADS))
        elif architecture == "spark2_5":
            weights.matrix(f"{block}.attn_gate", HEADS, WIDTH)
        else:
            parts = [weights.tensors.pop(f"{block}.attn_{name}.weight") for name in "qkv"]
            weights.constant(f"{block}.attn_qkv.weight", np.concatenate(parts))
            parts = [weights.tensors.pop(f"{block}.ffn_{name}.weight") for name in ("gate", "up")]
            weights.constant(f"{block}.ffn_up.weight", np.concatenate(parts))
            for name in ("attn_q_norm.weight", "attn_k_norm.weight"):
                weights.constant(f"{block}.{name}", np.ones(head))
            for name in ("post_attention_norm", "post_ffw_norm"):
                weights.constant(f"{block}.{name}", np.ones(WIDTH))
    weights.norm("output_norm", WIDTH)
    weights.matrix("output", len(vocab), WIDTH, gain=2.5)
    more: dict[str, Any] = {"attention.sliding_window": window, "logit_scale": 1.0}
    if architecture != "plamo3":
        more["attention.sliding_window_pattern"] = [i >= 4 for i in range(8)]
    return tiny._write(path, architecture, _metadata(8, len(vocab), n_ctx, head, **more), weights.tensors, vocab=vocab)


def write_qwen35(path: Path, *, n_layer: int = 2, seed: int = 0, n_ctx: int = 4096) -> Path:
    """A `qwen35` model: gated delta nets in the layers 0, 2, ..., attention in the layers 1, 3, ..."""
    vocab, weights, head = tiny.byte_bpe_vocab(), tiny._Weights(seed), 32
    state, groups, heads, kernel = 16, 2, 4, 4
    inner = state * heads
    channels = 2 * state * groups + inner
    weights.matrix("token_embd", len(vocab), WIDTH, gain=WIDTH**0.5)
    for i in range(n_layer):
        block = f"blk.{i}"
        weights.norm(f"{block}.attn_norm", WIDTH)
        weights.norm(f"{block}.post_attention_norm", WIDTH)
        if i % 2:
            weights.matrix(f"{block}.attn_q", 2 * head * HEADS, WIDTH, gain=2.0)
            weights.matrix(f"{block}.attn_k", head * KV_HEADS, WIDTH, gain=2.0)
            weights.matrix(f"{block}.attn_v", head * KV_HEADS, WIDTH)
            weights.matrix(f"{block}.attn_output", WIDTH, head * HEADS)
            weights.norm(f"{block}.attn_q_norm", head)
            weights.norm(f"{block}.attn_k_norm", head)
        else:
            weights.matrix(f"{block}.attn_qkv", channels, WIDTH)
            weights.matrix(f"{block}.attn_gate", inner, WIDTH)
            weights.matrix(f"{block}.ssm_conv1d", channels, kernel)
            weights.constant(f"{block}.ssm_dt.bias", np.log(np.expm1(np.geomspace(0.01, 0.2, heads))))
            weights.constant(f"{block}.ssm_a", -np.arange(1.0, heads + 1))
            weights.matrix(f"{block}.ssm_beta", heads, WIDTH)
            weights.matrix(f"{block}.ssm_alpha", heads, WIDTH)
            weights.norm(f"{block}.ssm_norm", state)
            weights.matrix(f"{block}.ssm_out", WIDTH, inner, gain=2.0)
        weights.feed_forward(block, WIDTH, FF)
    weights.norm("output_norm", WIDTH)
    weights.matrix("output", len(vocab), WIDTH, gain=2.5)
    metadata = _metadata(
        n_layer,
        len(vocab),
        n_ctx,
        head,
        **{
            "rope.dimension_sections": [4, 4, 4, 4],
            "full_attention_interval": 2,
            "ssm.conv_kernel": kernel,
            "ssm.inner_size": inner,
            "ssm.state_size": state,
            "ssm.time_step_rank": heads,
            "ssm.group_count": groups,
        },
    )
    return tiny._write(path, "qwen35", metadata, weights.tensors, vocab=vocab)
