"""The engine's loop. One thread owns an Engine and every llama object in it.

admit           waiting requests get free slots
schedule        who runs, how many prompt tokens, which drafts                    -> StepPlan
build batch     prompt chunks, pending tokens and trees in one batch
decode          the only expensive line; timed
process output  verify, commit the accepted path, inform drafters and planners    -> StepResult
report          events
"""

from __future__ import annotations

import collections
import secrets
import time
from dataclasses import replace
from typing import Callable, Generator

from lcspec.config import SpeculationParams
from lcspec.engine.admission import check_request, possible
from lcspec.engine.batch_builder import build_batch
from lcspec.engine.drafting import Drafting
from lcspec.engine.events import Event, Failed, Finished, Prefill, Started, StepStats
from lcspec.engine.exact_policy import ExactPolicy
from lcspec.engine.metrics import Counters, Totals
from lcspec.engine.output import OutputProcessor
from lcspec.engine.prompt_reading import PromptReading
from lcspec.engine.request import Request
from lcspec.engine.request_queue import RequestQueue
from lcspec.engine.scheduler import Scheduler
from lcspec.engine.sequence import ActiveSequence
from lcspec.engine.solo import SoloEngine, SoloEngines
from lcspec.engine.step_plan import StepPlan, StepResult
from lcspec.errors import LcspecError
from lcspec.kv_cache.prefix_cache import PrefixCache
from lcspec.llama import Sampler
from lcspec.profiles.certification import certificate_for
from lcspec.profiles.exactness import Certificate, ScratchPad


