"""The engine on its own thread: order, cancellation, switching, sinks that fail, closing with and without draining."""

from __future__ import annotations

import contextlib
import queue
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Iterator, Sequence

import pytest

from lcspec.config import DrafterSpec, ModelOptions, SpeculationParams
from lcspec.engine.engine import Engine
from lcspec.engine.events import Event, Failed, Finished, Started, Tokens
from lcspec.engine.request import Request
from lcspec.engine_thread import EngineThread
from lcspec.errors import ContextOverflow, LcspecError, ModelClosed, ModelFileError
from lcspec.session import Session, open_session
from tests.running import GREEDY, Brake, answer

pytestmark = pytest.mark.model

WAIT = 300.0
PROMPT = (5, 6, 7, 8)


class Sink:
    """Collects events; `last` waits for the final one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.done: Future[Event] = Future()
        self.first: Future[Event] = Future()

    def __call__(self, events: Sequence[Event]) -> None:
        self.events += events
        if not self.first.done() and any(isinstance(e, Tokens) for e in events):
            self.first.set_result(events[0])
        if isinstance(events[-1], (Finished, Failed)):
            self.done.set_result(events[-1])

    def last(self) -> Event:
        return self.done.result(WAIT)


def request(n: int = 8) -> Request:
    return Request(PROMPT, GREEDY, max_tokens=n, ignore_end=True)


def tokens(sink: Sink) -> list[int]:
    return [t.id for e in sink.events if isinstance(e, Tokens) for t in e.tokens]


@pytest.fixture()
def worker(llama: Path) -> Iterator[EngineThread]:
    thread = EngineThread(ModelOptions(llama, ctx=256, threads=1, slots=2))
    thread.ready.result(WAIT)
    yield thread
    assert thread.close(timeout=WAIT)


@pytest.fixture()
def brake(worker: EngineThread) -> Brake:
    """Holds the engine, which would be through with an answer while the test waits for a turn of the processor."""
    held = Brake()
    worker.call(held.install).result(WAIT)
    return held


def test_events_arrive_in_order_and_end(worker: EngineThread) -> None:
    sinks = [Sink() for _ in range(5)]  # more than slots
    for sink in sinks:
        worker.submit(request(), sink).result(WAIT)
    for sink in sinks:
        assert isinstance(sink.last(), Finished)
        assert isinstance(sink.events[0], Started)
        assert len(tokens(sink)) == 8
    assert len({tuple(tokens(s)) for s in sinks}) == 1


def test_a_refused_request_fails_its_future_only(worker: EngineThread) -> None:
    with pytest.raises(ContextOverflow):
        worker.submit(Request((5,) * 300, GREEDY), Sink()).result(WAIT)
    sink = Sink()
    worker.submit(request(), sink).result(WAIT)
    assert isinstance(sink.last(), Finished)


def test_cancelling_a_running_and_a_waiting_request(worker: EngineThread, brake: Brake) -> None:
    running, other, waiting = Sink(), Sink(), Sink()
    tickets = [worker.submit(request(200), s).result(WAIT) for s in (running, other, waiting)]
    brake.allow(4)
    running.first.result(WAIT)
    for i, sink in ((2, waiting), (0, running)):
        tickets[i].cancel()
        worker.call(lambda session: None).result(WAIT)  # so the cancellation has arrived
        brake.allow(2)
        assert sink.last().reason == "cancelled"  # type: ignore[union-attr]
    assert tokens(waiting) == []
    brake.release()
    assert other.last().reason == "length"  # type: ignore[union-attr]


def test_switching_drafters_leaves_the_text_alone(worker: EngineThread) -> None:
    plain, switched, brake = Sink(), Sink(), Brake()
    worker.submit(request(120), plain).result(WAIT)
    plain.last()
    worker.call(brake.install).result(WAIT)
    ticket = worker.submit(request(120), switched).result(WAIT)
    brake.allow(4)
    switched.first.result(WAIT)
    ticket.switch(SpeculationParams((DrafterSpec("ngram"),))).result(WAIT)
    brake.release()
    assert isinstance(switched.last(), Finished)
    assert tokens(switched) == tokens(plain)
    with pytest.raises(LcspecError):
        again = worker.submit(request(200), Sink()).result(WAIT)
        again.switch(SpeculationParams((DrafterSpec("nobody"),))).result(WAIT)


def test_a_step_waits_for_the_next_request_of_whom_has_just_had_an_answer(
    worker: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lcspec.engine_thread.LINGER", 1e5)  # so that it never comes too late
    obey, waits = worker._obey, threading.Event()

    def watched(engine: Engine, linger: float) -> None:
        if linger:
            waits.set()
        obey(engine, linger)

    monkeypatch.setattr(worker, "_obey", watched)
    long, short, after = Sink(), Sink(), Sink()
    when: list[int] = []

    def put(events: Sequence[Event]) -> None:
        if isinstance(events[-1], Finished):
            when.append(len(tokens(long)))
        short(events)

    def put_after(events: Sequence[Event]) -> None:
        if not after.events:
            when.append(len(tokens(long)))
        after(events)

    ticket = worker.submit(request(200), long).result(WAIT)
    worker.submit(request(4), put).result(WAIT)
    short.last()
    assert waits.wait(WAIT)
    worker.submit(request(4), put_after).result(WAIT)
    monkeypatch.setattr("lcspec.engine_thread.LINGER", 0.0)  # what is cancelled may end before the third does
    ticket.cancel()  # where the third has ended, that was waited for as well: until an order comes
    assert isinstance(after.last(), Finished)
    long.last()
    assert when[1] - when[0] <= 2  # of the step in which the answer ended, and of the one after


def test_a_failing_sink_loses_its_own_request_only(worker: EngineThread) -> None:
    def broken(events: Sequence[Event]) -> None:
        raise RuntimeError("gone")

    worker.submit(request(200), broken).result(WAIT)
    sink = Sink()
    worker.submit(request(), sink).result(WAIT)
    assert isinstance(sink.last(), Finished)
    assert worker.call(lambda session: [*session.engine.running, *session.engine.waiting]).result(WAIT) == []


def test_calls_run_over_there_and_hand_back_errors(worker: EngineThread) -> None:
    assert worker.call(lambda session: session.engine.context.n_ctx).result(WAIT) == 256
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda session: 1 // 0).result(WAIT)


def test_nobody_who_comes_back_at_once_waits_for_what_is_read_ahead(
    worker: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ended conversation is read further when nothing has run for as long as the engine says."""
    patience, read = [WAIT], threading.Event()
    monkeypatch.setattr(Engine, "read_ahead_after", lambda self: None if self.busy or read.is_set() else patience[0])
    monkeypatch.setattr(Engine, "read_ahead", lambda self: read.set())
    for _ in range(3):
        sink = Sink()
        worker.submit(request(), sink).result(WAIT)
        sink.last()
    assert not read.is_set()
    patience[0] = 0.01
    worker.submit(request(), Sink()).result(WAIT)
    assert read.wait(WAIT)


