"""Families with recurrent states: see tests/tiny_families.py."""

from __future__ import annotations

import numpy as np

from tests.tiny_layers import (
    DELTA_NET,
    EXPERT_FF,
    FF,
    HEAD,
    HEADS,
    KV_HEADS,
    LATENT,
    LATENT_SIZE,
    MAMBA,
    MOE,
    NO_ATTENTION,
    VOCAB,
    WIDTH,
    WINDOW,
    Metadata,
    Net,
    blocks,
    family,
)


@family("lfm2", memory="rollback")
def _lfm2(net: Net) -> Metadata:
    return _short_convolutions(net)


@family("lfm2moe", memory="rollback")
def _lfm2moe(net: Net) -> Metadata:
    """The same, but only the first layer has no experts."""
    return {
        **_short_convolutions(net, dense=1),
        **MOE,
        "leading_dense_block_count": 1,
        "expert_gating_func": 2,
    }


def _short_convolutions(net: Net, dense: int = 2) -> Metadata:
    """A convolution, then attention; the first `dense` layers have no experts."""
    net.matrix("token_embd", VOCAB, WIDTH, gain=2.5)
    net.norm("token_embd_norm", WIDTH)  # this architecture's name for the last normalization
    for i, block in enumerate(blocks(2)):
        net.norms(block, "attn_norm", "ffn_norm")
        if i % 2:
            net.attend(block)
            net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
        else:
            net.matrix(f"{block}.shortconv.conv", WIDTH, 3)
            net.matrix(f"{block}.shortconv.in_proj", 3 * WIDTH, WIDTH)
            net.matrix(f"{block}.shortconv.out_proj", WIDTH, WIDTH, gain=2.0)
        if i < dense:
            net.feed_forward(block, WIDTH, FF)
        else:
            net.experts(block, balanced=True)
    return {"block_count": 2, "attention.head_count_kv": [0, KV_HEADS], "shortconv.l_cache": 3}


@family("lfm2-window", architecture="lfm2", memory="rollback")
def _lfm2_window(net: Net) -> Metadata:
    return {**_short_convolutions(net), "attention.sliding_window": WINDOW}


@family("qwen35", memory="rollback", mtp=1)
def _qwen35(net: Net) -> Metadata:
    return _gated_delta(net)


@family("qwen35moe", memory="rollback", mtp=1)
def _qwen35moe(net: Net) -> Metadata:
    return {**_gated_delta(net, moe=True), **MOE, "expert_shared_feed_forward_length": EXPERT_FF}


def _gated_delta(net: Net, moe: bool = False) -> Metadata:
    """A delta net, attention, and a layer for multi-token prediction."""
    net.ends()
    for i, block in enumerate(blocks(3)):
        net.norms(block, "attn_norm", "post_attention_norm")
        if i == 0:
            net.delta_net(block, joined=False)
        else:
            net.attend(block, gated=True)
            net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
        if moe:
            net.experts(block, shared=True)
            gate = f"{block}.ffn_gate_inp_shexp.weight"
            net.constant(gate, net._normal(gate, (WIDTH,)))
        else:
            net.feed_forward(block, WIDTH, FF)
    net.mtp("blk.2")
    rope = {"rope.dimension_count": HEAD, "rope.dimension_sections": [2, 3, 3, 0]}
    return {"block_count": 3, "nextn_predict_layers": 1, **DELTA_NET, **rope}


@family("nemotron-h", architecture="nemotron_h", memory="rollback")
def _nemotron_h(net: Net) -> Metadata:
    return {**_single_mixers(net), "feed_forward_length": [0, FF, 0, FF]}


@family("nemotron-h-moe", architecture="nemotron_h_moe", memory="rollback", mtp=1)
def _nemotron_h_moe(net: Net) -> Metadata:
    """The layer for multi-token prediction has both, attention and experts."""
    metadata = _single_mixers(net, moe=True)
    net.norms("blk.4", "attn_norm", "post_attention_norm")
    net.attend("blk.4")
    net.experts("blk.4", shared=True, balanced=True, gated=False)
    net.mtp("blk.4")
    return {
        **metadata,
        **MOE,
        "block_count": 5,
        "nextn_predict_layers": 1,
        "attention.head_count_kv": [0, 0, KV_HEADS, 0, KV_HEADS],
        "feed_forward_length": [0, FF, 0, FF, 0],
        "expert_shared_feed_forward_length": EXPERT_FF,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.0,
    }


