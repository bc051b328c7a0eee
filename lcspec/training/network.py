"""What networks that become GGUFs share: weights by the names they have there, norms, and rotated positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from lcspec.training.device import device
from lcspec.training.layer_sizes import LayerSizes
from lcspec.training.tensors import Weights


class GGUFNetwork(nn.Module):
    """A network whose parameters are the tensors of a GGUF, on the device that training uses."""

    def __init__(
        self, sizes: LayerSizes, shapes: Mapping[str, tuple[int, ...]], weights: Weights, frozen: Collection[str] = ()
    ) -> None:
        """`sizes`: of its layers; `shapes`: every tensor by its name; `frozen`: those that are not trained.

        Raises:
            ValueError: a weight has another shape.
        """
        super().__init__()
        self.shapes, self.epsilon = dict(shapes), sizes.epsilon
        self.rates: Tensor
        self.register_buffer("rates", rotation_rates(sizes.head_dim, sizes.rope_base), persistent=False)
        self.weights = nn.ParameterDict()
        for name, shape in shapes.items():
            value = torch.tensor(np.asarray(weights[name], np.float32))
            if tuple(value.shape) != shape:
                raise ValueError(f"{name} is {tuple(value.shape)}, not {shape}")
            self.weights[_safe(name)] = nn.Parameter(value, requires_grad=name not in frozen)
        self.to(device())

    def of(self, name: str) -> Tensor:
        """A weight by its GGUF name, with or without ".weight"."""
        return self.weights[_safe(name if name in self.shapes else f"{name}.weight")]

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """A copy of all weights by their GGUF names."""
        return {name: self.weights[_safe(name)].detach().cpu().numpy().copy() for name in self.shapes}

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMS normalization by the weight `name`."""
        return F.rms_norm(x, (x.shape[-1],), self.of(name), self.epsilon)

    def feed_forward(self, x: Tensor, block: str, norm: str = "ffn_norm") -> Tensor:
        """SwiGLU of a layer, with its norm and without what goes past it."""
        x = self.norm(x, f"{block}.{norm}")
        inner = F.silu(F.linear(x, self.of(f"{block}.ffn_gate"))) * F.linear(x, self.of(f"{block}.ffn_up"))
        return F.linear(inner, self.of(f"{block}.ffn_down"))


def rotation_rates(head_dim: int, base: float) -> Tensor:
    """Radians a position for every pair of a head, float32 [head_dim / 2]."""
    return base ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def rotate(x: Tensor, positions: Tensor, rates: Tensor) -> Tensor:
    """Rotate neighbouring pairs (RoPE, Su et al. 2021, arXiv:2104.09864) as llama.cpp does for `llama`.

    Args:
        x: float32 [..., n, heads, dim].
        positions: int64 [n].
        rates: see `rotation_rates`.
    """
    angles = positions[:, None].float() * rates
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def _safe(name: str) -> str:
    return name.replace(".", "/")
