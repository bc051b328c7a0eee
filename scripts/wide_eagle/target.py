"""The target in PyTorch: a GGUF of architecture `llama` whose weights are read once and never change."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from lcspec.errors import UnsupportedModel
from lcspec.modelfiles.modelfile import read_header
from lcspec.training.device import device
from lcspec.training.eagle.initial import head_sizes
from lcspec.training.network import rotation_rates
from lcspec.training.tensors import read_tensor

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NORMS = ("attn_norm", "ffn_norm")


class Target:
    """The model with half-precision matrices; what runs past its layers is float32."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            UnsupportedModel: it is not of architecture `llama`.
        """
        header = read_header(path)
        if header.architecture != "llama":
            raise UnsupportedModel(f"{path.name} is a {header.architecture} model; only llama models are computed here")
        self.sizes = head_sizes(path, header.n_vocab)
        self.kind = torch.float16 if device().type == "cuda" else torch.float32
        self.layers = header.block_count or 1
        self.rates = rotation_rates(self.sizes.head_dim, self.sizes.rope_base).to(device())
        self.embeddings = self._read(path, "token_embd.weight").to(self.kind)
        output = read_tensor(path, "output.weight")
        self.output = self.embeddings if output is None else torch.from_numpy(output).to(device(), self.kind)
        self.output_norm = self._read(path, "output_norm.weight")
        self.norms = [[self._read(path, f"blk.{i}.{n}.weight") for n in NORMS] for i in range(self.layers)]
        blocks = [{n: self._read(path, f"blk.{i}.{n}.weight") for n in MATRICES} for i in range(self.layers)]
        self.qkv = [torch.cat([b["attn_q"], b["attn_k"], b["attn_v"]]).to(self.kind) for b in blocks]
        self.mixed = [b["attn_output"].to(self.kind) for b in blocks]
        self.up = [torch.cat([b["ffn_gate"], b["ffn_up"]]).to(self.kind) for b in blocks]
        self.down = [b["ffn_down"].to(self.kind) for b in blocks]

    def heads(self, x: Tensor, layer: int, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [..., heads, dim], keys and values [..., kv_heads, dim] of a layer for its input [..., width]."""
        s = self.sizes
        found = F.linear(self.norm(x, self.norms[layer][0]), self.qkv[layer])
        q, k, v = found.split([s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim], dim=-1)
        q, k = q.unflatten(-1, (s.heads, -1)), k.unflatten(-1, (s.kv_heads, -1))
        return turn(q, cos, sin), turn(k, cos, sin), v.unflatten(-1, (s.kv_heads, -1))

    def rest(self, x: Tensor, mixed: Tensor, layer: int) -> Tensor:
        """A layer's output: its input [..., width], and what its attention found [..., heads * dim]."""
        x = x + F.linear(mixed, self.mixed[layer])
        gate, up = F.linear(self.norm(x, self.norms[layer][1]), self.up[layer]).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down[layer])

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS normalization of float32, in half precision."""
        return F.rms_norm(x, (x.shape[-1],), weight, self.sizes.epsilon).to(self.kind)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for positions [...], each [..., 1, dim / 2]."""
        angles = positions[..., None, None].float() * self.rates
        return angles.cos(), angles.sin()

    @torch.no_grad()
    def read(self, tokens: Tensor, wanted: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """What the model makes of texts, int64 [texts, length].

        Returns:
            The inputs of the layers `wanted`, float32 [texts, length, len(wanted) * width], and what its output matrix
            is multiplied with, [texts, length, width].
        """
        x = F.embedding(tokens, self.embeddings).float()
        cos, sin = self.angles(torch.arange(tokens.shape[1], device=tokens.device))
        kept = {}
        for layer in range(self.layers):
            if layer in wanted:
                kept[layer] = x
            q, k, v = (part.transpose(1, 2) for part in self.heads(x, layer, cos, sin))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = self.rest(x, mixed.transpose(1, 2).flatten(2), layer)
        return torch.cat([kept[layer] for layer in wanted], dim=-1), self.norm(x, self.output_norm)

    def _read(self, path: Path, name: str) -> Tensor:
        found = read_tensor(path, name)
        if found is None:
            raise UnsupportedModel(f"{path.name} has no tensor {name}")
        return torch.from_numpy(found).to(device())


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs of [..., heads, dim], as llama.cpp does for `llama`."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)
