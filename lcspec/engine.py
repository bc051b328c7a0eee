"""THE loop. One thread owns an Engine and every llama object in it.

    admit waiting requests into free slots
    for each running slot: plan -> ask drafters -> token tree
    build ONE batch: prompt chunks of new slots + pending token and tree of every running slot
    decode it on the target
    for each slot: verify -> commit the accepted path -> drafters observe -> emit events
"""

from __future__ import annotations

import collections
import itertools
import secrets
import time
from dataclasses import dataclass
from typing import Iterator

import numpy as np

from lcspec.config import ModelOptions
from lcspec.drafters import Drafter, DrafterEnv, create
from lcspec.errors import ContextOverflow, LcspecError, UnsupportedModel, UsageError
from lcspec.events import Event, Failed, Finished, Prefill, Started, StepStats
from lcspec.exact import ScratchPad, check_exact
from lcspec.llama import Branching, CacheShelf, Context, Model, Sampler, SequencePool
from lcspec.planner import FixedPlanner, Planner
from lcspec.slot import Request, Slot
from lcspec.tree import TokenTree
from lcspec.verify import VERIFIERS


@dataclass
class _Staged:
    """A slot's part of the batch being built."""

    slot: Slot
    base: int = 0
    tree: TokenTree | None = None  # None: a prompt chunk that does not reach the prompt's end
    order: list[int] | None = None
    row_of: list[int] | None = None
    draft_seconds: float = 0.0


