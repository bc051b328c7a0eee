"""A sparse distribution over the vocabulary."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Distribution(NamedTuple):
    """A sparse categorical distribution: `ids` int32 [k], `probs` float64 [k] that sum to 1."""

    ids: NDArray[np.int32]
    probs: NDArray[np.float64]

    def prob_of(self, token: int) -> float:
        """Probability of `token`, 0.0 when it is not among the candidates."""
        hit = (self.ids == token).nonzero()[0]
        return float(self.probs[hit[0]]) if hit.size else 0.0
