"""Drafting with heads that read the target's hidden states: the common part of MTP and EAGLE.

A head takes token i of a text together with the target's state of token i - 1 and returns its own state, which goes in
with the next drafted token. It has a KV cache of its own, with a *row* for each token of the text. Rows are read when a
draft is needed, or in pieces when many wait. They are always read with the target's states, so the cells of drafted
tokens are dropped after every draft.

Only the target can give states. A text that was taken over from another request, or read while no drafter wanted
states, has none. If rows of its beginning are in another text's cache, they are shared. A few unknown states are read
as zeros, like the one before the first token. A longer stretch is left out; drafts then know only the text after it.
Drafts never decide the text, so this costs only acceptance. Reading costs time, so a head that is seldom asked leaves
out all but the latest tokens.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, SequenceView, StateDrafter
from lcspec.drafters.decoding import Decoded, Growing, Wanted, checked, decode_together, step_seconds
from lcspec.drafters.growth import Growth, children, place_level, placeable
from lcspec.drafters.known_states import KnownStates, States
from lcspec.drafters.top_candidates import SHARPNESS
from lcspec.errors import DecodeError
from lcspec.kv_cache.prefix_cache import PrefixCache
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama import Context
from lcspec.llama.batch import StateBatch
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import DRAFT_STREAM, Verdict

# Rows that most heads read in one decode.
SLICE = 512
# The most unknown states that are read as zeros; a longer stretch is left out.
GAP = 8
# A head is idle while fewer than this share of its latest steps drafted; what a token leaves of that share.
IDLE, USED = 0.1, 0.98
# How many states are kept of the ends of texts and prompt chunks, for texts that continue from there.
ENDS = 256


@dataclass
class FeatureState:
    """What a head knows of one sequence's text.

    Attributes:
        cache: the head's cells.
        p_min: the least probable child that is drafted.
        rows: the tokens in those cells.
        next: position in the text of the next row's token.
        known: the states that rows still need; each token needs the state of the token before it.
        cells: the target's cache of the text.
        whole: `rows` has no gap.
        node_states: the head's own states of drafted nodes.
        placed: drafted node -> index among the decoded nodes.
        chain: of several layers, (token, the state it goes with) of the pending and the drafted tokens.
    """

    cache: SequenceCache
    p_min: float
    rows: list[int]
    next: int
    known: KnownStates
    cells: SequenceCache | None = None
    whole: bool = True
    node_states: dict[int, States] = field(default_factory=dict)
    placed: dict[int, int] = field(default_factory=dict)
    chain: list[tuple[int, States]] = field(default_factory=list)


class FeatureDrafter(StateDrafter):
    """Drafts with a head in a context of its own.

    Subclasses set `wants_states`, and may override `convert`, `read` and what a level of the draft decodes.

    Attributes:
        lead: how many tokens at the beginning of a text have no row.
        width: numbers in the target's states of one token.
        deepest: the most levels of a draft; None: any number.
        slice: rows that are read in one decode, and the most that wait to be read.
        every_row: the library computes logits for every row of a head's batch and returns the first ones, so either
            all rows of a batch ask for logits or none.
        tokens: those that the head can draft, int32 [n]; None: all. To rank a part of a row takes half as long.
    """

    name = "feature"
    default_nodes = 3
    costly = True
    lead = 0
    deepest: int | None = None
    slice = SLICE
    every_row = False
    tokens: NDArray[np.int32] | None = None
    stream = DRAFT_STREAM + 16  # of the noise; no draft model uses it

    def __init__(self, context: Context, slots: int, width: int) -> None:
        """`context` is the head's, for `slots` texts."""
        self.context = context
        self.width = width
        self.pool = SequencePool(context.n_seq, shared=not context.memory.streams)
        self.prefix_cache = PrefixCache(context, self.pool, slots, share=True)
        self.n_vocab = context.model.n_vocab
        self._running: dict[int, tuple[SequenceView, FeatureState]] = {}
        self._ends: collections.OrderedDict[bytes, States] = collections.OrderedDict()
        self._used = 1.0  # share of the latest steps in which it was asked

    @property
    def idle(self) -> bool:
        """Whether it is asked so seldom that it should not read whole texts."""
        return self._used < IDLE

    # ---------------------------------------------------------------- the protocol

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Options: `branch` (children of a node; 1 gives a chain), `nodes`, `p_min` (the least probable child
        drafted)."""
        spec.check_keys({"branch", "nodes", "p_min"})
        text = list(sequence.tokens[self.lead :]) or list(sequence.tokens)
        cache = self.prefix_cache.take(text)
        rows = text[: cache.length]
        self.prefix_cache.relabel(cache, rows)
        at = self.lead + len(rows)
        # The first token has no state before it.
        before = self._ends.get(_key(sequence.tokens[:at])) if at else np.zeros(self.width, np.float32)
        known = KnownStates(at - 1, np.zeros((0, self.width), np.float32) if before is None else before[None])
        state = FeatureState(cache, spec.number("p_min", 0.0), rows, at, known)
        self._running[sequence.id] = sequence, state

    def process(self, sequence: SequenceView, cells: SequenceCache, start: int, states: States) -> None:
        """See StateDrafter."""
        if sequence.id not in self._running or not len(states):
            return
        state = self._running[sequence.id][1]
        state.cells = cells
        stop = start + len(states)
        if start > state.known.end:
            self._bridge(sequence, state, start)
        if (new := state.known.end) < stop:
            state.known.append(states[new - start :])
        if start < sequence.n_prompt:
            self._remember(sequence.tokens, state, stop - 2)
            self._remember(sequence.tokens, state, stop - 1)
        if start >= sequence.n_prompt:
            self._used *= USED ** len(states)
        if len(state.known) > self.slice:
            if self.idle:
                self._skip(state)
            else:
                self._flush(sequence, state)

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """Grow a tree below the pending token, one level per decode of the head."""
        return self.draft_batch([sequence], [budget])[0]

    def draft_batch(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[TokenTree]:
        """`draft` for all sequences together: a decode of the head serves one level of all trees."""
        try:
            return decode_together(self.context, [self._grow(s, budget) for s, budget in zip(sequences, budgets)])
        except DecodeError:
            for sequence in sequences:
                self._running[sequence.id][1].cache.abandon()
            raise

    def _grow(self, sequence: SequenceView, budget: Budget) -> Growing:
        state, base = self._running[sequence.id][1], len(sequence.tokens) - 1
        self._used += 1.0 - USED
        depth = min(budget.depth, self.context.n_ctx - base - 1)
        depth = depth if self.deepest is None else min(depth, self.deepest)
        if depth <= 0 or budget.nodes <= 0 or not self.ready(state, base):
            return TokenTree.root(sequence.tokens[-1])
        if not self._catch_up(sequence, state, base, budget.reading):
            return TokenTree.root(sequence.tokens[-1])
        # If a planner is asked after every level, it alone decides when a branch ends.
        growth = Growth(TokenTree.root(sequence.tokens[-1]), budget, state.p_min if budget.keep_going is None else 0.0)
        tree, level, branch = growth.tree, [0], self.branch(budget)
        decoded = yield self.root(state, sequence, base)
        self.read_root(state, sequence, base)
        while True:
            new = self._expand(sequence, state, growth, level, base, branch, decoded)
            enough = branch == 1 and tree.n_drafted >= budget.nodes
            if not new or enough or tree.depths[new[0]] >= depth:
                break
            level = self.level_of(state, growth, new, branch)
            if not level or (budget.keep_going is not None and not budget.keep_going(tree, level)):
                break
            decoded = yield self.level(state, tree, level, base)
        self.drop_tree(state)
        return growth.best()

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Do nothing: `process` has already taken the step's states."""

    def end(self, sequence: SequenceView) -> None:
        """Keep the rows for later requests whose texts begin alike."""
        if sequence.id not in self._running:
            return
        state = self._running.pop(sequence.id)[1]
        if not self.idle:
            self._flush(sequence, state)
        if state.whole:
            self._remember(sequence.tokens, state, state.known.end - 1)
        self.prefix_cache.put(state.cache, state.rows)

    def forget(self) -> None:
        """Drop the rows and states of ended texts."""
        self.prefix_cache.clear()
        self._ends.clear()

    def step_seconds(self, repeat: int = 9) -> float:
        """See Drafter.step_seconds."""
        return step_seconds(self.context, self.pool, self.n_vocab, repeat)

    def close(self) -> None:
        """Free the head's context."""
        self.context.close()

    # ---------------------------------------------------------------- what subclasses override

    def convert(self, states: States) -> States:
        """The target's states, float32 [n, width], as the head's input, float32 [n, k]."""
        return states

    def ready(self, state: FeatureState, base: int) -> bool:
        """Whether everything is known that a draft after the token at position `base` needs."""
        return state.known.end >= base and state.next <= base

    def branch(self, budget: Budget) -> int:
        """The most children of a node."""
        return budget.branch

    def read(self, state: FeatureState, tokens: Sequence[int], states: States) -> float:
        """Add rows to the cells; returns how many seconds it took."""
        batch = self._batch()
        batch.add_state_run(tokens, len(state.rows), state.cache.main, states)
        return self.context.decode()

    def root(self, state: FeatureState, sequence: SequenceView, base: int) -> Wanted:
        """The row of the pending token, together with the unread rows before it."""
        first, at = state.next, len(state.rows)
        states = self.convert(state.known.before(first, base + 1))
        rows = [(token, at + i, state.cache.main) for i, token in enumerate(sequence.tokens[first : base + 1])]
        state.cache.grow(at + len(rows) - 1)
        state.placed = {0: 0}
        return Wanted(rows, only_last=not self.every_row, states=list(states))

    def read_root(self, state: FeatureState, sequence: SequenceView, base: int) -> None:
        """The rows of `root` are decoded."""
        self._took(state, sequence.tokens[state.next : base + 1])
        self._drop_known(state)

    def level_of(self, state: FeatureState, growth: Growth, new: Sequence[int], branch: int) -> list[int]:
        """Which of the `new` nodes to decode next."""
        level = list(new) if branch == 1 else growth.next_level(new, branch)
        return placeable(state.cache.forks, growth.tree, level)

    def level(self, state: FeatureState, tree: TokenTree, level: Sequence[int], base: int) -> Wanted:
        """The nodes of a level, below the pending token at position `base` of the text."""
        at, placed = len(state.rows) - 1, list(place_level(state.cache, tree, state.placed, level))
        rows = [(tree.tokens[node], at + tree.depths[node], seq) for node, seq in placed]
        return Wanted(rows, states=[state.node_states[tree.parents[node]] for node, _ in placed])

    def drop_tree(self, state: FeatureState) -> None:
        """Drop the drafted nodes; the pending token's row stays."""
        state.cache.commit([])
        state.placed, state.node_states = {}, {}

    # ---------------------------------------------------------------- rows

    def _expand(
        self,
        sequence: SequenceView,
        state: FeatureState,
        growth: Growth,
        level: Sequence[int],
        base: int,
        branch: int,
        decoded: Decoded,
    ) -> list[int]:
        """Add the children of the nodes just decoded; returns those worth expanding."""
        new: list[int] = []
        sharpness = 1.0 if growth.p_min else SHARPNESS  # `p_min` bounds the head's own probabilities
        assert decoded.states is not None
        rows, below = decoded.rows[-len(level) :], decoded.states[-len(level) :]
        for i, node in enumerate(level):
            state.node_states[node] = below[i].copy()
            position, room = base + growth.tree.depths[node] + 1, min(sequence.draws, branch) or branch
            row = rows[i][: self.n_vocab] if self.tokens is None else rows[i][self.tokens]
            row = checked(self.context, row)
            found = children(sequence, row, position, room, node, sharpness, self.stream, self.tokens)
            new += growth.add(node, found)
        return new

    def _catch_up(self, sequence: SequenceView, state: FeatureState, base: int, seconds: float) -> bool:
        """Read rows until few are left before the pending token's, or for `seconds`; returns whether few are left."""
        while base - state.next >= self.slice:
            seconds -= self._read_slice(sequence, state, base)
            if seconds <= 0.0:
                return base - state.next < self.slice
        return True

    def _flush(self, sequence: SequenceView, state: FeatureState) -> None:
        """Read every row whose state is known; the pending token's row is left to the draft."""
        stop = min(len(sequence.tokens) - 1, state.known.end + 1)
        while state.next < stop:
            self._read_slice(sequence, state, stop)
        self._drop_known(state)

    def _skip(self, state: FeatureState) -> None:
        """Leave out the rows that wait but for the latest quarter of a slice."""
        state.whole = False
        state.next = state.known.end - self.slice // 4
        self._drop_known(state)

    def _read_slice(self, sequence: SequenceView, state: FeatureState, stop: int) -> float:
        tokens = list(sequence.tokens[state.next : min(stop, state.next + self.slice)])
        seconds = self.read(state, tokens, self.convert(state.known.before(state.next, state.next + len(tokens))))
        self._took(state, tokens)
        state.cache.length = len(state.rows)
        return seconds

    @staticmethod
    def _took(state: FeatureState, tokens: Sequence[int]) -> None:
        state.rows.extend(tokens)
        state.next += len(tokens)

    @staticmethod
    def _drop_known(state: FeatureState) -> None:
        """Drop the states that no later row needs; keep the last one."""
        done = min(state.next - 1 - state.known.begin, len(state.known) - 1)
        if done > 0:
            state.known.drop(done)

    def _bridge(self, sequence: SequenceView, state: FeatureState, start: int) -> None:
        """Bridge the unknown states from `state.known.end` to `start`: share rows of other texts, or do without."""
        self._flush(sequence, state)
        if state.whole:
            for other_slot, other in self._running.values():
                if other is not state:
                    self._flush(other_slot, other)
            if self.prefix_cache.top_up(state.cache, sequence.tokens[self.lead :]):
                state.rows[:] = sequence.tokens[self.lead : self.lead + state.cache.length]
                state.next = self.lead + state.cache.length
        if state.next > start:
            state.known = KnownStates(start, np.zeros((0, self.width), np.float32))
            return
        last = self._ends.get(_key(sequence.tokens[:start]))
        if start - state.next + (last is None) > GAP:
            state.whole, state.next = False, start
        # The token at `next` needs the state before it.
        zeros = np.zeros((start - state.next + 1, self.width), np.float32)
        if last is not None:
            zeros[-1] = last
        state.known = KnownStates(state.next - 1, zeros)

    def _remember(self, tokens: Sequence[int], state: FeatureState, position: int) -> None:
        """Keep the state at `position` for texts that begin with the same tokens and continue after it."""
        at = position - state.known.begin
        if position >= 0 and 0 <= at < len(state.known):
            key = _key(tokens[: position + 1])
            self._ends[key] = state.known.rows[at].copy()
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
