"""Heads on the target's hidden states: what MTP and EAGLE drafters share.

Token i of a text goes into a head together with the target's state of token i - 1, and the head's own state comes out,
which goes in with the next drafted token. The head has cells of its own for the text (a *row* for each token). Rows are
read when something is drafted, or in pieces when many have come together; always with the target's own states, so the
cells of drafted tokens are dropped after every draft.

States are the target's to give: a text taken over from another request, or read while nobody asked for states, has
none. Where rows of that beginning are in another text's cells they are shared; a few unknown states are read as zeros,
as that before the first token is; a longer stretch is left out, and drafts know the text behind it only. Drafts never
decide the text, so all of this costs acceptance only.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, SequenceView, StateDrafter
from lcspec.drafters.growth import Growth, children, placeable
from lcspec.drafters.top_candidates import SHARPNESS
from lcspec.errors import DecodeError
from lcspec.kv_cache.prefix_cache import PrefixCache
from lcspec.kv_cache.sequence_cache import SequenceCache, SequencePool
from lcspec.llama import Context
from lcspec.llama.batch import StateBatch
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import DRAFT_STREAM, Verdict

# Rows that most heads read at a time.
SLICE = 512
# Unknown states that are read as zeros; a longer stretch is left out.
GAP = 8
# States at ends of texts and prompt chunks that are kept for texts that go on from there.
ENDS = 256

States = NDArray[np.float32]


@dataclass
class FeatureState:
    """One sequence's text as a head knows it.

    Attributes:
        cache: the head's cells.
        p_min: least probability of a child that is still drafted.
        rows: the tokens in those cells.
        next: the text's position of the token of the next row.
        begin: position of the first of `states`; each token needs that of the one before it.
        states: known states, float32 [n, width].
        cells: where the target keeps the text.
        whole: `rows` leaves out nothing.
        node_states: the head's own states below drafted nodes.
        placed: drafted node -> index among the decoded ones.
    """

    cache: SequenceCache
    p_min: float
    rows: list[int]
    next: int
    begin: int
    states: States
    cells: SequenceCache | None = None
    whole: bool = True
    node_states: dict[int, States] = field(default_factory=dict)
    placed: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """One past the last position whose state is known."""
        return self.begin + len(self.states)

    def before(self, start: int, stop: int) -> States:
        """The states that go with the tokens in [start, stop)."""
        return self.states[start - 1 - self.begin : stop - 1 - self.begin]


class FeatureDrafter(StateDrafter):
    """Drafts with a head in a context of its own.

    Subclasses set `wants_states`, and may change `convert`, `read` and what a level of the draft decodes.

    Attributes:
        lead: tokens at the beginning of a text that have no row.
        width: numbers in a token's states as the target gives them.
        deepest: levels a draft may have; None = any.
        slice: rows that are read at a time, and that may wait to be read.
        every_row: the library makes logits of every row of a head's batch and hands out the first ones, so all of a
            batch must have them, or none.
    """

    name = "feature"
    default_nodes = 3
    costly = True
    lead = 0
    deepest: int | None = None
    slice = SLICE
    every_row = False
    stream = DRAFT_STREAM + 16  # of the noise: none of a draft model's

    def __init__(self, context: Context, slots: int, width: int) -> None:
        """`context` is the head's, for `slots` texts."""
        self.context = context
        self.width = width
        self.pool = SequencePool(context.n_seq)
        self.prefix_cache = PrefixCache(context, self.pool, slots, share=True)
        self.n_vocab = context.model.n_vocab
        self._running: dict[int, tuple[SequenceView, FeatureState]] = {}
        self._ends: collections.OrderedDict[bytes, States] = collections.OrderedDict()

    # ---------------------------------------------------------------- the protocol

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Options: `branch` (children a node; 1 is a chain), `nodes`, `p_min` (least probable child still drafted)."""
        spec.check_keys({"branch", "nodes", "p_min"})
        text = list(sequence.tokens[self.lead :]) or list(sequence.tokens)
        cache = self.prefix_cache.take(text)
        rows = text[: cache.length]
        self.prefix_cache.relabel(cache, rows)
        at = self.lead + len(rows)
        none = np.zeros((0, self.width), np.float32)
        state = FeatureState(cache, spec.number("p_min", 0.0), rows, at, at - 1, none)
        self._running[sequence.id] = sequence, state
        # Nothing comes before the first token.
        known = self._ends.get(_key(sequence.tokens[:at])) if at else np.zeros(self.width, np.float32)
        if known is not None:
            state.states = known[None]

    def process(self, sequence: SequenceView, cells: SequenceCache, start: int, states: States) -> None:
        """See StateDrafter."""
        if sequence.id not in self._running or not len(states):
            return
        state = self._running[sequence.id][1]
        state.cells = cells
        stop = start + len(states)
        if start > state.end:
            self._bridge(sequence, state, start)
        new = state.end
        if new < stop:
            state.states = np.concatenate([state.states, states[new - start :]])
        if start < sequence.n_prompt:
            self._remember(sequence.tokens, state, stop - 2)
            self._remember(sequence.tokens, state, stop - 1)
        if len(state.states) > self.slice:
            self._flush(sequence, state)

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """Grow a tree below the pending token, a level per decode of the head."""
        state, base = self._running[sequence.id][1], len(sequence.tokens) - 1
        depth = min(budget.depth, self.context.n_ctx - base - 1)
        depth = depth if self.deepest is None else min(depth, self.deepest)
        if depth <= 0 or budget.nodes <= 0 or not self.ready(state, base):
            return TokenTree.root(sequence.tokens[-1])
        if not self._catch_up(sequence, state, base, budget.reading):
            return TokenTree.root(sequence.tokens[-1])
        # Where a planner asks after every level, it is the one to say when a branch ends.
        growth = Growth(sequence.tokens[-1], budget, state.p_min if budget.keep_going is None else 0.0)
        tree, level, branch = growth.tree, [0], self.branch(budget)
        try:
            self.decode_root(state, sequence, base)
            while True:
                fresh = self._expand(sequence, state, growth, level, base, branch)
                enough = branch == 1 and tree.n_drafted >= budget.nodes
                if not fresh or enough or tree.depths[fresh[0]] >= depth:
                    break
                level = self.level_of(state, growth, fresh, branch)
                if not level or (budget.keep_going is not None and not budget.keep_going(tree, level)):
                    break
                self.decode_level(state, tree, level)
        except DecodeError:
            state.cache.abandon()
            raise
        self.drop_tree(state)
        return growth.best()

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Nothing: `process` told what has become of the step."""

    def end(self, sequence: SequenceView) -> None:
        """Keep the rows for a later request with the same beginning."""
        if sequence.id not in self._running:
            return
        state = self._running.pop(sequence.id)[1]
        self._flush(sequence, state)
        if state.whole:
            self._remember(sequence.tokens, state, state.end - 1)
        self.prefix_cache.put(state.cache, state.rows)

    def forget(self) -> None:
        """Later requests find nothing of earlier ones."""
        self.prefix_cache.clear()
        self._ends.clear()

    def step_seconds(self, repeat: int = 9) -> float:
        """See Drafter.step_seconds."""
        seq = self.pool.take()
        try:
            return self.context.step_seconds(seq, range(self.n_vocab), repeat)
        finally:
            self.pool.give(seq)

    def close(self) -> None:
        """Free the head's context."""
        self.context.close()

    # ---------------------------------------------------------------- what kinds of heads do in their own way

    def convert(self, states: States) -> States:
        """The target's states, float32 [n, width], as they go into rows, float32 [n, k]."""
        return states

    def ready(self, state: FeatureState, base: int) -> bool:
        """Whether all is known that a draft after the token at position `base` needs."""
        return state.end >= base and state.next <= base

    def branch(self, budget: Budget) -> int:
        """Children a node may have."""
        return budget.branch

    def read(self, state: FeatureState, tokens: Sequence[int], states: States) -> float:
        """Add rows to the cells; returns the seconds it took."""
        batch = self._batch()
        batch.add_state_run(tokens, len(state.rows), state.cache.main, states)
        return self.context.decode()

    def decode_root(self, state: FeatureState, sequence: SequenceView, base: int) -> None:
        """Decode the row of the pending token, and with it those before it that have yet to be read."""
        batch, first, at = self._batch(), state.next, len(state.rows)
        tokens, states = list(sequence.tokens[first : base + 1]), self.convert(state.before(first, base + 1))
        for i, (token, given) in enumerate(zip(tokens, states)):
            wanted = self.every_row or i == len(tokens) - 1
            batch.add_state(token, at + i, (state.cache.main,), given, logits=wanted)
        state.cache.grow(at + len(tokens) - 1)
        state.placed = {0: 0}
        self.context.decode()
        self._took(state, tokens)
        self._drop_known(state)

    def level_of(self, state: FeatureState, growth: Growth, fresh: Sequence[int], branch: int) -> list[int]:
        """Which of the `fresh` nodes are decoded next."""
        level = list(fresh) if branch == 1 else growth.next_level(fresh, branch)
        return placeable(state.cache.forks, growth.tree, level)

    def decode_level(self, state: FeatureState, tree: TokenTree, level: Sequence[int]) -> None:
        """Decode nodes side by side; a node's first child continues its branch, others fork."""
        batch, base, continued = self._batch(), len(state.rows) - 1, set[int]()
        for node in level:
            parent = tree.parents[node]
            path = [state.placed[v] for v in tree.path_to(parent)]
            seq = state.cache.extend(state.placed[parent], tree.depths[node], parent in continued, path)
            continued.add(parent)
            state.placed[node] = len(state.placed)
            batch.add_state(tree.tokens[node], base + tree.depths[node], (seq,), state.node_states[parent], logits=True)
        self.context.decode()

    def drop_tree(self, state: FeatureState) -> None:
        """Forget the drafted nodes; the pending token's row stays."""
        state.cache.commit([])
        state.placed, state.node_states = {}, {}

    # ---------------------------------------------------------------- rows

    def _expand(
        self, sequence: SequenceView, state: FeatureState, growth: Growth, level: Sequence[int], base: int, branch: int
    ) -> list[int]:
        """Add the children of the nodes just decoded; returns those worth looking below."""
        fresh: list[int] = []
        sharpness = 1.0 if growth.p_min else SHARPNESS  # `p_min` is about the head's own probabilities
        rows, below = self.context.logits()[-len(level) :], self.context.row_states()[-len(level) :]
        for i, node in enumerate(level):
            state.node_states[node] = below[i].copy()
            position, room = base + growth.tree.depths[node] + 1, min(sequence.draws, branch) or branch
            found = children(sequence, rows[i][: self.n_vocab], position, room, node, sharpness, self.stream)
            fresh += growth.add(node, found)
        return fresh

    def _catch_up(self, sequence: SequenceView, state: FeatureState, base: int, seconds: float) -> bool:
        """Read rows until few are left before that of the pending token, or for so many seconds; whether that is so."""
        while base - state.next >= self.slice:
            seconds -= self._read_slice(sequence, state, base)
            if seconds <= 0.0:
                return base - state.next < self.slice
        return True

    def _flush(self, sequence: SequenceView, state: FeatureState) -> None:
        """Read every row there is a state for; that of the pending token is left to the draft."""
        stop = min(len(sequence.tokens) - 1, state.end + 1)
        while state.next < stop:
            self._read_slice(sequence, state, stop)
        self._drop_known(state)

    def _read_slice(self, sequence: SequenceView, state: FeatureState, stop: int) -> float:
        tokens = list(sequence.tokens[state.next : min(stop, state.next + self.slice)])
        seconds = self.read(state, tokens, self.convert(state.before(state.next, state.next + len(tokens))))
        self._took(state, tokens)
        state.cache.length = len(state.rows)
        return seconds

    @staticmethod
    def _took(state: FeatureState, tokens: Sequence[int]) -> None:
        state.rows.extend(tokens)
        state.next += len(tokens)

    @staticmethod
    def _drop_known(state: FeatureState) -> None:
        """Drop states that no row will need any more; the last one stays."""
        done = min(state.next - 1 - state.begin, len(state.states) - 1)
        if done > 0:
            state.states = state.states[done:].copy()
            state.begin += done

    def _bridge(self, sequence: SequenceView, state: FeatureState, start: int) -> None:
        """Nothing is known of the states from `state.end` to `start`: find rows of other texts, or do without."""
        self._flush(sequence, state)
        if state.whole:
            for other_slot, other in self._running.values():
                if other is not state:
                    self._flush(other_slot, other)
            if self.prefix_cache.top_up(state.cache, sequence.tokens[self.lead :]):
                state.rows[:] = sequence.tokens[self.lead : self.lead + state.cache.length]
                state.next = self.lead + state.cache.length
        empty = np.zeros((0, self.width), np.float32)
        if state.next > start:
            state.begin, state.states = start, empty
            return
        known = self._ends.get(_key(sequence.tokens[:start]))
        gap = start - state.next + (known is None)
        if gap <= GAP:
            # The token at `next` needs the state before it.
            state.begin, state.states = state.next - 1, np.zeros((start - state.next + 1, self.width), np.float32)
        else:
            state.whole = False
            state.next, state.begin, state.states = start, start - 1, np.zeros((1, self.width), np.float32)
        if known is not None:
            state.states[-1] = known

    def _remember(self, tokens: Sequence[int], state: FeatureState, position: int) -> None:
        """Keep the state at `position` for texts that begin alike and go on after it."""
        at = position - state.begin
        if position >= 0 and 0 <= at < len(state.states):
            key = _key(tokens[: position + 1])
            self._ends[key] = state.states[at].copy()
            self._ends.move_to_end(key)
            while len(self._ends) > ENDS:
                self._ends.popitem(last=False)

    def _batch(self) -> StateBatch:
        batch = self.context.batch
        assert isinstance(batch, StateBatch)
        batch.clear()
        return batch


def _key(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, dtype=np.int32).tobytes()
