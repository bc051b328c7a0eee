"""Tiny GGUFs of the model families that people run, with random weights: what the engine must get right on each.

    path = write_family("gemma3", tmp_path / "gemma3.gguf")
    near = write_family("gemma3", tmp_path / "near.gguf", noise=0.02)      # a natural draft model

A family is a function that says how a layer is built; sizes are small (one to four layers of width 64, all under a
megabyte), shapes are those of the real models: grouped heads, windows, experts, convolutions, states, MTP layers.
Weights follow from `seed` and the tensor's name, as in tests/tiny_gguf.py. Nothing here imports llama_cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests import tiny_gguf as tiny

WIDTH, HEADS, KV_HEADS, HEAD, FF, CONTEXT, VOCAB, WINDOW = 64, 4, 2, 16, 128, 512, 288, 16
EXPERTS, EXPERTS_USED, EXPERT_FF = 4, 2, 32

Metadata = dict[str, Any]
Builder = Callable[["Net"], Metadata]


@dataclass(frozen=True)
class Family:
    """One model family.

    Attributes:
        name: as people say it; the GGUF's architecture may be another word.
        architecture: what the GGUF calls it.
        memory: "attention" (trees), "window" (trees; some layers see WINDOW positions only), "rollback" (a recurrent
            state that the library can take back a few tokens) or "state" (one that it cannot take back).
        mtp: layers for multi-token prediction inside the file.
        vocab: byte-level BPE, or SentencePiece where the real models have it.
    """

    name: str
    architecture: str
    memory: str
    mtp: int
    build: Builder
    vocab: tiny.Vocab


FAMILIES: dict[str, Family] = {}


def family(
    name: str, *, architecture: str | None = None, memory: str = "attention", mtp: int = 0, pieces: bool = False
) -> Callable[[Builder], Builder]:
    """Register the function below as the builder of a family. `pieces`: it has a SentencePiece vocabulary."""

    def register(build: Builder) -> Builder:
        vocab = tiny.spm_vocab(VOCAB) if pieces else tiny.byte_bpe_vocab(VOCAB)
        if name == "phi3":  # the library looks for this token in models of that name
            vocab = replace(
                vocab, tokens=(*vocab.tokens[:-1], "<|endoftext|>"), types=(*vocab.types[:-1], tiny.CONTROL)
            )
        FAMILIES[name] = Family(name, architecture or name, memory, mtp, build, vocab)
        return build

    return register


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
        "vocab_size": VOCAB,
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        **found.build(net),
        **keys,
    }
    if change is not None:
        change(net)
    template = tiny.CHATML_TEMPLATE
    return tiny._write(path, found.architecture, metadata, net.tensors, vocab=found.vocab, chat_template=template)


class Net(tiny._Weights):
    """Weights of one model, layer by layer."""

    def ends(self, *, tied: bool = False, loud: float = 1.0) -> None:
        """Embeddings, the last norm and the output matrix. `loud` enlarges the last norm, for tied embeddings."""
        self.matrix("token_embd", VOCAB, WIDTH, gain=1.0 if tied else WIDTH**0.5)
        self.norm("output_norm", WIDTH)
        self.tensors["output_norm.weight"] *= np.float32(loud)
        if not tied:
            self.matrix("output", VOCAB, WIDTH, gain=2.5)

    def norms(self, block: str, *names: str, size: int = WIDTH, loud: float = 1.0) -> None:
        """Weights of normalizations. `loud` makes what follows them count more than the token that came in."""
        for name in names:
            self.norm(f"{block}.{name}", size)
            self.tensors[f"{block}.{name}.weight"] *= np.float32(loud)

    def bias(self, name: str, size: int) -> None:
        self.constant(f"{name}.bias", 0.1 * self._normal(f"{name}.bias", (size,)))

    def attend(
        self,
        block: str,
        *,
        head: int = HEAD,
        n_head: int = HEADS,
        n_kv: int = KV_HEADS,
        gated: bool = False,
        biased: Sequence[str] = (),
        keys: bool = True,
    ) -> None:
        """The four matrices of attention. `gated`: queries bring a gate along; `keys` False: another layer's cache."""
        self.matrix(f"{block}.attn_q", n_head * head * (2 if gated else 1), WIDTH, gain=2.0)
        if keys:
            self.matrix(f"{block}.attn_k", n_kv * head, WIDTH, gain=2.0)
            self.matrix(f"{block}.attn_v", n_kv * head, WIDTH)
        self.matrix(f"{block}.attn_output", WIDTH, n_head * head)
        sizes = {"attn_q": n_head * head, "attn_k": n_kv * head, "attn_v": n_kv * head, "attn_output": WIDTH}
        for name in biased:
            self.bias(f"{block}.{name}", sizes[name])

    def experts(
        self,
        block: str,
        *,
        n_ff: int = EXPERT_FF,
        shared: bool = False,
        biased: bool = False,
        balanced: bool = False,
    ) -> None:
        """A router and its experts. `shared`: one more that every token takes; `balanced`: a bias in the routing."""
        self.matrix(f"{block}.ffn_gate_inp", EXPERTS, WIDTH, gain=2.0)
        for name, n_out, n_in in (("gate", n_ff, WIDTH), ("up", n_ff, WIDTH), ("down", WIDTH, n_ff)):
            values = self._normal(f"{block}.ffn_{name}_exps.weight", (EXPERTS, n_out, n_in))
            self.constant(f"{block}.ffn_{name}_exps.weight", values * 1.5 / n_in**0.5)
            if biased:
                of = self._normal(f"{block}.ffn_{name}_exps.bias", (EXPERTS, n_out))
                self.constant(f"{block}.ffn_{name}_exps.bias", 0.1 * of)
            if shared:
                self.matrix(f"{block}.ffn_{name}_shexp", n_out, n_in)
        if biased:
            self.bias(f"{block}.ffn_gate_inp", EXPERTS)
        if balanced:
            self.bias(f"{block}.exp_probs_b", EXPERTS)

    def mtp(self, block: str) -> None:
        """What a layer for multi-token prediction has beside a usual layer's tensors."""
        self.matrix(f"{block}.nextn.eh_proj", WIDTH, 2 * WIDTH)
        self.norms(block, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")

    def delta_net(self, block: str, *, joined: bool) -> None:
        """A gated delta net (Qwen's linear attention): 2 key heads and 4 value heads of 16."""
        keys, values, n_v = 2 * HEAD, 4 * HEAD, 4
        self.matrix(f"{block}.attn_qkv", 2 * keys + values, WIDTH)
        self.matrix(f"{block}.attn_gate", values, WIDTH)
        self.matrix(f"{block}.ssm_conv1d", 2 * keys + values, 4)
        self.constant(f"{block}.ssm_dt.bias", np.log(np.expm1(np.geomspace(0.01, 0.2, n_v))))
        self.constant(f"{block}.ssm_a", -np.arange(1.0, n_v + 1))
        if joined:
            self.matrix(f"{block}.ssm_ba", 2 * n_v, WIDTH)
        else:
            self.matrix(f"{block}.ssm_beta", n_v, WIDTH)
            self.matrix(f"{block}.ssm_alpha", n_v, WIDTH)
        self.norm(f"{block}.ssm_norm", HEAD)
        self.matrix(f"{block}.ssm_out", WIDTH, values, gain=2.0)

    def mamba(self, block: str, *, normed: bool = False) -> None:
        """A Mamba mixer: 128 channels with states of 16. `normed`: as in Jamba."""
        inner, state, rank = 2 * WIDTH, 16, 4
        self.matrix(f"{block}.ssm_in", 2 * inner, WIDTH)
        self.matrix(f"{block}.ssm_conv1d", inner, 4)
        self.bias(f"{block}.ssm_conv1d", inner)
        self.matrix(f"{block}.ssm_x", rank + 2 * state, inner)
        self.matrix(f"{block}.ssm_dt", inner, rank)
        # Steps of 0.01 to 0.2 after the softplus: memories of a few to a hundred tokens.
        self.constant(f"{block}.ssm_dt.bias", np.log(np.expm1(np.geomspace(0.01, 0.2, inner))))
        self.constant(f"{block}.ssm_a", -np.tile(np.arange(1.0, state + 1), (inner, 1)))
        self.constant(f"{block}.ssm_d", np.ones(inner))
        self.matrix(f"{block}.ssm_out", WIDTH, inner, gain=2.0)
        if normed:
            self.norm(f"{block}.ssm_dt_norm", rank)
            self.norms(block, "ssm_b_norm", "ssm_c_norm", size=state)

    def mamba2(self, block: str, *, groups: int) -> None:
        """A Mamba-2 mixer: 128 channels in 4 heads, states of 16."""
        inner, state, heads = 2 * WIDTH, 16, 4
        conv = inner + 2 * groups * state
        self.matrix(f"{block}.ssm_in", inner + conv + heads, WIDTH)
        self.matrix(f"{block}.ssm_conv1d", conv, 4)
        self.bias(f"{block}.ssm_conv1d", conv)
        self.constant(f"{block}.ssm_dt.bias", np.log(np.expm1(np.geomspace(0.01, 0.2, heads))))
        self.constant(f"{block}.ssm_a", -np.arange(1.0, heads + 1).reshape(heads, 1))
        self.constant(f"{block}.ssm_d", np.ones((heads, 1)))
        norm = 1.0 + 0.1 * self._normal(f"{block}.ssm_norm.weight", (groups, inner // groups))
        self.constant(f"{block}.ssm_norm.weight", norm)
        self.matrix(f"{block}.ssm_out", WIDTH, inner, gain=2.0)


def _blocks(n: int) -> list[str]:
    return [f"blk.{i}" for i in range(n)]


_MOE = {"expert_count": EXPERTS, "expert_used_count": EXPERTS_USED, "expert_feed_forward_length": EXPERT_FF}
_DELTA_NET = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 4 * HEAD,
    "ssm.state_size": HEAD,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "full_attention_interval": 2,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
}
_MAMBA = {"ssm.conv_kernel": 4, "ssm.inner_size": 2 * WIDTH, "ssm.state_size": 16, "ssm.time_step_rank": 4}
_NO_ATTENTION = {"feed_forward_length": 0, "attention.head_count": 0, "attention.head_count_kv": 0}


# --- attention --------------------------------------------------------------------------------------------------------


def _dense(net: Net, *, head_norms: bool = False, biased: Sequence[str] = (), moe: bool = False) -> Metadata:
    """Norm, attention, norm, feed-forward: what most families share."""
    net.ends()
    for block in _blocks(2):
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
    return {**_dense(net, head_norms=True, moe=True), **_MOE}


@family("phi3", pieces=True)
def _phi3(net: Net) -> Metadata:
    net.ends()
    for block in _blocks(2):
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
    for block in _blocks(2):
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
    for block in _blocks(2):
        net.attend(block)
        net.norm(f"{block}.attn_q_norm", WIDTH)
        net.norm(f"{block}.attn_k_norm", KV_HEADS * HEAD)
        net.feed_forward(block, WIDTH, FF)
        net.norms(block, "post_attention_norm", "post_ffw_norm")
    return {"block_count": 2}


@family("glm4moe", mtp=1)
def _glm4moe(net: Net) -> Metadata:
    net.ends()
    for i, block in enumerate(_blocks(3)):
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
        **_MOE,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "rope.dimension_count": HEAD // 2,
    }


@family("deepseek2", mtp=1)
def _deepseek2(net: Net) -> Metadata:
    """Latent attention: what is cached is 32 numbers a position and 8 rotated ones."""
    latent, rope, nope = 32, 8, 16
    net.ends()
    for i, block in enumerate(_blocks(3)):
        net.norms(block, "attn_norm", "ffn_norm")
        net.norms(block, "attn_q_a_norm", "attn_kv_a_norm", size=latent)
        net.matrix(f"{block}.attn_q_a", latent, WIDTH)
        net.matrix(f"{block}.attn_q_b", HEADS * (nope + rope), latent, gain=2.0)
        net.matrix(f"{block}.attn_kv_a_mqa", latent + rope, WIDTH)
        for name, shape in (("attn_k_b", (HEADS, latent, nope)), ("attn_v_b", (HEADS, HEAD, latent))):
            values = net._normal(f"{block}.{name}.weight", shape)
            net.constant(f"{block}.{name}.weight", values * 2.0 / shape[-1] ** 0.5)
        net.matrix(f"{block}.attn_output", WIDTH, HEADS * HEAD)
        if i == 0:
            net.feed_forward(block, WIDTH, FF)
        else:
            net.experts(block, shared=True, balanced=True)
    net.mtp("blk.2")
    return {
        "block_count": 3,
        "nextn_predict_layers": 1,
        **_MOE,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": latent,
        "attention.kv_lora_rank": latent,
        "attention.key_length": latent + rope,
        "attention.value_length": latent,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": HEAD,
        "rope.dimension_count": rope,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
    }


# --- sliding windows --------------------------------------------------------------------------------------------------


@family("gemma2", memory="window", pieces=True)
def _gemma2(net: Net) -> Metadata:
    net.ends(tied=True, loud=4.0)
    for block in _blocks(2):
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
    for block in _blocks(3):
        net.norms(block, "attn_norm", "ffn_norm")
        net.norms(block, "post_attention_norm", "post_ffw_norm", loud=6.0)
        net.attend(block)
        net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
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
    for i, block in enumerate(_blocks(layers)):
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
    for block in _blocks(2):
        net.norms(block, "attn_norm", "post_attention_norm")
        net.attend(block, biased=("attn_q", "attn_k", "attn_v", "attn_output"))
        net.constant(f"{block}.attn_sinks.weight", net._normal(f"{block}.attn_sinks.weight", (HEADS,)))
        net.experts(block, biased=True)
    return {
        "block_count": 2,
        **_MOE,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.sliding_window": WINDOW,
        "rope.dimension_count": HEAD,
    }


@family("cohere2", memory="window")
def _cohere2(net: Net) -> Metadata:
    net.matrix("token_embd", VOCAB, WIDTH, gain=2.5)
    net.norm("output_norm", WIDTH)
    for block in _blocks(2):
        net.norm(f"{block}.attn_norm", WIDTH)
        net.attend(block)
        net.feed_forward(block, WIDTH, FF)
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
    for i, block in enumerate(_blocks(4)):
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
        **_MOE,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [False, True, False, True],
        "rope.dimension_count": HEAD,
        "rope.freq_base_swa": 10000.0,
    }


