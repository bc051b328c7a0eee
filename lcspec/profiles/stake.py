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

    def table(self, costs: Costs, base: int, share: float) -> dict[int, tuple[float, int]]:
        """`costs` plus what a chain costs beside its rows, if `share` of its tokens that are tested are accepted."""
        out, reach = dict(costs), list[float]()
        for need in sorted(n for n in costs if n > base):
            reach.append(share ** (need - base))
            seconds, width = costs[need]
            out[need] = seconds + self.seconds(costs, base, 1, reach), width
        return out
