"""The program's open tasks for its engine's process, with all that is needed to give them to another process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from lcspec.config import SpeculationParams
from lcspec.engine.events import Event, Failed, Finished, RequestStats, Started, Tokens
from lcspec.engine.request import Request
from lcspec.engine_host import Sink
from lcspec.engine_process.protocol import Message, Submit
from lcspec.errors import EngineDied, LcspecError

# What was running in this many processes that died is tried alone from then on, and not again if one dies of that.
DEATHS = 2


class Task:
    """A message that waits for its answer; `deaths`: how many processes died while they worked on it."""

    def __init__(self, number: int, message: Message) -> None:
        self.number = number
        self._message = message
        self.result: Future[Any] = Future()
        self.deaths = 0
        self.sent = False  # to the present process
        self.queued = False  # the process has confirmed it

    def message(self) -> Message:
        """The message to send to a new process."""
        return self._message

    def fail(self, error: LcspecError) -> None:
        """Fail the task."""
        settle(self.result, error=error)


class Answer(Task):
    """A request and its events."""

    def __init__(self, number: int, request: Request, sink: Sink, details: bool = False) -> None:
        self.request = request
        self._details = details
        self._sink = sink
        self.accepted = False  # it has a ticket, so its end is reported by an event
        self.cancelled = False
        self._seed: int | None = None
        self._emitted: list[int] = []
        super().__init__(number, Submit(number, request, details))

    def message(self) -> Message:
        """The request, to continue after the tokens it already has."""
        if self._seed is None:
            return Submit(self.number, self.request, self._details)
        sampling = replace(self.request.sampling, seed=self._seed)
        request = replace(self.request, sampling=sampling, emitted=tuple(self._emitted))
        return Submit(self.number, request, self._details)

    def switched(self, speculation: SpeculationParams, result: Future[None]) -> None:
        """Another process will go on with these drafters, unless they were refused."""
        if not result.cancelled() and result.exception() is None:
            before = self.request.speculation
            wanted = replace(speculation, verifier=before.verifier, exact=before.exact)
            self.request = replace(self.request, speculation=wanted)

    def take(self, events: Sequence[Event]) -> bool:
        """Pass on a step's events; returns True if the last one was among them."""
        told: list[Event] = []
        for event in events:
            if isinstance(event, Started):
                if self._seed is not None:  # an earlier process has already reported it
                    continue
                self._seed = event.seed
            elif isinstance(event, Tokens):
                self._emitted += [info.id for info in event.tokens]
            told.append(event)
        if told:
            self._sink(told)
        return bool(told) and isinstance(told[-1], (Finished, Failed))

    def fail(self, error: LcspecError) -> None:
        """Fail the request."""
        if self.accepted:
            self._sink([Failed(self.number, error)])
        else:
            settle(self.result, error=error)

    def end_cancelled(self) -> None:
        """End a cancelled request while there is no process that could."""
        counts = len(self.request.prompt), len(self._emitted)
        self._sink([Finished(self.number, "cancelled", None, *counts, self._seed or 0, RequestStats())])


def settle(result: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    """Set a future's result, unless it was cancelled."""
    if result.done() or not result.set_running_or_notify_cancel():
        return
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)


class Tasks:
    """The open tasks, the oldest first. May be used from any thread."""

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}
        self._changed = threading.Condition()

    def add(self, task: Task) -> None:
        """Add a task."""
        with self._changed:
            self._tasks[task.number] = task

    def get(self, number: int) -> Task | None:
        """The task with that number; None if it is not open."""
        return self._tasks.get(number)

    def drop(self, number: int) -> bool:
        """Remove a task; returns False if it was removed before: the caller that removes a task ends it."""
        with self._changed:
            found = self._tasks.pop(number, None)
            self._changed.notify_all()
        return found is not None

    def all(self) -> list[Task]:
        """All open tasks."""
        with self._changed:
            return list(self._tasks.values())

    def wait_until_none(self, timeout: float | None) -> None:
        """Wait until no task is open, or for `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks, timeout)

    def fail(self, tasks: Iterable[Task], error: LcspecError) -> None:
        """Fail these tasks."""
        for task in tasks:
            if self.drop(task.number):
                task.fail(error)

    def due(self) -> list[Task]:
        """What the present process should get now.

        While there are suspects, answers that were running in DEATHS processes that died, the oldest one runs alone,
        so that a further death tells which of them it was.
        """
        tasks = self.all()
        suspect = next((task for task in tasks if task.deaths >= DEATHS), None)
        new = [task for task in tasks if not task.sent]
        if suspect is None:
            return new
        return [task for task in new if task is suspect or not (isinstance(task, Answer) or task.deaths)]

    def died(self, slots: int, why: str) -> tuple[int, int]:
        """A process died: refuse the task that it died of, if it is known by now, and end cancelled ones.

        Args:
            slots: how many requests may have been running; the engine takes them in the order they came in.
            why: how it ended.

        Returns:
            How many were refused, and how many requests will continue in another process.
        """
        resumed = refused = 0
        at_work = self._at_work(slots)
        for task in at_work:
            task.deaths += 1
            if task.deaths < DEATHS or len(at_work) > 1:
                resumed += isinstance(task, Answer)
                continue
            refused += 1
            what = "request" if isinstance(task, Answer) else "work"
            times = "twice" if task.deaths == 2 else f"{task.deaths} times"
            died = f"the engine's process died {times} while it was at this {what} (it {why}), so it is not tried again"
            self.fail([task], EngineDied(died))
        for task in self.all():
            task.sent = task.queued = False
            if isinstance(task, Answer) and task.cancelled and self.drop(task.number):
                task.end_cancelled()
        return refused, resumed

    def _at_work(self, slots: int) -> list[Task]:
        """What the process may have worked on: the requests in slots, and the one that it was about to queue."""
        sent = [task for task in self.all() if task.sent]
        answers = [task for task in sent if isinstance(task, Answer)]
        new = [task for task in answers if not task.queued][:1]
        running = {task.number for task in (*answers[:slots], *new)}
        return [task for task in sent if task.number in running or not isinstance(task, Answer)]