class Engine:
    """Runs requests in one context of the target. Not thread-safe: one thread calls everything.

    `lcspec.session.make_engine` assembles one.
    """

    def __init__(
        self,
        prefix_cache: PrefixCache,
        padding: ScratchPad,
        exact: ExactPolicy,
        drafting: Drafting,
        prompts: PromptReading,
        make_solo: Callable[[], SoloEngine],
        counters: Counters | None = None,
    ) -> None:
        """Assemble parts that belong to one context.

        Args:
            prefix_cache: the sequence caches in the target's context.
            padding: the tokens that pad a batch.
            exact: what exact requests need in this context.
            drafting: the drafters and their planners.
            prompts: reads long prompts in a context of its own.
            make_solo: makes an engine with a single slot for an exact request (see lcspec.engine.solo).
            counters: those of another engine, to add to; None: new ones.
        """
        self.context = prefix_cache.context
        self.model, self.options = self.context.model, self.context.options
        self.prefix_cache, self.pool = prefix_cache, prefix_cache.pool
        self.padding = padding
        self.exact = exact
        self.drafting = drafting
        self.prompts = prompts
        self.solo = SoloEngines(make_solo)
        self.counters = counters or Counters()
        self.running: list[ActiveSequence] = []
        self.scheduler = Scheduler(prefix_cache, exact, drafting)
        self._output = OutputProcessor(prefix_cache, exact, drafting)
        self._queue = RequestQueue()

    # ---------------------------------------------------------------- the loop

    def step(self) -> list[Event]:
        """Run one step for all running requests; returns its events. An empty list means there was nothing to do."""
        context = self.context
        room = self._queue.waiting and len(self.running) < self.options.slots
        steady = self.scheduler.steady and not (room or self.solo.made or self.pool.crowded)
        events = [] if steady else self._between()
        if not self.running:
            return events
        start, state = time.perf_counter(), context.memory.seconds
        try:
            plan = self.scheduler.schedule(self.running)
            if not plan.parts:
                return events
            placed = build_batch(context.batch, plan)
            width = context.batch.n
            self.prefix_cache.pass_over(width)
            seconds = self._decode(plan)
        except LcspecError as error:
            return events + [self._fail(sequence, error) for sequence in list(self.running)]
        result = self._output.process(plan, placed, width, context.batch.n, seconds)
        beside = max(plan.drafting_seconds, time.perf_counter() - start - seconds)
        self.scheduler.budget.observe(result.padded, seconds)
        self.counters.stepped(width, seconds, result.only_decodes)
        if self.drafting.auto is not None:
            self.drafting.auto.observe_overhead(beside - (context.memory.seconds - state))
        return events + self._report(plan, result, beside - plan.drafting_seconds)

    def _between(self) -> list[Event]:
        """What is done between two steps: requests start and end, solo engines run a step, prompts are read apart."""
        events = self._admit()
        events += self.solo.step()
        if self.running:
            if self.pool.parking is not None and self.pool.crowded:
                self.pool.parking.compact(self.prefix_cache.caches)
                self.scheduler.renew()
            events += self._read_apart()
        return events

    def _decode(self, plan: StepPlan) -> float:
        """Decode the batch, padded to the plan's width; returns the seconds it took."""
        self.padding.fill(plan.width)
        ahead = [] if plan.stands else self.drafting.start_ahead(plan)
        try:
            return self.context.decode()
        finally:
            self.drafting.stop_ahead(ahead)
            self.padding.drop()

    def _report(self, plan: StepPlan, result: StepResult, overhead: float) -> list[Event]:
        """The step's events."""
        events: list[Event] = []
        seconds, drafting = result.seconds, plan.drafting_seconds
        for found in result.parts:
            sequence, stats = found.part.sequence, found.part.sequence.stats
            if found.error is not None:
                events.append(self._fail(sequence, found.error))
                continue
            events += found.events
            if found.decoded is None:
                stats.prefill_seconds += seconds
                continue
            probes = found.part.probes.rows if found.part.probes is not None else 0
            stats.target_seconds += seconds
            stats.draft_seconds += drafting
            stats.probes += probes
            step = (result.width, found.decoded, found.accepted, found.tokens, seconds, drafting, overhead)
            events.append(StepStats(sequence.id, *step, plan.plan, probes))
        return events + [self._finish(sequence) for sequence in list(self.running) if sequence.reason]

    def _read_apart(self) -> list[Event]:
        """Read a piece of a long prompt in its own context."""
        for sequence in self.running:
            if sequence.prompt.apart and sequence.prompt.follows is None and sequence.n_uncached <= 1:
                self.prompts.end(sequence)
        item = self.scheduler.next_apart(self.running)
        if item is None:
            return []
        sequence, n = item
        try:
            with self.drafting.reading_ahead(sequence):
                piece = self.prompts.read(sequence, n)
        except LcspecError as error:
            return [self._fail(sequence, error)]
        if piece.tokens:
            self.prefix_cache.keep(sequence.cache, sequence.tokens)
            sequence.stats.prefill_seconds += piece.seconds
            self.scheduler.budget.observe(piece.tokens, piece.seconds)
        return [Prefill(sequence.id, piece.read, sequence.n_prompt)]

    # ------------------------------------------------------- requests start and end

    def submit(self, request: Request) -> int:
        """Queue a request; returns its number.

        Raises:
            ContextOverflow: the prompt does not fit a slot.
            UsageError: the request names something that does not exist.
            ExactnessError: identical output cannot be guaranteed for this model.
        """
        check_request(request, self.context.n_ctx, self.model.n_vocab)
        return self._queue.add(replace(request, speculation=self.prepare(request.speculation)))

    def prepare(self, speculation: SpeculationParams) -> SpeculationParams:
        """Make what a request's speculation needs: drafters, cost curve, certificate.

        Returns the parameters as they can run: `auto` becomes plain decoding if the memory cannot be rolled back.

        Raises:
            LcspecError: a part cannot be made; the message says why.
        """
        spec = possible(self.context, speculation)
        if spec.exact and not self.exact.independent:
            if self.exact.needs_own_context:
                self.exact.certificate = self.solo.certify()
            else:
                self.certify()
        spec = self.drafting.without_hopeless(spec) if spec.auto else spec
        names = [drafter.name for drafter in spec.drafters]
        self.drafting.make(names)
        if spec.auto and names:
            self.drafting.make_planner()
            if not self.running:
                self.drafting.meet(names)
            spec = self.drafting.without_hopeless(spec)
        return spec

    def certify(self, known: Certificate | None = None) -> Certificate:
        """The context's certificate, measured if need be; `known`: that of another context of the same kind.

        Raises:
            ExactnessError: nothing can be certified for this model.
        """
        if self.exact.certificate is None:
            self.exact.certificate = known or certificate_for(self.prefix_cache, self.padding)
        return self.exact.certificate

    def held(self, request: Request) -> int:
        """How many tokens of a request's prompt are in the cache."""
        reuse = self.exact.reuse(request, self.prompts.wants(request.prompt))
        return self.prefix_cache.held(request.prompt, reuse)

    def start(self, number: int, request: Request) -> None:
        """Start a request that has passed `submit` in a free slot.

        Raises:
            LcspecError: it cannot start.
        """
        seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(32)
        apart = self.prompts.wants(request.prompt)
        sampler = Sampler(self.model.vocab, request.sampling, seed, self.context.n_ctx)
        cache = self.prefix_cache.take(request.prompt, self.exact.reuse(request, apart))
        sequence = ActiveSequence(number, request, cache, sampler, self.model.vocab, seed, self.context.n_ctx)
        sequence.prompt.apart, sequence.strict = apart, self.exact.strict(request)
        if apart and self.prefix_cache.checkpoints is not None:
            cache.pauses = self.prompts.stops(cache.length, cache.pauses, len(request.prompt) - 1)
        for token in request.prompt:
            sampler.accept(token, generated=False)
        # Prompt rows may differ from decoded rows in their last bits, unless a row depends only on its own text.
        sequence.resume(again=sequence.strict or sampler.learns)
        self.running.append(sequence)
        try:
            self.drafting.begin(sequence)
        except LcspecError:
            self._finish(sequence)
            raise
        self.drafting.keep_states(self.running)
        if request.max_tokens == 0 and not request.warm:
            sequence.reason = "length"
        else:
            self.scheduler.enter(sequence, self.running)

    def cancel(self, number: int | None) -> None:
        """Cancel a request between steps; it ends with reason `cancelled`. None: every request, running or waiting."""
        for sequence in [s for s in self.running if number in (None, s.id)]:
            sequence.cancelled = True
        for _ in range(self._queue.cancel(number)):
            self.counters.ended("cancelled")
        for solo in self.solo.made:
            solo.cancel(number)
        self.scheduler.renew()

    def switch(self, number: int, speculation: SpeculationParams) -> None:
        """Change a running request's drafters between two steps; its text stays the same.

        `exact` and the verifier stay as they were when the request started.

        Raises:
            LcspecError: as `submit` raises; the request continues as before.
        """
        solo = self.solo.of(number)
        if solo is not None:
            solo.switch(number, speculation)
        for sequence in self.running:
            if sequence.id != number:
                continue
            before = sequence.request
            self.scheduler.renew()
            wanted = replace(speculation, verifier=before.speculation.verifier, exact=before.speculation.exact)
            try:
                self.drafting.swap(sequence, replace(before, speculation=self.prepare(wanted)))
            except LcspecError:
                self.drafting.swap(sequence, before)
                raise
            finally:
                self.drafting.keep_states(self.running)

    def _admit(self) -> list[Event]:
        """Report cancelled requests, then start waiting ones in free slots."""
        events = self._queue.take_cancelled()
        events += [self._finish(sequence) for sequence in list(self.running) if sequence.cancelled]
        while self.waiting and len(self.running) + len(self.solo.running) < self.options.slots:
            number, request = self.waiting.popleft()
            try:
                apart = request.speculation.exact and self.exact.needs_own_context
                (self.solo if apart else self).start(number, request)
            except LcspecError as error:
                self.counters.ended("failed")
                events.append(Failed(number, error))
        for sequence in self.running:
            prompt = sequence.prompt
            if not prompt.started and self.scheduler.may_start(sequence, self.running):
                prompt.started, prompt.reused = True, sequence.cache.length
                events.append(Started(sequence.id, sequence.n_prompt, prompt.reused, sequence.seed))
        return events + [self._finish(sequence) for sequence in list(self.running) if sequence.reason]

    def _finish(self, sequence: ActiveSequence) -> Event:
        """End a request; its cache stays for others."""
        self.counters.ended(sequence.reason or "cancelled", sequence)
        if self.prompts.keeps_answers:
            sequence.cache.handed = sequence.cache.length
        self.prefix_cache.put(sequence.cache, sequence.tokens)
        return self._dismiss(sequence)

    def _fail(self, sequence: ActiveSequence, error: LcspecError) -> Event:
        """End a request with an error, and drop its cache, which may be damaged."""
        self.counters.ended("failed", sequence)
        sequence.cache.release()
        self.prefix_cache.lost(sequence.cache)
        self._dismiss(sequence)
        return Failed(sequence.id, error)

    def fail_all(self, error: LcspecError) -> list[Event]:
        """End all running requests after a step failed midway; waiting ones stay."""
        return [self._fail(sequence, error) for sequence in list(self.running)] + self.solo.fail_all(error)

    def _dismiss(self, sequence: ActiveSequence) -> Finished:
        self.running.remove(sequence)
        self.scheduler.renew()
        self.prompts.end(sequence)
        self.drafting.keep_states(self.running)
        self.drafting.end(sequence)
        sequence.sampler.close()
        return sequence.finished()

    # ------------------------------------------------------- the engine as a whole

    @property
    def waiting(self) -> collections.deque[tuple[int, Request]]:
        """Requests that wait for a slot, with their numbers."""
        return self._queue.waiting

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self.running or self._queue or self.solo.running)

    def totals(self) -> Totals:
        """Counters since the engine was made, and gauges of its present state."""
        running = [*self.running, *self.solo.running]
        return self.counters.totals(running, len(self.waiting), self.options.slots, self.drafting.auto)

    def read_ahead_after(self) -> float | None:
        """Seconds that nothing should have run before `read_ahead` is called; None: there is nothing to read."""
        latest = self.prefix_cache.latest
        return self.prompts.patience if latest and not self.busy and self.prompts.unread(*latest) else None

    def read_ahead(self) -> bool:
        """While nothing runs: read the latest conversation further; returns False if there is nothing to read."""
        if self.read_ahead_after() is None or (latest := self.prefix_cache.latest) is None:
            return False
        self.prefix_cache.rewind(*latest)
        self.prompts.ahead(*latest)
        self.prefix_cache.keep(*latest, now=not self.prompts.unread(*latest))
        return True

    def forget_texts(self) -> None:
        """Let drafters drop earlier texts. Only while nothing runs.

        Measurements need this: else a drafter finds the answer to a repeated prompt in the earlier run.
        """
        self.drafting.forget_texts()

    def run(self, request: Request) -> Generator[Event, None, None]:
        """Submit one request and yield its events until it ends. Closing the iterator cancels the request.

        Raises:
            LcspecError: the request ended with this error.
        """
        number = self.submit(request)
        try:
            while True:
                for event in self.step():
                    if event.request != number:
                        continue
                    if isinstance(event, Failed):
                        raise event.error
                    yield event
                    if isinstance(event, Finished):
                        return
        finally:
            for sequence in [s for s in self.running if s.id == number]:
                self._finish(sequence)
            self.cancel(number)
            self.solo.drop(number)

    def close(self) -> None:
        """End all requests and free the context (not the model)."""
        for sequence in list(self.running):
            self._finish(sequence)
        self.solo.close()
        self.drafting.close()
        self.prompts.close()
        self.context.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