# --- recurrent states -------------------------------------------------------------------------------------------------


@family("lfm2", memory="rollback")
def _lfm2(net: Net) -> Metadata:
    net.matrix("token_embd", VOCAB, WIDTH, gain=2.5)
    net.norm("token_embd_norm", WIDTH)  # this architecture's name for the last normalization
    for i, block in enumerate(_blocks(2)):
        net.norms(block, "attn_norm", "ffn_norm")
        if i % 2:
            net.attend(block)
            net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
        else:
            net.matrix(f"{block}.shortconv.conv", WIDTH, 3)
            net.matrix(f"{block}.shortconv.in_proj", 3 * WIDTH, WIDTH)
            net.matrix(f"{block}.shortconv.out_proj", WIDTH, WIDTH, gain=2.0)
        net.feed_forward(block, WIDTH, FF)
    return {"block_count": 2, "attention.head_count_kv": [0, KV_HEADS], "shortconv.l_cache": 3}


@family("qwen35", memory="rollback", mtp=1)
def _qwen35(net: Net) -> Metadata:
    net.ends()
    for i, block in enumerate(_blocks(3)):
        net.norms(block, "attn_norm", "post_attention_norm")
        if i == 0:
            net.delta_net(block, joined=False)
        else:
            net.attend(block, gated=True)
            net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
        net.feed_forward(block, WIDTH, FF)
    net.mtp("blk.2")
    rope = {"rope.dimension_count": HEAD, "rope.dimension_sections": [2, 3, 3, 0]}
    return {"block_count": 3, "nextn_predict_layers": 1, **_DELTA_NET, **rope}