def _single_mixers(net: Net, moe: bool = False) -> Metadata:
    """A layer is a Mamba-2 mixer, or attention, or a feed-forward of two matrices, or experts."""
    net.ends()
    for i, block in enumerate(blocks(4)):
        net.norm(f"{block}.attn_norm", WIDTH)
        if i == 0:
            net.mamba2(block, groups=2)
        elif i == 2:
            net.attend(block)
        elif moe:
            net.experts(block, shared=True, balanced=True, gated=False)
        else:
            net.matrix(f"{block}.ffn_up", FF, WIDTH)
            net.matrix(f"{block}.ffn_down", WIDTH, FF, gain=2.0)
    return {
        "block_count": 4,
        **MAMBA,
        "ssm.group_count": 2,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.head_count_kv": [0, 0, KV_HEADS, 0],
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
    }


@family("bailingmoe3", memory="rollback", mtp=1)
def _bailingmoe3(net: Net) -> Metadata:
    """Ling 3: Kimi's delta attention, then gated latent attention with experts."""
    net.ends()
    for i, block in enumerate(blocks(3)):
        net.norms(block, "attn_norm", "ffn_norm")
        if i == 0:
            net.kimi_delta(block, low_rank=False)
            net.feed_forward(block, WIDTH, FF)
        else:
            net.latent_attention(block)
            net.matrix(f"{block}.attn_gate", HEADS, WIDTH)
            net.experts(block, shared=True, balanced=True)
    net.mtp("blk.2", last="layer_output_norm")
    return {
        **KIMI_DELTA,
        **MOE,
        "block_count": 3,
        "nextn_predict_layers": 1,
        "attention.head_count_kv": [0, 1, 1],
        "attention.q_lora_rank": LATENT_SIZE,
        "kda.gate_lower_bound": -5.0,
        "expert_shared_feed_forward_length": EXPERT_FF,
        "expert_weights_norm": True,
    }


# Without MOE, which tests/fuzz_texts.py changes before a model is built.
KIMI_DELTA = {
    **LATENT,
    "ssm.conv_kernel": 4,
    "kda.head_dim": HEAD,
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
    "expert_weights_scale": 1.0,
    "expert_gating_func": 2,
}


@family("kimi-linear", memory="state")
def _kimi_linear(net: Net) -> Metadata:
    net.ends()
    for i, block in enumerate(blocks(2)):
        net.norms(block, "attn_norm", "ffn_norm")
        if i == 0:
            net.kimi_delta(block, low_rank=True)
            net.feed_forward(block, WIDTH, FF)
        else:
            net.latent_attention(block, queries=False)
            net.experts(block, shared=True, balanced=True)
    return {**KIMI_DELTA, **MOE, "block_count": 2, "attention.head_count_kv": [0, 1]}


@family("rwkv7", memory="state")
def _rwkv7(net: Net) -> Metadata:
    """Time mixing with one head, a state of 64 x 64, and channel mixing; both look at the token before as well."""
    net.ends()
    net.norm("token_embd_norm", WIDTH)
    net.bias("token_embd_norm", WIDTH)
    net.bias("output_norm", WIDTH)
    for block in blocks(2):
        for name in ("attn_norm", "attn_norm_2"):
            net.norm(f"{block}.{name}", WIDTH)
            net.bias(f"{block}.{name}", WIDTH)
        _time_mix(net, block)
        mixed = np.abs(net._normal(f"{block}.channel_mix_lerp", (1, 1, WIDTH))) % 1
        net.constant(f"{block}.channel_mix_lerp_k.weight", mixed)
        net.matrix(f"{block}.channel_mix_key", FF, WIDTH)
        net.matrix(f"{block}.channel_mix_value", WIDTH, FF)
    return {**TIME_MIX, "block_count": 2, "attention.layer_norm_epsilon": 1e-5, "token_shift_count": 2}


@family("arwkv7", memory="state")
def _arwkv7(net: Net) -> Metadata:
    """The same time mixing in Qwen's layers: nothing else looks at the token before."""
    net.ends()
    for block in blocks(2):
        net.norms(block, "attn_norm", "ffn_norm")
        _time_mix(net, block)
        net.feed_forward(block, WIDTH, FF)
    return {**TIME_MIX, "block_count": 2, "token_shift_count": 1}


TIME_RANK = 8
TIME_MIX = {
    "wkv.head_size": WIDTH,  # as real ones: kernels take 64 numbers at a time
    **dict.fromkeys(
        (f"attention.{name}_lora_rank" for name in ("decay", "iclr", "value_residual_mix", "gate")), TIME_RANK
    ),
    "attention.head_count": 0,
    "attention.head_count_kv": 0,
}


