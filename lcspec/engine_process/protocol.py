"""What goes over the pipe between a program and its engine's process: frozen dataclasses, pickled, one a message.

Both ends are the same program, of the same user, and nobody else has an end of the pipe.
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

from lcspec.config import DraftFiles, ModelOptions
from lcspec.engine.events import Event
from lcspec.engine.request import Request
from lcspec.engine_host import EngineFacts
from lcspec.engine_process.vocabulary import Tables
from lcspec.errors import LcspecError

# --- from the program -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    """The first message: what to load.

    Attributes:
        options, draft, history: see EngineThread.
        verbose: show the library's own log.
        tables: send the vocabulary's tables.
        prelude: what is called before anything is loaded; for tests, which do harm with it.
    """

    options: ModelOptions
    draft: DraftFiles | Path | None
    history: bool
    verbose: bool
    tables: bool
    prelude: Callable[[], None] | None


@dataclass(frozen=True)
class Submit:
    """A request. It is answered with Result, and then with Events."""

    number: int
    request: Request


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
    """End a request, or drop what was asked for."""

    number: int


@dataclass(frozen=True)
class Close:
    """End: after the requests at hand with `drain`, else after cancelling them."""

    drain: bool


# --- from the child ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """Of loading."""

    what: str
    fraction: float


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    facts: EngineFacts
    tables: Tables | None


@dataclass(frozen=True)
class Result:
    """The answer to what had that number."""

    number: int
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Events:
    """What a step had for each of its requests."""

    of: tuple[tuple[int, list[Event]], ...]


@dataclass(frozen=True)
class Ended:
    """The engine has ended, by an error if there is one: before Ready it could not be loaded."""

    error: BaseException | None


Message = Union[Open, Submit, Call, Tokenize, Compile, Cancel, Close, Progress, Ready, Result, Events, Ended]


# --- the pipe ---------------------------------------------------------------------------------------------------------


def _pickled(message: Message) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


class Pipe:
    """An end that sends at once. Any thread may send, one receives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send; nothing happens if the other end has gone, which the receiving thread finds out.

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
        """The next message.

        Raises:
            EOFError: the other end has gone.
        """
        try:
            message: Message = pickle.loads(self._connection.recv_bytes())
        except OSError as error:
            raise EOFError from error
        return message

    def close(self) -> None:
        """Let go of this end, from the thread that receives."""
        with self._lock:
            self._connection.close()


class QueuedPipe(Pipe):
    """An end whose `send` never waits, even if the other process does not read at the moment."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="lcspec-pipe", daemon=True)
        self._writer.start()

    def send(self, message: Message) -> None:
        """Queue it.

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
        """Let go of this end, once the other one has gone or reads what is queued."""
        self._queue.put(None)
        self._writer.join()
        self._connection.close()


# --- what does not fit through it -------------------------------------------------------------------------------------


def portable(request: Request, piece: Callable[[int], bytes] | None = None) -> Request:
    """A request whose reasoning budget reads tokens with `piece`: None to send it, the vocabulary's over there."""
    budget = request.sampling.reasoning_budget
    if budget is None:
        return request
    budget = replace(budget, piece=piece or _nobody)
    return replace(request, sampling=replace(request.sampling, reasoning_budget=budget))


def _nobody(token: int) -> bytes:
    raise NotImplementedError("the vocabulary is in another process")


def sendable(error: BaseException) -> BaseException:
    """`error`, or one that says the same where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LcspecError(f"the engine failed: {error!r}")
    return error
