"""The messages between a program and its engine's process: frozen dataclasses, each pickled by itself.

Both ends are the same program of the same user, and no other process has an end of the pipe.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Union

from lcspec.config import DraftFiles, ModelOptions, SpeculationParams
from lcspec.engine.events import Event
from lcspec.engine.request import Request
from lcspec.engine_host import EngineFacts
from lcspec.engine_process.vocabulary import Tables
from lcspec.errors import LcspecError
from lcspec.profiles.exactness import Kernels

# --- from the program -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    """The first message: what to load.

    Attributes:
        options, draft, history: see EngineThread.
        verbose: show the library's own log; quiet: show nothing, not even last words (see Child.wait).
        tables: send the vocabulary's tables.
        limit: seconds after which an engine without a sign of life hangs (0: none does; see heartbeat).
        prelude: called before anything is loaded; tests use it to cause failures.
        kernels: see lcspec.session.open_session.
    """

    options: ModelOptions
    draft: DraftFiles | Path | None
    history: bool
    verbose: bool
    quiet: bool
    tables: bool
    limit: float
    prelude: Callable[[], None] | None
    kernels: Kernels | None


@dataclass(frozen=True)
class Submit:
    """Submit a request. The answer is a Result, and then Events; `details`: see EngineHost.submit."""

    number: int
    request: Request
    details: bool = False


@dataclass(frozen=True)
class Switch:
    """Change the drafters of the request `of`. The answer is a Result."""

    number: int
    of: int
    speculation: SpeculationParams


@dataclass(frozen=True)
class Prepare:
    """See EngineHost.prepare. Progress comes before the Result."""

    number: int
    speculation: SpeculationParams


@dataclass(frozen=True)
class Call:
    """Run `function(session)` on the engine's thread; `pieces`: it makes a generator (see EngineHost.in_pieces)."""

    number: int
    function: Callable[[Any], Any]
    pieces: bool = False


@dataclass(frozen=True)
class Tokenize:
    """Token ids of a text, on a thread beside the engine's."""

    number: int
    text: str
    special: bool
    parse_special: bool


@dataclass(frozen=True)
class Compile:
    """Compile a grammar on a thread beside the engine's, and keep it for a request."""

    number: int
    grammar: str


@dataclass(frozen=True)
class Cancel:
    """End a request, or drop a task."""

    number: int


@dataclass(frozen=True)
class Close:
    """Stop: with `drain` finish the running requests, else cancel them."""

    drain: bool


# --- from the child ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """How far loading is."""

    what: str
    fraction: float


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    facts: EngineFacts
    tables: Tables | None


@dataclass(frozen=True)
class Result:
    """The answer to the message with that number."""

    number: int
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Events:
    """The events of a step, for each of its requests."""

    of: tuple[tuple[int, list[Event]], ...]


@dataclass(frozen=True)
class Beat:
    """A sign of life, sent every second; `hangs`: the process lives, but its engine hangs."""

    hangs: bool


@dataclass(frozen=True)
class Ended:
    """The engine has ended, with an error if there is one; before Ready, it could not be loaded."""

    error: BaseException | None


FromProgram = Union[Open, Submit, Switch, Prepare, Call, Tokenize, Compile, Cancel, Close]
Message = Union[FromProgram, Progress, Ready, Result, Events, Beat, Ended]


# --- the pipe ---------------------------------------------------------------------------------------------------------


def _pickled(message: Message) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


class Pipe:
    """An end of the pipe that sends at once. Any thread may send; one thread receives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message; if the other end has gone, nothing happens (the receiving thread notices it).

        Raises:
            Exception: the message cannot be pickled.
        """
        data = _pickled(message)
        with self._lock:
            try:
                self._connection.send_bytes(data)
            except OSError:
                return

    def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            EOFError: the other end has gone.
        """
        try:
            message: Message = pickle.loads(self._connection.recv_bytes())
        except OSError as error:
            raise EOFError from error
        return message

    def close(self) -> None:
        """Close this end, on the thread that receives."""
        with self._lock:
            self._connection.close()


class QueuedPipe(Pipe):
    """An end whose `send` never waits, even if the other process is not reading."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="lcspec-pipe", daemon=True)
        self._writer.start()

    def send(self, message: Message) -> None:
        """Queue a message.

        Raises:
            Exception: the message cannot be pickled.
        """
        self._queue.put(_pickled(message))

    def _write(self) -> None:
        while (data := self._queue.get()) is not None:
            try:
                self._connection.send_bytes(data)
            except OSError:  # the other end has gone
                return

    def close(self) -> None:
        """Close this end, after the other one has gone or has read everything."""
        self._queue.put(None)
        self._writer.join()
        self._connection.close()


# --- what cannot be pickled -------------------------------------------------------------------------------------------


def portable(request: Request, piece: Callable[[int], bytes] | None = None) -> Request:
    """A copy of a request whose reasoning budget reads tokens with `piece`; None: without it, ready to be sent."""
    budget = request.sampling.reasoning_budget
    if budget is None:
        return request
    budget = replace(budget, piece=piece or _nobody)
    return replace(request, sampling=replace(request.sampling, reasoning_budget=budget))


def _nobody(token: int) -> bytes:
    raise NotImplementedError("the vocabulary is in another process")


def sendable(error: BaseException) -> BaseException:
    """`error`, or an error with the same message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LcspecError(f"the engine failed: {error!r}")
    return error
