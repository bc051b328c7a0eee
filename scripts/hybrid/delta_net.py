"""The gated delta rule (Yang et al. 2024, arXiv:2412.06464), a piece of the text at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Tokens that are computed together. Within a piece the work grows with its square, between pieces with their number.
PIECE = 64


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, piece: int = PIECE) -> Tensor:
    """What the queries read of a state that starts empty: float32 [texts, length, heads, dim].

    With S the state, [dim, dim]: S decays by exp(g), then what it says at the key moves by `beta` towards the value,

        S_t = exp(g_t) S_{t-1},   S_t += k_t (beta_t (v_t - S_t^T k_t))^T,   out_t = S_t^T q_t

    Within a piece the corrections d_t = beta_t (v_t - S_t^T k_t) depend on one another linearly, so they are the
    solution of a triangular system, one part of it for an empty state and one that is multiplied with the state.

    Args:
        q, k, v: float32 [texts, length, heads, dim]; queries scaled, queries and keys normalized as they are used.
        g, beta: float32 [texts, length, heads].
    """
    length = q.shape[1]
    spare = -length % piece
    q, k, v = (_pieces(F.pad(x, (0, 0, 0, 0, 0, spare)), piece) for x in (q, k, v))
    g, beta = (_pieces(F.pad(x, (0, 0, 0, spare))[..., None], piece)[..., 0] for x in (g, beta))
    sums = g.cumsum(-1)
    later = torch.ones(piece, piece, dtype=torch.bool, device=q.device).triu(1)
    decay = (sums[..., :, None] - sums[..., None, :]).masked_fill(later, -torch.inf).exp()
    system = (beta[..., None] * (k @ k.mT) * decay).tril(-1)
    wanted = torch.cat([beta[..., None] * v, (beta * sums.exp())[..., None] * k], -1)
    alone, along = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True).chunk(2, -1)
    inside = (q @ k.mT) * decay
    reading = q * sums.exp()[..., None]
    writing = (k * (sums[..., -1:] - sums).exp()[..., None]).mT
    kept = sums[..., -1].exp()[..., None, None]
    state, out = q.new_zeros(()), []
    for i in range(q.shape[2]):
        moved = alone[:, :, i] if i == 0 else alone[:, :, i] - along[:, :, i] @ state
        read = inside[:, :, i] @ moved
        out.append(read if i == 0 else read + reading[:, :, i] @ state)
        state = kept[:, :, i] * state + writing[:, :, i] @ moved
    return torch.cat(out, 2)[:, :, :length].transpose(1, 2)


def _pieces(x: Tensor, piece: int) -> Tensor:
    """[texts, length, heads, dim] as [texts, heads, pieces, piece, dim]."""
    return x.transpose(1, 2).unflatten(2, (-1, piece))
