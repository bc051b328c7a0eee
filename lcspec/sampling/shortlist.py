"""Which tokens of a vocabulary a sampler can end up with: few, and known before it has looked at all (numpy only)."""

from __future__ import annotations

import collections
import copy

import numpy as np
from numpy.typing import NDArray

from lcspec.sampling.parameters import SamplingParams
from lcspec.sampling.top_k import contenders


class Shortlist:
    """The tokens that come through the chain of `params`, and a few others; what does not is left out of it.

    A chain with top-k ends with `k` tokens at most, a greedy one with the first (unless a sampler may drop it). Before
    that only some tokens are moved: those with a bias, and those said lately, where they are penalized. If m are, the
    rest keep their order, so whoever is among the k best in the end is among the k + m best now, or one of the m.
    """

    def __init__(self, params: SamplingParams, looks_back: int) -> None:
        """For a chain whose penalties look back over `looks_back` tokens."""
        params = params.effective
        only_best = params.greedy and not params.may_drop_best
        self._k = 1 if only_best else params.top_k
        if params.dry:
            self._k = 0  # what continues a repetition is known to the sampler alone
        if params.top_n_sigma > 0.0 and not only_best:
            self._k = 0  # it measures the spread of all logits
        self._biased = {token for token, _ in params.logit_bias}
        self._said: collections.deque[int] = collections.deque(maxlen=looks_back if params.penalizes else 0)

    def accept(self, token: int) -> None:
        """A token was added to the text."""
        self._said.append(token)

    def copy(self) -> Shortlist:
        """One that goes on by itself from here."""
        other = copy.copy(self)
        other._said = self._said.copy()
        return other

    def of(self, logits: NDArray[np.float32]) -> NDArray[np.intp] | None:
        """Tokens, ascending, for `logits` float32 [n_vocab]; None where all of them have to be looked at."""
        if not self._k:
            return None
        moved = self._moved()
        found = contenders(logits, min(self._k + len(moved), logits.size))
        return np.union1d(found, np.array(list(moved), dtype=np.intp)) if moved else found

    def _moved(self) -> set[int]:
        return self._biased.union(self._said)