@family("qwen3next", memory="state")
def _qwen3next(net: Net) -> Metadata:
    net.ends()
    for i, block in enumerate(_blocks(2)):
        net.norms(block, "attn_norm", "post_attention_norm")
        if i == 0:
            net.delta_net(block, joined=True)
        else:
            net.attend(block, gated=True)
            net.norms(block, "attn_q_norm", "attn_k_norm", size=HEAD)
        net.experts(block, shared=True)
        net.constant(f"{block}.ffn_gate_inp_shexp.weight", net._normal(f"{block}.ffn_gate_inp_shexp.weight", (WIDTH,)))
    return {
        "block_count": 2,
        **_DELTA_NET,
        **_MOE,
        "expert_shared_feed_forward_length": EXPERT_FF,
        "rope.dimension_count": HEAD,
    }


@family("mamba", memory="state")
def _mamba(net: Net) -> Metadata:
    net.ends()
    for block in _blocks(2):
        net.norm(f"{block}.attn_norm", WIDTH)
        net.mamba(block)
    return {"block_count": 2, **_MAMBA, **_NO_ATTENTION}


@family("mamba2", memory="state")
def _mamba2(net: Net) -> Metadata:
    net.ends()
    for block in _blocks(2):
        net.norm(f"{block}.attn_norm", WIDTH)
        net.mamba2(block, groups=2)
    return {"block_count": 2, **_MAMBA, "ssm.group_count": 2, **_NO_ATTENTION}


