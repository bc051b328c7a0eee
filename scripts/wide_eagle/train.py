"""Training a head on texts of one length side by side, unrolled as it drafts (see lcspec.training.eagle.network)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lcspec.training.clock import BETAS, CLIP, DECAY, FINAL_SHARE, Measured
from lcspec.training.device import device
from lcspec.training.eagle.network import Head, HeadSizes
from lcspec.training.eagle.train import DISCOUNT, STEPS
from lcspec.training.network import rotate
from lcspec.training.tensors import Weights

from .texts import Read, Reader, TextSet, loss_of

RATE, WARM_UP = 1.5e-3, 100
# Tokens of an update, and branches that the last look tries.
SIZE, LOOK_BRANCHES = 24576, 200_000


class WideHead(Head):
    """The network of `lcspec draft eagle`, for texts side by side."""

    def unroll_all(self, read: Read, steps: int) -> Iterator[Tensor]:
        """States from which the head says what comes `step` tokens after every row, [texts, rows, width] for each step.

        The last `step` rows of a text have no such token; what is there means nothing.
        """
        n = read.features.shape[1]
        fused = F.linear(read.features, self.of("fc"))
        embedded = self.norm(read.embeddings, "blk.0.attn_norm")
        places = torch.arange(n, device=fused.device)
        unseen = places > places[:, None]
        both = torch.cat([embedded, self.norm(fused, "blk.0.attn_norm_2")], dim=-1)
        keys, values = self._pairs(both, places)
        state, own = fused, list[tuple[Tensor, Tensor]]()
        for step in range(steps):
            if step:
                shifted = F.pad(embedded[:, step:], (0, 0, 0, step))
                both = torch.cat([shifted, self.norm(state, "blk.0.attn_norm_2")], dim=-1)
                own.append(self._pairs(both, places + step))
            state = self._attend(both, state, places + step, unseen, keys, values, own)
            yield state

    def say(self, states: Tensor) -> Tensor:
        """Logits for some states, float32 [n, vocab]."""
        return F.linear(self.norm(states, "output_norm"), self.of("output")).float()

    def _attend(
        self,
        both: Tensor,
        state: Tensor,
        positions: Tensor,
        unseen: Tensor,
        keys: Tensor,
        values: Tensor,
        own: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        sizes, n = self.sizes, both.shape[1]
        q = F.linear(both, self.of("blk.0.attn_q")).unflatten(-1, (sizes.heads, -1))
        q = (rotate(q, positions, self.rates) * sizes.head_dim**-0.5).to(keys.dtype)
        q = q.unflatten(2, (sizes.kv_heads, -1)).permute(0, 2, 3, 1, 4)  # [texts, kv, group, rows, dim]
        scores = (q @ keys[:, :, None].transpose(-1, -2)).masked_fill(unseen, -torch.inf)
        mine = [(q * k[:, :, None]).sum(-1, keepdim=True).to(scores.dtype) for k, _ in own]
        weight = torch.cat([scores, *mine], dim=-1).softmax(-1).to(values.dtype)
        mixed = weight[..., :n] @ values[:, :, None]
        for j, (_, v) in enumerate(own, start=n):
            mixed = mixed + weight[..., j : j + 1] * v[:, :, None]
        found = mixed.permute(0, 3, 1, 2, 4).flatten(2)
        state = state + F.linear(found, self.of("blk.0.attn_output"))
        return state + self.feed_forward(state, "blk.0")

    def _pairs(self, both: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, [texts, kv, rows, dim]."""
        k = F.linear(both, self.of("blk.0.attn_k")).unflatten(-1, (self.sizes.kv_heads, -1))
        v = F.linear(both, self.of("blk.0.attn_v")).unflatten(-1, (self.sizes.kv_heads, -1))
        return rotate(k, positions, self.rates).to(v.dtype).transpose(1, 2), v.transpose(1, 2)


@dataclass
class Trained:
    """The weights by their names, what was measured on held-out texts, updates and tokens seen."""

    weights: Weights
    measured: Measured
    steps: int
    tokens: int


def train(
    sizes: HeadSizes, initial: Weights, texts: TextSet, reader: Reader, seconds: float, seed: int, size: int = SIZE
) -> Trained:
    """Train until `seconds` have passed; says how it goes."""
    torch.manual_seed(seed)
    head = WideHead(sizes, initial)
    learned = [p for p in head.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learned if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in learned if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, fused=True)
    began = told = time.monotonic()
    steps = seen = 0
    rng = np.random.default_rng(seed)
    while time.monotonic() - began < seconds:
        for which in texts.batches(False, size, rng):
            spent = (time.monotonic() - began) / seconds
            if spent >= 1:
                break
            steps += 1
            rate = min(1.0, steps / WARM_UP) * (FINAL_SHARE + (1 - FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * spent)))
            for group in optimizer.param_groups:
                group["lr"] = RATE * rate
            tokens, learn = texts.rows(which)
            losses = losses_of(head, reader(tokens, learn))
            loss = torch.stack([DISCOUNT**i * part for i, part in enumerate(losses)]).sum()
            optimizer.zero_grad()
            (loss / sum(DISCOUNT**i for i in range(STEPS))).backward()
            torch.nn.utils.clip_grad_norm_(learned, CLIP)
            optimizer.step()
            seen += int(texts.lengths[which].sum())
            if time.monotonic() - told > 15:
                told = time.monotonic()
                shown = " ".join(f"{part.item():.3f}" for part in losses)
                print(f"{told - began:.0f} s, {steps} updates, {seen / 1e6:.1f} M tokens, loss {shown}", flush=True)
    return Trained(head.arrays(), measure(head, texts, reader, LOOK_BRANCHES, size), steps, seen)


def losses_of(head: WideHead, read: Read) -> list[Tensor]:
    """The loss of every step. In half precision on a GPU."""
    losses = []
    with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
        for step, state in enumerate(head.unroll_all(read, STEPS)):
            rows = state.shape[1] - step
            learn = read.learn[:, step:] & read.learn[:, :rows]
            logits = head.say(state[:, :rows][learn])
            losses.append(loss_of(logits, read.shares[:, step:][learn], read.top[:, step:][learn]))
    return losses


@torch.no_grad()
def measure(head: WideHead, texts: TextSet, reader: Reader, limit: int, size: int, depth: int = STEPS) -> Measured:
    """Draft greedily after held-out tokens, where the text is what the target itself says."""
    right, seen, branches = np.zeros(depth), np.zeros(depth), 0
    for which in texts.batches(True, size, np.random.default_rng(0)):
        read = reader(*texts.rows(which))
        rows = read.learn.shape[1] - depth + 1
        if rows < 1:
            continue
        alive = torch.stack([read.learn[:, i : i + rows] for i in range(depth)]).all(0)
        alive &= torch.stack([read.reached[:, i : i + rows] for i in range(1, depth)]).all(0)
        branches += int(alive.sum())
        with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
            for step, state in enumerate(head.unroll_all(read, depth)):
                seen[step] += int(alive.sum())
                mine = alive.nonzero()
                said = head.say(state[:, :rows][alive]).argmax(-1)
                hit = said == read.top[:, step : step + rows][alive]
                alive = torch.zeros_like(alive)
                alive[mine[hit, 0], mine[hit, 1]] = True
                right[step] += int(alive.sum())
        if branches >= limit:
            break
    return Measured.of(right, seen, branches)
