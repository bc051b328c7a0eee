"""A hybrid in PyTorch, computed as llama.cpp computes its architecture `qwen35`, and its unrolled training.

The layer for multi-token prediction reads token i with the model's state of token i - 1 and says what the model will
say after token i. From the second drafted token on its own state takes the place of the model's, and training does the
same: step 1 reads the model's states everywhere; every further step goes on from the states of the step before, one
token on, and sees the rows of step 1 up to where its branch began and its own branch's rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lcspec.training.network import GGUFNetwork
from lcspec.training.tensors import Weights

from .delta_net import gated_delta_rule
from .shape import KERNEL, HybridShape

POST_NORM = "post_attention_norm"
Cells = tuple[Tensor, Tensor]  # keys and values, [texts, heads, rows, dim]


@dataclass
class Step:
    """What one step of the unrolled layer says: the tokens it reads, int64 [m], and its states, [texts, m, width]."""

    at: Tensor
    states: Tensor


class Hybrid(GGUFNetwork):
    """The model with its layer for multi-token prediction."""

    def __init__(self, shape: HybridShape, weights: Weights) -> None:
        super().__init__(shape, shape.shapes(), weights)
        self.shape = shape

    def forward(self, tokens: Tensor) -> Tensor:
        """States behind the last norm for tokens int64 [texts, length]: float32 [texts, length, width]."""
        x = F.embedding(tokens, self.of("token_embd"))
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        for i in range(self.shape.layers):
            normed = self.norm(x, f"blk.{i}.attn_norm")
            if self.shape.recurrent(i):
                x = x + self._delta_net(normed, f"blk.{i}")
            else:
                cells = self._cells(normed, f"blk.{i}", positions)
                x = x + self._attention(normed, f"blk.{i}", positions, cells)
            x = x + self.feed_forward(x, f"blk.{i}", POST_NORM)
        return self.norm(x, "output_norm")

    def logits(self, states: Tensor) -> Tensor:
        """What states say, the model's as well as the layer's: [..., vocab]."""
        return F.linear(states, self.of("token_embd"))

    def unroll(self, tokens: Tensor, states: Tensor, steps: int, begins: Tensor) -> list[Step]:
        """What the layer says at every token, and up to `steps - 1` tokens further on behind the tokens `begins`.

        Args:
            tokens: int64 [texts, length].
            states: the model's, [texts, length, width].
            begins: where branches are continued, int64 [m], ascending; all below length - steps + 1.
        """
        block, length = f"blk.{self.shape.layers}", tokens.shape[1]
        embedded = self.norm(F.embedding(tokens, self.of("token_embd")), f"{block}.nextn.enorm")
        before = F.pad(states, (0, 0, 1, 0))[:, :length]
        x, normed = self._joined(embedded, before)
        at = torch.arange(length, device=tokens.device)
        trunk = self._cells(normed, block, at)
        out = [Step(at, self._layer(x, self._attention(normed, block, at, trunk)))]
        branch: list[Cells] = []
        for step in range(1, steps):
            before = out[-1].states[:, begins] if step == 1 else out[-1].states
            at = begins + step
            x, normed = self._joined(embedded[:, at], before)
            branch.append(self._cells(normed, block, at))
            out.append(Step(at, self._layer(x, self._branch_attention(normed, block, at, trunk, begins, branch))))
        return out

    def _joined(self, embedded: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """A token and the state before it made one, as it is and behind the layer's first norm."""
        block = f"blk.{self.shape.layers}"
        both = torch.cat([embedded, self.norm(before, f"{block}.nextn.hnorm")], -1)
        x = F.linear(both, self.of(f"{block}.nextn.eh_proj"))
        return x, self.norm(x, f"{block}.attn_norm")

    def _layer(self, x: Tensor, attended: Tensor) -> Tensor:
        block = f"blk.{self.shape.layers}"
        x = x + attended
        return self.norm(x + self.feed_forward(x, block, POST_NORM), f"{block}.nextn.shared_head_norm")

    def _heads(self, x: Tensor, name: str, dim: int) -> Tensor:
        """A projection as heads: [texts, heads, rows, dim]."""
        return F.linear(x, self.of(name)).unflatten(-1, (-1, dim)).transpose(1, 2)

    def _cells(self, x: Tensor, block: str, positions: Tensor) -> Cells:
        dim = self.shape.head_dim
        keys = self.norm(self._heads(x, f"{block}.attn_k", dim), f"{block}.attn_k_norm")
        values = self._heads(x, f"{block}.attn_v", dim)
        group = self.shape.heads // self.shape.kv_heads
        keys = rotate_halves(keys, positions, self.rates)
        return keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)

    def _queries(self, x: Tensor, block: str, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, and the gates that come with them."""
        q, gate = self._heads(x, f"{block}.attn_q", 2 * self.shape.head_dim).chunk(2, -1)
        return rotate_halves(self.norm(q, f"{block}.attn_q_norm"), positions, self.rates), gate

    def _attention(self, x: Tensor, block: str, positions: Tensor, cells: Cells) -> Tensor:
        q, gate = self._queries(x, block, positions)
        return self._mixed(F.scaled_dot_product_attention(q, *cells, is_causal=True), gate, block)

    def _branch_attention(
        self, x: Tensor, block: str, at: Tensor, trunk: Cells, begins: Tensor, branch: list[Cells]
    ) -> Tensor:
        """Attention to the text's rows up to where a branch began, and to the branch's own rows."""
        q, gate = self._queries(x, block, at)
        q = q * self.shape.head_dim**-0.5
        unseen = torch.arange(trunk[0].shape[2], device=begins.device) > begins[:, None]
        scores = (q @ trunk[0].mT).masked_fill(unseen, -torch.inf)
        own = [(q * keys).sum(-1, keepdim=True) for keys, _ in branch]
        weights = torch.cat([scores, *own], -1).softmax(-1)
        mixed = weights[..., : -len(branch)] @ trunk[1]
        for i, (_, values) in enumerate(branch):
            column = weights.shape[-1] - len(branch) + i
            mixed = mixed + weights[..., column : column + 1] * values
        return self._mixed(mixed, gate, block)

    def _mixed(self, mixed: Tensor, gate: Tensor, block: str) -> Tensor:
        gated = (mixed * gate.sigmoid()).transpose(1, 2).flatten(2)
        return F.linear(gated, self.of(f"{block}.attn_output"))

    def _delta_net(self, x: Tensor, block: str) -> Tensor:
        dim, heads = self.shape.head_dim, (self.shape.heads, self.shape.head_dim)
        mixed = F.pad(F.linear(x, self.of(f"{block}.attn_qkv")), (0, 0, KERNEL - 1, 0))
        kernel, length = self.of(f"{block}.ssm_conv1d"), x.shape[1]
        mixed = F.silu(sum(mixed[:, i : i + length] * kernel[:, i] for i in range(KERNEL)))
        q, k, v = (part.unflatten(-1, heads) for part in mixed.chunk(3, -1))
        q, k = (F.rms_norm(part, (dim,), None, self.epsilon / dim) * dim**-0.5 for part in (q, k))
        beta = F.linear(x, self.of(f"{block}.ssm_beta")).sigmoid()
        steps = F.softplus(F.linear(x, self.of(f"{block}.ssm_alpha")) + self.of(f"{block}.ssm_dt.bias"))
        decay = -steps * self.of(f"{block}.ssm_a").abs()
        read = gated_delta_rule(q * dim**-0.5, k, v, decay, beta)
        gate = F.linear(x, self.of(f"{block}.attn_gate")).unflatten(-1, heads)
        read = self.norm(read, f"{block}.ssm_norm") * F.silu(gate)
        return F.linear(read.flatten(2), self.of(f"{block}.ssm_out"))


def rotate_halves(x: Tensor, positions: Tensor, rates: Tensor) -> Tensor:
    """Rotate number i of a head with number i + dim / 2 (RoPE), as llama.cpp does for text in `qwen35`.

    Args:
        x: float32 [..., n, dim].
        positions: int64 [n].
        rates: see `rotation_rates`.
    """
    angles = positions[:, None].float() * rates
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
