"""Exact requests on an engine with several slots, or with attention as matrix products: each in a context of its own.

Requests that share a cache change each other's bits: cells that one frees are taken by another out of order, and
prompt kernels group keys by absolute cell. Matrix products do so in every step. So an exact request gets a *lane*, an
engine with a single slot over the same weights and the same drafters, with the library's own attention. Lanes take
turns with the shared context, a step each; what is lost is batching.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Iterator

from lcspec.engine.events import Event
from lcspec.engine.sequence import ActiveSequence, Request
from lcspec.errors import LcspecError
from lcspec.profiles.certification import certificate_for
from lcspec.profiles.exactness import Certificate

if TYPE_CHECKING:
    from lcspec.engine.engine import Engine


class Lanes:
    """The lanes of one engine, made when they are first needed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lanes: list[Engine] = []

    @property
    def running(self) -> list[ActiveSequence]:
        """Requests in lanes."""
        return [sequence for lane in self._lanes for sequence in lane.running]

    def of(self, number: int) -> Engine | None:
        """The lane in which a request runs."""
        return next((lane for lane in self._lanes for sequence in lane.running if sequence.id == number), None)

    def certificate(self) -> Certificate:
        """What is certified for a lane; all lanes are alike.

        Raises:
            ExactnessError: nothing can be certified here.
            ModelLoadError: there is no memory for a further context.
        """
        if not self._lanes:
            self._lanes.append(self._make())
        first = self._lanes[0]
        first.certificate = first.certificate or certificate_for(first.shelf, first.pad)
        return first.certificate

    def start(self, number: int, request: Request) -> None:
        """Begin a request in the lane that knows most of its prompt.

        Raises:
            LcspecError: it cannot start.
        """
        certificate = self.certificate()
        free = [lane for lane in self._lanes if not lane.running]
        if not free:
            self._lanes.append(self._make())
            free = self._lanes[-1:]
        lane = max(free, key=lambda lane: lane.shelf.held(request.prompt, lane.reuse(request)))
        lane.certificate, lane.auto = certificate, self.engine.auto
        lane.start(number, request)

    def step(self) -> Iterator[Event]:
        """A step of every lane that has something to do."""
        for lane in self._lanes:
            if lane.running:
                yield from lane.step()

    def drop(self, number: int) -> None:
        """End a request at once."""
        lane = self.of(number)
        if lane is not None:
            lane.step()

    def fail_all(self, error: LcspecError) -> list[Event]:
        """End everything that runs in lanes."""
        return [event for lane in self._lanes for event in lane.fail_all(error)]

    def close(self) -> None:
        """Free the contexts; the drafters and the planner are the engine's."""
        for lane in self._lanes:
            lane.drafters, lane.auto = {}, None
            lane.close()
        self._lanes = []

    def _make(self) -> Engine:
        engine = self.engine
        lane = type(engine)(
            engine.model, replace(engine.options, slots=1, attention="library", exact=False), engine.env
        )
        lane.drafters, lane.ledger = engine.drafters, engine.ledger
        return lane
