"""THE loop. One thread owns an Engine and every llama object in it.

admit waiting requests into free slots
for each running slot: plan -> ask drafters -> token tree
build ONE batch: prompt chunks of new slots + pending token and tree of every running slot
decode it on the target
for each slot: verify -> commit the accepted path -> drafters observe -> emit events
"""

from __future__ import annotations

import collections
import time
from typing import Iterator

import numpy as np
from numpy.typing import NDArray

from lcspec.config import ModelOptions, SpeculationParams
from lcspec.drafters import Drafter, DrafterEnv, ReadingDrafter, create
from lcspec.drafters.base import tell_states
from lcspec.drafters.memory import keep_texts
from lcspec.engine.events import Event, Failed, Finished, Prefill, StepStats
from lcspec.engine.lanes import Lanes
from lcspec.engine.metrics import Ledger, Totals
from lcspec.engine.prompt_reading import ReadingApart
from lcspec.engine.roster import Roster
from lcspec.engine.scheduler import Scheduler, Staged
from lcspec.engine.sequence import ActiveSequence, Request
from lcspec.errors import GrammarFailed, LcspecError
from lcspec.kv_cache.checkpoints import Checkpoints
from lcspec.kv_cache.parking import Parking
from lcspec.kv_cache.prefix_cache import PrefixCache, Reuse
from lcspec.kv_cache.sequence_cache import SequencePool
from lcspec.llama import Branching, Context, Model
from lcspec.modelfiles.memory import checkpoint_budget
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.base import Plan
from lcspec.planner.fixed import FixedPlanner
from lcspec.planner.learned import keep
from lcspec.profiles.exactness import Certificate, ScratchPad, in_order
from lcspec.profiles.kernels import choose_kernels


def checkpoints_for(context: Context) -> Checkpoints | None:
    """Where the states of texts are kept that cannot be rolled back to; None where every length can be."""
    # A window loses cells to other requests; alone, there are free ones.
    loses = not context.model.traits.attention_only or (context.window and context.options.slots > 1)
    return Checkpoints(checkpoint_budget()) if loses and context.memory is not None else None


