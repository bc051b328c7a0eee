"""Where grammars are compiled: on the thread that asks, unless that thread says otherwise (those of a server do)."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Any, Callable, Iterator, TypeVar

T = TypeVar("T")
# Carries out what takes long for the thread that asks, and gives its result.
Place = Callable[[Callable[[], Any]], Any]

_PLACE: ContextVar[Place | None] = ContextVar("place", default=None)


@contextlib.contextmanager
def compiling_at(place: Place) -> Iterator[None]:
    """What this thread has to compile is compiled at `place`."""
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


def compiled(make: Callable[[], T]) -> T:
    """What `make` makes, compiled where this thread compiles."""
    place = _PLACE.get()
    if place is None:
        return make()
    made: T = place(make)
    return made
