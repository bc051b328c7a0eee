"""The queue of requests that wait for a slot."""

from __future__ import annotations

import collections
import itertools

from lcspec.engine.events import Event, Finished, RequestStats
from lcspec.engine.request import Request


class RequestQueue:
    """Waiting requests in the order in which they came."""

    def __init__(self) -> None:
        self.waiting: collections.deque[tuple[int, Request]] = collections.deque()
        self._cancelled: list[Event] = []
        self._numbers = itertools.count(1)

    def __bool__(self) -> bool:
        """Whether a request waits, or the end of a cancelled one is still to be reported."""
        return bool(self.waiting or self._cancelled)

    def add(self, request: Request) -> int:
        """Add a request; returns its number."""
        number = next(self._numbers)
        self.waiting.append((number, request))
        return number

    def cancel(self, number: int | None = None) -> int:
        """Cancel request `number`, or all of them; returns how many were cancelled."""
        gone = [item for item in self.waiting if number in (None, item[0])]
        for item in gone:
            self.waiting.remove(item)
            seed = item[1].sampling.seed or 0
            self._cancelled.append(Finished(item[0], "cancelled", None, len(item[1].prompt), 0, seed, RequestStats()))
        return len(gone)

    def take_cancelled(self) -> list[Event]:
        """The last events of the cancelled requests."""
        events, self._cancelled = self._cancelled, []
        return events
