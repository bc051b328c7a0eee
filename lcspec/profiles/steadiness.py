"""Telling a disturbed measurement of T(n) from a steady one.

Something else on the machine only ever makes a decode take longer: what is looked for is figures too long to be true.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Iterator, Mapping, Sequence

# A width whose usual time is so many times its shortest was not timed in peace.
SPREAD = 2.0
# One token never costs so many times a wider step. Kernels take rows in blocks, so between wider ones more is possible.
ONE_OVER_WIDER = 1.25
OVER_WIDER = 2.5
# Times that disturbed widths are measured again.
RETRIES = 3
# Threads of decodes that had a processor for less than this share of the time shared it with another program.
SHARE = 0.75
# Seconds for which what was measured then is kept all the same: which kernels a session gets depends on it, and by them
# the last bits of its texts. Sessions that follow each other shall decide alike, and better ones come in a quiet hour.
KEPT_DISTURBED = 3600.0


class Presence:
    """For how much of some decodes' time their threads had a processor. They wait for each other by asking again and
    again, so on a quiet CPU it is nearly all of it.
    """

    def __init__(self) -> None:
        self._had = self._wanted = 0.0

    @contextlib.contextmanager
    def watched(self, threads: int) -> Iterator[None]:
        """Inside, this process does nothing but decode with so many threads."""
        had, start = time.process_time(), time.perf_counter()
        yield
        self._had += time.process_time() - had
        self._wanted += threads * (time.perf_counter() - start)

    @property
    def undisturbed(self) -> bool:
        """Whether nothing else had the processors."""
        return self._had >= SHARE * self._wanted

    @property
    def lasts(self) -> float | None:
        """For how many seconds the times of these decodes are kept for later sessions; None: for good."""
        return None if self.undisturbed else KEPT_DISTURBED


def disturbed(samples: Mapping[int, Sequence[float]]) -> list[int]:
    """Widths whose `samples` (width -> seconds of repeated decodes) cannot be right, ascending."""
    usual = {width: statistics.median(seconds) for width, seconds in samples.items() if seconds}
    found = []
    least = float("inf")  # of all wider widths
    for width in sorted(usual, reverse=True):
        seconds = samples[width]
        too_far = usual[width] > SPREAD * min(seconds) or min(seconds) <= 0.0
        if too_far or usual[width] > least * (ONE_OVER_WIDER if width == 1 else OVER_WIDER):
            found.append(width)
        least = min(least, usual[width])
    return found[::-1]


def settled(old: Sequence[float], new: Sequence[float]) -> list[float]:
    """The samples to go by of two series: the shorter ones, because a disturbance only makes them longer."""
    if not new or not old:
        return list(old or new)
    return list(new) if statistics.median(new) <= statistics.median(old) else list(old)


def disturbance(retaken: Sequence[int], unsteady: Sequence[int]) -> str | None:
    """What the user should know about it; None when nothing was disturbed. Both hold widths."""
    if unsteady:
        return (
            f"The measurement was disturbed: something else uses this machine, and {_widths(unsteady)} cannot be right "
            "however often it is taken. These figures are used for an hour at most: measure again when the machine is "
            "quiet."
        )
    if retaken:
        return f"Something else used this machine for a moment, so {_widths(retaken)} was measured again."
    return None


def _widths(widths: Sequence[int]) -> str:
    if len(widths) > 1:
        return f"the time of steps of {len(widths)} sizes"
    return f"the time of a step of {widths[0]} token{'s' * (widths[0] > 1)}"
