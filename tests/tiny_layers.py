"""Layers with random weights, and the list of the families that are built of them: see tests/tiny_families.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests import tiny_gguf as tiny

WIDTH, HEADS, KV_HEADS, HEAD, FF, CONTEXT, VOCAB, WINDOW = 64, 4, 2, 16, 128, 512, 288, 16
EXPERTS, EXPERTS_USED, EXPERT_FF = 4, 2, 32

Metadata = dict[str, Any]
Builder = Callable[["Net"], Metadata]


# What every family's file says.
SHAPE = {
    "vocab_size": VOCAB,
    "context_length": CONTEXT,
    "embedding_length": WIDTH,
    "feed_forward_length": FF,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


@dataclass(frozen=True)
class Family:
    """One model family.

    Attributes:
        name: as people say it; the GGUF's architecture may be another word.
        architecture: what the GGUF calls it.
        memory: "attention" (trees), "window" (trees; some layers see WINDOW positions only), "rollback" (a recurrent
            state that the library can take back a few tokens) or "state" (one that it cannot take back).
        mtp: layers for multi-token prediction inside the file that the library can run.
        vocab: byte-level BPE, or what the real models have in its place.
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
        if name == "plamo2":
            vocab = tiny.plamo_vocab(VOCAB)
        elif name == "phi3":  # the library looks for this token in models of that name
            vocab = replace(
                vocab, tokens=(*vocab.tokens[:-1], "<|endoftext|>"), types=(*vocab.types[:-1], tiny.CONTROL)
            )
        FAMILIES[name] = Family(name, architecture or name, memory, mtp, build, vocab)
        return build

    return register


def blocks(n: int) -> list[str]:
    return [f"blk.{i}" for i in range(n)]


MOE = {"expert_count": EXPERTS, "expert_used_count": EXPERTS_USED, "expert_feed_forward_length": EXPERT_FF}
DELTA_NET = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 4 * HEAD,
    "ssm.state_size": HEAD,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "full_attention_interval": 2,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
}
LATENT_SIZE, LATENT_ROPE = 32, 8
# What is cached of latent attention is 32 numbers a position, and 8 rotated ones.
LATENT = {
    "attention.kv_lora_rank": LATENT_SIZE,
    "attention.key_length": LATENT_SIZE + LATENT_ROPE,
    "attention.value_length": LATENT_SIZE,
    "attention.key_length_mla": HEAD + LATENT_ROPE,
    "attention.value_length_mla": HEAD,
    "rope.dimension_count": LATENT_ROPE,
}
MAMBA = {"ssm.conv_kernel": 4, "ssm.inner_size": 2 * WIDTH, "ssm.state_size": 16, "ssm.time_step_rank": 4}
NO_ATTENTION = {"feed_forward_length": 0, "attention.head_count": 0, "attention.head_count_kv": 0}


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
        gated: bool = True,
        width: int = WIDTH,
    ) -> None:
        """A router and its experts.

        `shared`: one more that every token takes; `balanced`: a bias in the routing; `gated` False: two matrices each;
        `width`: what all but the shared one take and give.
        """
        self.matrix(f"{block}.ffn_gate_inp", EXPERTS, WIDTH, gain=2.0)
        for name in ("gate", "up", "down")[0 if gated else 1 :]:
            n_out, n_in = (width, n_ff) if name == "down" else (n_ff, width)
            values = self._normal(f"{block}.ffn_{name}_exps.weight", (EXPERTS, n_out, n_in))
            self.constant(f"{block}.ffn_{name}_exps.weight", values * 1.5 / n_in**0.5)
            if biased:
                of = self._normal(f"{block}.ffn_{name}_exps.bias", (EXPERTS, n_out))
                self.constant(f"{block}.ffn_{name}_exps.bias", 0.1 * of)
            if shared:
                self.matrix(f"{block}.ffn_{name}_shexp", *((WIDTH, n_ff) if name == "down" else (n_ff, WIDTH)))
        if biased:
            self.bias(f"{block}.ffn_gate_inp", EXPERTS)
        if balanced:
            self.bias(f"{block}.exp_probs_b", EXPERTS)

    def mtp(self, block: str, last: str = "nextn.shared_head_norm") -> None:
        """What a layer for multi-token prediction has beside a usual layer's tensors. `last`: its last norm's name."""
        self.matrix(f"{block}.nextn.eh_proj", WIDTH, 2 * WIDTH)
        self.norms(block, "nextn.enorm", "nextn.hnorm", last)

    def latent_attention(
        self,
        block: str,
        *,
        queries: bool = True,
        n_head: int = HEADS,
        latent: int = LATENT_SIZE,
        nope: int = HEAD,
        value: int = HEAD,
        rope: int = LATENT_ROPE,
    ) -> None:
        """Latent attention (see LATENT). `queries`: they have a latent form as well, of LATENT_SIZE numbers; `rope`:
        rotated numbers."""
        self.norm(f"{block}.attn_kv_a_norm", latent)
        if queries:
            self.norm(f"{block}.attn_q_a_norm", LATENT_SIZE)
            self.matrix(f"{block}.attn_q_a", LATENT_SIZE, WIDTH)
            self.matrix(f"{block}.attn_q_b", n_head * (nope + rope), LATENT_SIZE, gain=2.0)
        else:
            self.matrix(f"{block}.attn_q", n_head * (nope + rope), WIDTH, gain=2.0)
        self.matrix(f"{block}.attn_kv_a_mqa", latent + rope, WIDTH)
        for name, shape in (("attn_k_b", (n_head, latent, nope)), ("attn_v_b", (n_head, value, latent))):
            values = self._normal(f"{block}.{name}.weight", shape)
            self.constant(f"{block}.{name}.weight", values * 2.0 / shape[-1] ** 0.5)
        self.matrix(f"{block}.attn_output", WIDTH, n_head * value)

    def kimi_delta(self, block: str, *, low_rank: bool) -> None:
        """Kimi's delta attention: 4 heads of 16. `low_rank`: the matrices of its gates are products of two."""
        inner, taps = HEADS * HEAD, 4
        for name in ("q", "k", "v"):
            self.matrix(f"{block}.attn_{name}", inner, WIDTH)
            self.constant(
                f"{block}.ssm_conv1d_{name}.weight", self._normal(f"{block}.{name}.conv", (1, inner, 1, taps)) / 2
            )
        for name in ("f", "g"):
            self.matrix(f"{block}.ssm_{name}_a", HEAD if low_rank else inner, WIDTH)
            if low_rank:
                self.matrix(f"{block}.ssm_{name}_b", inner, HEAD)
        self.matrix(f"{block}.ssm_beta", HEADS, WIDTH)
        self.constant(f"{block}.ssm_a", -np.arange(1.0, HEADS + 1).reshape(HEADS, 1))
        self.constant(f"{block}.ssm_dt.bias", np.log(np.expm1(np.geomspace(0.01, 0.2, inner))))
        self.norm(f"{block}.ssm_norm", HEAD)
        self.matrix(f"{block}.attn_output", WIDTH, inner, gain=2.0)

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
