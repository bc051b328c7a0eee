"""One step's logits of one sequence, as the verifiers read the target."""

from __future__ import annotations

import math
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.llama.sampler import Sampler
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import log_sum_exp
from lcspec.sampling.top_k import largest


class TargetRows:
    """The rows of a tree's nodes (a `verifiers.Target`)."""

    __slots__ = ("_ends", "_ignore_end", "_kept", "_row_of", "_rows", "greedy", "sampler")

    def __init__(
        self,
        rows: NDArray[np.float32],
        row_of: Sequence[int],
        sampler: Sampler,
        ends: frozenset[int],
        ignore_end: bool,
        kept: dict[int, Distribution] | None = None,
    ) -> None:
        """Read logits float32 [n_outputs, n_vocab]; node i's row is `row_of[i]`.

        `ends`: the tokens that end a text, unless `ignore_end`. `kept`: where to keep each node's sampling
        distribution for `log_probs`, which then tells of it.
        """
        self._rows, self._row_of = rows, row_of
        self.sampler, self._ends = sampler, ends
        self.greedy = sampler.greedy
        self._ignore_end = ignore_end
        self._kept = kept

    def choose(self, node: int, position: int) -> int:
        """The target's choice after `node`."""
        if self._kept is not None:
            self.distribution(node, position)
        return self.sampler.choose(self._rows[self._row_of[node]], position)

    def distribution(self, node: int, position: int) -> Distribution:
        """The target's sampling distribution after `node`."""
        found = self.sampler.distribution(self._rows[self._row_of[node]], position)
        if self._kept is not None:
            self._kept[node] = found
        return found

    def unscaled(self, node: int) -> Distribution:
        """The distribution after `node` without temperature and truncation."""
        return self.sampler.unscaled(self._rows[self._row_of[node]])

    def argmax(self, nodes: Sequence[int]) -> NDArray[np.int32]:
        """The most probable token after each of `nodes`, int32 [len(nodes)], by the model's raw logits."""
        return np.array([self._rows[self._row_of[node]].argmax() for node in nodes], dtype=np.int32)

    def log_probs(self, node: int, token: int, k: int) -> tuple[float, list[tuple[int, float]]]:
        """The log-probability of `token` after `node`, and the `k` most probable tokens with theirs."""
        if self._kept is not None:
            return _sampled(self._kept[node], token, k)
        row = self._rows[self._row_of[node]]
        total = log_sum_exp(row)
        ranked = [(t, float(row[t]) - total) for t in largest(row, k).tolist()] if k else []
        return float(row[token]) - total, ranked

    def accept(self, token: int) -> bool:
        """Advance the sampler past an emitted token; True when it ends the text."""
        if token in self._ends:
            return not self._ignore_end
        self.sampler.accept(token)
        return False

    def ends(self, token: int) -> bool:
        """Whether `token` would end the text."""
        return token in self._ends and not self._ignore_end

    def fork(self) -> TargetRows:
        """The same rows with a copy of the sampler."""
        return TargetRows(self._rows, self._row_of, self.sampler.fork(), self._ends, self._ignore_end, self._kept)


def _sampled(dist: Distribution, token: int, k: int) -> tuple[float, list[tuple[int, float]]]:
    """The log-probability of `token` in a distribution, and the `k` most probable tokens that may come."""
    order = np.argsort(-dist.probs, kind="stable")[:k]
    ranked = [(int(dist.ids[i]), math.log(dist.probs[i])) for i in order if dist.probs[i] > 0]
    own = dist.prob_of(token)
    return math.log(own) if own > 0 else -math.inf, ranked
