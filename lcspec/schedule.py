"""What goes into a step's batch: who decodes, who gets how many prompt tokens, and what every slot drafts.

Iteration-level scheduling (Yu et al. 2022, Orca) with prompts in chunks beside running decodes (Agrawal et al. 2023,
arXiv:2308.16369). How long a chunk is follows from what steps take: see `Pace`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Sequence

from lcspec.exact import PROMPT_BLOCK
from lcspec.llama import Branching, common_prefix
from lcspec.llama.reader import LEAST_ROWS
from lcspec.pace import Pace
from lcspec.planner.base import NOTHING, Limits, Plan, Planner, Proposal
from lcspec.planner.window import feed
from lcspec.slot import Slot
from lcspec.tree import TokenTree

if TYPE_CHECKING:
    from lcspec.engine import Engine
    from lcspec.planner.cost import CostCurve

# Prompt tokens that are not worth a step's wait.
SHORT = 32
# Tokens not in the cache yet from which a step drafts nothing where every refusal has them decoded again.
REDECODED = 8


@dataclass(slots=True)
class Staged:
    """A slot's part of the batch being built. Without a proposal: a prompt chunk that does not reach the end."""

    slot: Slot
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
        return self.proposal is not None and not self.slot.prefilling


class Scheduler:
    """Plans an engine's steps."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.pace = Pace()
        self._read = 0  # prompt tokens evaluated so far

    def plan(self) -> tuple[list[Staged], Plan]:
        """Decide what every running slot puts into the batch: a prompt chunk, or its pending token and a tree."""
        engine, plan = self.engine, Plan()
        exact = engine.certificate if any(engine.strict(s.request) for s in engine.running) else None
        work = self._bare()
        base = sum(w.length - w.slot.cache.length for w in work)
        drafting = [w for w in work if w.decodes and w.slot.drafters]  # the others keep their bare tree
        for planner in (engine.fixed, engine.auto) if drafting else ():
            mine = [w for w in drafting if planner is self.planner_of(w.slot)]
            if planner is None or not mine:
                continue
            rest = planner.rest(base - 1)
            if rest is not None:
                plan, mine[0].resting = rest, True
                continue
            for w in mine:
                w.slot.tell()
                w.proposal = planner.propose(w.slot, self._limits(w.slot, base), base - 1)
            context = sum(len(w.slot.tokens) for w in mine) // len(mine)
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

    def enter(self, slot: Slot) -> None:
        """A slot begins: give its prompt a place among those that are read.

        The shorter of two prompts that come together is read first, which gives the least waiting altogether. Nobody is
        passed for long: a prompt that comes later needs to be shorter by what has been read meanwhile.
        """
        slot.turn = self._read + slot.behind
        self.follow(slot)

    def follow(self, slot: Slot) -> None:
        """Let a slot wait while one before it evaluates the beginning of its prompt: then it is evaluated once.

        So the choices of one prompt, and requests with the same instructions that come together, cost little more
        than one. Nobody waits in a circle, because a slot only follows those that were admitted before.
        """
        slot.follows = None
        engine, prompt = self.engine, slot.request.prompt
        if engine.strict(slot.request) or not engine.shelf.sharing:
            return
        most = slot.cache.length + SHORT
        for other in engine.running[: engine.running.index(slot)]:
            shared = min(common_prefix(other.request.prompt, prompt), len(prompt) - 1)
            shared = engine.shelf.shareable(other.cache, shared)
            if shared > most and engine.reuse(other.request) is engine.reuse(slot.request):
                slot.follows, most = (other, shared), shared

    def may_start(self, slot: Slot) -> bool:
        """Whether a slot need not wait for another's prompt any longer; takes over what that has evaluated."""
        while slot.follows is not None:
            other, shared = slot.follows
            if other.cache.length < shared and other in self.engine.running:
                return False
            if self.engine.shelf.top_up(slot.cache, slot.request.prompt, self.engine.reuse(slot.request)):
                self.follow(slot)
            else:
                slot.follows = None  # nothing more can be shared: cells outside a window may be gone
        return True

    def apart(self) -> tuple[Slot, int] | None:
        """Whose prompt is read apart in this step, and how many tokens of it; the next one in turn."""
        engine = self.engine
        for slot in engine.running:
            if slot.apart and slot.follows is None and slot.behind <= 1:
                engine.apart.end(slot)
        waiting = [slot for slot in engine.running if slot.apart and slot.follows is None]
        if not waiting:
            return None
        slot = min(waiting, key=lambda slot: slot.turn)
        ready = [s for s in engine.running if s.follows is None and not s.apart and not s.prefilling]
        most = max(engine.options.batch, LEAST_ROWS)
        if not ready:
            return slot, most
        base = sum(s.behind for s in ready)
        return slot, min(most, max(LEAST_ROWS, self.pace.room(base, *self._where(ready), slot.behind)))

    def planner_of(self, slot: Slot) -> Planner:
        """Who plans for `slot`."""
        auto = self.engine.auto
        return auto if auto is not None and slot.request.speculation.auto else self.engine.fixed

    def _bare(self) -> list[Staged]:
        """Everybody's part without drafts: pending tokens first, then what prompts may take beside them."""
        engine = self.engine
        ready: list[Slot] = []
        reading: list[Slot] = []
        for slot in engine.running:
            if slot.follows is None and not slot.apart:
                # A recurrent state that could not be taken back is evaluated again like a prompt.
                long = slot.prefilling or slot.behind > engine.options.max_width
                (reading if long else ready).append(slot)
        work = [_whole(slot) for slot in ready]
        wishes = self._wishes(reading)
        left = self._chunk(ready, wishes)
        for place, (slot, wish) in enumerate(wishes):
            n = min(wish, left)
            left -= n
            self._read += n
            if n == slot.behind:
                work.append(_whole(slot))
                if place == 0:
                    # Its answer begins with this step, which is no place for the others' prompts.
                    left = min(left, self._riders(ready, n, len(wishes) - 1))
            elif n > 0:
                work.append(Staged(slot, slot.cache.length + n))
        return work

    def _riders(self, ready: Sequence[Slot], finished: int, others: int) -> int:
        """Tokens of other prompts in the step that finishes the first one."""
        return self.pace.riders(sum(slot.behind for slot in ready) + finished, others, *self._where(ready))

    def _where(self, ready: Sequence[Slot]) -> tuple[int, CostCurve | None]:
        """What decides how long steps take besides their width: the mean context, and the measured curve."""
        context = sum(len(slot.tokens) for slot in ready) // len(ready) if ready else 0
        return context, self.engine.auto.curve if self.engine.auto is not None else None

    def _wishes(self, reading: Sequence[Slot]) -> list[tuple[Slot, int]]:
        """The prompts to be read, in their order, and how far each of them goes at most in one step."""
        turns = {slot.id: slot.turn for slot in reading}
        stops = {slot.id: len(slot.tokens) for slot in reading}
        for slot in self.engine.running:
            if slot.follows is not None:
                # It waits for a beginning of another's prompt: that is read in its turn, and a step ends there.
                other, shared = slot.follows
                if other.id in turns:
                    turns[other.id] = min(turns[other.id], slot.turn)
                    stops[other.id] = min(stops[other.id], shared)
        wishes = []
        for slot in sorted(reading, key=lambda slot: turns[slot.id]):
            # ... unless little is left.
            early = slot.cache.length < stops[slot.id] < len(slot.tokens) - SHORT
            stop = slot.cache.next_pause(stops[slot.id] if early else len(slot.tokens))
            wishes.append((slot, stop - slot.cache.length))
        return wishes

    def _chunk(self, ready: Sequence[Slot], wishes: Sequence[tuple[Slot, int]]) -> int:
        """Prompt tokens of this step, over all prompts."""
        engine, base = self.engine, sum(slot.behind for slot in ready)
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

    def _limits(self, slot: Slot, base: int) -> Limits:
        """What this step can take for `slot`, when `base` tokens are in the batch anyway."""
        engine = self.engine
        nodes = min(engine.context.batch.n_max, engine.options.max_width) - base
        depth, leaves = slot.max_depth, slot.cache.max_leaves
        if engine.context.branching is Branching.CHAIN:
            depth, leaves = min(depth, engine.context.max_chain - 1), 1
            if engine.context.redecodes and slot.behind > REDECODED:
                depth = 0  # what was accepted has been decoded again often enough: a plain step keeps it
        if not engine.strict(slot.request) or engine.certificate is None:
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
            leaves = w.slot.cache.max_leaves - engine.pool.free + free
            kept = w.proposal.kept = w.proposal.kept.best(room).with_leaves(leaves)
            room -= kept.n_drafted
            free = min(free, leaves - len(kept.leaves()))


def _whole(slot: Slot) -> Staged:
    """Everything that is not in the cache yet, up to the pending token, whose row is wanted."""
    bare = TokenTree.root(slot.tokens[-1])
    return Staged(slot, len(slot.tokens), Proposal(slot, bare, NOTHING, kept=bare))
