"""What goes into a step's batch: who decodes, who gets how many prompt tokens, and what every slot drafts.

Iteration-level scheduling (Yu et al. 2022, Orca) with prompts in chunks beside running decodes (Agrawal et al. 2023,
arXiv:2308.16369). How long a chunk is follows from what steps take: see `PrefillBudget`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Sequence

from lcspec.engine.prefill_budget import PrefillBudget
from lcspec.engine.sequence import ActiveSequence
from lcspec.kv_cache.prefix_cache import common_prefix
from lcspec.kv_cache.prompt_reader import LEAST_ROWS
from lcspec.llama import Branching
from lcspec.planner.base import NOTHING, Limits, Plan, Planner, Proposal
from lcspec.planner.lookahead_budget import feed
from lcspec.profiles.exactness import PROMPT_BLOCK
from lcspec.spec.token_tree import TokenTree

if TYPE_CHECKING:
    from lcspec.engine.engine import Engine
    from lcspec.profiles.cost_curve import CostCurve

# Prompt tokens that are not worth a step's wait.
SHORT = 32
# Tokens not in the cache yet from which a step drafts nothing where every refusal has them decoded again.
REDECODED = 8


@dataclass(slots=True)
class Staged:
    """A slot's part of the batch being built. Without a proposal: a prompt chunk that does not reach the end."""

    sequence: ActiveSequence
    length: int
    proposal: Proposal | None = None
    resting: bool = False  # a plain step that the slot's planner and drafters know nothing of
    order: list[int] = field(default_factory=list)
    row_of: list[int] = field(default_factory=list)
    start: int = 0  # position of its first token
    first_row: int = 0  # ... and which of the batch's tokens that is

    def rows(self, path: Sequence[int] = ()) -> list[int]:
        """Which tokens of the batch are the text's: from `start` to the pending one, then the accepted `path`."""
        if self.proposal is None or self.proposal.kept is None:
            return list(range(self.first_row, self.first_row + self.length - self.start))
        root = self.first_row + self.length - 1 - self.start
        at = {node: root + i for i, node in enumerate(self.order)} if path else {}
        return [*range(self.first_row, root + 1), *(at[node] for node in path)]

    @property
    def decodes(self) -> bool:
        """Whether the slot's stream goes on in this step (rather than its prompt being read)."""
        return self.proposal is not None and not self.sequence.prefilling


