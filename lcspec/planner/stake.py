"""What a refused draft costs where a memory cannot be taken back.

Before a step with drafts the state of the text is saved. If a drafted token is refused, the saved state is loaded, and
the tokens that the step decoded and the target accepted are decoded once more, in the next step. So a step with drafts
costs, beside its width,

    save + P(not everything is accepted) * (load + T(width of the next step) - T(that without those tokens))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Mapping, Sequence

Costs = Mapping[int, tuple[float, int]]

# How fast the running share of accepted tokens follows, and where it begins.
RATE = 0.02
FIRST_SHARE = 0.7


@dataclass(frozen=True)
class Stake:
    """Seconds to save a state and to load it."""

    save: float
    load: float

    def seconds(self, costs: Costs, base: int, again: int, reach: Sequence[float]) -> float:
        """What a chain of drafts is expected to cost beside the width of its step.

        Args:
            costs: need -> (seconds, width).
            base: width of a step without drafts.
            again: tokens of this step that would be decoded again, were no draft accepted.
            reach: for each drafted token the probability that it is accepted, descending.
        """
        if not reach:
            return 0.0
        refused = 1.0 - reach[-1]
        if refused <= 0.0:
            return self.save
        # Accepted tokens of a chain of which not all are: E[a] = all * reach[-1] + refused * E[a | refused].
        accepted = (sum(reach) - len(reach) * reach[-1]) / refused
        wide = min(base + again + math.ceil(accepted), max(costs))
        more = costs[wide][0] - costs[base][0] if wide in costs and base in costs else 0.0
        return self.save + refused * (self.load + max(0.0, more))


class Hold:
    """The running share of tested tokens that were accepted, for what has to be decided before there is a draft."""

    def __init__(self) -> None:
        self.share = FIRST_SHARE

    def saw(self, tested: int, accepted: int) -> None:
        """Of a draft that was verified `tested` tokens were looked at and `accepted` were right."""
        for i in range(tested):
            self.share += RATE * ((i < accepted) - self.share)

    def table(self, stake: Stake, costs: Costs, base: int) -> dict[int, tuple[float, int]]:
        """`costs` with what chains of such tokens cost beside their width."""
        out, reach = dict(costs), list[float]()
        for need in sorted(n for n in costs if n > base):
            reach.append(self.share ** (need - base))
            seconds, width = costs[need]
            out[need] = seconds + stake.seconds(costs, base, 1, reach), width
        return out
