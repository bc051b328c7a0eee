"""How often the screen follows an answer: often enough to look smooth, rarely enough not to slow it down.

On a CPU the decode uses every core, and what the screen takes is taken from it: llama.cpp's threads spin at barriers,
so a millisecond of one core is a millisecond of all. So updates are spaced by what they are measured to cost.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Callable

# Seconds between two looks at what the engine produced, and between two updates of the text at most.
TICK = 0.04
LONGEST = 0.4
# Share of the time that may go into the screen while an answer comes: where the decode needs every core, and where it
# leaves one free (or runs on a GPU).
SHARE = 0.03
SHARE_SPARE = 0.3
RATE = 0.3


@dataclass
class Pacer:
    """Says when to update next.

    `clock` is real time, `work` the processor time of the interface's thread.
    """

    clock: Callable[[], float] = time.monotonic
    work: Callable[[], float] = time.thread_time
    share: float = SHARE
    interval: float = TICK
    _cost: float = 0.0
    _last: float = field(default=0.0)
    _work_then: float = field(default=0.0)

    def start(self) -> None:
        """An answer begins."""
        self.interval, self._cost = TICK, 0.0
        self._last, self._work_then = self.clock(), self.work()

    def due(self) -> bool:
        """Whether to update now; what the previous update cost decides how long the next one waits."""
        now = self.clock()
        if now - self._last < self.interval - 0.005:
            return False
        work = self.work()
        spent = work - self._work_then
        self._cost += RATE * (spent - self._cost) if self._cost else spent
        self.interval = min(LONGEST, max(TICK, self._cost / self.share))
        self._last, self._work_then = now, work
        return True
