"""An EAGLE-3 head in PyTorch, computed as llama.cpp computes it, and its unrolled training.

The head reads, with token i, what the target's layers had at token i - 1 and says what the target will say after
token i. From the second drafted token on its own state takes the place of the target's. Training does the same
(*training-time test*, Li et al. 2025, arXiv:2503.01840): step 0 reads the target's features everywhere; step s goes on
from states of step s - 1, one token further, and sees the features' rows up to where its branch began and its branch's
own rows.

The rows of several texts lie one after the other; attention runs text by text, so nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lcspec.training.layer_sizes import LayerSizes
from lcspec.training.network import GGUFNetwork, rotate
from lcspec.training.tensors import Weights


class HeadSizes(LayerSizes):
    """A head's shape; `width` and `rope_base` are the target's."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor by its name in the GGUF."""
        n = self.width
        return {
            "fc.weight": (n, 3 * n),
            "output_norm.weight": (n,),
            "output.weight": (self.vocab, n),
            "blk.0.attn_norm_2.weight": (n,),
            **self.layer(0, read=2),
        }


@dataclass
class Rows:
    """Rows of several texts, one after the other. Row r is token i of a text, i from 1 on.

    Attributes:
        features: the target's at token i - 1, float32 [n, 3 * width].
        embeddings: the target's of token i, float32 [n, width].
        positions: int64 [n].
        shares: what the target says after token i, in the head's vocabulary, float32 [n, k], and `ids` int64 [n, k].
        top: its first choice in the head's vocabulary, -1 if that is not in it, int64 [n].
        learn: whether that is known, bool [n].
        starts: the first row of every text, and the number of rows.
        reached: whether token i is what the target would have said itself, bool [n].
    """

    features: Tensor
    embeddings: Tensor
    positions: Tensor
    shares: Tensor
    ids: Tensor
    top: Tensor
    learn: Tensor
    reached: Tensor
    starts: Sequence[int]


@dataclass
class Step:
    """What one step of the unrolled head says: the row each answer belongs to and the row its branch began at, int64
    [m], and logits [m, vocab]."""

    rows: Tensor
    base: Tensor
    logits: Tensor


class Head(GGUFNetwork):
    """The network. Its matrix of outputs stays as it is in the target."""

    def __init__(self, sizes: HeadSizes, weights: Weights) -> None:
        super().__init__(sizes, sizes.shapes(), weights, frozen=("output.weight",))
        self.sizes = sizes

    def unroll(self, rows: Rows, steps: int, share: float = 1.0) -> list[Step]:
        """What the head says at every row that can be learned from, and `steps - 1` tokens further on.

        Branches are continued from a random `share` of the rows.
        """
        fused = F.linear(rows.features, self.of("fc"))
        embedded = self.norm(rows.embeddings, "blk.0.attn_norm")
        both = torch.cat([embedded, self.norm(fused, "blk.0.attn_norm_2")], dim=1)
        keys, values = self._keys(both, rows.positions)
        base = at = rows.learn.nonzero()[:, 0]
        state, both = fused[base], both[base]
        last = torch.tensor(rows.starts[1:])[torch.bucketize(base, torch.tensor(rows.starts[1:]), right=True)] - 1
        branch: list[tuple[Tensor, Tensor]] = []
        out: list[Step] = []
        for step in range(steps):
            state = self._layer(both, state, base, at, keys, values, branch, rows)
            out.append(Step(at, base, F.linear(self.norm(state, "output_norm"), self.of("output"))))
            if step + 1 == steps:
                break
            keep = (at + 1 <= last).nonzero()[:, 0]
            if step == 0 and share < 1.0:
                keep = keep[torch.rand(len(keep)) < share]
            if not len(keep):
                break
            base, at, last, state = base[keep], at[keep] + 1, last[keep], state[keep]
            branch = [(k[keep], v[keep]) for k, v in branch]
            both = torch.cat([embedded[at], self.norm(state, "blk.0.attn_norm_2")], dim=1)
            branch.append(self._keys(both, rows.positions[at]))
        return out

    def _layer(
        self,
        both: Tensor,
        state: Tensor,
        base: Tensor,
        at: Tensor,
        keys: Tensor,
        values: Tensor,
        branch: list[tuple[Tensor, Tensor]],
        rows: Rows,
    ) -> Tensor:
        sizes = self.sizes
        q = F.linear(both, self.of("blk.0.attn_q")).view(-1, sizes.heads, sizes.head_dim)
        q = rotate(q, rows.positions[at], self.rates) * sizes.head_dim**-0.5
        q = q.view(len(q), sizes.kv_heads, -1, sizes.head_dim)
        bounds = torch.searchsorted(base, torch.tensor(rows.starts)).tolist()
        found = []
        for i, (first, stop) in enumerate(zip(rows.starts, rows.starts[1:])):
            part = slice(bounds[i], bounds[i + 1])
            if part.start == part.stop:
                continue
            mine, n = q[part].permute(1, 2, 0, 3), part.stop - part.start  # [kv, group, n, dim]
            seen = keys[first:stop].permute(1, 2, 0)[:, None]
            scores = mine @ seen
            hidden = torch.arange(stop - first)[None] > (base[part] - first)[:, None]
            scores = scores.masked_fill(hidden, -torch.inf)
            own = [(mine * k[part].permute(1, 0, 2)[:, None]).sum(-1, keepdim=True) for k, _ in branch]
            weight = torch.cat([scores, *own], dim=-1).softmax(-1)
            mixed = weight[..., : stop - first] @ values[first:stop].permute(1, 0, 2)[:, None]
            for j, (_, v) in enumerate(branch):
                column = stop - first + j
                mixed = mixed + weight[..., column : column + 1] * v[part].permute(1, 0, 2)[:, None]
            found.append(mixed.permute(2, 0, 1, 3).reshape(n, -1))
        state = state + F.linear(torch.cat(found), self.of("blk.0.attn_output"))
        return state + self.feed_forward(state, "blk.0")

    def _keys(self, both: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        shape = (len(both), self.sizes.kv_heads, self.sizes.head_dim)
        keys = F.linear(both, self.of("blk.0.attn_k")).view(shape)
        return rotate(keys, positions, self.rates), F.linear(both, self.of("blk.0.attn_v")).view(shape)


def step_loss(step: Step, rows: Rows) -> Tensor:
    """Mean cross entropy with what the target says, where any of that is in the head's vocabulary."""
    shares, ids = rows.shares[step.rows], rows.ids[step.rows]
    share = shares.sum(1)
    normaliser = step.logits.logsumexp(1)
    chosen = step.logits.gather(1, ids)
    losses: Tensor = share * normaliser - (shares * chosen).sum(1)
    return losses.sum() / share.sum().clamp_min(1e-6)