def _time_mix(net: Net, block: str) -> None:
    """RWKV-7's, with one head."""
    net.norm(f"{block}.time_mix_ln", WIDTH)
    net.bias(f"{block}.time_mix_ln", WIDTH)
    for name in ("w", "a", "v", "g"):
        net.matrix(f"{block}.time_mix_{name}1", TIME_RANK, WIDTH)
        net.matrix(f"{block}.time_mix_{name}2", WIDTH, TIME_RANK)
    for name in ("a0", "v0", "k_k", "k_a", "r_k"):
        net.constant(f"{block}.time_mix_{name}.weight", net._normal(f"{block}.{name}", (WIDTH,)))
    # Memories of some to a hundred tokens.
    net.constant(f"{block}.time_mix_w0.weight", np.linspace(-4, 1, WIDTH))
    mixed = np.abs(net._normal(f"{block}.lerp", (6, 1, 1, WIDTH))) % 1
    net.constant(f"{block}.time_mix_lerp_fused.weight", mixed)
    for name in ("key", "value", "receptance", "output"):
        net.matrix(f"{block}.time_mix_{name}", WIDTH, WIDTH)


@family("qwen3next", memory="state", mtp=1)
def _qwen3next(net: Net) -> Metadata:
    net.ends()
    for i, block in enumerate(blocks(3)):
        net.norms(block, "attn_norm", "post_attention_norm")
        if i == 0:
            net.delta_net(block, joined=True)
        else:
            net.attend(block, gated=True)
            net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
        net.experts(block, shared=True)
        net.constant(f"{block}.ffn_gate_inp_shexp.weight", net._normal(f"{block}.ffn_gate_inp_shexp.weight", (WIDTH,)))
    net.mtp("blk.2")
    return {
        "block_count": 3,
        "nextn_predict_layers": 1,
        **DELTA_NET,
        **MOE,
        "expert_shared_feed_forward_length": EXPERT_FF,
        "rope.dimension_count": HEAD,
    }


@family("mamba", memory="state")
def _mamba(net: Net) -> Metadata:
    net.ends()
    for block in blocks(2):
        net.norm(f"{block}.attn_norm", WIDTH)
        net.mamba(block)
    return {"block_count": 2, **MAMBA, **NO_ATTENTION}


@family("mamba2", memory="state")
def _mamba2(net: Net) -> Metadata:
    net.ends()
    for block in blocks(2):
        net.norm(f"{block}.attn_norm", WIDTH)
        net.mamba2(block, groups=2)
    return {"block_count": 2, **MAMBA, "ssm.group_count": 2, **NO_ATTENTION}


@family("granite-hybrid", architecture="granitehybrid", memory="state")
def _granite_hybrid(net: Net) -> Metadata:
    net.ends()
    for i, block in enumerate(blocks(2)):
        net.norms(block, "attn_norm", "ffn_norm")
        if i % 2:
            net.attend(block)
        else:
            net.mamba2(block, groups=1)
        net.feed_forward(block, WIDTH, FF)
    return {
        "block_count": 2,
        **MAMBA,
        "ssm.group_count": 1,
        "attention.head_count_kv": [0, KV_HEADS],
        "rope.dimension_count": HEAD,
        "embedding_scale": 1.0,
        "residual_scale": 1.0,
        "attention.scale": HEAD**-0.5,
        "logit_scale": 1.0,
    }


@family("falcon-h1", memory="state")
def _falcon_h1(net: Net) -> Metadata:
    """Attention and a Mamba-2 mixer side by side in every layer."""
    net.ends()
    for block in blocks(2):
        net.norm(f"{block}.attn_norm", WIDTH)
        net.attend(block)
        net.mamba2(block, groups=2)
        net.constant(f"{block}.ffn_norm", np.ones(WIDTH))  # without ".weight" in this architecture
        net.feed_forward(block, WIDTH, FF)
    return {"block_count": 2, **MAMBA, "ssm.group_count": 2, "rope.dimension_count": HEAD}


@family("jamba", memory="state")
def _jamba(net: Net) -> Metadata:
    net.ends()
    for i, block in enumerate(blocks(2)):
        net.norms(block, "attn_norm", "ffn_norm")
        if i % 2:
            net.attend(block)
            net.experts(block, n_ff=FF)
        else:
            net.mamba(block, normed=True)
            net.feed_forward(block, WIDTH, FF)
    return {"block_count": 2, **MAMBA, **MOE, "attention.head_count_kv": [0, KV_HEADS]}
