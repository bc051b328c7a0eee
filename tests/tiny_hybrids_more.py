"""More families with recurrent states, and one with windows and an indexer: see tests/tiny_families.py."""

from __future__ import annotations

import numpy as np

from tests.tiny_layers import (
    EXPERT_FF,
    FF,
    HEAD,
    HEADS,
    KV_HEADS,
    LATENT,
    LATENT_ROPE,
    LATENT_SIZE,
    MOE,
    WIDTH,
    WINDOW,
    Metadata,
    Net,
    blocks,
    family,
)


@family("plamo2", memory="state")
def _plamo2(net: Net) -> Metadata:
    """A Mamba mixer with the steps and decays of Mamba-2, then attention; norms before and behind everything."""
    heads, state, steps = 4, 16, 64  # the library takes 64 numbers at least for a step
    inner = 2 * WIDTH
    net.ends()
    for i, block in enumerate(blocks(2)):
        net.norms(block, "attn_norm", "ffn_norm")
        for name in ("post_attention_norm", "post_ffw_norm"):  # without ".weight" in this architecture
            _bare_norm(net, f"{block}.{name}", WIDTH)
            net.tensors[f"{block}.{name}"] *= np.float32(0.5)  # real ones are small, too; roundings grow in large ones
        if i % 2:
            net.matrix(f"{block}.attn_qkv", (HEADS + 2 * KV_HEADS) * HEAD, WIDTH, gain=2.0)
            net.matrix(f"{block}.attn_output", WIDTH, HEADS * HEAD)
            for name, n in (("q", HEADS), ("k", KV_HEADS)):
                net.constant(f"{block}.attn_{name}_norm.weight", np.ones((n, HEAD)))
        else:
            net.matrix(f"{block}.ssm_in", 2 * inner, WIDTH)
            net.matrix(f"{block}.ssm_conv1d", inner, 4)
            net.matrix(f"{block}.ssm_x", 2 * state + steps, inner)
            net.matrix(f"{block}.ssm_dt", heads, steps)
            net.constant(f"{block}.ssm_dt.bias", np.log(np.expm1(np.geomspace(0.01, 0.2, heads))))
            net.constant(f"{block}.ssm_a", -np.arange(1.0, heads + 1))
            net.constant(f"{block}.ssm_d", np.ones(heads))
            for name, size in (("dt", steps), ("b", state), ("c", state)):
                _bare_norm(net, f"{block}.ssm_{name}_norm", size)
            net.matrix(f"{block}.ssm_out", WIDTH, inner, gain=2.0)
        net.matrix(f"{block}.ffn_up", 2 * FF, WIDTH)
        net.matrix(f"{block}.ffn_down", WIDTH, FF, gain=2.0)
    return {
        "block_count": 2,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": heads,
        "ssm.group_count": 0,
        "attention.head_count": [HEADS, HEADS],
        "attention.head_count_kv": [0, KV_HEADS],
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
    }


def _bare_norm(net: Net, name: str, size: int) -> None:
    """Weights of a normalization whose name ends without ".weight"."""
    net.norm(name, size)
    net.tensors[name] = net.tensors.pop(f"{name}.weight")


@family("minimax-01", memory="state")
def _minimax_01(net: Net) -> Metadata:
    """Lightning attention with a norm and a gate behind it, then attention; experts in both."""
    net.ends()
    for i, block in enumerate(blocks(3)):
        net.norms(block, "attn_norm", "ffn_norm")
        if i == 1:
            net.attend(block)
        else:
            net.matrix(f"{block}.attn_qkv", 3 * HEADS * HEAD, WIDTH, gain=2.0)
            net.norm(f"{block}.attn_norm_2", HEADS * HEAD)
            net.matrix(f"{block}.attn_gate", HEADS * HEAD, WIDTH)
            net.matrix(f"{block}.attn_output", WIDTH, HEADS * HEAD, gain=2.0)
        net.experts(block)
    return {
        "block_count": 3,
        **MOE,
        "feed_forward_length": EXPERT_FF,  # that of an expert in this architecture
        "attention.recurrent_layers": [True, False, True],
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "rope.dimension_count": HEAD // 2,
        "residual_scale": 1.0,
        "expert_weights_scale": 1.0,
    }


@family("dots3note", memory="window")
def _dots3note(net: Net) -> Metadata:
    """Latent attention of two kinds: fewer and larger heads with a window, and heads that see 8 positions which an
    indexer finds. The last layer is for multi-token prediction, which the library does not load."""
    index_heads, index_head, windowed = 8, 64, [True, False, True, True]
    few, latent, nope, value = 2, 16, 24, 32
    net.ends()
    for i, block in enumerate(blocks(4)):
        net.norms(block, "attn_norm", "ffn_norm")
        net.norm(f"{block}.attn_k_norm", LATENT_ROPE)
        if windowed[i]:
            net.latent_attention(block, n_head=few, latent=latent, nope=nope, value=value)
        else:
            net.latent_attention(block)
            net.norm(f"{block}.indexer.k_norm", index_head)
            net.bias(f"{block}.indexer.k_norm", index_head)
            net.matrix(f"{block}.indexer.proj", index_heads, WIDTH)
            net.matrix(f"{block}.indexer.attn_k", index_head, WIDTH, gain=2.0)
            net.matrix(f"{block}.indexer.attn_q_b", index_heads * index_head, LATENT_SIZE, gain=2.0)
        net.matrix(f"{block}.attn_gate", few if windowed[i] else HEADS, WIDTH)
        if i in (0, 3):
            net.feed_forward(block, WIDTH, FF)
        else:
            net.experts(block, shared=True, balanced=True)
    net.mtp("blk.3")
    return {
        "block_count": 4,
        "nextn_predict_layers": 1,
        **MOE,
        **LATENT,
        "attention.q_lora_rank": LATENT_SIZE,
        "attention.head_count": [few if short else HEADS for short in windowed],
        "attention.head_count_kv": 1,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": windowed[:3],
        "attention.kv_lora_rank_swa": latent,
        "attention.key_length_swa": latent + LATENT_ROPE,
        "attention.value_length_swa": latent,
        "attention.key_length_mla_swa": nope + LATENT_ROPE,
        "attention.value_length_mla_swa": value,
        "attention.indexer.head_count": index_heads,
        "attention.indexer.key_length": index_head,
        "attention.indexer.top_k": 8,
        "attention.indexer.types": [not short for short in windowed[:3]],
        "rope.freq_base_swa": 10000.0,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
    }
