"""What the engine of this process is at, for those who watch whether it hangs (lcspec.engine_process.heartbeat).

Threads that decode write it, others read it.
"""

from __future__ import annotations

import math
import threading

# How much of the slowest decode's time per row is remembered at each later decode.
FADE = 0.99


class Pulse:
    """Signs of life.

    Attributes:
        turns: decodes and other pieces of work that have ended so far.
        at_work: the engine has something to do. False while it loads a model, or waits.
    """

    def __init__(self) -> None:
        self.turns = 0
        self.at_work = False
        self._at_hand: dict[int, float] = {}  # by thread: a draft may be decoded beside the target

    def begin(self, seconds: float) -> None:
        """A decode begins that takes `seconds` if it is as slow as any of late; infinite if nothing is known."""
        self._at_hand[threading.get_ident()] = seconds

    def end(self) -> None:
        """This thread's decode has ended, or another piece of its work."""
        self._at_hand.pop(threading.get_ident(), None)
        self.turns += 1

    @property
    def expected(self) -> float:
        """Seconds that the decodes at hand may well take; 0 = there is none."""
        return max(list(self._at_hand.values()), default=0.0)


# An engine's process has one engine.
PULSE = Pulse()


class Pace:
    """What a context's decodes take, as the pulse needs it. A failed decode counts as well."""

    def __init__(self) -> None:
        self._row_seconds = math.inf  # seconds per row of the slowest decode of late

    def begin(self, rows: int) -> None:
        """A decode of so many rows begins on this thread."""
        PULSE.begin(self._row_seconds * max(1, rows))

    def end(self, rows: int, seconds: float) -> None:
        """It has ended."""
        known = FADE * self._row_seconds if self._row_seconds < math.inf else 0.0
        self._row_seconds = max(seconds / max(1, rows), known)
        PULSE.end()
