"""The demo models in torch: a small Llama, its weights under GGUF names, and batched sampling."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Everything that fixes the size of a model."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int = 4096
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_width(self) -> int:
        return self.width // self.heads


TARGET_SHAPE = Shape(layers=6, width=256, heads=8, kv_heads=4, ffn=768)
DRAFT_SHAPE = Shape(layers=2, width=128, heads=4, kv_heads=2, ffn=384)

Cache = list[tuple[Tensor, Tensor]]  # keys and values of every layer, preallocated to the longest length


class Block(nn.Module):
    """Attention and SwiGLU, each behind an RMSNorm; Q, K, V and gate, up are one matrix each for speed."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.kv_heads * shape.head_width
        self.attn_norm = nn.Parameter(torch.ones(shape.width))
        self.ffn_norm = nn.Parameter(torch.ones(shape.width))
        self.qkv = nn.Linear(shape.width, shape.width + 2 * kv, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.gate_up = nn.Linear(shape.width, 2 * shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.width, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: tuple[Tensor, Tensor] | None, past: int) -> Tensor:
        s = self.shape
        batch, length, _ = x.shape
        qkv = self.qkv(F.rms_norm(x, (s.width,), self.attn_norm, s.norm_eps))
        qkv = qkv.view(batch, length, s.heads + 2 * s.kv_heads, s.head_width).transpose(1, 2)
        q, k, v = qkv.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        q, k = rotate(q, rope), rotate(k, rope)
        group = s.heads // s.kv_heads
        if cache is None:
            mixed = causal_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
        else:  # one token at a time: the query heads that share a key head become rows of one query
            keys, values = cache
            keys[:, :, past], values[:, :, past] = k[:, :, 0], v[:, :, 0]
            q = q.view(batch, s.kv_heads, group, s.head_width).to(keys.dtype)
            mixed = F.scaled_dot_product_attention(q, keys[:, :, : past + 1], values[:, :, : past + 1])
            mixed = mixed.view(batch, s.heads, 1, s.head_width)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, s.width))
        gate, up = self.gate_up(F.rms_norm(x, (s.width,), self.ffn_norm, s.norm_eps)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, chunk: int = 128) -> Tensor:
    """Causal attention by chunks of queries, each against only the keys before it.

    With heads this narrow it takes half the time of torch's fused kernel on a CPU, forward and backward.
    """
    batch, heads, length, width = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q * width**-0.5, k, v))
    mask = torch.full((length, length), float("-inf"), dtype=q.dtype).triu(1)
    mixed = []
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        scores = torch.baddbmm(mask[start:end, :end], q[:, start:end], k[:, :end].transpose(1, 2))
        mixed.append(torch.softmax(scores, -1) @ v[:, :end])
    return torch.cat(mixed, 1).view(batch, heads, length, width)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE on the two halves of each head; `gguf_weights` reorders the rows to the interleaved pairs of llama.cpp."""
    cos, sin = rope
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class DemoModel(nn.Module):
    """A decoder-only Llama without biases and with an output matrix of its own."""

    def __init__(self, shape: Shape, max_length: int = 1024) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        half = shape.head_width // 2
        angles = torch.outer(torch.arange(max_length), shape.rope_theta ** -(torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Matrices that write to the residual stream start smaller, so that its scale does not grow with depth.
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5 if residual else 0.02)

    def forward(self, tokens: Tensor, cache: Cache | None = None, past: int = 0) -> Tensor:
        """Logits at every position; with a cache, of one token a row at position `past`."""
        rope = self.cos[past : past + tokens.shape[1]], self.sin[past : past + tokens.shape[1]]
        x = self.embed(tokens)
        for i, block in enumerate(self.blocks):
            x = block(x, rope, cache[i] if cache is not None else None, past)
        return self.head(F.rms_norm(x, (self.shape.width,), self.norm, self.shape.norm_eps))

    @torch.no_grad()
    def start_from(self, other: DemoModel) -> None:
        """Start with the closest token and output vectors of this width to those of a wider model."""
        for mine, theirs in ((self.embed.weight, other.embed.weight), (self.head.weight, other.head.weight)):
            left, scale, _ = torch.linalg.svd(theirs, full_matrices=False)
            mine.copy_(left[:, : self.shape.width] * scale[: self.shape.width])

    def new_cache(self, batch: int, length: int) -> Cache:
        """An empty key/value cache."""
        size = batch, self.shape.kv_heads, length, self.shape.head_width
        return [(torch.zeros(size), torch.zeros(size)) for _ in self.blocks]

    def gguf_weights(self) -> dict[str, np.ndarray]:
        """The weights in float32 under the tensor names and in the row order of GGUF's "llama" architecture."""
        s = self.shape
        kv = s.kv_heads * s.head_width

        def interleave(weight: Tensor, heads: int) -> Tensor:
            return weight.view(heads, 2, s.head_width // 2, -1).transpose(1, 2).reshape(weight.shape)

        weights = {"token_embd": self.embed.weight, "output_norm": self.norm, "output": self.head.weight}
        for i, block in enumerate(self.blocks):
            q, k, v = block.qkv.weight.split([s.width, kv, kv])
            gate, up = block.gate_up.weight.chunk(2)
            weights |= {
                f"blk.{i}.attn_norm": block.attn_norm,
                f"blk.{i}.ffn_norm": block.ffn_norm,
                f"blk.{i}.attn_q": interleave(q, s.heads),
                f"blk.{i}.attn_k": interleave(k, s.kv_heads),
                f"blk.{i}.attn_v": v,
                f"blk.{i}.attn_output": block.out.weight,
                f"blk.{i}.ffn_gate": gate,
                f"blk.{i}.ffn_up": up,
                f"blk.{i}.ffn_down": block.down.weight,
            }
        return {f"{name}.weight": w.detach().float().contiguous().numpy() for name, w in weights.items()}

    def save_weights(self, path: Path, **facts: object) -> None:
        """Write what the export and report stages need, and nothing that needs torch to read.

        The probe holds this model's logits, against which the report stage compares those of llama.cpp.
        """
        tokens = torch.arange(96) * 37 % self.shape.vocab
        with torch.no_grad():
            logits = self(tokens[None])[0]
        about = {"shape": json.dumps(asdict(self.shape)), "facts": json.dumps(facts)}
        probe = {"probe_tokens": tokens.numpy(), "probe_logits": logits.numpy()}
        np.savez(path, **about, **probe, **self.gguf_weights())


@torch.no_grad()
def sample_texts(
    model: DemoModel, prompts: list[np.ndarray], length: int, temperatures: np.ndarray, generator: torch.Generator
) -> np.ndarray:
    """Continue every prompt to `length` tokens, all at once, each row at its own temperature (0 is greedy)."""
    rows = len(prompts)
    given = torch.full((rows, length), -1)
    for i, prompt in enumerate(prompts):
        given[i, : len(prompt)] = torch.from_numpy(prompt.astype(np.int64))[:length]
    heat = torch.from_numpy(temperatures).float()[:, None]
    tokens = given.clone()
    cache = model.new_cache(rows, length)
    for t in range(length - 1):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens[:, t : t + 1], cache, t)[:, 0]
        noise = -torch.log(-torch.log(torch.rand(logits.shape, generator=generator).clamp_(1e-9, 1 - 1e-7)))
        choice = (logits.float() + heat * noise).argmax(-1)
        tokens[:, t + 1] = torch.where(given[:, t + 1] >= 0, given[:, t + 1], choice)
    return tokens.numpy().astype(np.uint16)
