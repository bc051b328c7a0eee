"""What a server holds when nothing runs."""

from __future__ import annotations

from dataclasses import dataclass

from lcspec.server.lifecycle import Background
from lcspec.session import Session
from tests.running import until
from tests.server.running import engine_of, service_of


@dataclass(frozen=True)
class State:
    """Requests at hand, sequence ids left, and sequences that still have cells, once idle caches are dropped."""

    running: int
    waiting: int
    at_hand: int
    free: int
    cells: int


def state_of(server: Background) -> State:
    """Drop the idle caches and look."""
    service = service_of(server)

    def look(session: Session) -> State:
        engine = session.engine
        engine.prefix_cache.clear()
        used = [seq for seq in range(engine.pool.n) if engine.context.memory.end(seq) > 0]
        return State(len(engine.running), len(engine.waiting), service.capacity.at_hand, engine.pool.free, len(used))

    return engine_of(server).call(look).result(300)


def wait_idle(server: Background, seconds: float = 300.0) -> None:
    """Until no request is at hand."""
    until(lambda: not service_of(server).capacity.at_hand, lambda: "requests are still at hand", seconds)
