"""The engine's process: an EngineThread behind a pipe. It ends when the program at the other end ends.

main thread      reads messages and passes them on; never waits for the engine
heart thread     says every second whether the engine hangs
engine thread    runs steps; sends all events of a step in one message (see outgoing.py)
text threads     tokenize and compile grammars, beside the engine
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from lcspec.engine.events import Event, Failed, Finished
from lcspec.engine.request import Request
from lcspec.engine_host import Loaded, Sink
from lcspec.engine_process.heartbeat import Heart
from lcspec.engine_process.outgoing import Outgoing
from lcspec.engine_process.protocol import (
    Beat,
    Call,
    Cancel,
    Close,
    Compile,
    Ended,
    Events,
    Message,
    Open,
    Pipe,
    Prepare,
    Progress,
    Ready,
    Result,
    Submit,
    Switch,
    Tokenize,
    portable,
    sendable,
)
from lcspec.engine_process.vocabulary import Tables
from lcspec.engine_thread import EngineThread
from lcspec.errors import LcspecError
from lcspec.llama import end_on_abort, log_to_stderr
from lcspec.sampling.grammar import CompiledGrammar
from lcspec.session import Session

# Threads for text; more of them would take time from the decodes.
THREADS = 2
# Compiled grammars to keep for the requests that need them.
GRAMMARS = 16
# The most seconds that the engine may take to end after the program has gone.
END_SECONDS = 2.0


class Host:
    """An engine for the program at the other end of a pipe."""

    def __init__(self, pipe: Pipe, opening: Open) -> None:
        """Start loading what `opening` names."""
        self._pipe = pipe
        self._tables = opening.tables
        self._outgoing = Outgoing(lambda events: pipe.send(Events(events)))
        self._tickets: dict[int, Future[Any]] = {}  # by number: requests until their last event
        self._asked: dict[int, Future[Any]] = {}  # what else is at hand
        self._grammars: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()
        self._text = ThreadPoolExecutor(THREADS, thread_name_prefix="lcspec-text")
        self._loaded: Loaded | None = None
        self.worker = EngineThread(
            opening.options,
            opening.draft,
            self._progress,
            opening.history,
            self._outgoing.flush,
            opening.kernels,
        )
        self.worker.ready.add_done_callback(self._opened)
        threading.Thread(target=self._watch, name="lcspec-watch", daemon=True).start()
        if opening.limit:
            heart, tell = Heart(opening.limit), lambda hangs: self._pipe.send(Beat(hangs))
            threading.Thread(target=heart.beat, args=(tell,), name="lcspec-heart", daemon=True).start()

    def take(self, message: Message) -> None:
        """Carry out a message."""
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Cancel):
            self._cancel(message.number)
        elif isinstance(message, Switch):
            self._switch(message)
        elif isinstance(message, Prepare):
            self._answer(message.number, self.worker.prepare(message.speculation))
        elif isinstance(message, Call):
            start = self.worker.in_pieces if message.pieces else self.worker.call
            self._answer(message.number, start(message.function))
        elif isinstance(message, Tokenize):
            tokenize = partial(self._vocab.tokenize, special=message.special, parse_special=message.parse_special)
            self._answer(message.number, self._text.submit(tokenize, message.text))
        elif isinstance(message, Compile):
            compiled = self._text.submit(self._compiled, message.grammar)
            self._answer(message.number, compiled, lambda _: None)
        elif isinstance(message, Close):
            self.worker.close(message.drain, timeout=0)  # _watch says when it has

    # ------------------------------------------------------------ the life of the engine

    def _progress(self, what: str, fraction: float) -> None:
        self._pipe.send(Progress(what, fraction))

    def _opened(self, ready: Future[Session]) -> None:
        """On the engine thread: the model is there, or `_watch` will say what is wrong."""
        if ready.exception() is not None:
            return
        self._loaded = self.worker.loaded()
        tables = Tables.of(ready.result().model.vocab) if self._tables else None
        self._pipe.send(Ready(self._loaded.facts, tables))

    def _watch(self) -> None:
        """Report the end of the engine thread."""
        self.worker.wait()
        error = self.worker.ready.exception() or self.worker.error
        self._pipe.send(Ended(sendable(error) if error is not None else None))

    @property
    def _vocab(self) -> Any:
        assert self._loaded is not None, "nothing is asked before Ready"
        return self._loaded.vocab

    # ------------------------------------------------------------ requests

    def _submit(self, message: Submit) -> None:
        number, request = message.number, portable(message.request, partial(self._vocab.piece, special=True))
        enter = partial(self._enter, details=message.details)
        promise: Future[Any] = Future()
        self._tickets[number] = promise
        grammar = request.sampling.grammar
        if not isinstance(grammar, str):
            enter(number, request, promise)
            return
        known = self._known(grammar)
        if known is not None:
            enter(number, _with_grammar(request, known), promise)
            return

        def ready(compiled: Future[CompiledGrammar]) -> None:
            if (error := compiled.exception()) is not None:
                self._refuse(number, promise, error)
            else:
                enter(number, _with_grammar(request, compiled.result()), promise)

        self._text.submit(self._compiled, grammar).add_done_callback(ready)

    def _enter(self, number: int, request: Request, promise: Future[Any], details: bool) -> None:
        def entered(ticket: Future[Any]) -> None:
            if (error := ticket.exception()) is not None:
                self._refuse(number, promise, error)
                return
            self._pipe.send(Result(number))
            promise.set_result(ticket.result())

        self.worker.submit(request, self._sink(number), details=details).add_done_callback(entered)

    def _refuse(self, number: int, promise: Future[Any], error: BaseException) -> None:
        self._tickets.pop(number, None)
        self._pipe.send(Result(number, error=sendable(error)))
        promise.set_exception(error)

    def _switch(self, message: Switch) -> None:
        """Switch a request that has been accepted; one that has ended needs nothing."""

        def switch(entered: Future[Any]) -> None:
            if entered.exception() is None:
                self._answer(message.number, entered.result().switch(message.speculation))
            else:
                self._pipe.send(Result(message.number))

        if (ticket := self._tickets.get(message.of)) is not None:
            ticket.add_done_callback(switch)
        else:
            self._pipe.send(Result(message.number))

    def _cancel(self, number: int) -> None:
        if (asked := self._asked.get(number)) is not None:
            asked.cancel()
        elif (ticket := self._tickets.get(number)) is not None:
            ticket.add_done_callback(lambda entered: None if entered.exception() else entered.result().cancel())

    def _sink(self, number: int) -> Sink:
        """A sink that collects a request's events."""

        def put(events: Sequence[Event]) -> None:
            if isinstance(events[-1], (Failed, Finished)):
                self._tickets.pop(number, None)
            self._outgoing.put(number, list(events))

        return put

    # ------------------------------------------------------------ all else

    def _answer(self, number: int, future: Future[Any], shown: Callable[[Any], Any] = lambda value: value) -> None:
        """Send the result of `future` when it is done."""

        def done(future: Future[Any]) -> None:
            self._asked.pop(number, None)
            if future.cancelled():
                return
            if (error := future.exception()) is not None:
                self._pipe.send(Result(number, error=sendable(error)))
                return
            try:
                self._pipe.send(Result(number, shown(future.result())))
            except Exception as problem:  # the value cannot be pickled
                self._pipe.send(Result(number, error=LcspecError(f"internal error: {problem!r}")))

        self._asked[number] = future
        future.add_done_callback(done)

    def _known(self, text: str) -> CompiledGrammar | None:
        with self._lock:
            if text in self._grammars:
                self._grammars.move_to_end(text)
            return self._grammars.get(text)

    def _compiled(self, text: str) -> CompiledGrammar:
        """A compiled grammar, kept for a while: the request that needs it comes soon after the check."""
        found = self._known(text)
        if found is None:
            found = self.worker.compile(text)
            with self._lock:
                self._grammars[text] = found
                while len(self._grammars) > GRAMMARS:
                    self._grammars.popitem(last=False)
        return found


def _with_grammar(request: Request, grammar: CompiledGrammar) -> Request:
    return replace(request, sampling=replace(request.sampling, grammar=grammar))


def main() -> None:
    """Run until the other end of the pipe, whose number is the first argument, is closed."""
    # The program finishes accepted requests when it is told to end, and then ends this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(int(sys.argv[1]), False)
    pipe = Pipe(Connection(int(sys.argv[1])))
    host: Host | None = None
    try:
        opening = pipe.receive()
        assert isinstance(opening, Open)
        if opening.prelude is not None:
            opening.prelude()
        if opening.verbose:
            log_to_stderr(True)
        end_on_abort(False)  # the program tells an abort by its signal
        host = Host(pipe, opening)
        while True:
            host.take(pipe.receive())
    except EOFError:
        if host is not None:
            host.worker.close(timeout=END_SECONDS)
    sys.stderr.flush()
    os._exit(0)  # do not wait for threads that are still working
