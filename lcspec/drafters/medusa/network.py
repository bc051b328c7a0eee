"""The heads' network in numpy: forward, loss and gradients.

With h the target's final hidden state (scaled to unit deviation), e the embedding of the pending token, and head k:

    x_k      = h + B_k silu(A_k [h; e] + a_k)          B_k starts at zero, so every head starts as the target itself
    logits_k = U D x_k + b_k                           U D starts as the target's output matrix, cut to a reduced
                                                       vocabulary; D is left out where the matrix is small

This is Medusa's residual block with a hidden layer, and one output matrix for all heads instead of one each. The
pending token is known when the heads run but not when the hidden state was computed. Hydra heads (Ankner et al. 2024,
arXiv:2402.05109) take it as input; Medusa's own do not (`embed` of width 0).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Parameters = dict[str, Floats]

DISCOUNT = 0.8  # loss weight of head k is DISCOUNT ** k (Medusa-1)
FACTOR_SAVES = 0.6  # the output matrix is factored when that leaves less than this share of it


@dataclass(frozen=True)
class Sizes:
    """Dimensions of a network: heads, hidden state, hidden layer, token embedding (0: none), rank of the output
    matrix (0: not factored), reduced vocabulary."""

    heads: int
    state: int
    hidden: int
    embed: int
    rank: int
    vocab: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter."""
        out: dict[str, tuple[int, ...]] = {
            "in": (self.heads * self.hidden, self.state + self.embed),
            "in_bias": (self.heads * self.hidden,),
            "out": (self.heads, self.state, self.hidden),
            "up": (self.vocab, self.rank or self.state),
            "bias": (self.heads, self.vocab),
        }
        if self.rank:
            out["down"] = (self.rank, self.state)
        if self.embed:
            out["embed"] = (self.vocab + 1, self.embed)  # the last row: any token outside the reduced vocabulary
        return out


def initial(sizes: Sizes, output: Floats, scale: float, rng: np.random.Generator) -> Parameters:
    """Parameters to start from. `output`: the target's matrix [vocab, state]; `scale`: deviation of its states."""
    params = {name: np.zeros(shape, dtype=np.float32) for name, shape in sizes.shapes().items()}
    fan_in = sizes.state + sizes.embed
    params["in"][:] = rng.standard_normal(params["in"].shape, dtype=np.float32) / np.float32(fan_in**0.5)
    matrix = output * np.float32(scale)
    if sizes.rank:
        params["up"][:], params["down"][:] = factored(matrix, sizes.rank)
    else:
        params["up"][:] = matrix
    if sizes.embed:
        # Similar tokens start alike: the main directions of the output matrix, scaled to unit deviation.
        start, _ = factored(matrix - matrix.mean(axis=0), sizes.embed)
        params["embed"][: sizes.vocab, : start.shape[1]] = start / max(1e-6, float(start.std()))
    return params


def factored(matrix: Floats, rank: int) -> tuple[Floats, Floats]:
    """The nearest product [n, rank] x [rank, m] of `matrix` [n, m] (Eckart and Young 1936)."""
    # The small square matrix is enough: eigenvectors of M^T M instead of an SVD of the tall matrix.
    values, vectors = np.linalg.eigh((matrix.T @ matrix).astype(np.float64))
    basis = np.ascontiguousarray(vectors[:, np.argsort(-values)[:rank]].astype(np.float32))
    return matrix @ basis, basis.T.copy()


def choose_rank(vocab: int, state: int, wanted: int | None) -> int:
    """The rank to use: `wanted`, or for None state / 4 where the matrix is large; 0 where factoring saves nothing."""
    rank = wanted if wanted is not None else (state // 4 if vocab * state > 4_000_000 else 0)
    return rank if rank and rank * (vocab + state) < FACTOR_SAVES * vocab * state else 0


def forward(params: Parameters, sizes: Sizes, states: Floats, pending: Ints) -> tuple[Floats, dict[str, Floats]]:
    """Logits [heads, n, vocab] for states [n, state] (unit deviation) and pending tokens (reduced ids), and the
    intermediate values that the gradients need."""
    given = np.concatenate([states, params["embed"][pending]], axis=1) if sizes.embed else states
    before = given @ params["in"].T + params["in_bias"]
    gate = 1.0 / (1.0 + np.exp(-np.clip(before, -60.0, 60.0)))
    silu = (before * gate).reshape(len(states), sizes.heads, sizes.hidden).transpose(1, 0, 2)
    x = states[None] + np.matmul(silu, params["out"].transpose(0, 2, 1))
    y = np.matmul(x, params["down"].T) if sizes.rank else x
    flat = y.reshape(-1, y.shape[-1])
    logits = (flat @ params["up"].T).reshape(sizes.heads, len(states), sizes.vocab)
    logits += params["bias"][:, None]
    return logits, {"given": given, "before": before, "gate": gate, "silu": silu, "x": x, "y": flat}


def softmax_loss(logits: Floats, labels: Ints) -> tuple[NDArray[np.float64], Floats]:
    """Mean cross entropy of each head [heads] over its labels [heads, n] (below 0: ignored), and the gradient of their
    discounted sum with respect to the logits. Overwrites `logits`."""
    heads, n, vocab = logits.shape
    logits -= logits.max(axis=-1, keepdims=True)
    known = labels >= 0
    at = np.where(known, labels, 0)
    picked = np.take_along_axis(logits, at[..., None], axis=-1)[..., 0].copy()
    np.exp(logits, out=logits)
    total = logits.sum(axis=-1)
    count = np.maximum(1, known.sum(axis=1))
    losses = ((np.log(total) - picked) * known).sum(axis=1, dtype=np.float64) / count
    weight = (DISCOUNT ** np.arange(1, heads + 1) / count).astype(np.float32)[:, None] * known
    logits *= (weight / total)[..., None]
    flat = logits.reshape(heads * n, vocab)
    flat[np.arange(heads * n), at.ravel()] -= weight.ravel()
    return losses, logits


def gradients(
    params: Parameters, sizes: Sizes, states: Floats, pending: Ints, labels: Ints
) -> tuple[NDArray[np.float64], Parameters]:
    """Losses of the heads [heads], and the gradient of their discounted sum for every parameter."""
    logits, kept = forward(params, sizes, states, pending)
    losses, d_logits = softmax_loss(logits, labels)
    n = len(states)
    flat = d_logits.reshape(sizes.heads * n, sizes.vocab)
    grads = {"bias": d_logits.sum(axis=1), "up": flat.T @ kept["y"]}
    d_x = flat @ params["up"]
    if sizes.rank:
        grads["down"] = d_x.T @ kept["x"].reshape(sizes.heads * n, sizes.state)
        d_x = d_x @ params["down"]
    d_x = d_x.reshape(sizes.heads, n, sizes.state)
    grads["out"] = np.matmul(d_x.transpose(0, 2, 1), kept["silu"])
    d_silu = np.matmul(d_x, params["out"]).transpose(1, 0, 2).reshape(n, -1)
    gate = kept["gate"]
    d_before = d_silu * (gate * (1.0 + kept["before"] * (1.0 - gate)))
    grads["in"] = d_before.T @ kept["given"]
    grads["in_bias"] = d_before.sum(axis=0)
    if sizes.embed:
        grads["embed"] = np.zeros_like(params["embed"])
        np.add.at(grads["embed"], pending, d_before @ params["in"][:, sizes.state :])
    return losses, grads
