"""Decides what goes into a step: who decodes, who gets how many prompt tokens, and what every sequence drafts.

Iteration-level scheduling (Yu et al. 2022, Orca) with prompts in chunks beside running decodes (Agrawal et al. 2023,
arXiv:2308.16369). The size of a chunk follows from what steps take: see `PrefillBudget`.
"""

from __future__ import annotations

from typing import Mapping, Sequence

from lcspec.engine.drafting import Drafting
from lcspec.engine.exact_policy import ExactPolicy
from lcspec.engine.fitting import feed, fit
from lcspec.engine.prefill_budget import PrefillBudget
from lcspec.engine.sequence import ActiveSequence
from lcspec.engine.step_plan import Part, StepPlan
from lcspec.kv_cache.prefix_cache import PrefixCache
from lcspec.kv_cache.prompt_reader import LEAST_ROWS
from lcspec.kv_cache.reuse import common_prefix
from lcspec.llama import Branching
from lcspec.planner.base import Limits, Plan, Planner, Proposal
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.exactness import PROMPT_BLOCK

# So few prompt tokens that they are not worth another step.
SHORT = 32
# Where every refusal means that tokens are decoded again: with so many uncached tokens, the step drafts nothing.
REDECODED = 8


class Scheduler:
    """Plans the steps of one context."""

    def __init__(self, prefix_cache: PrefixCache, exact: ExactPolicy, drafting: Drafting) -> None:
        self._context, self._options = prefix_cache.context, prefix_cache.context.options
        self._prefix_cache = prefix_cache
        self._exact = exact
        self._drafting = drafting
        self.budget = PrefillBudget()
        self.steady = False  # since the latest plan: all sequences decode, and nobody comes or goes
        self._standing: StepPlan | None = None  # the latest plan, if it is that of the next step as well
        self._backing_off: Planner | None = None  # ... as long as this planner backs off
        self._read = 0  # prompt tokens evaluated so far

    # ------------------------------------------------------------ a step

    def renew(self) -> None:
        """A sequence starts or ends, or its drafters or cells have changed: the next step is planned anew."""
        self.steady, self._standing = False, None

    def schedule(self, running: Sequence[ActiveSequence]) -> StepPlan:
        """Decide what every running sequence puts into the batch: a prompt chunk, or its pending token and a tree."""
        planner = self._backing_off
        if self._standing is not None and (planner is None or planner.backoff(len(running)) is not None):
            return self._standing
        self._backing_off = None
        parts = self._undrafted(running)
        base, streams, planned = 0, 0, dict[Planner, list[int]]()
        for i, part in enumerate(parts):
            sequence = part.sequence
            base += part.end - sequence.cache.length
            if part.decodes:
                streams += 1
                if sequence.drafters:  # without them it keeps the pending token alone
                    planned.setdefault(self._drafting.planner_of(sequence.request), []).append(i)
        plan, proposals = self._ask(parts, planned, base, streams) if planned else (Plan(), {})
        drafted = self._put_drafts(parts, proposals, base) if proposals else 0
        drafting = sum([proposal.seconds for proposal in proposals.values()])
        self.steady = streams == len(running)
        stands = self.steady and not proposals and base == streams
        made = StepPlan(tuple(parts), self._padded(parts, plan, base + drafted), plan, drafting, stands)
        self._standing = made if stands else None
        return made

    def _ask(
        self, parts: list[Part], planned: Mapping[Planner, Sequence[int]], base: int, streams: int
    ) -> tuple[Plan, dict[int, Proposal]]:
        """What the planners want drafted, and their proposals by the part they are for."""
        plan, proposals = Plan(), dict[int, Proposal]()
        for planner in self._drafting.planners:
            if not (mine := planned.get(planner)):
                continue
            if len(mine) == base and (backoff := planner.backoff(base)) is not None:
                plan, parts[:] = backoff, [part._replace(unobserved=True) for part in parts]
                self._backing_off = planner
                continue
            sequences = [parts[i].sequence for i in mine]
            for sequence in sequences:
                self._drafting.flush(sequence)
            limits = [self._limits(sequence, base) for sequence in sequences]
            proposals.update(zip(mine, planner.propose(sequences, limits, base - 1)))
            context = sum([len(sequence.tokens) for sequence in sequences]) // len(sequences)
            plan = planner.select([proposals[i] for i in mine], base, context, streams)
        return plan, proposals

    def _put_drafts(self, parts: list[Part], proposals: Mapping[int, Proposal], base: int) -> int:
        """Put what was proposed into the parts, as far as all of it fits, and give windows the rows that are left;
        returns the rows of drafts."""
        every, ids, room = list(proposals.values()), self._prefix_cache.pool, self._widest - base
        if len(every) > 1:
            fit(every, max(0, room), ids)
        drafted = sum([p.kept.n_drafted for p in every if p.kept is not None])
        probes = feed(every, room - drafted, ids)
        # Hidden states are read by position, so they need an output row for every token, as exact requests do.
        every_row = any(p.sequence.wants_hidden or p.sequence.strict for p in parts)
        for (i, proposal), own in zip(proposals.items(), probes):
            mute = frozenset[int]() if every_row else own.mute
            parts[i] = Part(parts[i].sequence, None, own.kept, own.evaluated, mute, proposal, own)
        return drafted + sum([own.rows for own in probes])

    def _padded(self, parts: Sequence[Part], plan: Plan, needed: int) -> int:
        """The width to pad the step to; 0: no padding."""
        exact = self._exact.certificate
        if exact is None or not any(part.sequence.strict for part in parts):
            # Of two sequences with a state the library first evaluates a token each, so padding takes a computation
            # more, and a cell in the middle of the text's.
            return plan.width if self._context.memory.branching is Branching.TREE else 0
        return exact.pad(max(plan.width, needed)) if any(part.decodes for part in parts) else PROMPT_BLOCK

    @property
    def _widest(self) -> int:
        return min(self._context.batch.n_max, self._options.max_width)

    def _limits(self, sequence: ActiveSequence, base: int) -> Limits:
        """What this step has room for, for `sequence`, with `base` tokens in the batch anyway."""
        nodes = self._widest - base
        depth, leaves = sequence.max_depth, 1 if self._exact.chains_only else sequence.cache.max_leaves
        if self._context.memory.branching is Branching.CHAIN:
            depth, leaves = min(depth, self._context.memory.max_chain - 1), 1
            if self._context.memory.redecodes and sequence.n_uncached > REDECODED:
                depth = 0  # the accepted tokens were decoded again often enough: a plain step keeps their state
        exact = self._exact.certificate
        if exact is None or not sequence.strict:
            return Limits(max(0, nodes), depth, leaves)
        leaves = leaves if exact.trees else 1
        return Limits(max(0, min(nodes, max(exact.widths) - base)), depth, leaves, exact.widths)

    # ------------------------------------------------------------ prompts

    def enter(self, sequence: ActiveSequence, running: Sequence[ActiveSequence]) -> None:
        """A sequence starts: give its prompt a place in the order of reading.

        Of two prompts that come together, the shorter is read first: that gives the least waiting in all. A later
        prompt goes first only if it is shorter by what has been read meanwhile, so no prompt is passed for long.
        """
        self.renew()
        sequence.prompt.order = self._read + sequence.n_uncached
        self._follow(sequence, running)

    def may_start(self, sequence: ActiveSequence, running: Sequence[ActiveSequence]) -> bool:
        """Whether a sequence need no longer wait for another's prompt; takes over what that one has evaluated."""
        while sequence.prompt.follows is not None:
            other, shared = sequence.prompt.follows
            if other.cache.length < shared and other in running:
                return False
            reuse = self._exact.reuse(sequence.request, sequence.prompt.apart)
            if self._prefix_cache.top_up(sequence.cache, sequence.request.prompt, reuse):
                self._follow(sequence, running)
            else:
                sequence.prompt.follows = None  # no more can be shared: cells outside a window may be gone
        return True

    def _follow(self, sequence: ActiveSequence, running: Sequence[ActiveSequence]) -> None:
        """Let a sequence wait while an earlier one evaluates the shared beginning of their prompts.

        So several choices of one prompt, or requests with the same instructions that come together, cost little more
        than one. There is no circular waiting, because a sequence only follows those admitted before it.
        """
        sequence.prompt.follows = None
        prompt, apart = sequence.request.prompt, sequence.prompt.apart
        if sequence.strict or not self._prefix_cache.sharing:
            return
        most, reuse = sequence.cache.length + SHORT, self._exact.reuse(sequence.request, apart)
        for other in running[: running.index(sequence)]:
            shared = min(common_prefix(other.request.prompt, prompt), len(prompt) - 1)
            shared = self._prefix_cache.shareable(other.cache, shared)
            if shared > most and self._exact.reuse(other.request, other.prompt.apart) is reuse:
                sequence.prompt.follows, most = (other, shared), shared

    def next_apart(self, running: Sequence[ActiveSequence]) -> tuple[ActiveSequence, int] | None:
        """The sequence whose prompt is read in a context of its own in this step, and how many tokens of it; or
        None."""
        waiting = [s for s in running if s.prompt.apart and s.prompt.follows is None]
        if not waiting:
            return None
        sequence = min(waiting, key=lambda sequence: sequence.prompt.order)
        ready = [s for s in running if s.prompt.follows is None and not s.prompt.apart and not s.prefilling]
        most = max(self._options.batch, LEAST_ROWS)
        if not ready:
            return sequence, most
        base = sum(s.n_uncached for s in ready)
        return sequence, min(most, max(LEAST_ROWS, self.budget.room(base, *self._where(ready), sequence.n_uncached)))

    def _undrafted(self, running: Sequence[ActiveSequence]) -> list[Part]:
        """All parts without drafts: pending tokens first, then what prompts may take beside them."""
        ready: list[ActiveSequence] = []
        reading: list[ActiveSequence] = []
        for sequence in running:
            if sequence.prompt.follows is None and not sequence.prompt.apart:
                # After a recurrent state that could not be rolled back, tokens are evaluated again like a prompt.
                long = sequence.prefilling or sequence.n_uncached > self._options.max_width
                (reading if long else ready).append(sequence)
        parts = [Part(sequence) for sequence in ready]
        if not reading:
            return parts
        wishes = self._wishes(reading, running)
        left = self._chunk(ready, wishes)
        for place, (sequence, wish) in enumerate(wishes):
            n = min(wish, left)
            left -= n
            self._read += n
            if n == sequence.n_uncached:
                parts.append(Part(sequence))
                if place == 0:
                    # The answer begins with this step, so the other prompts take little of it.
                    left = min(left, self._riders(ready, n, len(wishes) - 1))
            elif n > 0:
                parts.append(Part(sequence, chunk=sequence.cache.length + n))
        return parts

    def _riders(self, ready: Sequence[ActiveSequence], finished: int, others: int) -> int:
        """Tokens of other prompts in the step that finishes the first one."""
        base = sum(sequence.n_uncached for sequence in ready)
        return self.budget.riders(base + finished, others, *self._where(ready))

    def _where(self, ready: Sequence[ActiveSequence]) -> tuple[int, CostCurve | None]:
        """What decides the time of steps besides their width: the mean context, and the measured curve."""
        context = sum(len(sequence.tokens) for sequence in ready) // len(ready) if ready else 0
        return context, self._drafting.auto.curve if self._drafting.auto is not None else None

    def _wishes(
        self, reading: Sequence[ActiveSequence], running: Sequence[ActiveSequence]
    ) -> list[tuple[ActiveSequence, int]]:
        """The prompts to read, in order, and the most tokens of each in one step."""
        orders = {sequence.id: sequence.prompt.order for sequence in reading}
        stops = {sequence.id: len(sequence.tokens) for sequence in reading}
        for sequence in running:
            if sequence.prompt.follows is not None:
                # It waits for the beginning of another's prompt: that is read in this one's turn, and a step ends
                # there.
                other, shared = sequence.prompt.follows
                if other.id in orders:
                    orders[other.id] = min(orders[other.id], sequence.prompt.order)
                    stops[other.id] = min(stops[other.id], shared)
        wishes = []
        for sequence in sorted(reading, key=lambda sequence: orders[sequence.id]):
            # ... unless little is left.
            early = sequence.cache.length < stops[sequence.id] < len(sequence.tokens) - SHORT
            stop = sequence.cache.next_pause(stops[sequence.id] if early else len(sequence.tokens))
            wishes.append((sequence, stop - sequence.cache.length))
        return wishes

    def _chunk(self, ready: Sequence[ActiveSequence], wishes: Sequence[tuple[ActiveSequence, int]]) -> int:
        """Prompt tokens of this step, of all prompts together."""
        first, wish = wishes[0]
        if first.strict:
            return PROMPT_BLOCK - first.cache.length % PROMPT_BLOCK
        base = sum(sequence.n_uncached for sequence in ready)
        most = min(self._options.batch, self._context.batch.n_max - base)
        where = self._where(ready)
        room = self.budget.room(base, *where, wish)
        # While no sequence decodes, the first prompt is read in one step, or in a few if a request may arrive. Others
        # join as far as that makes the step no more expensive per token; beyond that they would only delay the first
        # answer.
        if not ready:
            alone = self.budget.alone(*where) if self._options.slots > 1 else None
            room = max(room, wish if alone is None else min(wish, alone))
        return min(most, max(1, room))
