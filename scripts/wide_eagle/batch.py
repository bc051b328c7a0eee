"""Many texts written side by side by the target, a token of each at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lcspec.training.device import device

from .target import Target

# Tokens less probable than this share of the most probable one are not drawn (min-p, as `lcspec generate` samples).
MIN_P = 0.05
NEVER = 1 << 30


class Batch:
    """Texts of the target, each in a row of its own; all state is on the device.

    Attributes:
        texts: the tokens, int64 [rows, length].
        at: the position that is computed next, int64 [rows].
        known: how many tokens of the text are given; what comes behind them is written, int64 [rows].
        ended: the first written position that holds an end token, or NEVER, int64 [rows].
        warmth: temperature, 0 for greedy, float32 [rows].
    """

    def __init__(self, target: Target, rows: int, length: int, end: int) -> None:
        """`end`: the token that ends a turn."""
        self.target, self.end = target, end
        s, where = target.sizes, device()
        shape = (target.layers, rows, s.kv_heads, length, s.head_dim)
        self.keys = torch.zeros(shape, dtype=target.kind, device=where)
        self.values = torch.zeros_like(self.keys)
        self.texts = torch.zeros(rows, length, dtype=torch.int64, device=where)
        self.at = torch.zeros(rows, dtype=torch.int64, device=where)
        self.known = torch.ones(rows, dtype=torch.int64, device=where)
        self.ended = torch.full((rows,), NEVER, dtype=torch.int64, device=where)
        self.warmth = torch.zeros(rows, device=where)
        self._all, self._places = torch.arange(rows, device=where), torch.arange(length, device=where)
        self.step: Callable[[], None] = self._step

    def record(self) -> None:
        """Replay a step from a CUDA graph from now on; does nothing on a processor."""
        if device().type != "cuda":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self.step = graph.replay

    @torch.no_grad()
    def _step(self) -> None:
        """Compute one token of every text and write the next one, unless that is given."""
        target, s, at = self.target, self.target.sizes, self.at
        x = F.embedding(self.texts[self._all, at], target.embeddings).float()
        cos, sin = target.angles(at)
        unseen = (self._places > at[:, None])[:, None, None]
        for layer in range(target.layers):
            q, k, v = target.heads(x, layer, cos, sin)
            self.keys[layer][self._all, :, at] = k
            self.values[layer][self._all, :, at] = v
            q = (q * s.head_dim**-0.5).unflatten(1, (s.kv_heads, -1))
            scores = (q @ self.keys[layer].transpose(2, 3)).masked_fill(unseen, -torch.inf)
            mixed = scores.float().softmax(-1).to(target.kind) @ self.values[layer]
            x = target.rest(x, mixed.flatten(1), layer)
        logits = F.linear(target.norm(x, target.output_norm), target.output).float()
        warmth = self.warmth[:, None]
        least = logits.amax(1, keepdim=True) + warmth * math.log(MIN_P)
        noise = -torch.empty_like(logits).exponential_().log()
        chosen = (logits + warmth * noise).masked_fill(logits < least, -torch.inf).argmax(1)
        place = (at + 1).clamp_max(self.texts.shape[1] - 1)
        written = place >= self.known
        self.texts[self._all, place] = torch.where(written, chosen, self.texts[self._all, place])
        over = written & (chosen == self.end) & (self.ended == NEVER)
        self.ended.copy_(torch.where(over, place, self.ended))
        self.at.copy_(place)

    def give(self, rows: Tensor, at: Tensor, tokens: Tensor, places: Tensor, known: Tensor, warmth: Tensor) -> None:
        """Put given tokens into some texts and go on computing from the positions `at`.

        Args:
            rows: which texts, int64 [n]; `at`, `known` int64 [n] and `warmth` float32 [n] as above.
            tokens: int64 [m], for the places int64 [m] in the flattened texts.
        """
        self.texts.view(-1)[places] = tokens
        self.at[rows], self.known[rows], self.warmth[rows], self.ended[rows] = at, known, warmth, NEVER