@family("granite-hybrid", architecture="granitehybrid", memory="state")
def _granite_hybrid(net: Net) -> Metadata:
    net.ends()
    for i, block in enumerate(_blocks(2)):
        net.norms(block, "attn_norm", "ffn_norm")
        if i % 2:
            net.attend(block)
        else:
            net.mamba2(block, groups=1)
        net.feed_forward(block, WIDTH, FF)
    return {
        "block_count": 2,
        **_MAMBA,
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
    for block in _blocks(2):
        net.norm(f"{block}.attn_norm", WIDTH)
        net.attend(block)
        net.mamba2(block, groups=2)
        net.constant(f"{block}.ffn_norm", np.ones(WIDTH))  # without ".weight" in this architecture
        net.feed_forward(block, WIDTH, FF)
    return {"block_count": 2, **_MAMBA, "ssm.group_count": 2, "rope.dimension_count": HEAD}


@family("jamba", memory="state")
def _jamba(net: Net) -> Metadata:
    net.ends()
    for i, block in enumerate(_blocks(2)):
        net.norms(block, "attn_norm", "ffn_norm")
        if i % 2:
            net.attend(block)
            net.experts(block, n_ff=FF)
        else:
            net.mamba(block, normed=True)
            net.feed_forward(block, WIDTH, FF)
    moe = {"expert_count": EXPERTS, "expert_used_count": EXPERTS_USED}
    return {"block_count": 2, **_MAMBA, **moe, "attention.head_count_kv": [0, KV_HEADS]}
