"""Who waits for a slot of an engine and who has one: requests come, start, change their drafters, and go."""

from __future__ import annotations

import collections
import itertools
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from lcspec.config import SpeculationParams
from lcspec.drafters.base import state_drafters
from lcspec.engine.admission import check_request, make_ready
from lcspec.engine.events import Event, Failed, Finished, RequestStats, Started
from lcspec.engine.sequence import ActiveSequence, Request
from lcspec.errors import LcspecError
from lcspec.llama import Sampler

if TYPE_CHECKING:
    from lcspec.engine.engine import Engine


class Roster:
    """The requests of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.waiting: collections.deque[tuple[int, Request]] = collections.deque()
        self.running: list[ActiveSequence] = []
        self._gone: list[Event] = []  # last words of requests that were cancelled before they got a slot
        self._numbers = itertools.count(1)

    @property
    def busy(self) -> bool:
        """Whether anybody waits, runs, or has yet to be told of an end."""
        return bool(self.running or self.waiting or self._gone)

    def submit(self, request: Request) -> int:
        """See Engine.submit."""
        check_request(request, self.engine.context.n_ctx, self.engine.model.n_vocab)
        request = replace(request, speculation=make_ready(self.engine, request.speculation))
        number = next(self._numbers)
        self.waiting.append((number, request))
        return number

    def cancel(self, number: int) -> None:
        """Stop a request between steps; it ends with reason `cancelled`."""
        for sequence in [*self.running, *self.engine.lanes.running]:
            if sequence.id == number:
                sequence.cancelled = True
        for item in list(self.waiting):
            if item[0] == number:
                self.waiting.remove(item)
                seed = item[1].sampling.seed or 0
                self.engine.ledger.ended("cancelled")
                self._gone.append(Finished(number, "cancelled", None, len(item[1].prompt), 0, seed, RequestStats()))

    def cancel_all(self) -> None:
        """Cancel every request, running or waiting."""
        for sequence in [*self.running, *self.engine.lanes.running]:
            sequence.cancelled = True
        for number, _ in list(self.waiting):
            self.cancel(number)

    def switch(self, number: int, speculation: SpeculationParams) -> None:
        """See Engine.switch."""
        lane = self.engine.lanes.of(number)
        if lane is not None:
            lane.auto = self.engine.auto
            lane.switch(number, speculation)
        for sequence in self.running:
            if sequence.id != number:
                continue
            before = sequence.request
            wanted = replace(speculation, verifier=before.speculation.verifier, exact=before.speculation.exact)
            try:
                self._swap_drafters(sequence, replace(before, speculation=make_ready(self.engine, wanted)))
            except LcspecError:
                self._swap_drafters(sequence, before)
                raise

    def admit(self) -> list[Event]:
        """Drop cancelled requests, then give free slots to waiting ones."""
        events, self._gone = self._gone, []
        for sequence in list(self.running):
            if sequence.cancelled:
                sequence.reason = "cancelled"
                events.append(self.finish(sequence))
        while self.waiting and len(self.running) + len(self.engine.lanes.running) < self.engine.options.slots:
            number, request = self.waiting.popleft()
            try:
                if request.speculation.exact and self.engine.exact_apart:
                    self.engine.lanes.start(number, request)
                else:
                    self.start(number, request)
            except LcspecError as error:
                self.engine.ledger.ended("failed")
                events.append(Failed(number, error))
        for sequence in self.running:
            if not sequence.started and self.engine.scheduler.may_start(sequence):
                sequence.started, sequence.reused = True, sequence.cache.length
                events.append(Started(sequence.id, sequence.n_prompt, sequence.reused, sequence.seed))
        return events + [self.finish(sequence) for sequence in list(self.running) if sequence.reason]

    def start(self, number: int, request: Request) -> None:
        """Give an admitted request a free slot.

        Raises:
            LcspecError: it cannot start.
        """
        seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(32)
        sampler = Sampler(self.engine.model.vocab, request.sampling, seed, self.engine.context.n_ctx)
        cache = self.engine.shelf.take(request.prompt, self.engine.reuse(request))
        sequence = ActiveSequence(
            number, request, cache, sampler, self.engine.model.vocab, seed, self.engine.context.n_ctx
        )
        sequence.apart = self.engine.apart.wants(request.prompt)
        for token in request.prompt:
            sampler.accept(token, generated=False)
        sequence.draws = 0 if request.sampling.greedy else sequence.verifier.draws
        self.running.append(sequence)
        try:
            self._begin_drafters(sequence)
        except LcspecError:
            self.finish(sequence)
            raise
        if request.max_tokens == 0:
            sequence.reason = "length"
        else:
            self.engine.scheduler.enter(sequence)

    def _swap_drafters(self, sequence: ActiveSequence, request: Request) -> None:
        for drafter in sequence.drafters:
            drafter.end(sequence)
        sequence.request, sequence.drafters = request, []
        self._begin_drafters(sequence)

    def _begin_drafters(self, sequence: ActiveSequence) -> None:
        sequence.bits = {name: 1 << i for i, name in enumerate(self.engine.drafters)}
        sequence.hidden, sequence.untold = None, 0  # what an earlier set of drafters left is out of date
        for spec in sequence.request.speculation.drafters:
            self.engine.drafters[spec.name].begin(sequence, spec)
            sequence.drafters.append(self.engine.drafters[spec.name])
        sequence.wants_hidden = any(drafter.wants_hidden for drafter in sequence.drafters)
        self._follow_hidden()

    def _follow_hidden(self) -> None:
        """Hidden states are kept while a running request needs them."""
        self.engine.context.want_hidden(any(sequence.wants_hidden for sequence in self.running))
        readers = state_drafters(drafter for sequence in self.running for drafter in sequence.drafters)
        self.engine.context.want_states(layer for drafter in readers for layer in drafter.wants_states)

    def finish(self, sequence: ActiveSequence) -> Event:
        """End a request, whose cache others may go on from."""
        self.engine.ledger.ended(sequence.reason or "cancelled", sequence)
        self.engine.shelf.put(sequence.cache, sequence.tokens)
        return self._dismiss(sequence)

    def fail(self, sequence: ActiveSequence, error: LcspecError) -> Event:
        """End a request by an error; nothing of its cache is trusted any more."""
        self.engine.ledger.ended("failed", sequence)
        sequence.cache.release()
        self.engine.shelf.lost(sequence.cache)
        self._dismiss(sequence)
        return Failed(sequence.id, error)

    def fail_all(self, error: LcspecError) -> list[Event]:
        """End everything that runs after a step broke off somewhere; what waits is not touched."""
        return [self.fail(sequence, error) for sequence in list(self.running)] + self.engine.lanes.fail_all(error)

    def _dismiss(self, sequence: ActiveSequence) -> Event:
        self.running.remove(sequence)
        self.engine.apart.end(sequence)
        self._follow_hidden()
        for drafter in sequence.drafters:
            drafter.end(sequence)
        if self.engine.auto is not None:
            self.engine.auto.forget(sequence)
        sequence.sampler.close()
        return sequence.finished()
