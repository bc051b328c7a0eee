"""Exact requests in contexts of their own, for contexts in which a row depends on the rest of the batch.

There, requests that share a cache change each other's bits: cells that one request frees are taken by another out of
order, and prompt kernels group keys by absolute cell (matrix products do so in every step). So an exact request gets a
*solo engine*: one with a single slot over the same weights and drafters, with its own planner, that goes row by row, or
with the library's own attention where that is not exact. Solo engines and the shared context take turns, one step each;
exact requests are then not batched.
"""

from __future__ import annotations

from typing import Callable, Iterator, Protocol, Sequence

from lcspec.config import SpeculationParams
from lcspec.engine.events import Event
from lcspec.engine.request import Request
from lcspec.engine.sequence import ActiveSequence
from lcspec.errors import LcspecError
from lcspec.profiles.exactness import Certificate


class SoloEngine(Protocol):
    """An engine with a single slot."""

    @property
    def running(self) -> Sequence[ActiveSequence]:
        """The running request, if any."""

    def certify(self, known: Certificate | None = None) -> Certificate:
        """The certificate of its context; `known`: that of another context of the same kind."""

    def held(self, request: Request) -> int:
        """How many tokens of a request's prompt are in the cache."""

    def prepare(self, speculation: SpeculationParams) -> SpeculationParams:
        """Make what a request's speculation needs; see Engine.prepare."""

    def start(self, number: int, request: Request) -> None:
        """Start a request in the slot."""

    def switch(self, number: int, speculation: SpeculationParams) -> None:
        """Change a running request's drafters."""

    def cancel(self, number: int | None) -> None:
        """Cancel the running request if it has that number; None: whichever it is."""

    def step(self) -> list[Event]:
        """Run one step; returns its events."""

    def fail_all(self, error: LcspecError) -> list[Event]:
        """End the running request with an error."""

    def close(self) -> None:
        """Free the context."""


class SoloEngines:
    """The solo engines beside an engine, `made` when they are first needed."""

    def __init__(self, make: Callable[[], SoloEngine]) -> None:
        self._make = make
        self.made: list[SoloEngine] = []

    @property
    def running(self) -> list[ActiveSequence]:
        """Requests that run in solo engines."""
        return [sequence for engine in self.made for sequence in engine.running]

    def of(self, number: int) -> SoloEngine | None:
        """The solo engine in which a request runs; None if in none."""
        return next((engine for engine in self.made for sequence in engine.running if sequence.id == number), None)

    def certify(self) -> Certificate:
        """The certificate of solo engines; all have the same.

        Raises:
            ExactnessError: nothing can be certified for this model.
            ModelLoadError: there is no memory for another context.
        """
        if not self.made:
            self.made.append(self._make())
        return self.made[0].certify()

    def start(self, number: int, request: Request) -> None:
        """Start a request in the solo engine whose cache has most of its prompt.

        Raises:
            LcspecError: it cannot start.
        """
        certificate = self.certify()
        free = [engine for engine in self.made if not engine.running]
        if not free:
            self.made.append(self._make())
            free = self.made[-1:]
        engine = max(free, key=lambda engine: engine.held(request))
        engine.certify(certificate)
        engine.prepare(request.speculation)
        engine.start(number, request)

    def step(self) -> Iterator[Event]:
        """Run one step of every solo engine that has something to do."""
        for engine in self.made:
            if engine.running:
                yield from engine.step()

    def drop(self, number: int) -> None:
        """End a cancelled request at once."""
        engine = self.of(number)
        if engine is not None:
            engine.step()

    def fail_all(self, error: LcspecError) -> list[Event]:
        """End all requests in solo engines with an error."""
        return [event for engine in self.made for event in engine.fail_all(error)]

    def close(self) -> None:
        """Free the contexts."""
        for engine in self.made:
            engine.close()
        self.made = []
