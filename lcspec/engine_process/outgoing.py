"""Events on their way from an engine to the program, which is woken by every message.

Reading a message and writing what a client gets takes 0.6 ms of a core (one stream, SmolLM2, Zen 3), taken from a
decode that has all cores and is over in 9. So text that follows other text is sent every INTERVAL seconds and not with
every step. A first text, an end and an error never wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from lcspec.engine.events import Event, Failed, Finished, Prefill, Step, Tokens

# Seconds between two texts of an answer: as often as a film changes its picture.
INTERVAL = 0.04


class Outgoing:
    """Holds the events of requests until they are to be sent."""

    def __init__(self, send: Callable[[tuple[tuple[int, list[Event]], ...]], None]) -> None:
        """`send` takes requests' numbers and their events."""
        self._send = send
        self._held: dict[int, list[Event]] = {}
        self._begun: set[int] = set()  # requests whose first text was sent
        self._urgent = False
        self._sent = 0.0

    def put(self, number: int, events: Sequence[Event]) -> None:
        """Hold events of a request; text is joined to text that still waits."""
        held = self._held.setdefault(number, [])
        for event in events:
            can_wait = isinstance(event, (Prefill, Step)) or (isinstance(event, Tokens) and number in self._begun)
            self._urgent |= not can_wait
            if isinstance(event, Tokens) and held and isinstance(held[-1], Tokens):
                before = held.pop()
                assert isinstance(before, Tokens)
                event = Tokens(event.request, before.tokens + event.tokens, before.pieces + event.pieces)
            held.append(event)
            if isinstance(event, Tokens):
                self._begun.add(number)
            elif isinstance(event, (Failed, Finished)):
                self._begun.discard(number)

    def flush(self) -> None:
        """A step is over: send what is held, if it is time."""
        if self._held and (self._urgent or time.monotonic() - self._sent >= INTERVAL):
            held, self._held, self._urgent = self._held, {}, False
            self._sent = time.monotonic()
            self._send(tuple(held.items()))
