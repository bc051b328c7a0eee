"""The shape of a small model of llama.cpp's architecture `qwen35`, and its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from lcspec.training.layer_sizes import LayerSizes

ARCHITECTURE = "qwen35"
KERNEL = 4  # tokens that the convolution before a delta net sees


@dataclass(frozen=True)
class HybridShape(LayerSizes):
    """Everything that fixes the size of the model.

    Attributes:
        vocab: tokens; the embeddings are the output matrix as well.
        layers: those of the model itself. Every `interval`-th has attention, the others have a gated delta net.
        heads: of attention and of delta nets, all with keys and values of `head_dim` numbers; `kv_heads` of attention.
    """

    vocab: int
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    feed_forward: int = 384
    epsilon: float = 1e-6
    layers: int = 8
    interval: int = 4

    def recurrent(self, layer: int) -> bool:
        """Whether a layer has a delta net; that for multi-token prediction, number `layers`, has attention."""
        return layer < self.layers and (layer + 1) % self.interval != 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor by its name in the GGUF, the layer for multi-token prediction last."""
        n, ff, all_heads = self.width, self.feed_forward, self.heads * self.head_dim
        out: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.vocab, n), "output_norm.weight": (n,)}
        for i in range(self.layers + 1):
            block = f"blk.{i}"
            out |= {f"{block}.attn_norm.weight": (n,), f"{block}.post_attention_norm.weight": (n,)}
            if self.recurrent(i):
                out |= {
                    f"{block}.attn_qkv.weight": (3 * all_heads, n),
                    f"{block}.attn_gate.weight": (all_heads, n),
                    f"{block}.ssm_conv1d.weight": (3 * all_heads, KERNEL),
                    f"{block}.ssm_dt.bias": (self.heads,),
                    f"{block}.ssm_a": (self.heads,),
                    f"{block}.ssm_beta.weight": (self.heads, n),
                    f"{block}.ssm_alpha.weight": (self.heads, n),
                    f"{block}.ssm_norm.weight": (self.head_dim,),
                    f"{block}.ssm_out.weight": (n, all_heads),
                }
            else:
                out |= {
                    f"{block}.attn_q.weight": (2 * all_heads, n),
                    f"{block}.attn_k.weight": (self.kv_heads * self.head_dim, n),
                    f"{block}.attn_v.weight": (self.kv_heads * self.head_dim, n),
                    f"{block}.attn_output.weight": (n, all_heads),
                    f"{block}.attn_q_norm.weight": (self.head_dim,),
                    f"{block}.attn_k_norm.weight": (self.head_dim,),
                }
            out |= {
                f"{block}.ffn_gate.weight": (ff, n),
                f"{block}.ffn_up.weight": (ff, n),
                f"{block}.ffn_down.weight": (n, ff),
            }
        head = f"blk.{self.layers}.nextn"
        norms = {f"{head}.{name}.weight": (n,) for name in ("enorm", "hnorm", "shared_head_norm")}
        return {**out, f"{head}.eh_proj.weight": (n, 2 * n), **norms}
