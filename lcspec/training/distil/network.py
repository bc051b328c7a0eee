"""A small Llama in PyTorch, computed as llama.cpp computes it, and the loss it is trained with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lcspec.training.distil.shape import DraftShape
from lcspec.training.network import GGUFNetwork, rotate
from lcspec.training.tensors import Weights

# Tokens that nobody says in a batch, drawn as a sample of all the others.
SAMPLED = 2048


@dataclass(frozen=True)
class Batch:
    """Texts side by side, filled up at their ends.

    Attributes:
        tokens: int64 [texts, length].
        learn: which of all tokens, counted row by row, have something to learn after them, int64 [n].
        ids: what the target may say there, the most probable first, int64 [n, k].
        shares: how much of the loss each is wanted with, float32 [n, k]; what is missing to 1 is all other tokens'.
    """

    tokens: Tensor
    learn: Tensor
    ids: Tensor
    shares: Tensor


class Draft(GGUFNetwork):
    """A model of the architecture `llama`."""

    def __init__(self, shape: DraftShape, weights: Weights) -> None:
        super().__init__(shape, shape.shapes(), weights)
        self.shape = shape

    def forward(self, tokens: Tensor) -> Tensor:
        """States after the last norm for tokens int64 [texts, length]: float32 [texts, length, width]."""
        x = F.embedding(tokens, self.of("token_embd"))
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        for i in range(self.shape.layers):
            x = x + self._attention(x, f"blk.{i}", positions)
            x = x + self.feed_forward(x, f"blk.{i}")
        return self.norm(x, "output_norm")

    @property
    def output(self) -> Tensor:
        """The output matrix, [vocab, width]."""
        return self.of("token_embd" if self.shape.tied else "output")

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross entropy with the shares, in nats a token; that is the forward KL divergence and a constant.

        The tokens of a row and "any other" are its classes. Of the others, those that some row of the batch names are
        counted one by one; of those that none names, a sample stands for all (importance sampling of the normalizer,
        Bengio and Senecal 2008).
        """
        states = self(batch.tokens).flatten(0, 1)[batch.learn]
        candidates, weights = self._candidates(batch.ids)
        place = torch.zeros(self.shape.vocab, dtype=torch.int64, device=candidates.device)
        place[candidates] = torch.arange(len(candidates), device=candidates.device)
        own = place[batch.ids]
        logits = F.linear(states, self.output.index_select(0, candidates)) + weights
        chosen = logits.gather(1, own)
        rest = logits.scatter(1, own, -torch.inf).logsumexp(1)
        normalizer = torch.logaddexp(chosen.logsumexp(1), rest)
        other = (1.0 - batch.shares.sum(1)).clamp_min(0.0)
        return (normalizer - (batch.shares * chosen).sum(1) - other * rest).mean()

    def _candidates(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens whose logits are computed, int64 [m], and what is added to them, float32 [m]."""
        named = torch.zeros(self.shape.vocab, dtype=torch.bool, device=ids.device)
        named[ids.flatten()] = True
        others = (~named).nonzero()[:, 0]
        named_ids = named.nonzero()[:, 0]
        if len(others) <= SAMPLED:
            return torch.cat([named_ids, others]), torch.zeros(self.shape.vocab, device=ids.device)
        drawn = others[torch.randint(len(others), (SAMPLED,), device=ids.device)]
        weights = torch.zeros(len(named_ids) + SAMPLED, device=ids.device)
        weights[len(named_ids) :] = math.log(len(others) / SAMPLED)
        return torch.cat([named_ids, drawn]), weights

    def _attention(self, x: Tensor, block: str, positions: Tensor) -> Tensor:
        shape = self.shape
        x = self.norm(x, f"{block}.attn_norm")
        parts = []
        for name, heads in (("attn_q", shape.heads), ("attn_k", shape.kv_heads), ("attn_v", shape.kv_heads)):
            part = F.linear(x, self.of(f"{block}.{name}")).unflatten(-1, (heads, shape.head_dim))
            part = part if name == "attn_v" else rotate(part, positions, self.rates)
            parts.append(part.repeat_interleave(shape.heads // heads, dim=2).transpose(1, 2))
        q, k, v = parts
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(mixed.transpose(1, 2).flatten(2), self.of(f"{block}.attn_output"))