def test_draining_finishes_what_runs_and_refuses_the_rest(llama: Path) -> None:
    worker = EngineThread(ModelOptions(llama, ctx=256, threads=1))
    sink: Sink = Sink()
    worker.submit(request(100), sink).result(WAIT)
    worker.close(drain=True, timeout=0)
    late = worker.submit(request(), Sink())
    assert worker.close(drain=True, timeout=WAIT)
    assert len(tokens(sink)) == 100
    with pytest.raises(LcspecError):
        late.result(WAIT)
    with pytest.raises(LcspecError):
        worker.submit(request(), Sink()).result(WAIT)


def test_closing_at_once_cancels(llama: Path) -> None:
    worker = EngineThread(ModelOptions(llama, ctx=256, threads=1))
    brake = Brake()
    worker.call(brake.install).result(WAIT)
    sinks = [Sink(), Sink()]
    for sink in sinks:
        worker.submit(request(240), sink).result(WAIT)
    worker.close(timeout=0)
    brake.release()
    assert worker.close(timeout=WAIT)
    assert {s.last().reason for s in sinks} == {"cancelled"}  # type: ignore[union-attr]


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    worker = EngineThread(ModelOptions(tmp_path / "nothing.gguf"))
    with pytest.raises(ModelFileError):
        worker.ready.result(WAIT)
    with pytest.raises(LcspecError):
        worker.submit(request(), Sink()).result(WAIT)
    assert worker.close(timeout=WAIT)


def test_a_queue_as_a_sink_never_blocks_the_engine(worker: EngineThread) -> None:
    slow: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()  # nobody reads it
    worker.submit(request(100), slow.put).result(WAIT)
    sink = Sink()
    worker.submit(request(), sink).result(WAIT)
    assert isinstance(sink.last(), Finished)


def test_a_bug_in_a_step_costs_only_those_who_run(worker: EngineThread, brake: Brake) -> None:
    whole = worker.call(lambda session: session.engine.pool.free).result(WAIT)

    def break_once(session: Session) -> None:
        plan = session.engine.scheduler.schedule

        def broken(*_: Any) -> Any:
            session.engine.scheduler.schedule = plan  # type: ignore[method-assign]
            raise RuntimeError("a bug")

        session.engine.scheduler.schedule = broken  # type: ignore[method-assign]

    running, waiting = [Sink(), Sink()], Sink()
    for sink in running:
        worker.submit(request(200), sink).result(WAIT)
        brake.allow(4)
        sink.first.result(WAIT)
    worker.submit(request(), waiting).result(WAIT)
    worker.call(break_once).result(WAIT)
    brake.release()
    for sink in running:
        last = sink.last()
        assert isinstance(last, Failed) and "a bug" in str(last.error)
    assert isinstance(waiting.last(), Finished)
    assert tokens(waiting)[: len(tokens(running[0]))] == tokens(running[0])[:8]
    assert worker.call(lambda session: session.engine.pool.free).result(WAIT) >= whole - 2  # one idle cache a slot


def test_a_session_that_took_over_another_goes_on_without_the_old_model(llama: Path) -> None:
    """As after a worker's return. Its vocabulary asked the old model, and every request failed."""
    options = ModelOptions(llama, ctx=256, threads=1)
    with contextlib.ExitStack() as old, contextlib.ExitStack() as new:
        session = old.enter_context(open_session(options, history=False))
        vocab, plain = session.model.vocab, answer(session.engine, request())
        session.take_over(new.enter_context(open_session(options, history=False)))
        old.close()
        assert vocab is session.model.vocab and vocab.tokenize("some text") and vocab.piece(PROMPT[0], special=True)
        assert answer(session.engine, request()).ids == plain.ids
        new.close()
        with pytest.raises(ModelClosed):
            vocab.tokenize("some text")
