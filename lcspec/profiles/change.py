"""What a change of width costs: a step with drafts, and the plain steps after it.

llama.cpp keeps the graph of its latest decode and builds another one where the number of rows changes. On a CUDA GPU
the first decode with a graph launches its kernels one by one, the second one records them, and only the third replays
the recording, which takes half as long for small models. Each width is measured as it mostly occurs: one token among
decodes of one token, other widths right after a change. So a step with drafts costs more than its own decode: it makes
the next two plain steps longer. And it takes less than was measured if it is as wide as the step before. By how much is
learned here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

# Plain steps after a change that may take longer.
STEPS = 2
# Weight of a new observation; the first ones have more.
RATE, FIRST = 0.05, 4
# No step teaches more than so many times what a plain step takes: then something else interrupted it.
MOST = 3.0


@dataclass
class Change:
    """By how many seconds steps are longer for a change of width, learned from real ones.

    Attributes:
        extra: extra seconds of the first and of the second plain step after it.
        same: by how many seconds a step with drafts is shorter if no width changes. Not stored: it is soon known.
        last: the width of the latest step.
        seen: how many first and how many second steps it was learned from.
        since: plain steps of one width since the latest change, at most STEPS.
    """

    extra: list[float] = field(default_factory=lambda: [0.0] * STEPS)
    seen: list[int] = field(default_factory=lambda: [0] * STEPS, compare=False)
    since: int = field(default=STEPS, compare=False)
    same: float = field(default=0.0, compare=False)
    last: int = field(default=0, compare=False)
    _seen_same: int = field(default=0, compare=False)

    @property
    def price(self) -> float:
        """Extra seconds that drafting now adds to the plain steps after it, beyond those of an earlier change."""
        return max(0.0, sum(self.extra[: self.since]))

    def took(self, width: int, plain: bool, seconds: float, expected: float) -> float:
        """Note a step, and learn from it; returns how many of its seconds are due to the change of width before it (it
        is below 0 for a step that was spared one).

        Args:
            width: of the decode.
            plain: nothing was drafted.
            seconds: what the step took.
            expected: what a step of this width takes as it mostly occurs.
        """
        last, self.last = self.last, width
        if not plain:
            self.since = 0
            if width != last:
                return 0.0
            self._seen_same += 1
            self.same += self._weight(self._seen_same) * (max(expected - seconds, -MOST * expected) - self.same)
            return -max(0.0, self.same)
        if width != last:
            self.since = 0
        at = self.since
        if at == STEPS:
            return 0.0
        self.since += 1
        self.seen[at] += 1
        error = min(seconds - expected, MOST * expected) - self.extra[at]
        self.extra[at] += self._weight(self.seen[at]) * error
        return max(0.0, self.extra[at])

    @staticmethod
    def _weight(seen: int) -> float:
        return max(RATE, 1.0 / (seen + FIRST))

    def as_list(self) -> list[float]:
        """For the cache file."""
        return list(self.extra)

    @classmethod
    def from_list(cls, data: Any) -> Change:
        """Read what `as_list` wrote.

        Raises:
            ValueError, TypeError: the data has another form, or impossible numbers.
        """
        extra = [float(x) for x in data]
        if len(extra) != STEPS or not all(math.isfinite(x) for x in extra):
            raise ValueError("not the costs of a change of width")
        return cls(extra, [FIRST] * STEPS)