class Engine:
    """Runs requests on one target model. Not thread-safe: one thread calls everything."""

    def __init__(self, model: Model, options: ModelOptions | None = None, env: DrafterEnv | None = None) -> None:
        """Create the target's context.

        Raises:
            ModelLoadError: there is no memory for the context.
        """
        self.model = model
        self.options, certificate = choose_kernels(model, options or model.options)
        self.context = Context(model, self.options)
        self.pool = SequencePool(self.context.n_seq)
        self.pad = ScratchPad(self.context, self.pool.take())
        self.shelf = PrefixCache(
            self.context,
            self.pool,
            self.options.slots,
            share=self.context.branching is Branching.TREE,
            checkpoints=checkpoints_for(self.context),
        )
        self.env = env or DrafterEnv(model, self.options.slots, self.context.n_ctx, context=self.context)
        self.fixed = FixedPlanner()
        # Where a row depends on the rest of a batch, it is made when --exact is first asked for.
        self.certificate: Certificate | None = certificate
        self.independent = certificate is not None  # every request is exact, whoever runs beside it
        if self.independent:
            self.pool.parking = Parking(self.context, self.pool.take())
        slow = self.independent and self.options.kv_type_v == "bf16"  # these types read long prompts slowly
        self.apart = ReadingApart(model, self.options, self.context.n_ctx, self.pool, on=slow)
        self.auto: AutoPlanner | None = None  # made when first needed: it wants a measured cost curve
        self.drafters: dict[str, Drafter] = {}
        self.forgetful = False  # forget_texts was called: what drafters know now is not worth keeping
        self.roster = Roster(self)
        self.scheduler = Scheduler(self)
        self.ledger = Ledger()
        self.lanes = Lanes(self)

    # ---------------------------------------------------------------- the loop

    def step(self) -> list[Event]:
        """One step for everything that runs; returns what happened. An empty list means there is nothing to do."""
        events = self.roster.admit()
        events += self.lanes.step()
        if not self.running:
            return events
        parking = self.pool.parking
        if parking is not None and parking.full:
            parking.compact(self.shelf.caches)
        events += self._read_apart()
        start, batch, state = time.perf_counter(), self.context.batch, self.context.state_seconds
        batch.clear()
        try:
            work, plan = self.scheduler.plan()
            if not work:
                return events
            for item in work:
                self._stage(item)
            n = batch.n
            self.pad.fill(plan.width)
            try:
                target = self.context.decode()
            finally:
                self.pad.drop()
        except LcspecError as error:
            return events + [self.roster.fail(sequence, error) for sequence in list(self.running)]
        rows = self.context.logits()
        for item in list(work):
            try:
                events += self._settle(item, rows)
            except GrammarFailed as error:  # this text cannot go on; the others can
                work.remove(item)
                events.append(self.roster.fail(item.sequence, error))
        self._learn(work, n, target)
        drafting = sum(w.proposal.seconds for w in work if w.proposal)
        rest = max(0.0, time.perf_counter() - start - target - drafting)
        if self.auto is not None:
            self.auto.aside(drafting + rest - (self.context.state_seconds - state))  # which the plan counts
        for item in work:
            events += self._account(item, n, plan, target, drafting, rest)
        return events + [self.roster.finish(sequence) for sequence in list(self.running) if sequence.reason]

    def _read_apart(self) -> list[Event]:
        """Read a piece of a long prompt in a context of its own."""
        item = self.scheduler.apart()
        if item is None:
            return []
        sequence, n = item
        try:
            piece = self.apart.read(sequence, n)
        except LcspecError as error:
            return [self.roster.fail(sequence, error)]
        if piece.tokens:
            sequence.stats.prefill_seconds += piece.seconds
            self.scheduler.pace.observe(piece.tokens, piece.seconds)
        return [Prefill(sequence.id, piece.read, sequence.n_prompt)]

    def read_ahead(self) -> bool:
        """While nothing runs: go on reading the latest conversation; False if there is nothing to do."""
        latest = self.shelf.latest
        return latest is not None and not self.busy and self.apart.ahead(*latest)

    def _stage(self, item: Staged) -> None:
        """Put a slot's tokens into the batch."""
        sequence, batch, cache = item.sequence, self.context.batch, item.sequence.cache
        item.first_row, item.start = batch.n, cache.length
        if item.proposal is None or item.proposal.kept is None:
            batch.add_run(sequence.tokens[cache.length : item.length], cache.length, cache.main)
            return
        tree, base = item.proposal.evaluated, len(sequence.tokens) - 1
        item.order = tree.batch_order()
        sets = cache.place(tree, item.order, base)
        for i, token in enumerate(sequence.fresh[:-1]):
            # With exact every token has an output row (see ScratchPad.fill).
            batch.add(token, cache.length + i, sets[0], logits=self.strict(sequence.request))
        if len(tree) == 1:
            item.row_of = [batch.add(tree.tokens[0], base, sets[0], logits=True)]
            return
        mute = item.proposal.mute
        if mute and any(self.strict(s.request) or s.wants_hidden for s in self.running):
            mute = set()  # both need a row of every token
        tokens = [tree.tokens[node] for node in item.order]
        positions = [base + tree.depths[node] for node in item.order]
        rows = batch.add_nodes(tokens, positions, sets, item.order, [node not in mute for node in item.order])
        item.row_of = [0] * len(tree)
        for node, row in zip(item.order, rows):
            item.row_of[node] = row

    def _settle(self, item: Staged, rows: NDArray[np.float32]) -> list[Event]:
        """Verify a slot's tree, commit the accepted path and tell everyone."""
        sequence = item.sequence
        if item.proposal is None or item.proposal.kept is None:
            sequence.cache.length = item.length
            tell_states(sequence, sequence.drafters, sequence.cache, item.start, item.rows())
            self.shelf.keep(sequence.cache, sequence.tokens)
            self._mark_canonical(sequence)
            return [Prefill(sequence.id, sequence.cache.length, sequence.n_prompt)]
        tree, first, before = item.proposal.kept, sequence.prefilling, sequence.generated
        sequence.show_rows(rows, item.row_of)
        for window, nodes in item.proposal.asked():
            window.drafter.harvest(sequence, sequence.argmax(nodes))
        verdict = sequence.verifier.verify(tree, sequence, len(sequence.tokens), sequence.seed)
        in_text_order = in_order(item.order, verdict.path)
        keep = in_text_order if self.strict(sequence.request) else None
        sequence.cache.commit(verdict.path, keep, ordered=in_text_order == len(verdict.path))
        self._mark_canonical(sequence)
        events: list[Event] = [Prefill(sequence.id, sequence.n_prompt, sequence.n_prompt)] if first else []
        events += sequence.emit(tree, verdict)
        if sequence.cache.length < len(sequence.tokens):
            self.shelf.keep(sequence.cache, sequence.tokens)
        sequence.emitted = verdict.tokens
        if first:
            sequence.decode_start = time.perf_counter()
        else:
            sequence.step_accepted = sequence.count(tree, verdict, sequence.generated - before)
        if sequence.wants_hidden:
            hidden, last = self.context.hidden(), item.row_of[verdict.path[-1] if verdict.path else 0]
            sequence.hidden = hidden[last].copy() if len(hidden) else None
        tell_states(sequence, sequence.drafters, sequence.cache, item.start, item.rows(verdict.path))
        if item.resting:
            sequence.untold += sequence.generated - before
        elif not sequence.reason:
            for drafter in sequence.drafters:
                drafter.observe(sequence, tree, verdict)
        return events

    def _mark_canonical(self, sequence: ActiveSequence) -> None:
        """Note which cells a later exact request may reuse: prompt blocks, and answers if they give the same bits."""
        exact = self.certificate if self.strict(sequence.request) else None
        if exact is not None and (sequence.prefilling or exact.prompt_in_class):
            sequence.cache.canonical = sequence.cache.length

    def _learn(self, work: list[Staged], width: int, target: float) -> None:
        """Tell the planners what came of the step."""
        decoding = [w for w in work if w.proposal and w.sequence.stats.target_steps]
        for w in decoding:
            assert w.proposal is not None
            if w.resting:
                continue
            self.scheduler.planner_of(w.sequence).observe(w.proposal, w.sequence.emitted)
        self.scheduler.pace.observe(self.context.batch.n, target)
        self.ledger.stepped(width, target, len(decoding) == len(work))
        if work and len(decoding) == len(work) and self.auto is not None:
            context = sum(len(w.sequence.tokens) for w in work) // len(work)
            self.auto.timed(self.context.batch.n, context, target)

    def _account(self, item: Staged, n: int, plan: Plan, target: float, drafting: float, rest: float) -> list[Event]:
        sequence = item.sequence
        if item.proposal is None or item.proposal.kept is None or not sequence.stats.target_steps:
            sequence.stats.prefill_seconds += target
            return []
        sequence.stats.target_seconds += target
        sequence.stats.draft_seconds += drafting
        sequence.stats.probes += item.proposal.n_probes
        return [
            StepStats(
                sequence.id,
                n,
                item.proposal.kept,
                sequence.step_accepted,
                tuple(sequence.emitted),
                target,
                drafting,
                rest,
                plan,
                item.proposal.n_probes,
            )
        ]

    # ------------------------------------------------------- requests come and go

    @property
    def exact_apart(self) -> bool:
        """Whether exact requests need contexts of their own (see Lanes)."""
        return not self.independent and (self.options.slots > 1 or self.options.attention == "products")

    @property
    def all_exact(self) -> bool:
        """Whether every request is exact, as far as its verifier lets it."""
        return self.independent or bool(self.options.exact)

    def strict(self, request: Request) -> bool:
        """Whether a request must keep to widths, blocks and cells of its own to be exact (see ScratchPad)."""
        return request.speculation.exact and not self.independent

    def reuse(self, request: Request) -> Reuse:
        """Which cells of earlier requests a request may go on from."""
        if self.independent:
            return Reuse.READ_APART if self.apart.wants(request.prompt) else Reuse.IN_PLACE
        return Reuse.BLOCKS if request.speculation.exact else Reuse.ANY

    @property
    def running(self) -> list[ActiveSequence]:
        """Requests that have a slot."""
        return self.roster.running

    @property
    def waiting(self) -> collections.deque[tuple[int, Request]]:
        """Requests that have none yet, by number."""
        return self.roster.waiting

    def submit(self, request: Request) -> int:
        """Queue a request; returns its number.

        Raises:
            ContextOverflow: the prompt does not fit a slot.
            UsageError: the request asks for something that does not exist here.
            ExactnessError: identical output cannot be promised for this model.
        """
        return self.roster.submit(request)

    def start(self, number: int, request: Request) -> None:
        """Give a request that has passed `submit` elsewhere a free slot (see Lanes).

        Raises:
            LcspecError: it cannot start.
        """
        self.roster.start(number, request)

    def cancel(self, number: int) -> None:
        """Stop a request between steps; it ends with reason `cancelled`."""
        self.roster.cancel(number)

    def cancel_all(self) -> None:
        """Cancel every request, running or waiting."""
        self.roster.cancel_all()

    def switch(self, number: int, speculation: SpeculationParams) -> None:
        """Give a running request other drafters between two steps; its text stays what it would have been.

        `exact` and the verifier stay as they were when the request started.

        Raises:
            LcspecError: as `submit` does; the request goes on as before.
        """
        self.roster.switch(number, speculation)

    def fail_all(self, error: LcspecError) -> list[Event]:
        """End everything that runs after a step broke off somewhere; what waits is not touched."""
        return self.roster.fail_all(error)

    def totals(self) -> Totals:
        """What happened since the engine was made, as figures that only grow, and how it stands now."""
        return self.ledger.totals(self)

    @property
    def busy(self) -> bool:
        """Whether a step would have anything to do."""
        return self.roster.busy or bool(self.lanes.running)

    def forget_texts(self) -> None:
        """Make the drafters that run no model anew, in their places: they know nothing of earlier texts any more; the
        others have to read theirs again.

        For measurements, which would otherwise find the answer to a repeated prompt in an earlier one. Only while
        nothing runs. They keep nothing for later sessions from then on.
        """
        self.forgetful = True
        for name, drafter in self.drafters.items():
            if not drafter.costly:
                drafter.close()
                self.drafters[name] = create(name, self.env)
            elif isinstance(drafter, ReadingDrafter):
                drafter.forget()

    def run(self, request: Request) -> Iterator[Event]:
        """Submit one request and yield its events to the end. Closing the iterator cancels the request.

        Raises:
            LcspecError: whatever ended the request.
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
            for sequence in list(self.running):
                if sequence.id == number:
                    self.roster.finish(sequence)
            self.cancel(number)
            self.lanes.drop(number)

    def close(self) -> None:
        """End everything and free the context (not the model)."""
        for sequence in list(self.running):
            self.roster.finish(sequence)
        self.lanes.close()
        if not self.forgetful:
            keep_texts(self.drafters.values(), self.env)
        keep(self.auto, self.context, self.env, list(self.drafters))
        for drafter in self.drafters.values():
            drafter.close()
        self.drafters = {}
        self.apart.close()
        self.context.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
