"""The transformer layers that are trained here: sizes, tensors by their names in a GGUF, and what heads read."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """Attention with grouped queries, rotated positions and RMS norms, then SwiGLU: a layer of the kind `llama`.

    `vocab`: tokens that the network can say; `width`: of the residual stream.
    """

    vocab: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    def layer(self, block: int, read: int = 1) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors of layer `block`, whose attention reads `read` vectors of the width, side by side."""
        n, q, kv, ff = self.width, self.heads * self.head_dim, self.kv_heads * self.head_dim, self.feed_forward
        shapes: dict[str, tuple[int, ...]] = {
            "attn_norm": (n,),
            "attn_q": (q, read * n),
            "attn_k": (kv, read * n),
            "attn_v": (kv, read * n),
            "attn_output": (n, q),
            "ffn_norm": (n,),
            "ffn_gate": (ff, n),
            "ffn_up": (ff, n),
            "ffn_down": (n, ff),
        }
        return {f"blk.{block}.{name}.weight": shape for name, shape in shapes.items()}

    def key(self) -> dict[str, float]:
        """What a checkpoint must agree with."""
        return asdict(self)


def default_layers(n_layer: int) -> tuple[int, int, int]:
    """Which layers' inputs a head reads: a third and two thirds up, and the last."""
    return max(0, n_layer // 3), max(0, 2 * n_layer // 3), max(0, n_layer - 1)
