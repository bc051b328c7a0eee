"""Tiny GGUFs of the model families that people run, with random weights: what the engine must get right on each.

    path = write_family("gemma3", tmp_path / "gemma3.gguf")
    near = write_family("gemma3", tmp_path / "near.gguf", noise=0.02)      # a natural draft model

A family is a function that says how a layer is built; sizes are small (one to five layers of width 64, under two
megabytes, but Gemma 3n's), shapes are those of the real models: grouped heads, windows, experts, convolutions, states,
MTP layers.
Weights follow from `seed` and the tensor's name, as in tests/tiny_gguf.py. Nothing here imports llama_cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests import (  # noqa: F401  (their families join the list)
    tiny_gemma3n,
    tiny_hybrids,
    tiny_hybrids_large,
    tiny_hybrids_more,
    tiny_hybrids_qwen4,
    tiny_sparse,
)
from tests import tiny_gguf as tiny
from tests.tiny_layers import (
    EXPERT_FF,
    FAMILIES,
    FF,
    HEAD,
    HEADS,
    KV_HEADS,
    MOE,
    SHAPE,
    VOCAB,
    WIDTH,
    WINDOW,
    Metadata,
    Net,
    blocks,
    family,
)


def write_family(
    name: str,
    path: Path | str,
    *,
    seed: int = 0,
    noise: float = 0.0,
    change: Callable[[Net], None] | None = None,
    **keys: Any,
) -> Path:
    """Write a model of a family. Raises KeyError if there is no such family.

    `noise` as in `tiny_gguf.write_llama`; `change` may alter the weights before they are written, `keys` replace
    metadata.
    """
    found, net = FAMILIES[name], Net(seed, noise)
    metadata = {
        **SHAPE,
        "rope.freq_base": 10000.0,
        **found.build(net),
        **keys,
    }
    if change is not None:
        change(net)
    template = tiny.CHATML_TEMPLATE
    return tiny._write(path, found.architecture, metadata, net.tensors, vocab=found.vocab, chat_template=template)


# --- attention --------------------------------------------------------------------------------------------------------


def _dense(net: Net, *, head_norms: bool = False, biased: Sequence[str] = (), moe: bool = False) -> Metadata:
    """Norm, attention, norm, feed-forward: what most families share."""
    net.ends()
    for block in blocks(2):
        net.norms(block, "attn_norm", "ffn_norm")
        net.attend(block, biased=biased)
        if head_norms:
            net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
        if moe:
            net.experts(block)
        else:
            net.feed_forward(block, WIDTH, FF)
    return {"block_count": 2, "rope.dimension_count": HEAD}


@family("llama")
def _llama(net: Net) -> Metadata:
    return _dense(net)


@family("qwen2")
def _qwen2(net: Net) -> Metadata:
    return _dense(net, biased=("attn_q", "attn_k", "attn_v"))


@family("qwen3")
def _qwen3(net: Net) -> Metadata:
    return _dense(net, head_norms=True)


@family("qwen3moe")
def _qwen3moe(net: Net) -> Metadata:
    return {**_dense(net, head_norms=True, moe=True), **MOE}


@family("phi3", pieces=True)
def _phi3(net: Net) -> Metadata:
    net.ends()
    for block in blocks(2):
        net.norms(block, "attn_norm", "ffn_norm")
        net.matrix(f"{block}.attn_qkv", WIDTH + 2 * KV_HEADS * HEAD, WIDTH, gain=2.0)
        net.matrix(f"{block}.attn_output", WIDTH, WIDTH)
        net.matrix(f"{block}.ffn_up", 2 * FF, WIDTH)
        net.matrix(f"{block}.ffn_down", WIDTH, FF, gain=2.0)
    return {"block_count": 2, "rope.dimension_count": HEAD}


@family("starcoder2")
def _starcoder2(net: Net) -> Metadata:
    net.ends()
    net.bias("output_norm", WIDTH)
    for block in blocks(2):
        net.norms(block, "attn_norm", "ffn_norm")
        net.attend(block, biased=("attn_q", "attn_k", "attn_v", "attn_output"))
        net.matrix(f"{block}.ffn_up", FF, WIDTH, gain=2.0)
        net.matrix(f"{block}.ffn_down", WIDTH, FF, gain=2.0)
        for name, size in (("attn_norm", WIDTH), ("ffn_norm", WIDTH), ("ffn_up", FF), ("ffn_down", WIDTH)):
            net.bias(f"{block}.{name}", size)
    return {"block_count": 2, "attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": HEAD}


@family("olmo2")
def _olmo2(net: Net) -> Metadata:
    net.ends()
    for block in blocks(2):
        net.attend(block)
        net.norm(f"{block}.attn_q_norm", WIDTH)
        net.norm(f"{block}.attn_k_norm", KV_HEADS * HEAD)
        net.feed_forward(block, WIDTH, FF)
        net.norms(block, "post_attention_norm", "post_ffw_norm")
    return {"block_count": 2}


@family("glm4moe", mtp=1)
def _glm4moe(net: Net) -> Metadata:
    net.ends()
    for i, block in enumerate(blocks(3)):
        net.norms(block, "attn_norm", "post_attention_norm")
        net.attend(block, biased=("attn_q", "attn_k", "attn_v"))
        if i == 0:
            net.feed_forward(block, WIDTH, FF)
        else:
            net.experts(block, shared=True, balanced=True)
    net.mtp("blk.2")
    return {
        "block_count": 3,
        "nextn_predict_layers": 1,
        **MOE,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "rope.dimension_count": HEAD // 2,
    }


@family("hy_v3", mtp=2)
def _hy_v3(net: Net) -> Metadata:
    """Two chained layers for multi-token prediction behind the two of the model, with experts as those have."""
    net.ends()
    for i, block in enumerate(blocks(4)):
        net.norms(block, "attn_norm", "ffn_norm")
        net.attend(block)
        net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
        if i == 0:
            net.feed_forward(block, WIDTH, FF)
        else:
            net.experts(block, shared=True, balanced=True)
            net.tensors[f"{block}.exp_probs_b"] = net.tensors.pop(f"{block}.exp_probs_b.bias")
        if i >= 2:
            net.mtp(block)
    return {
        "block_count": 4,
        "nextn_predict_layers": 2,
        **MOE,
        "expert_shared_feed_forward_length": EXPERT_FF,
        "leading_dense_block_count": 1,
        "expert_weights_norm": True,
        "rope.dimension_count": HEAD,
    }


@family("llama4", memory="window")
def _llama4(net: Net) -> Metadata:
    """Windows are chunks of 8192 positions, and the fourth layer sees all."""
    net.ends()
    for block in blocks(4):
        net.norms(block, "attn_norm", "ffn_norm")
        net.attend(block)
        net.feed_forward(block, WIDTH, FF)
    return {
        "block_count": 4,
        **MOE,
        "expert_shared_count": 1,
        "interleave_moe_layer_step": 0,
        "rope.dimension_count": HEAD,
        "rope.freq_base_swa": 10000.0,
    }


# --- sliding windows --------------------------------------------------------------------------------------------------


@family("gemma2", memory="window", pieces=True)
def _gemma2(net: Net) -> Metadata:
    net.ends(tied=True, loud=4.0)
    for block in blocks(2):
        net.norms(block, "attn_norm", "ffn_norm")
        net.norms(block, "post_attention_norm", "post_ffw_norm", loud=3.0)
        net.attend(block)
        net.feed_forward(block, WIDTH, FF)
    return {
        "block_count": 2,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.sliding_window": WINDOW,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }


@family("gemma3", memory="window", pieces=True)
def _gemma3(net: Net) -> Metadata:
    net.ends(tied=True, loud=4.0)
    for block in blocks(3):
        net.norms(block, "attn_norm", "ffn_norm")
        net.norms(block, "post_attention_norm", "post_ffw_norm", loud=6.0)
        net.attend(block)
        net.norms(block, "attn_q_norm", size=HEAD, loud=3.0)  # or all texts would be one word again and again
        net.norms(block, "attn_k_norm", size=HEAD)
        net.feed_forward(block, WIDTH, FF)
    return {
        "block_count": 3,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": 3,
        "rope.freq_base_swa": 10000.0,
    }


@family("gemma4", memory="window", pieces=True)
def _gemma4(net: Net) -> Metadata:
    """Heads of another size in the window's layers, inputs per layer, and layers that read an earlier one's cache."""
    per_layer, full, layers = 8, 2 * HEAD, 4
    net.ends(tied=True, loud=4.0)
    net.matrix("per_layer_token_embd", VOCAB, per_layer * layers, gain=per_layer**0.5)
    net.matrix("per_layer_model_proj", per_layer * layers, WIDTH)
    net.norm("per_layer_proj_norm", per_layer)
    net.constant("rope_freqs.weight", np.ones(full // 2))
    for i, block in enumerate(blocks(layers)):
        head = full if i % 2 else HEAD
        net.norms(block, "attn_norm", "ffn_norm", "post_norm")
        net.norms(block, "post_attention_norm", "post_ffw_norm", loud=3.0)
        net.attend(block, head=head, keys=i < 2)
        net.norm(f"{block}.attn_q_norm", head)
        if i < 2:
            net.norm(f"{block}.attn_k_norm", head)
        net.feed_forward(block, WIDTH, FF)
        net.matrix(f"{block}.inp_gate", per_layer, WIDTH)
        net.matrix(f"{block}.proj", WIDTH, per_layer)
    return {
        "block_count": layers,
        "embedding_length_per_layer_input": per_layer,
        "attention.shared_kv_layers": 2,
        "attention.key_length": full,
        "attention.value_length": full,
        "attention.key_length_swa": HEAD,
        "attention.value_length_swa": HEAD,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [True, False, True, False],
        "rope.dimension_count": full,
        "rope.dimension_count_swa": HEAD,
        "rope.freq_base_swa": 10000.0,
        "final_logit_softcapping": 30.0,
    }


@family("gpt-oss", memory="window")
def _gpt_oss(net: Net) -> Metadata:
    net.ends()
    for block in blocks(2):
        net.norms(block, "attn_norm", "post_attention_norm")
        net.attend(block, biased=("attn_q", "attn_k", "attn_v", "attn_output"))
        net.constant(f"{block}.attn_sinks.weight", net._normal(f"{block}.attn_sinks.weight", (HEADS,)))
        net.experts(block, biased=True)
    return {
        "block_count": 2,
        **MOE,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.sliding_window": WINDOW,
        "rope.dimension_count": HEAD,
    }


@family("cohere2", memory="window")
def _cohere2(net: Net) -> Metadata:
    net.matrix("token_embd", VOCAB, WIDTH, gain=2.5)
    net.norm("output_norm", WIDTH)
    for block in blocks(2):
        net.norm(f"{block}.attn_norm", WIDTH)
        net.attend(block)
        net.feed_forward(block, WIDTH, FF)
        for name in ("attn_output", "ffn_down"):  # or all texts would be a few words again and again
            net.tensors[f"{block}.{name}.weight"] *= np.float32(2)
    return {
        "block_count": 2,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": 2,
        "rope.dimension_count": HEAD,
        "logit_scale": 1.0,
    }


@family("step35", memory="window", mtp=2)
def _step35(net: Net) -> Metadata:
    """Two chained layers for multi-token prediction behind the two of the model."""
    net.ends()
    for i, block in enumerate(blocks(4)):
        net.norms(block, "attn_norm", "ffn_norm")
        net.attend(block)
        net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
        net.matrix(f"{block}.attn_gate", HEADS, WIDTH)
        net.feed_forward(block, WIDTH, FF)
        if i >= 2:
            net.mtp(block)
    return {
        "block_count": 4,
        "nextn_predict_layers": 2,
        **MOE,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [False, True, False, True],
        "rope.dimension_count": HEAD,
        "rope.freq_base_swa": 10000.0,
    }


@family("mimo2", memory="window", mtp=2)
def _mimo2(net: Net) -> Metadata:
    """The same with queries, keys and values in one matrix, and sinks; layers that draft have windows."""
    net.ends()
    for i, block in enumerate(blocks(4)):
        net.norms(block, "attn_norm", "ffn_norm")
        net.matrix(f"{block}.attn_qkv", WIDTH + 2 * KV_HEADS * HEAD, WIDTH, gain=2.0)
        net.matrix(f"{block}.attn_output", WIDTH, WIDTH)
        net.constant(f"{block}.attn_sinks.weight", net._normal(f"{block}.attn_sinks", (HEADS,)))
        net.feed_forward(block, WIDTH, FF)
        if i >= 2:
            net.mtp(block, last="layer_output_norm")
    return {
        "block_count": 4,
        "nextn_predict_layers": 2,
        **MOE,
        "attention.head_count_kv": [KV_HEADS] * 4,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [False, True, True, True],
        "rope.dimension_count": HEAD,
        "rope.freq_base_swa": 10000.0,
    }


@family("cohere2moe", memory="window", mtp=1)
def _cohere2moe(net: Net) -> Metadata:
    """Of four layers the first sees all positions; the fifth is for multi-token prediction."""
    net.ends()
    for i, block in enumerate(blocks(5)):
        net.norm(f"{block}.attn_norm", WIDTH)
        net.attend(block)
        if i == 0:
            net.feed_forward(block, WIDTH, FF)
        else:
            net.experts(block, shared=True)
    net.mtp("blk.4")
    return {
        "block_count": 5,
        "nextn_predict_layers": 1,
        **MOE,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": EXPERT_FF,
        "expert_weights_norm": True,
        "leading_dense_block_count": 1,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.sliding_window": WINDOW,
        "rope.dimension_count": HEAD,
        "logit_scale": 1.0,
    }
