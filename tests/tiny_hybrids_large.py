"""Families of very large models with recurrent states: see tests/tiny_families.py."""

from __future__ import annotations

from tests.tiny_hybrids import KIMI_DELTA
from tests.tiny_layers import (
    FF,
    HEAD,
    HEADS,
    LATENT_SIZE,
    MOE,
    WIDTH,
    Metadata,
    Net,
    blocks,
    family,
)
from tests.tiny_sparse import INDEX_HEAD, hyper_connection

# Positions that share a key of the indexer, and positions that are attended to.
POOL, CHOSEN = 4, 16


@family("kimi-k3", memory="rollback")
def _kimi_k3(net: Net) -> Metadata:
    """Delta attention, gated latent attention, and again; experts of half the width; every second layer's input is
    kept, and later layers mix what was kept with what comes in."""
    net.ends()
    for i, block in enumerate(blocks(3)):
        net.norms(block, "attn_norm", "ffn_norm")
        if i == 1:
            net.latent_attention(block)
            net.matrix(f"{block}.attn_gate", HEADS * HEAD, WIDTH)
        else:
            _kimi_delta(net, block)
            for name in ("ssm_g_a", "ssm_g_b"):
                del net.tensors[f"{block}.{name}.weight"]
            net.matrix(f"{block}.ssm_g", HEADS * HEAD, WIDTH)
        if i == 0:
            net.feed_forward(block, WIDTH, FF)
        else:
            net.experts(block, shared=True, balanced=True, width=LATENT_SIZE)
            net.matrix(f"{block}.ffn_routed_down", LATENT_SIZE, WIDTH)
            net.matrix(f"{block}.ffn_routed_up", WIDTH, LATENT_SIZE)
            net.norm(f"{block}.ffn_routed_norm", LATENT_SIZE)
    for name in ("output", *(f"{block}.{kind}" for block in blocks(3) for kind in ("attn", "ffn"))):
        of = f"{name}_res_score.weight"
        net.constant(of, net._normal(of, (WIDTH,)) / WIDTH**0.5)
    return {
        **KIMI_DELTA,
        **MOE,
        "block_count": 3,
        "attention.head_count_kv": [0, 1, 0],
        "attention.q_lora_rank": LATENT_SIZE,
        "attn_res.block_size": 2,
        "kda.gate_lower_bound": -5.0,
        "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": 25.0,
        "expert_latent_length": LATENT_SIZE,
        "expert_weights_norm": True,
    }


@family("glm5-next", memory="rollback", mtp=1)
def _glm5_next(net: Net) -> Metadata:
    """Four streams of hidden states; delta attention, then latent attention to the four pools of four positions that
    an indexer finds, then to the same ones. The layer for multi-token prediction is one that the library cannot run.
    """
    streams, heads, layers = 4, 32, 4
    mixed = (2 + streams) * streams
    net.ends()
    for i, block in enumerate(blocks(layers)):
        net.norms(block, "attn_norm", "ffn_norm")
        if i == 0:
            _kimi_delta(net, block)
            net.feed_forward(block, WIDTH, FF)
        else:
            net.latent_attention(block, rope=0)
            net.experts(block, shared=True, balanced=True)
        if i in (1, 3):
            _pooled_indexer(net, block, heads)
        if i < layers - 1:
            for kind in ("attn", "ffn"):
                hyper_connection(net, f"{block}.hc_{kind}", streams, mixed, 3)
    net.mtp(f"blk.{layers - 1}")
    return {
        **KIMI_DELTA,
        **MOE,
        "block_count": layers,
        "nextn_predict_layers": 1,
        "attention.head_count_kv": [0, 1, 1, 1],
        "attention.q_lora_rank": LATENT_SIZE,
        "attention.key_length": LATENT_SIZE,
        "attention.key_length_mla": HEAD,
        "rope.dimension_count": 0,
        "kda.gate_lower_bound": -5.0,
        "expert_weights_norm": True,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.indexer.head_count": heads,
        "attention.indexer.key_length": INDEX_HEAD,
        "attention.indexer.top_k": CHOSEN,
        "attention.indexer.kpool": POOL,
        "attention.indexer.types": [0, 1, 0],
        "hyper_connection.count": streams,
        "hyper_connection.sinkhorn_iterations": 1,
        "hyper_connection.epsilon": 1e-6,
    }


def _kimi_delta(net: Net, block: str) -> None:
    """As in Kimi Linear, but one number a head is one dimension."""
    net.kimi_delta(block, low_rank=True)
    net.tensors[f"{block}.ssm_a"] = net.tensors[f"{block}.ssm_a"].reshape(HEADS)


def _pooled_indexer(net: Net, block: str, heads: int) -> None:
    """Chooses pools of positions; a gate weighs the keys in a pool."""
    net.norm(f"{block}.indexer.k_norm", INDEX_HEAD)
    net.bias(f"{block}.indexer.k_norm", INDEX_HEAD)
    net.matrix(f"{block}.indexer.proj", heads, WIDTH)
    net.matrix(f"{block}.indexer.attn_k", INDEX_HEAD, WIDTH, gain=2.0)
    net.matrix(f"{block}.indexer.attn_q_b", heads * INDEX_HEAD, LATENT_SIZE, gain=2.0)
    net.matrix(f"{block}.indexer_compressor_gate", INDEX_HEAD, WIDTH)
    net.matrix(f"{block}.indexer_compressor_ape", POOL, INDEX_HEAD)