class Scheduler:
    """Plans an engine's steps."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.pace = PrefillBudget()
        self._read = 0  # prompt tokens evaluated so far

    def plan(self) -> tuple[list[Staged], Plan]:
        """Decide what every running slot puts into the batch: a prompt chunk, or its pending token and a tree."""
        engine, plan = self.engine, Plan()
        exact = engine.certificate if any(engine.strict(s.request) for s in engine.running) else None
        work = self._bare()
        base = sum(w.length - w.sequence.cache.length for w in work)
        drafting = [w for w in work if w.decodes and w.sequence.drafters]  # the others keep their bare tree
        for planner in (engine.fixed, engine.auto) if drafting else ():
            mine = [w for w in drafting if planner is self.planner_of(w.sequence)]
            if planner is None or not mine:
                continue
            rest = planner.rest(base - 1)
            if rest is not None:
                plan, mine[0].resting = rest, True
                continue
            for w in mine:
                w.sequence.tell()
                w.proposal = planner.propose(w.sequence, self._limits(w.sequence, base), base - 1)
            context = sum(len(w.sequence.tokens) for w in mine) // len(mine)
            streams = sum(w.decodes for w in work)
            plan = planner.select([w.proposal for w in mine if w.proposal], base, context, streams)
        if len(drafting) > 1:
            self._share(drafting, base)
        drafted = sum(w.proposal.kept.n_drafted for w in drafting if w.proposal and w.proposal.kept)
        if drafting:
            room = min(engine.context.batch.n_max, engine.options.max_width) - base - drafted
            feed([w.proposal for w in drafting if w.proposal], room, engine.pool)
        if exact is not None:
            probes = sum(w.proposal.n_probes for w in drafting if w.proposal)
            decoding = any(w.decodes for w in work)
            plan.width = exact.pad(max(plan.width, base + drafted + probes)) if decoding else PROMPT_BLOCK
        return work, plan

    def enter(self, sequence: ActiveSequence) -> None:
        """A slot begins: give its prompt a place among those that are read.

        The shorter of two prompts that come together is read first, which gives the least waiting altogether. Nobody is
        passed for long: a prompt that comes later needs to be shorter by what has been read meanwhile.
        """
        sequence.turn = self._read + sequence.behind
        self.follow(sequence)

    def follow(self, sequence: ActiveSequence) -> None:
        """Let a slot wait while one before it evaluates the beginning of its prompt: then it is evaluated once.

        So the choices of one prompt, and requests with the same instructions that come together, cost little more
        than one. Nobody waits in a circle, because a slot only follows those that were admitted before.
        """
        sequence.follows = None
        engine, prompt = self.engine, sequence.request.prompt
        if engine.strict(sequence.request) or not engine.shelf.sharing:
            return
        most = sequence.cache.length + SHORT
        for other in engine.running[: engine.running.index(sequence)]:
            shared = min(common_prefix(other.request.prompt, prompt), len(prompt) - 1)
            shared = engine.shelf.shareable(other.cache, shared)
            if shared > most and engine.reuse(other.request) is engine.reuse(sequence.request):
                sequence.follows, most = (other, shared), shared

    def may_start(self, sequence: ActiveSequence) -> bool:
        """Whether a slot need not wait for another's prompt any longer; takes over what that has evaluated."""
        while sequence.follows is not None:
            other, shared = sequence.follows
            if other.cache.length < shared and other in self.engine.running:
                return False
            if self.engine.shelf.top_up(sequence.cache, sequence.request.prompt, self.engine.reuse(sequence.request)):
                self.follow(sequence)
            else:
                sequence.follows = None  # nothing more can be shared: cells outside a window may be gone
        return True

    def apart(self) -> tuple[ActiveSequence, int] | None:
        """Whose prompt is read apart in this step, and how many tokens of it; the next one in turn."""
        engine = self.engine
        for sequence in engine.running:
            if sequence.apart and sequence.follows is None and sequence.behind <= 1:
                engine.apart.end(sequence)
        waiting = [sequence for sequence in engine.running if sequence.apart and sequence.follows is None]
        if not waiting:
            return None
        sequence = min(waiting, key=lambda sequence: sequence.turn)
        ready = [s for s in engine.running if s.follows is None and not s.apart and not s.prefilling]
        most = max(engine.options.batch, LEAST_ROWS)
        if not ready:
            return sequence, most
        base = sum(s.behind for s in ready)
        return sequence, min(most, max(LEAST_ROWS, self.pace.room(base, *self._where(ready), sequence.behind)))

    def planner_of(self, sequence: ActiveSequence) -> Planner:
        """Who plans for `slot`."""
        auto = self.engine.auto
        return auto if auto is not None and sequence.request.speculation.auto else self.engine.fixed

    def _bare(self) -> list[Staged]:
        """Everybody's part without drafts: pending tokens first, then what prompts may take beside them."""
        engine = self.engine
        ready: list[ActiveSequence] = []
        reading: list[ActiveSequence] = []
        for sequence in engine.running:
            if sequence.follows is None and not sequence.apart:
                # A recurrent state that could not be taken back is evaluated again like a prompt.
                long = sequence.prefilling or sequence.behind > engine.options.max_width
                (reading if long else ready).append(sequence)
        work = [_whole(sequence) for sequence in ready]
        wishes = self._wishes(reading)
        left = self._chunk(ready, wishes)
        for place, (sequence, wish) in enumerate(wishes):
            n = min(wish, left)
            left -= n
            self._read += n
            if n == sequence.behind:
                work.append(_whole(sequence))
                if place == 0:
                    # Its answer begins with this step, which is no place for the others' prompts.
                    left = min(left, self._riders(ready, n, len(wishes) - 1))
            elif n > 0:
                work.append(Staged(sequence, sequence.cache.length + n))
        return work

    def _riders(self, ready: Sequence[ActiveSequence], finished: int, others: int) -> int:
        """Tokens of other prompts in the step that finishes the first one."""
        return self.pace.riders(sum(sequence.behind for sequence in ready) + finished, others, *self._where(ready))

    def _where(self, ready: Sequence[ActiveSequence]) -> tuple[int, CostCurve | None]:
        """What decides how long steps take besides their width: the mean context, and the measured curve."""
        context = sum(len(sequence.tokens) for sequence in ready) // len(ready) if ready else 0
        return context, self.engine.auto.curve if self.engine.auto is not None else None

    def _wishes(self, reading: Sequence[ActiveSequence]) -> list[tuple[ActiveSequence, int]]:
        """The prompts to be read, in their order, and how far each of them goes at most in one step."""
        turns = {sequence.id: sequence.turn for sequence in reading}
        stops = {sequence.id: len(sequence.tokens) for sequence in reading}
        for sequence in self.engine.running:
            if sequence.follows is not None:
                # It waits for a beginning of another's prompt: that is read in its turn, and a step ends there.
                other, shared = sequence.follows
                if other.id in turns:
                    turns[other.id] = min(turns[other.id], sequence.turn)
                    stops[other.id] = min(stops[other.id], shared)
        wishes = []
        for sequence in sorted(reading, key=lambda sequence: turns[sequence.id]):
            # ... unless little is left.
            early = sequence.cache.length < stops[sequence.id] < len(sequence.tokens) - SHORT
            stop = sequence.cache.next_pause(stops[sequence.id] if early else len(sequence.tokens))
            wishes.append((sequence, stop - sequence.cache.length))
        return wishes

    def _chunk(self, ready: Sequence[ActiveSequence], wishes: Sequence[tuple[ActiveSequence, int]]) -> int:
        """Prompt tokens of this step, over all prompts."""
        engine, base = self.engine, sum(sequence.behind for sequence in ready)
        if not wishes:
            return 0
        first, wish = wishes[0]
        if engine.strict(first.request):
            return PROMPT_BLOCK - first.cache.length % PROMPT_BLOCK
        most = min(engine.options.batch, engine.context.batch.n_max - base)
        where = self._where(ready)
        room = self.pace.room(base, *where, wish)
        # With nobody to wait for it the first prompt is read in one step, or in a few if somebody may come. Others come
        # along as far as that makes the step no dearer for each token; beyond that they would only keep the first
        # answer from beginning.
        if not ready:
            alone = self.pace.alone(*where) if engine.options.slots > 1 else None
            room = max(room, wish if alone is None else min(wish, alone))
        return min(most, max(1, room))

    def _limits(self, sequence: ActiveSequence, base: int) -> Limits:
        """What this step can take for `slot`, when `base` tokens are in the batch anyway."""
        engine = self.engine
        nodes = min(engine.context.batch.n_max, engine.options.max_width) - base
        depth, leaves = sequence.max_depth, sequence.cache.max_leaves
        if engine.context.branching is Branching.CHAIN:
            depth, leaves = min(depth, engine.context.max_chain - 1), 1
            if engine.context.redecodes and sequence.behind > REDECODED:
                depth = 0  # what was accepted has been decoded again often enough: a plain step keeps it
        if not engine.strict(sequence.request) or engine.certificate is None:
            return Limits(max(0, nodes), depth, leaves)
        widths = engine.certificate.widths
        leaves = leaves if engine.certificate.trees else 1
        return Limits(max(0, min(nodes, max(widths) - base)), depth, leaves, widths)

    def _share(self, decoding: Sequence[Staged], base: int) -> None:
        """Every slot planned as if the step were its own: cut what does not fit into it together."""
        engine = self.engine
        room = max(0, min(engine.context.batch.n_max, engine.options.max_width) - base)
        free = engine.pool.free
        for w in decoding:
            assert w.proposal is not None and w.proposal.kept is not None
            leaves = w.sequence.cache.max_leaves - engine.pool.free + free
            kept = w.proposal.kept = w.proposal.kept.best(room).with_leaves(leaves)
            room -= kept.n_drafted
            free = min(free, leaves - len(kept.leaves()))


def _whole(sequence: ActiveSequence) -> Staged:
    """Everything that is not in the cache yet, up to the pending token, whose row is wanted."""
    bare = TokenTree.root(sequence.tokens[-1])
    return Staged(sequence, len(sequence.tokens), Proposal(sequence, bare, NOTHING, kept=bare))
