"""Harm done to an engine's process from inside it. It is called over there (see EngineProcess's `prelude`)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from lcspec.engine.engine import Engine
from lcspec.engine.events import Event
from lcspec.engine.request import Request
from lcspec.profiles import kernels
from lcspec.profiles.price import Price

# A prompt with these tokens in a row is poison.
POISON = (97, 98, 97, 98)


def unhurried(_: object = None, seconds: float = 0.005) -> None:
    """Every step takes a while, so an answer does not end before a test has done what it wants to do to it."""
    step = Engine.step

    def slow(self: Engine) -> list[Event]:
        time.sleep(seconds)
        return step(self)

    Engine.step = slow  # type: ignore[method-assign]


def measures_otherwise(folder: Path) -> None:
    """In the first process exactness costs nothing, in later ones a lot; it is unhurried."""
    unhurried()
    mark = folder / "measured"
    found = Price(2.0 if mark.exists() else 1.0, 1.0, 1.0, None, 0.0)
    mark.touch()
    kernels.prices = lambda model, options, ways: [(way, found) for way in ways]  # type: ignore[assignment]


def abort_on_poison() -> None:
    """The process aborts, as the library does, when a request with the poison in its prompt begins; it is unhurried."""
    unhurried()
    start = Engine.start

    def poisoned(self: Engine, number: int, request: Request) -> None:
        ids = request.prompt
        if any(ids[i : i + len(POISON)] == POISON for i in range(len(ids))):
            os.abort()
        start(self, number, request)

    Engine.start = poisoned  # type: ignore[method-assign]


def abort_on_late_poison() -> None:
    """The process aborts at the fifth step of a request with the poison in its prompt: others run beside it."""
    unhurried()
    step, steps = Engine.step, [0]

    def poisoned(self: Engine) -> list[Event]:
        running = [sequence.request.prompt for sequence in self.running]
        if any(ids[i : i + len(POISON)] == POISON for ids in running for i in range(len(ids))):
            steps[0] += 1
            if steps[0] > 4:
                os.abort()
        return step(self)

    Engine.step = poisoned  # type: ignore[method-assign]


def abort_while_loading() -> None:
    """The process aborts before the model is there."""
    os.abort()


def give_up_as_the_library_does(_: Any) -> None:
    """The process says where, and aborts (a call is tried in two processes)."""
    os.write(2, b"lcspec: llama.cpp gave up at some.cpp:7\n")
    os.abort()


def hang_once() -> None:
    """The first process whose engine reaches its 30th step hangs there; it is unhurried.

    It makes the file that HANG_ONCE names before, and a process that finds it there does not hang."""
    unhurried()
    step, steps, mark = Engine.step, [0], Path(os.environ["HANG_ONCE"])

    def hanging(self: Engine) -> list[Event]:
        steps[0] += bool(self.running)
        if steps[0] == 30 and not mark.exists():
            mark.touch()
            threading.Event().wait()
        return step(self)

    Engine.step = hanging  # type: ignore[method-assign]


def stop_itself(_: Any) -> None:
    """The process stops answering."""
    os.kill(os.getpid(), signal.SIGSTOP)


def children_of(pid: int) -> list[int]:
    """Processes that `pid` has started (Linux)."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            found += [int(child) for child in (task / "children").read_text().split()]
    return found
