"""Families with latent attention, with an indexer that chooses what to attend to, and with compressed cells: see
tests/tiny_families.py."""

from __future__ import annotations

import numpy as np

from tests.tiny_layers import (
    FF,
    HEAD,
    HEADS,
    KV_HEADS,
    LATENT,
    LATENT_SIZE,
    MOE,
    WIDTH,
    WINDOW,
    Metadata,
    Net,
    blocks,
    family,
)

INDEX_HEAD = 64


@family("deepseek2", mtp=1)
def _deepseek2(net: Net) -> Metadata:
    """Experts behind the first layer."""
    net.ends()
    for i, block in enumerate(blocks(3)):
        net.norms(block, "attn_norm", "ffn_norm")
        net.latent_attention(block)
        if i == 0:
            net.feed_forward(block, WIDTH, FF)
        else:
            net.experts(block, shared=True, balanced=True)
    net.mtp("blk.2")
    return {
        "block_count": 3,
        "nextn_predict_layers": 1,
        **MOE,
        **LATENT,
        "attention.q_lora_rank": LATENT_SIZE,
        "attention.head_count_kv": 1,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
    }


@family("deepseek32", mtp=1)
def _deepseek32(net: Net) -> Metadata:
    """Latent attention to the 8 positions that an indexer finds."""
    heads, metadata = 32, _deepseek2(net)
    for block in blocks(3):
        net.norm(f"{block}.indexer.k_norm", INDEX_HEAD)
        net.bias(f"{block}.indexer.k_norm", INDEX_HEAD)
        net.matrix(f"{block}.indexer.proj", heads, WIDTH)
        net.matrix(f"{block}.indexer.attn_k", INDEX_HEAD, WIDTH, gain=2.0)
        net.matrix(f"{block}.indexer.attn_q_b", heads * INDEX_HEAD, LATENT_SIZE, gain=2.0)
    return {
        **metadata,
        "attention.indexer.head_count": heads,
        "attention.indexer.key_length": INDEX_HEAD,
        "attention.indexer.top_k": 8,
    }


@family("minimax-m3")
def _minimax_m3(net: Net) -> Metadata:
    """Attention to the latest block of 16 positions and to two more that an indexer finds."""
    net.ends()
    for i, block in enumerate(blocks(3)):
        net.norms(block, "attn_norm", "ffn_norm")
        net.attend(block)
        net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
        if i == 0:
            net.feed_forward(block, WIDTH, FF)
            continue
        net.experts(block, shared=True, balanced=True)
        net.matrix(f"{block}.indexer.q_proj", KV_HEADS * INDEX_HEAD, WIDTH, gain=2.0)
        net.matrix(f"{block}.indexer.k_proj", INDEX_HEAD, WIDTH, gain=2.0)
        net.norms(block, "indexer.q_norm", "indexer.k_norm", size=INDEX_HEAD)
    return {
        "block_count": 3,
        **MOE,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "rope.dimension_count": HEAD,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.indexer.head_count": KV_HEADS,
        "attention.indexer.key_length": INDEX_HEAD,
        "attention.indexer.top_k": 2,
        "attention.indexer.block_size": 16,
        "attention.indexer.local_blocks": 1,
    }


@family("deepseek4", memory="rollback")
def _deepseek4(net: Net) -> Metadata:
    """A window, and beyond it keys of which one stands for 4 positions (some of them, by an indexer) or for 128."""
    streams, head, queries, groups, rank, index_heads = 4, 32, 64, 2, 32, 8
    ratios, mixed = [0, 4, 128], (2 + streams) * streams
    net.ends()
    hyper_connection(net, "output_hc", streams, streams, 1)
    for block, ratio in zip(blocks(3), ratios):
        net.norms(block, "attn_norm", "ffn_norm")
        net.constant(f"{block}.attn_sinks.weight", net._normal(f"{block}.attn_sinks", (HEADS,)))
        net.matrix(f"{block}.attn_q_a", queries, WIDTH)
        net.norm(f"{block}.attn_q_a_norm", queries)
        net.matrix(f"{block}.attn_q_b", HEADS * head, queries, gain=2.0)
        net.matrix(f"{block}.attn_kv", head, WIDTH, gain=2.0)
        net.norm(f"{block}.attn_kv_a_norm", head)
        net.matrix(f"{block}.attn_output_a", rank * groups, HEADS * head // groups)
        net.matrix(f"{block}.attn_output_b", WIDTH, groups * rank)
        for kind in ("attn", "ffn"):
            hyper_connection(net, f"{block}.hc_{kind}", streams, mixed, 3)
        if ratio:
            _compressor(net, f"{block}.attn_compressor", ratio, head)
        if ratio == 4:
            net.matrix(f"{block}.indexer.proj", index_heads, WIDTH)
            net.matrix(f"{block}.indexer.attn_q_b", index_heads * INDEX_HEAD, queries, gain=2.0)
            _compressor(net, f"{block}.indexer_compressor", ratio, INDEX_HEAD)
        net.experts(block, shared=True, balanced=True)
    return {
        "block_count": 3,
        **MOE,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "expert_gating_func": 4,
        "swiglu_clamp_exp": [100.0] * 3,
        "attention.head_count_kv": 1,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.q_lora_rank": queries,
        "attention.sliding_window": WINDOW,
        "attention.indexer.head_count": index_heads,
        "attention.indexer.key_length": INDEX_HEAD,
        "attention.indexer.top_k": 512,
        "attention.output_group_count": groups,
        "attention.output_lora_rank": rank,
        "attention.compress_ratios": ratios,
        "attention.compress_rope_freq_base": 10000.0,
        "hyper_connection.count": streams,
        "hyper_connection.sinkhorn_iterations": 1,
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 0,
        "rope.dimension_count": HEAD,
    }


def hyper_connection(net: Net, name: str, streams: int, mixed: int, scales: int) -> None:
    """What mixes a layer's `streams` of hidden states."""
    net.matrix(f"{name}_fn", mixed, streams * WIDTH)
    net.constant(f"{name}_base.weight", np.zeros(mixed))
    net.constant(f"{name}_scale.weight", np.ones(scales))


def _compressor(net: Net, name: str, ratio: int, head: int) -> None:
    """What makes one key of `ratio` positions (where there are few, of twice as many)."""
    size = head * (2 if ratio == 4 else 1)
    net.matrix(f"{name}_kv", size, WIDTH, gain=2.0)
    net.matrix(f"{name}_gate", size, WIDTH)
    net.matrix(f"{name}_ape", ratio, size)
    net.norm(f"{name}_norm", head)
