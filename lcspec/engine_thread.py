"""An engine on a thread of its own, for front ends that must never wait for it (the chat, the server).

    any thread                                engine thread
    submit / cancel / switch / call  ---->    orders, read between two steps
    sink(events)                     <----    called after every step with events for the request

This thread owns every llama object, so no other may touch the engine; `call` runs a function on it. Once `ready` is
done, any thread may use `session.model.vocab`, `session.prompt_ids` and `session.chat_ids` (reading a loaded vocabulary
changes nothing).
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import traceback
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Generator, Sequence, TypeVar

from lcspec.config import DraftFiles, ModelOptions, SpeculationParams
from lcspec.engine.details import Details
from lcspec.engine.events import Event, Failed, Finished, Prefill, StepStats
from lcspec.engine_host import Life, Loaded, Prepared, Sink, Ticket, facts_of, followed, prepare
from lcspec.errors import LcspecError, WorkerLost
from lcspec.pulse import PULSE
from lcspec.session import Progress, Session, open_session

if TYPE_CHECKING:
    from lcspec.engine.engine import Engine
    from lcspec.engine.request import Request
    from lcspec.profiles.exactness import Kernels
    from lcspec.sampling.grammar import CompiledGrammar

T = TypeVar("T")
# After an answer, a client often sends its next request at once, and would then wait for a whole step of the others. So
# the next step waits for it, at most for this share of the last step's time.
LINGER = 0.1
# Seconds between two attempts to reach lost workers.
RECONNECT_SECONDS = 0.5


class EngineThread:
    """Loads a model on its own thread and runs requests until closed."""

    def __init__(
        self,
        options: ModelOptions,
        draft: DraftFiles | Path | None = None,
        progress: Progress | None = None,
        history: bool = True,
        flush: Callable[[], None] | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        """Start loading at once.

        Args:
            options, draft, history, kernels: see open_session.
            progress: called on the engine thread; if it returns False, loading is given up.
            flush: called on the engine thread after all sinks have got a step's events.
        """
        self.ready: Future[Session] = Future()
        self.error: LcspecError | None = None  # the error that ended it
        self._orders: queue.SimpleQueue[Callable[[Engine], None]] = queue.SimpleQueue()
        self._sinks: dict[int, Sink] = {}
        self._flush = flush or (lambda: None)
        self._progress = progress or (lambda what, fraction: None)
        self._pieces: list[_Pieces] = []  # generators that run between steps
        self._state = "open"  # open | draining | closed
        self._away: str | None = None  # why requests are refused at the moment
        self._thread = threading.Thread(
            target=self._main, args=(options, draft, progress, history, kernels), name="lcspec-engine", daemon=True
        )
        self._thread.start()

    def prepare(self, speculation: SpeculationParams) -> Future[Prepared]:
        """See EngineHost.prepare; `progress` is called on the engine thread."""
        return self.call(lambda session: prepare(speculation, session, self._progress))

    def submit(self, request: Request, sink: Sink, *, details: bool = False) -> Future[Ticket]:
        """Queue a request. `sink` gets its events, in order, on the engine thread: it must pass them on and return.

        If Engine.submit refuses the request, the future fails and no event comes. A sink that raises ends its own
        request only. `details`: see EngineHost.submit.
        """
        result: Future[Ticket] = Future()

        def detailed(engine: Engine) -> Sink:
            added = Details(engine.drafting, engine.exact if request.speculation.exact else None).added
            return lambda events: sink(added(events))

        def plain(events: Sequence[Event]) -> None:
            if wanted := [event for event in events if not isinstance(event, (StepStats, Prefill))]:
                sink(wanted)

        def enter(engine: Engine) -> None:
            if self._state != "open":
                raise LcspecError("the engine is shutting down and takes no new requests")
            if self._away is not None:
                raise WorkerLost(self._away)
            number = engine.submit(request)
            self._sinks[number] = detailed(engine) if details else plain
            result.set_result(Ticket(self, number))

        self._promise(enter, result)
        return result

    def cancel(self, number: int) -> None:
        """End a request between two steps."""
        self.order(lambda engine: engine.cancel(number))

    def switch(self, number: int, speculation: SpeculationParams) -> Future[None]:
        """Change a request's drafters between two steps (see Engine.switch)."""
        return self.call(lambda session: session.engine.switch(number, speculation))

    def call(self, function: Callable[[Session], T]) -> Future[T]:
        """Run `function` on the engine thread between two steps. All requests wait for it, so it must be short."""
        result: Future[T] = Future()
        self._promise(lambda _: result.set_result(function(self.ready.result())), result)
        return result

    def in_pieces(self, start: Callable[[Session], Generator[T | None, None, None]]) -> Future[T]:
        """Run a generator on the engine thread; requests get their steps between its pieces. The future gives its last
        value. Cancelling the future closes the generator."""
        result: Future[T] = Future()

        def begin(_: Session) -> None:
            self._pieces.append(_Pieces(start(self.ready.result()), result))

        def settle(begun: Future[None]) -> None:
            if (error := begun.exception()) is not None and result.set_running_or_notify_cancel():
                result.set_exception(error)

        self.call(begin).add_done_callback(settle)
        return result

    def order(self, function: Callable[[Engine], None]) -> None:
        """`call` without a result; errors are dropped."""
        self._orders.put(function)

    def close(self, drain: bool = False, timeout: float | None = None) -> bool:
        """Stop: with `drain` finish the running requests, else cancel them. Returns False if `timeout` came first."""
        self._orders.put(lambda engine: self._end(engine, drain))
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    @property
    def life(self) -> Life:
        """See lcspec.engine_host."""
        return Life(away=self._away)

    def loading(self) -> Future[Loaded]:
        """See lcspec.engine_host."""
        return followed(self.ready, lambda s: Loaded(facts_of(s), s.model.vocab, s.model.header))

    def loaded(self) -> Loaded:
        """See lcspec.engine_host."""
        return self.loading().result()

    def compile(self, grammar: str) -> CompiledGrammar:
        """See lcspec.engine_host."""
        from lcspec.llama.grammar import compile_grammar

        return compile_grammar(self.ready.result().model.vocab, grammar)

    # ------------------------------------------------------------ on the engine thread

    def _main(
        self,
        options: ModelOptions,
        draft: DraftFiles | Path | None,
        progress: Progress | None,
        history: bool,
        kernels: Kernels | None,
    ) -> None:
        error: BaseException = LcspecError("the engine has been closed")
        opened = contextlib.ExitStack()
        try:
            try:
                session = opened.enter_context(open_session(options, draft, progress, history, kernels))
                self.ready.set_result(session)
                while not self._serve(session.engine):
                    PULSE.at_work = False
                    opened = self._reconnect(session, opened, options, draft, history)
            finally:
                self._drop_pieces(LcspecError("the engine has been closed"))  # while the model still exists
                opened.close()
        except BaseException as problem:
            error = problem
            self.error = expected(problem)
            if not self.ready.done():
                self.ready.set_exception(problem)
        finally:
            PULSE.at_work = False
            self._state = "closed"
            for number in list(self._sinks):
                self._deliver(number, [Failed(number, expected(error))])
            self._flush()
            self._refuse_orders()

    def _serve(self, engine: Engine) -> bool:
        """Run steps until the end; returns False if a worker with part of the model is lost before."""
        linger = 0.0
        while self._state == "open" or engine.busy:
            self._obey(engine, linger)
            start = time.perf_counter()
            found: dict[int, list[Event]] = {}
            for event in self._step(engine):
                found.setdefault(event.request, []).append(event)
            for number, events in found.items():
                if not self._deliver(number, events):
                    engine.cancel(number)
            if found:
                self._flush()
            self._pieces = [work for work in self._pieces if not work.go_on()]
            ended = any(isinstance(events[-1], Finished) for events in found.values()) and not engine.waiting
            linger = LINGER * (time.perf_counter() - start) if ended else 0.0
            if engine.model.workers is not None and engine.model.workers.lost is not None:
                return False
        return True

    def _reconnect(
        self,
        session: Session,
        opened: contextlib.ExitStack,
        options: ModelOptions,
        draft: DraftFiles | Path | None,
        history: bool,
    ) -> contextlib.ExitStack:
        """Load the model again when all workers are back; requests are refused until then.

        `session` stays the same object and then holds the new model and engine. Returns what is to be closed instead of
        `opened`.
        """
        workers = session.model.workers
        assert workers is not None
        self._away = f"the worker {workers.lost} is away; the engine reconnects when it is back: try again then"
        for number in list(self._sinks):
            self._deliver(number, [Failed(number, WorkerLost(self._away))])
        self._flush()
        self._drop_pieces(WorkerLost(self._away))
        workers.cut()  # a worker serves one program at a time
        while self._state == "open":
            self._refuse_for(RECONNECT_SECONDS, session.engine)
            with contextlib.suppress(LcspecError):
                fresh = contextlib.ExitStack()
                session.take_over(fresh.enter_context(open_session(options, draft, None, history, session.kernels)))
                opened.close()
                self._away = None
                return fresh
        return opened

    def _step(self, engine: Engine) -> list[Event]:
        """Run a step. A bug in it ends the running requests, but nothing else."""
        try:
            return engine.step()
        except Exception as problem:
            if os.environ.get("LCSPEC_DEBUG"):
                traceback.print_exc()
            if not engine.running and not engine.solo.running:
                raise  # no request caused it, so it would happen again
            return engine.fail_all(LcspecError(f"internal error: {problem!r}; LCSPEC_DEBUG=1 shows where"))

    def _refuse_for(self, seconds: float, engine: Engine) -> None:
        """Carry out orders for `seconds`, or until the end is ordered."""
        end = time.monotonic() + seconds
        while self._state == "open" and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(Exception):
                self._orders.get(timeout=left)(engine)

    def _obey(self, engine: Engine, linger: float) -> None:
        """Carry out orders; wait for one if there is nothing else to do, else for at most `linger` seconds."""
        since = time.monotonic()
        while True:
            idle = self._state == "open" and not engine.busy and not self._pieces
            if not idle and linger == 0 and self._orders.empty():
                return
            waits = idle and linger == 0
            left: float | None = linger
            if waits:
                ahead = engine.read_ahead_after()
                left = None if ahead is None else max(0.0, since + ahead - time.monotonic())
            PULSE.end()
            PULSE.at_work = not waits
            try:
                order = self._orders.get(timeout=left)
            except queue.Empty:
                if not idle:
                    return
                if waits:
                    PULSE.at_work = True
                    engine.read_ahead()
                linger = 0.0
                continue
            PULSE.at_work = True
            linger = 0.0
            with contextlib.suppress(Exception):  # callers that need the error use a future
                order(engine)
            since = time.monotonic()

    def _deliver(self, number: int, events: list[Event]) -> bool:
        """Hand events to the request's sink; False if that failed."""
        sink = self._sinks.get(number)
        if sink is None:
            return True
        if isinstance(events[-1], (Finished, Failed)):
            del self._sinks[number]
        try:
            sink(events)
        except Exception:
            self._sinks.pop(number, None)
            return False
        return True

    def _drop_pieces(self, error: LcspecError) -> None:
        for work in self._pieces:
            work.fail(error)
        self._pieces = []

    def _end(self, engine: Engine, drain: bool) -> None:
        self._state = "draining"
        if not drain:
            engine.cancel(None)

    def _promise(self, function: Callable[[Engine], None], result: Future[T]) -> None:
        """Order `function`; an exception goes into `result`."""

        def guarded(engine: Engine) -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                function(engine)
            except BaseException as problem:
                result.set_exception(problem)

        guarded.refuse = result  # type: ignore[attr-defined]
        self._orders.put(guarded)
        if self._state == "closed":
            self._refuse_orders()

    def _refuse_orders(self) -> None:
        """Refuse all orders that came too late."""
        while True:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                return
            result = getattr(order, "refuse", None)
            if result is not None and not result.done():
                result.set_exception(self.error or LcspecError("the engine has been closed"))


class _Pieces:
    """A generator on the engine thread, and the future of its last value."""

    def __init__(self, pieces: Generator[Any, None, None], result: Future[Any]) -> None:
        self._pieces = pieces
        self._result = result

    def go_on(self) -> bool:
        """Run the next piece; returns True if it was the last one, or the future was cancelled."""
        found = None
        try:
            if not self._result.cancelled() and (found := next(self._pieces)) is None:
                return False
            self._pieces.close()
        except Exception as problem:
            self.fail(problem)
            return True
        if self._result.set_running_or_notify_cancel():
            self._result.set_result(found)
        return True

    def fail(self, problem: Exception) -> None:
        """Fail the future."""
        self._pieces.close()
        if self._result.set_running_or_notify_cancel():
            self._result.set_exception(problem)


def expected(error: BaseException) -> LcspecError:
    """The error that ended an engine, as one for users."""
    return error if isinstance(error, LcspecError) else LcspecError(f"the engine stopped: {error!r}")
