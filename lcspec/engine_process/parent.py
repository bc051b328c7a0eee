"""An engine in a process of its own, as the program sees it (see lcspec.engine_host.EngineHost).

A thread reads the child's messages and starts a new child when one has died: at once the first time, then after waits
that double. Running requests continue there after the tokens they already have; waiting ones are queued again.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lcspec.config import DraftFiles, ModelOptions, SpeculationParams
from lcspec.engine.request import Request
from lcspec.engine_host import Life, Loaded, Prepared, Sink, Ticket, followed
from lcspec.engine_process.heartbeat import LIMIT
from lcspec.engine_process.process import Child
from lcspec.engine_process.protocol import (
    Call,
    Cancel,
    Close,
    Compile,
    Ended,
    Events,
    Message,
    Open,
    Prepare,
    Progress,
    Ready,
    Result,
    Switch,
    Tokenize,
    portable,
)
from lcspec.engine_process.tasks import Answer, Task, Tasks, settle
from lcspec.engine_process.vocabulary import RemoteVocab
from lcspec.engine_thread import expected
from lcspec.errors import LcspecError, ModelLoadError
from lcspec.modelfiles.modelfile import read_header
from lcspec.session import Progress as OnProgress
from lcspec.session import Session

T = TypeVar("T")
# Seconds before another process is started: none after a first death, then the first of these, doubling to the second.
WAIT, LONGEST_WAIT = 0.5, 30.0
# Seconds that a process must have lived for its death to count as a first one.
WELL = 60.0
# Failed starts before waiting requests are told.
PATIENCE = 3
# Seconds that an idle engine may take to end.
END_SECONDS = 10.0


class EngineProcess:
    """Loads a model in another process and runs requests there until closed."""

    def __init__(
        self,
        options: ModelOptions,
        draft: DraftFiles | Path | None = None,
        progress: OnProgress | None = None,
        history: bool = True,
        *,
        verbose: bool = False,
        quiet: bool = False,
        limit: float = LIMIT,
        prelude: Callable[[], None] | None = None,
    ) -> None:
        """Start loading at once. `progress` is called on another thread, and its result is ignored.

        Args:
            options, draft, history: see EngineThread.
            verbose: show the library's own log; quiet: write nothing to stderr, a screen is shown there.
            limit: seconds without a sign of life after which it is killed, and started again; 0: never.
            prelude: a function that the process calls before it loads anything; for tests.
        """
        self.error: LcspecError | None = None  # the error that ended it
        self._opening = Open(options, draft, history, verbose, quiet, True, limit, prelude, None)
        self._progress = progress
        self._ready: Future[Loaded] = Future()
        self._numbers = itertools.count(1)
        self._tasks = Tasks()
        self._lock = threading.Lock()  # of what follows
        self._child: Child | None = None  # the process, from its start to its end
        self._open = False  # it has loaded the model
        self._life = Life()
        self._refusal: str | None = None  # why requests are refused instead of waiting
        self._closing: Close | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._main, name="lcspec-engine-process", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ from any thread

    @property
    def alive(self) -> bool:
        """Whether it takes requests, now or after a restart."""
        return self._thread.is_alive()

    @property
    def life(self) -> Life:
        """Its state and restarts."""
        with self._lock:
            return replace(self._life, pid=self._child.pid if self._child is not None else None)

    def loading(self) -> Future[Loaded]:
        """See lcspec.engine_host."""
        return followed(self._ready, lambda loaded: loaded)

    def loaded(self) -> Loaded:
        """Wait for the model to be loaded, and return it.

        Raises:
            LcspecError: it could not be loaded.
        """
        return self._ready.result()

    def prepare(self, speculation: SpeculationParams) -> Future[Prepared]:
        """See EngineHost.prepare."""
        return self._asked(lambda number: Prepare(number, speculation))

    def submit(self, request: Request, sink: Sink, *, details: bool = False) -> Future[Ticket]:
        """Queue a request (see EngineThread.submit). While a process is starting, the request waits."""
        answer = Answer(next(self._numbers), portable(request), sink, details)
        self._ask(answer)
        answer.result.add_done_callback(partial(self._unwanted, answer.number))
        return answer.result

    def switch(self, number: int, speculation: SpeculationParams) -> Future[None]:
        """Change a request's drafters, in later processes, too (see Engine.switch)."""
        result: Future[None] = self._asked(lambda own: Switch(own, number, speculation))
        answer = self._tasks.get(number)
        if isinstance(answer, Answer):
            result.add_done_callback(partial(answer.switched, speculation))
        return result

    def call(self, function: Callable[[Session], T]) -> Future[T]:
        """Run `function` on the engine's thread, between two steps. It must be picklable."""
        return self._asked(lambda number: Call(number, function))

    def in_pieces(self, start: Callable[[Session], Generator[T | None, None, None]]) -> Future[T]:
        """Run a generator over there (see EngineThread.in_pieces). `start` must be picklable."""
        return self._asked(lambda number: Call(number, start, pieces=True))

    def compile(self, grammar: str) -> str:
        """Check a grammar, and have it compiled for the request that will need it.

        Raises:
            GrammarError: it is invalid or too large, or allows no text.
        """
        self._asked(lambda number: Compile(number, grammar)).result()
        return grammar

    def cancel(self, number: int) -> None:
        """End a request."""
        with self._lock:
            answer = self._tasks.get(number)
            if not isinstance(answer, Answer):
                return
            answer.cancelled = True
            if answer.sent and self._open and self._child is not None:
                self._child.send(Cancel(number))
                return
        if self._tasks.drop(number):
            answer.end_cancelled()

    def close(self, drain: bool = False, timeout: float | None = None) -> bool:
        """Stop: with `drain` finish the running requests, else cancel them. A process that does not end in time, or
        that hangs while idle, is killed."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._closing = Close(drain)
            if self._open and self._child is not None:
                self._child.send(self._closing)
            elif self._child is not None and not drain:
                self._child.kill()
        self._closed.set()
        if drain:
            self._tasks.wait_until_none(timeout)
        self._thread.join(END_SECONDS if end is None else max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            with self._lock:
                if self._child is not None:
                    self._child.kill()
            self._thread.join(END_SECONDS)
        return not self._thread.is_alive()

    def _tokenize(self, text: str, special: bool, parse_special: bool) -> list[int]:
        ids: list[int] = self._asked(lambda number: Tokenize(number, text, special, parse_special)).result()
        return ids

    def _asked(self, message: Callable[[int], Message]) -> Future[Any]:
        """Send a message that has one answer."""
        number = next(self._numbers)
        task = Task(number, message(number))
        self._ask(task)
        task.result.add_done_callback(partial(self._unwanted, number))
        return task.result

    def _ask(self, task: Task) -> None:
        with self._lock:
            if self._closing is not None and isinstance(task, Answer):
                problem: LcspecError | None = LcspecError("the engine is shutting down and takes no new requests")
            elif not self._thread.is_alive():
                problem = self.error or LcspecError("the engine has been closed")
            else:
                problem = LcspecError(self._refusal) if self._refusal is not None else None
            if problem is None:
                self._tasks.add(task)  # before it is sent: its answer may come at once
                try:
                    if self._open and self._child is not None:
                        self._send_due(self._child)
                except BaseException:  # it cannot be pickled
                    self._tasks.drop(task.number)
                    raise
                return
        settle(task.result, error=problem)

    def _send_due(self, child: Child) -> None:
        for task in self._tasks.due():
            child.send(task.message())
            task.sent = True

    def _drop(self, number: int) -> None:
        """Forget a task that is over; others may have waited for its end."""
        self._tasks.drop(number)
        with self._lock:
            if self._open and self._child is not None:
                self._send_due(self._child)

    def _unwanted(self, number: int, result: Future[Any]) -> None:
        """Handle the cancellation of a result's future."""
        if result.cancelled() and self._tasks.get(number) is not None:
            self._tasks.drop(number)
            with self._lock:
                if self._open and self._child is not None:
                    self._child.send(Cancel(number))
                    self._send_due(self._child)

    # ------------------------------------------------------------ on the reading thread

    def _main(self) -> None:
        error: BaseException = LcspecError("the engine has been closed")
        try:
            self._live()
        except BaseException as problem:
            error = problem
            self.error = expected(problem)
        finally:
            with self._lock:
                # Nothing is added from here on.
                self._closing = self._closing or Close(drain=False)
                self._refusal = str(self.error or error)
                left = self._tasks.all()
            settle(self._ready, error=error)
            self._tasks.fail(left, self.error or LcspecError("the engine has been closed"))

    def _live(self) -> None:
        """Run one process after the other, until the end is ordered.

        Raises:
            LcspecError: the first process could not load the model, or a later one loaded another model.
        """
        deaths = failed = 0  # in a row
        while True:
            start = time.monotonic()
            error, why = self._run()
            with self._lock:
                opened, self._open, self._child = self._open, False, None
            if self._over(ended=not why):
                return
            if not self._ready.done():
                if error is None:
                    name = self._opening.options.path.name
                    error = ModelLoadError(f"{name} could not be loaded: the engine's process {why}")
                raise error
            deaths = 1 if opened and time.monotonic() - start > WELL else deaths + 1
            failed = 0 if opened else failed + 1
            reason = str(error) if error is not None else f"the engine's process {why}"
            self._mourn(opened, reason, why)
            if failed >= PATIENCE or (failed and error is not None):
                self._give_up(reason)
            wait = 0.0 if deaths == 1 else min(LONGEST_WAIT, WAIT * 2.0 ** (deaths - 2))
            self._closed.wait(wait)
            if self._over():
                return

    def _over(self, ended: bool = False) -> bool:
        """Whether the end was ordered, and the process has ended (`ended`) or no task is left."""
        closing = self._closing
        return closing is not None and (ended or not closing.drain or not self._tasks.all())

    def _run(self) -> tuple[BaseException | None, str]:
        """Run a process to its end; returns the error that it reported, and how it ended ("": as ordered).

        Raises:
            LcspecError: it loaded another model than the process before.
        """
        try:
            child = Child(self._next())
        except OSError as problem:
            return LcspecError(f"the engine's process could not be started: {problem}"), "could not be started"
        with self._lock:
            self._child = child
            if self._closing is not None and not self._closing.drain:
                child.kill()
        error: BaseException | None = None
        told = False
        try:
            while not isinstance(message := child.receive(), Ended):
                self._take(child, message)
            error, told = message.error, True
        except EOFError:
            pass
        except BaseException:
            child.kill()
            raise
        finally:
            why = child.wait()
        return error, "" if told and error is None else why

    def _next(self) -> Open:
        """What the next process loads: with the kernels of the first, whose texts it continues."""
        if not self._ready.done():
            return self._opening
        return replace(self._opening, tables=False, kernels=self.loaded().facts.kernels)

    def _mourn(self, opened: bool, reason: str, why: str) -> None:
        """Note that there is no process, and refuse tasks that have now died twice."""
        refused = resumed = 0
        if opened:
            refused, resumed = self._tasks.died(self.loaded().facts.slots, why)
        with self._lock:
            life = self._life
            self._life = replace(
                life,
                away=f"{reason}; another one is started",
                last=reason,
                restarts=life.restarts + opened,
                refused=life.refused + refused,
                resumed=life.resumed + resumed,
            )

    def _give_up(self, reason: str) -> None:
        """The process cannot be started for now: refuse waiting and new requests until it can."""
        with self._lock:
            self._refusal = f"{reason}; it is tried again: try again later"
        self._tasks.fail(self._tasks.all(), LcspecError(self._refusal))

    def _take(self, child: Child, message: Message) -> None:
        if isinstance(message, Events):
            for number, events in message.of:
                self._deliver(child, number, events)
        elif isinstance(message, Result):
            self._settle(message)
        elif isinstance(message, Progress):
            if self._progress is not None and (self._open or not self._ready.done()):
                self._progress(message.what, message.fraction)
        elif isinstance(message, Ready):
            self._opened(child, message)

    def _opened(self, child: Child, message: Ready) -> None:
        """A process has loaded the model: send it all open tasks."""
        if message.tables is not None:
            header = read_header(self._opening.options.path)
            settle(self._ready, Loaded(message.facts, RemoteVocab(message.tables, self._tokenize), header))
        elif replace(message.facts, options=self._ready.result().options) != self._ready.result().facts:
            raise LcspecError(f"{self._opening.options.path.name} has changed since it was loaded: restart the server")
        with self._lock:
            self._refusal = None
            self._life = replace(self._life, away=None)
            self._open = True
            self._send_due(child)
            if self._closing is not None:
                child.send(self._closing)

    def _deliver(self, child: Child, number: int, events: list[Any]) -> None:
        answer = self._tasks.get(number)
        if not isinstance(answer, Answer):
            return
        over = True
        try:
            over = answer.take(events)
        except Exception:  # a sink that fails loses its request
            child.send(Cancel(number))
        if over:
            self._drop(number)

    def _settle(self, message: Result) -> None:
        """Handle an answer, or that the engine has accepted or refused a request."""
        task = self._tasks.get(message.number)
        if task is None:
            return
        if isinstance(task, Answer) and message.error is None:
            task.queued = task.accepted = True
            settle(task.result, Ticket(self, task.number))
            return
        self._drop(message.number)
        if isinstance(task, Answer) and isinstance(message.error, LcspecError):
            task.fail(message.error)  # by an event, if an earlier process has accepted it
        else:
            settle(task.result, message.value, message.error)