class Engine:
    """Runs requests on one target model. Not thread-safe: one thread calls everything."""

    def __init__(self, model: Model, options: ModelOptions | None = None, env: DrafterEnv | None = None) -> None:
        """Create the target's context.

        Raises:
            ModelLoadError: there is no memory for the context.
        """
        self.model = model
        self.options = options or model.options
        self.context = Context(model, self.options)
        self.pool = SequencePool(self.context.n_seq)
        self.pad = ScratchPad(self.context, self.pool.take())
        self.env = env or DrafterEnv(model, self.options.slots, self.context.n_ctx)
        self.planner: Planner = FixedPlanner()
        self.drafters: dict[str, Drafter] = {}
        self.waiting: collections.deque[tuple[int, Request]] = collections.deque()
        self.running: list[Slot] = []
        self.shelf = CacheShelf(self.context, self.pool, self.options.slots)
        self._numbers = itertools.count(1)

    # ---------------------------------------------------------------- the loop

    def step(self) -> list[Event]:
        """One step for everything that runs; returns what happened. An empty list means there is nothing to do."""
        events = self._admit()
        if not self.running:
            return events
        start, mark = time.perf_counter(), self.context.decode_seconds
        self.context.batch.clear()
        try:
            staged = [self._stage(slot) for slot in self.running]
            staged = [s for s in staged if s is not None]
            self.pad.fill(any(s.slot.request.speculation.exact for s in staged))
            self.context.decode()
            self.pad.drop()
        except LcspecError as error:
            return events + [self._fail(slot, error) for slot in list(self.running)]
        rows = self.context.logits()
        target = self.context.decode_seconds - mark
        for work in staged:
            events += self._settle(work, rows)
        draft = sum(s.draft_seconds for s in staged)
        overhead = max(0.0, time.perf_counter() - start - target - draft)
        for work in staged:
            events += self._account(work, target, draft, overhead)
        return events + [self._finish(slot) for slot in list(self.running) if slot.reason]

    def _stage(self, slot: Slot) -> _Staged | None:
        """Put a slot's next tokens into the batch: a prompt chunk, or the pending token with its tree."""
        batch, fresh, base = self.context.batch, slot.fresh, len(slot.tokens) - 1
        room = min(self.options.batch, batch.room) - 1
        if len(fresh) > room:
            if room > 0:
                batch.add_run(fresh[:room], slot.cache.length, slot.cache.main)
            return _Staged(slot, base=slot.cache.length + max(0, room))
        work = _Staged(slot, base, TokenTree.root(slot.tokens[-1]))
        if not slot.prefilling:
            mark = time.perf_counter()
            work.tree = self._draft(slot)
            work.draft_seconds = time.perf_counter() - mark
        work.order = work.tree.batch_order()
        sets = slot.cache.place(work.tree, work.order, base)
        for i, token in enumerate(fresh[:-1]):
            batch.add(token, slot.cache.length + i, sets[0], logits=False)
        work.row_of = [0] * len(work.tree)
        for node in work.order:
            work.row_of[node] = batch.add(work.tree.tokens[node], base + work.tree.depths[node], sets[node], logits=True)
        return work

    def _draft(self, slot: Slot) -> TokenTree:
        """Ask the slot's drafters and merge what they say into one tree that fits the step."""
        tree = TokenTree.root(slot.tokens[-1])
        exact = slot.request.speculation.exact
        budgets = self.planner.budgets(slot, self._limits(slot, exact))
        for i, (drafter, budget) in enumerate(zip(slot.drafters, budgets)):
            if budget.nodes > 0 and budget.depth > 0:
                proposal = drafter.draft(slot, budget)
                proposal.sources = [0] + [1 << i] * proposal.n_drafted
                tree.merge(proposal)
        return self.planner.select(slot, tree, self._limits(slot, exact))

    def _settle(self, work: _Staged, rows: np.ndarray) -> list[Event]:  # type: ignore[type-arg]
        """Verify a slot's tree, commit the accepted path and tell everyone."""
        slot, tree = work.slot, work.tree
        if tree is None or work.row_of is None or work.order is None:
            slot.cache.length = work.base
            return [Prefill(slot.id, slot.cache.length, slot.n_prompt)]
        slot.show_rows(rows, work.row_of)
        first = slot.prefilling
        verdict = VERIFIERS[slot.request.speculation.verifier].verify(tree, slot, work.base + 1, slot.seed)
        exact = slot.request.speculation.exact
        slot.cache.commit(verdict.path, self.pad.in_order(work.order, verdict.path) if exact else None)
        events: list[Event] = [Prefill(slot.id, slot.n_prompt, slot.n_prompt)] if first else []
        before = slot.generated
        events += slot.emit(tree, verdict)
        if first:
            slot.decode_start = time.perf_counter()
        else:
            slot.step_accepted = slot.count(tree, verdict, slot.generated - before)
            self.planner.observe(slot, tree, verdict)
        for drafter in slot.drafters:
            if not slot.reason:
                drafter.observe(slot, tree, verdict)
        return events

    # ------------------------------------------------------- requests come and go

    def submit(self, request: Request) -> int:
        """Queue a request; returns its number.

        Raises:
            ContextOverflow: the prompt does not fit a slot.
            UsageError: the request asks for something that does not exist here.
            ExactnessError: identical output cannot be promised for this model.
        """
        if not request.prompt:
            raise UsageError("the prompt is empty: give at least one token of text")
        if len(request.prompt) >= self.context.n_ctx:
            raise ContextOverflow(
                f"the prompt has {len(request.prompt)} tokens and the context holds {self.context.n_ctx}: "
                "shorten the prompt or raise --ctx"
            )
        if request.max_tokens is not None and request.max_tokens < 0:
            raise UsageError(f"the number of tokens to generate must be 0 or more, not {request.max_tokens}")
        spec = request.speculation
        if spec.verifier not in VERIFIERS:
            raise UsageError(f"unknown verifier {spec.verifier!r}: choose from {', '.join(sorted(VERIFIERS))}")
        if spec.exact:
            check_exact(self.model, self.options)
        if spec.drafters and self.context.branching is Branching.NONE:
            raise UnsupportedModel(
                f"{self.model.options.path.name} has a recurrent state that cannot be taken back, so drafts cannot be "
                "verified on it: use --speculate off"
            )
        for d in spec.drafters:
            if d.name not in self.drafters:
                self.drafters[d.name] = create(d.name, self.env)
        number = next(self._numbers)
        self.waiting.append((number, request))
        return number

    def cancel(self, number: int) -> None:
        """Stop a request between steps; it ends with reason `cancelled`."""
        for slot in self.running:
            if slot.id == number:
                slot.cancelled = True
        self.waiting = collections.deque(item for item in self.waiting if item[0] != number)

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
            for slot in list(self.running):
                if slot.id == number:
                    self._finish(slot)
            self.cancel(number)

    def close(self) -> None:
        """End everything and free the context (not the model)."""
        for slot in list(self.running):
            self._finish(slot)
        for drafter in self.drafters.values():
            drafter.close()
        self.drafters = {}
        self.context.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _admit(self) -> list[Event]:
        """Drop cancelled requests, then give free slots to waiting ones."""
        events: list[Event] = []
        for slot in list(self.running):
            if slot.cancelled:
                slot.reason = "cancelled"
                events.append(self._finish(slot))
        while self.waiting and len(self.running) < self.options.slots:
            number, request = self.waiting.popleft()
            try:
                events.append(self._start(number, request))
            except LcspecError as error:
                events.append(Failed(number, error))
        return events

    def _start(self, number: int, request: Request) -> Event:
        seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(32)
        sampler = Sampler(self.model.vocab, request.sampling, seed)
        # With --exact the text must not depend on what ran before, and prompt kernels differ from decode kernels.
        cache = self.shelf.take(request.prompt, reuse=not request.speculation.exact)
        reused = cache.length
        slot = Slot(number, request, cache, sampler, self.model.vocab, seed, self.context.n_ctx)
        for token in request.prompt:
            sampler.accept(token, generated=False)
        info = VERIFIERS[request.speculation.verifier]
        slot.sampled_drafts = info.sampled_drafts and not request.sampling.greedy
        self.running.append(slot)
        try:
            for spec in request.speculation.drafters:
                self.drafters[spec.name].begin(slot, spec)
                slot.drafters.append(self.drafters[spec.name])
        except LcspecError:
            self._finish(slot)
            raise
        if request.max_tokens == 0:
            slot.reason = "length"
        return Started(number, slot.n_prompt, reused, seed)

    def _finish(self, slot: Slot) -> Event:
        self.shelf.put(slot.cache, slot.tokens)
        return self._dismiss(slot)

    def _fail(self, slot: Slot, error: LcspecError) -> Event:
        slot.cache.release()
        self.shelf.lost()
        self._dismiss(slot)
        return Failed(slot.id, error)

    def _dismiss(self, slot: Slot) -> Event:
        self.running.remove(slot)
        for drafter in slot.drafters:
            drafter.end(slot)
        slot.sampler.close()
        return slot.finished()

    # ---------------------------------------------------------------- accounting

    def _limits(self, slot: Slot, exact: bool) -> tuple[int, int, int]:
        """Nodes, depth and leaves that this step can take for `slot`."""
        nodes = min(self.context.batch.room, self.options.max_width) - len(slot.fresh) - len(self.running)
        depth = slot.max_depth
        leaves = slot.cache.max_leaves
        if self.context.branching is Branching.CHAIN:
            depth, leaves = min(depth, self.context.max_rollback - 1), 1
        if exact:
            nodes = min(nodes, self.pad.max_width - len(slot.fresh))
        return max(0, nodes), depth, leaves

    def _account(self, work: _Staged, target: float, draft: float, overhead: float) -> list[Event]:
        slot, tree = work.slot, work.tree
        if tree is None or slot.generated <= 1 and not slot.stats.target_steps:
            slot.stats.prefill_seconds += target
            return []
        slot.stats.target_seconds += target
        slot.stats.draft_seconds += draft
        self.planner.timed(self.context.batch.n, target)
        return [StepStats(slot.id, self.context.batch.n, tree.n_drafted, slot.step_accepted, target, draft, overhead, tree)]

