"""The top candidates of a row of a drafter's logits (numpy only)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lcspec.drafters.base import SequenceView
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import SamplingParams, coupled_scores, coupled_top
from lcspec.sampling.top_k import largest

# For a model that drafts for another. Its probability of a token may be small only because many continuations are good;
# the target still chooses that token if no other comes close. Squared probabilities separate hits from misses better
# than plain ones, at any temperature (figures: docs/drafters.md).
SHARPNESS = 2.0


def top_candidates(
    sequence: SequenceView,
    logits: NDArray[np.float32],
    position: int,
    n: int,
    tokens: NDArray[np.int32] | None = None,
    sharpness: float = 1.0,
) -> list[tuple[int, float]]:
    """The `n` best tokens for `position`, best first, each with the probability that the target agrees.

    At temperature > 0 the ranking uses the same noise as the target. The request's `logit_bias` counts, because
    drafting a token that the target may not emit is useless.

    Args:
        sequence: whose sampling parameters and seed are used.
        logits: float32 [k], k >= 1.
        position: absolute position of the token to choose.
        n: at least 1; fewer may be returned.
        tokens: the token id of each logit, int32 [k]; None: its index.
        sharpness: the power to which probabilities are raised. At 1 they are the model's own. Whether another model
            makes the same choice depends more on the lead of the best token: a higher power fits that better (see
                SHARPNESS).
    """
    logits = biased(logits, sequence.params, tokens)
    if sequence.params.greedy:
        top = largest(logits, n)
        weights = np.exp((logits - logits[top[0]]) * np.float32(sharpness))
        share = weights[top].astype(np.float64) / float(weights.sum())
        ids = top if tokens is None else tokens[top]
    else:
        dist = _distribution(logits, sequence.params, tokens)  # the noise belongs to the token id, not to its index
        score = coupled_scores(dist, sequence.seed, position)
        order = coupled_top(score, n)
        weights = np.exp((score - score.max()) * sharpness)
        share = (weights / weights.sum())[order]
        ids = dist.ids[order]
    return list(zip(ids.tolist(), share.tolist()))


def biased(
    logits: NDArray[np.float32], params: SamplingParams, tokens: NDArray[np.int32] | None = None
) -> NDArray[np.float32]:
    """Logits float32 [n] with the request's `logit_bias`; `tokens` as in `top_candidates`.

    If the bias forbids all of them, the logits are returned unchanged, so that there is still something to rank.
    """
    if not params.logit_bias:
        return logits
    out: NDArray[np.float32] = logits.copy()
    for token, bias in params.logit_bias:
        if tokens is not None:
            out[tokens == token] += bias
        elif token < out.size:
            out[token] += bias
    return out if out.max() > -np.inf else logits


def draft_distribution(
    logits: NDArray[np.float32], params: SamplingParams, tokens: NDArray[np.int32] | None = None
) -> Distribution:
    """The draft's distribution from logits float32 [n]: logit_bias, top-k, temperature, top-p and min-p of the request.

    `tokens` as in `top_candidates`. Penalties and grammars are left to the target: ignoring them costs acceptance,
    never correctness.
    """
    return _distribution(biased(logits, params, tokens), params, tokens)


def _distribution(
    logits: NDArray[np.float32], params: SamplingParams, tokens: NDArray[np.int32] | None
) -> Distribution:
    k = min(params.top_k or 256, logits.size)
    ids = largest(logits, k)
    x = logits[ids].astype(np.float64)
    probs = np.exp(x - x[0])
    probs /= probs.sum()
    keep = np.cumsum(probs) - probs < params.top_p
    keep[0] = True  # even with a top_p of 0
    ids, x, probs = ids[keep], x[keep], probs[keep]
    keep = probs >= params.min_p * probs[0]
    ids, x = ids[keep], x[keep]
    # (even at temperature 0, if the temperature is dynamic)
    weights = np.exp((x - x[0]) / max(params.temperature, params.dynatemp_range / 2))
    return Distribution(ids.astype(np.int32) if tokens is None else tokens[ids], weights / weights.sum())
