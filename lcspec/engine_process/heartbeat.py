"""Whether the engine hangs: the child looks at its engine's thread and tells the program, which looks at the child.

A hanging engine is found by the child: no decode and no other work has ended for `limit` seconds, and for SLOWER times
as long as the decode at hand takes if it is as slow as any of late. A child that is stopped or cannot run at all is
found by the program: nothing has come from it for `limit` seconds.

Both count looks, one a second, and not seconds of a clock. Whoever looks does not count while it is stopped itself, so
a machine that sleeps, a paused container and a clock that jumps look like no time at all.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from lcspec.pulse import PULSE, Pulse

# Seconds between two looks.
LOOK = 1.0
# Seconds without a sign of life, if nothing else is said.
LIMIT = 300.0
# A decode hangs when it takes so many times as long as one that is as slow as any of late.
SLOWER = 20.0


class Heart:
    """The child's side."""

    def __init__(self, limit: float, pulse: Pulse = PULSE) -> None:
        self._limit = limit
        self._pulse = pulse
        self._seen: tuple[int, int] = (-1, 0)
        self._looks = 0  # since something has changed

    def look(self) -> bool:
        """Look at the engine, once every LOOK seconds; returns True if it hangs."""
        seen = self._pulse.turns, _pages_read()
        idle = not self._pulse.at_work
        self._looks = 0 if idle or seen != self._seen else self._looks + 1
        self._seen = seen
        return self._looks * LOOK > self._limit + SLOWER * self._pulse.expected

    def beat(self, tell: Callable[[bool], None]) -> None:
        """Look for ever, and tell each time whether the engine hangs."""
        while True:
            time.sleep(LOOK)
            tell(self.look())


class Watch:
    """The program's side: calls `silent` once when nothing has been heard for `limit` seconds (0: for ever).

    It begins with the first `heard`, because a process says nothing while it starts.
    """

    def __init__(self, limit: float, silent: Callable[[], None]) -> None:
        self._looks = limit / LOOK
        self._silent = silent
        self._heard = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lcspec-watch", daemon=True)

    def heard(self) -> None:
        """There was a sign of life."""
        self._heard = True
        if self._looks and self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def _look(self) -> None:
        missed = 0
        while not self._over.wait(LOOK):
            missed = 0 if self._heard else missed + 1
            self._heard = False
            if missed > self._looks:
                self._silent()
                return


def _pages_read() -> int:
    """How often this process has read from a disk so far: whoever waits for its model's pages does not hang."""
    if sys.platform == "win32":
        return 0
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_majflt + usage.ru_inblock
