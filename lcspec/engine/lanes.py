"""Exact requests where rows depend on the rest of a batch: each in a context of its own.

Requests that share a cache change each other's bits there: cells that one frees are taken by another out of order, and
prompt kernels group keys by absolute cell. Matrix products do so in every step. So an exact request gets a *lane*: an
engine with a single slot over the same weights and the same drafters, with the library's own attention and a planner of
its own. Lanes take turns with the shared context, a step each; what is lost is batching.
"""

from __future__ import annotations

from typing import Callable, Iterator, Protocol, Sequence

from lcspec.config import SpeculationParams
from lcspec.engine.events import Event
from lcspec.engine.request import Request
from lcspec.engine.sequence import ActiveSequence
from lcspec.errors import LcspecError
from lcspec.profiles.exactness import Certificate


class Lane(Protocol):
    """An engine with a single slot."""

    @property
    def running(self) -> Sequence[ActiveSequence]:
        """Requests that have a slot."""

    def certify(self, known: Certificate | None = None) -> Certificate:
        """What its context is certified for; `known`: of another one alike."""

    def held(self, request: Request) -> int:
        """Tokens of a request's prompt that are evaluated already."""

    def prepare(self, speculation: SpeculationParams) -> SpeculationParams:
        """Make what a request's speculation needs."""

    def start(self, number: int, request: Request) -> None:
        """Give a request the slot."""

    def switch(self, number: int, speculation: SpeculationParams) -> None:
        """Give a running request other drafters."""

    def step(self) -> list[Event]:
        """One step."""

    def fail_all(self, error: LcspecError) -> list[Event]:
        """End everything that runs."""

    def close(self) -> None:
        """Free the context."""


class Lanes:
    """The lanes of one engine, made when they are first needed."""

    def __init__(self, make: Callable[[], Lane]) -> None:
        self._make = make
        self._lanes: list[Lane] = []

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def running(self) -> list[ActiveSequence]:
        """Requests in lanes."""
        return [sequence for lane in self._lanes for sequence in lane.running]

    def of(self, number: int) -> Lane | None:
        """The lane in which a request runs."""
        return next((lane for lane in self._lanes for sequence in lane.running if sequence.id == number), None)

    def certify(self) -> Certificate:
        """What is certified for a lane; all lanes are alike.

        Raises:
            ExactnessError: nothing can be certified here.
            ModelLoadError: there is no memory for a further context.
        """
        if not self._lanes:
            self._lanes.append(self._make())
        return self._lanes[0].certify()

    def start(self, number: int, request: Request) -> None:
        """Begin a request in the lane that knows most of its prompt.

        Raises:
            LcspecError: it cannot start.
        """
        certificate = self.certify()
        free = [lane for lane in self._lanes if not lane.running]
        if not free:
            self._lanes.append(self._make())
            free = self._lanes[-1:]
        lane = max(free, key=lambda lane: lane.held(request))
        lane.certify(certificate)
        lane.prepare(request.speculation)
        lane.start(number, request)

    def step(self) -> Iterator[Event]:
        """A step of every lane that has something to do."""
        for lane in self._lanes:
            if lane.running:
                yield from lane.step()

    def drop(self, number: int) -> None:
        """End a cancelled request at once."""
        lane = self.of(number)
        if lane is not None:
            lane.step()

    def fail_all(self, error: LcspecError) -> list[Event]:
        """End everything that runs in lanes."""
        return [event for lane in self._lanes for event in lane.fail_all(error)]

    def close(self) -> None:
        """Free the contexts."""
        for lane in self._lanes:
            lane.close()
        self._lanes = []
