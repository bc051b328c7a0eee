"""A sparse distribution over the vocabulary."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Candidates that are looked at one after the other: numpy's functions have long been out of the processor's caches when
# a decode has streamed a model through them, and take four times as long as this does.
SMALL = 64


class Distribution(NamedTuple):
    """A sparse categorical distribution: `ids` int32 [k], `probs` float64 [k] that sum to 1."""

    ids: NDArray[np.int32]
    probs: NDArray[np.float64]

    def prob_of(self, token: int) -> float:
        """Probability of `token`, 0.0 when it is not among the candidates."""
        if self.ids.size <= SMALL:
            ids = self.ids.tolist()
            return self.probs.item(ids.index(token)) if token in ids else 0.0
        hit = (self.ids == token).nonzero()[0]
        return float(self.probs[hit[0]]) if hit.size else 0.0
