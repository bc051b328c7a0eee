"""An EAGLE-3 head in PyTorch, computed as llama.cpp computes it, and its unrolled training.

The head reads, with token i, what the target's layers had at token i - 1 and says what the target will say after
token i. From the second drafted token on its own state takes the place of the target's. Training does the same
(*training-time test*, Li et al. 2025, arXiv:2503.01840): step 0 reads the target's features everywhere; step s goes on
from states of step s - 1, one token further, and sees the features' rows up to where its branch began and its branch's
own rows.

The rows of several texts lie one after the other; for attention alone they are padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lcspec.training.device import moved
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

    What the network computes with is on its device; what says which rows belong together stays with the processor.

    Attributes:
        features: the target's at token i - 1, float32 [n, 3 * width]; on the device.
        embeddings: the target's of token i, float32 [n, width]; on the device.
        positions: int64 [n]; on the device.
        shares: what the target says after token i, in the head's vocabulary, float32 [n, k], and `ids` int64 [n, k];
            on the device.
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
    [m], and logits [m, vocab] on the device."""

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
        texts = Padded(rows.starts, torch.arange(rows.starts[-1]))
        keys, values = (texts.pad(part) for part in self._keys(both, rows.positions))
        base = at = rows.learn.nonzero()[:, 0]
        state, both = fused[moved(base)], both[moved(base)]
        starts = torch.tensor(rows.starts)
        last = starts[torch.bucketize(base, starts[1:], right=True) + 1] - 1
        branch: list[tuple[Tensor, Tensor]] = []
        out: list[Step] = []
        for step in range(steps):
            state = self._layer(both, state, rows.positions[moved(at)], Padded(rows.starts, base), keys, values, branch)
            out.append(Step(at, base, F.linear(self.norm(state, "output_norm"), self.of("output"))))
            if step + 1 == steps:
                break
            keep = (at + 1 <= last).nonzero()[:, 0]
            if step == 0 and share < 1.0:
                keep = keep[torch.rand(len(keep)) < share]
            if not len(keep):
                break
            base, at, last = base[keep], at[keep] + 1, last[keep]
            kept, now = moved(keep), moved(at)
            state = state[kept]
            branch = [(k[kept], v[kept]) for k, v in branch]
            both = torch.cat([embedded[now], self.norm(state, "blk.0.attn_norm_2")], dim=1)
            branch.append(self._keys(both, rows.positions[now]))
        return out

    def _layer(
        self,
        both: Tensor,
        state: Tensor,
        positions: Tensor,
        padded: Padded,
        keys: Tensor,
        values: Tensor,
        branch: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """The layer for rows whose branches began at those of `padded`; keys and values are the texts', padded."""
        sizes = self.sizes
        q = F.linear(both, self.of("blk.0.attn_q")).view(-1, sizes.heads, sizes.head_dim)
        q = rotate(q, positions, self.rates) * sizes.head_dim**-0.5
        q = padded.pad(q.view(len(q), sizes.kv_heads, -1, sizes.head_dim)).permute(0, 2, 3, 1, 4)
        k, v = keys.permute(0, 2, 3, 1)[:, :, None], values.permute(0, 2, 1, 3)[:, :, None]
        unseen = torch.arange(keys.shape[1], device=q.device) > padded.places[..., None]
        scores = (q @ k).masked_fill(unseen[:, None, None], -torch.inf)  # [texts, kv, group, rows, length]
        own = [tuple(padded.pad(x).transpose(1, 2)[:, :, None] for x in pair) for pair in branch]
        scores = torch.cat([scores, *((q * k).sum(-1, keepdim=True) for k, _ in own)], dim=-1)
        length = keys.shape[1]
        weight = scores.softmax(-1)
        mixed = weight[..., :length] @ v
        for j, (_, v) in enumerate(own, start=length):
            mixed = mixed + weight[..., j : j + 1] * v
        found = padded.unpad(mixed.permute(0, 3, 1, 2, 4)).flatten(1)
        state = state + F.linear(found, self.of("blk.0.attn_output"))
        return state + self.feed_forward(state, "blk.0")

    def _keys(self, both: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        shape = (len(both), self.sizes.kv_heads, self.sizes.head_dim)
        keys = F.linear(both, self.of("blk.0.attn_k")).view(shape)
        return rotate(keys, positions, self.rates), F.linear(both, self.of("blk.0.attn_v")).view(shape)


class Padded:
    """Puts rows of several texts, which lie one after the other, side by side, filled up at their ends."""

    def __init__(self, starts: Sequence[int], rows: Tensor) -> None:
        """`starts`: of the texts, and the end; `rows`: some of their rows, int64 [m], ascending."""
        first = torch.tensor(starts)
        bounds = torch.searchsorted(rows, first)
        text = torch.bucketize(rows, first[1:], right=True)
        rank = torch.arange(len(rows)) - bounds[text]
        n = int(bounds.diff().max())
        places = torch.zeros(len(starts) - 1, n, dtype=torch.int64)
        filled = torch.zeros(len(starts) - 1, n, dtype=torch.int64)
        places[text, rank], filled[text, rank] = rows - first[text], torch.arange(len(rows))
        # Where in its text every row is, int64 [texts, n] on the device.
        self.places = moved(places)
        self._filled, self._flat = moved(filled), moved(text * n + rank)

    def pad(self, x: Tensor) -> Tensor:
        """[m, ...] as [texts, n, ...]. What is filled up repeats the first row."""
        return x[self._filled]

    def unpad(self, x: Tensor) -> Tensor:
        """The reverse."""
        return x.flatten(0, 1)[self._flat]


def step_loss(step: Step, rows: Rows) -> Tensor:
    """Mean cross entropy with what the target says, where any of that is in the head's vocabulary."""
    at = moved(step.rows)
    shares, ids = rows.shares[at], rows.ids[at]
    share = shares.sum(1)
    normaliser = step.logits.logsumexp(1)
    chosen = step.logits.gather(1, ids)
    losses: Tensor = share * normaliser - (shares * chosen).sum(1)
    return losses.sum() / share.sum().clamp_min(1e-6)
