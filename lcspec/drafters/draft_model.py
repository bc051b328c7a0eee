"""A draft model: a small GGUF with the target's vocabulary proposes a chain or a tree.

Chains: Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023 (arXiv:2302.01318). Trees grow level by level, the
most probable nodes first, like those of EAGLE-2 (Li et al. 2024, arXiv:2406.16858). After every step the draft model's
cache is rolled back to the accepted text, so that no token of the text is decoded twice.

At temperature > 0 with the `coupled` verifier the draft uses the same noise as the target, so a draft distribution
close to the target's leads to the same choice more often than two independent samples would.

With threads or a device of its own the draft model also runs while the target decodes (see lcspec.drafters.ahead): the
tree goes on growing, and after the step it is not dropped but cut to what lies below the emitted text.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Callable, Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.config import MAX_DRAFT_MODELS, DrafterSpec, ModelOptions, model_drafter
from lcspec.drafters.ahead import Ahead
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.drafters.decoding import Decoded, Growing, Wanted, checked, decode_together, step_seconds
from lcspec.drafters.draft_state import DraftState, Guess, for_seconds
from lcspec.drafters.growth import MAX_LEVEL, Growth, children, placeable
from lcspec.drafters.loading import load_draft
from lcspec.drafters.top_candidates import SHARPNESS
from lcspec.errors import LcspecError, UnsupportedModel, VocabularyMismatch
from lcspec.kv_cache.prefix_cache import PrefixCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama import Branching, Context, Model, check_same_vocabulary
from lcspec.llama.fitting import fitted
from lcspec.profiles.attention import with_attention
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import DRAFT_STREAM, Verdict

log = logging.getLogger(__name__)

# A child that the draft model finds less probable than this ends its branch (an option; 0.0: no child does).
P_MIN = 0.0
# Tokens of a prompt that the draft model reads in one decode.
SLICE = 128
# Tokens that a draft model with a recurrent state may have to decode again after a draft.
REDECODED = 8
# Ahead of the target: children of a node, of which one may be what the target emits, and the most decoded nodes.
OUTCOMES = 3
MOST_AHEAD = 64


class ModelDrafter(Drafter):
    """Drafts with a second, smaller model (`--draft`)."""

    default_nodes = 5
    costly = True

    def __init__(
        self, env: DrafterEnv, index: int = 0, model: Model | None = None, options: ModelOptions | None = None
    ) -> None:
        """Draft with `model`, whose vocabulary the caller has checked, or load draft model number `index`.

        Raises:
            UsageError: the user named no such draft model.
            VocabularyMismatch: its vocabulary is not the target's.
            UnsupportedModel: its memory cannot be rolled back.
        """
        self.name = model_drafter(index)
        self.index = index
        self.model = load_draft(env, index) if model is None else model
        try:
            if model is None:
                check_same_vocabulary(env.target.vocab, self.model.vocab)
            self.model, self.context = fitted(
                self.model, lambda m: Context(m, with_attention(m, options or m.options)), Model.load
            )
            if self.context.memory.branching is Branching.NONE:
                self.context.close()
                raise UnsupportedModel(
                    f"{self.model.options.path.name} cannot draft: its recurrent state cannot be rolled back; "
                    "use a draft model with plain attention"
                )
        except BaseException:
            self.model.close()
            raise
        self.pool = SequencePool(self.context.n_seq, shared=not self.context.memory.streams)
        self.trees = self.context.memory.branching is Branching.TREE
        self.prefix_cache = PrefixCache(self.context, self.pool, env.slots, share=self.trees)
        self.n_vocab = min(self.model.n_vocab, env.target.n_vocab)
        self._slots: dict[int, DraftState] = {}
        able = self.trees and not self.context.memory.window
        self._ahead = Ahead() if env.ahead and able else None

    @property
    def goes_ahead(self) -> bool:  # type: ignore[override]
        """See Drafter.goes_ahead."""
        return self._ahead is not None

    def begin(self, sequence: SequenceView, spec: DrafterSpec, guess: Guess | None = None) -> None:
        """Options: `branch` (children of a node; 1 gives a chain), `nodes`, `p_min` (the least probable child drafted).

        With `guess` a chain takes fewer decodes: the guessed tokens are decoded along with each drafted token, and
        kept as far as the draft model would have chosen them itself. The chain is the same with and without it.
        """
        spec.check_keys({"branch", "nodes", "p_min"})
        p_min = spec.number("p_min", P_MIN)
        self._slots[sequence.id] = DraftState(self.prefix_cache.take(sequence.tokens), p_min, guess)

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """Grow a tree below the pending token, one level per decode; nothing while a long text is still being read."""
        return self.draft_batch([sequence], [budget])[0]

    def draft_batch(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[TokenTree]:
        """`draft` for all sequences together: a decode of the draft model serves one level of all trees."""
        growing = [self._grow(sequence, budget) for sequence, budget in zip(sequences, budgets)]
        if self.trees:
            trees = decode_together(self.context, growing)
        else:  # where states are saved and loaded, a decode can serve only one sequence
            trees = [tree for one in growing for tree in decode_together(self.context, [one])]
        for sequence, tree in zip(sequences, trees):
            self._slots[sequence.id].offered = tree
        return trees

    def _grow(self, sequence: SequenceView, budget: Budget) -> Growing:
        state = self._slots[sequence.id]
        depth, branch = budget.depth, budget.branch
        if not self.trees:
            branch = 1
        base = len(sequence.tokens) - 1
        depth = min(depth, self.context.n_ctx - base - 1)
        if depth <= 0 or budget.nodes <= 0:
            return TokenTree.root(sequence.tokens[-1])
        state.asked, rows = budget, None
        if not self.levels_ready(sequence):
            rows = yield from self._catch_up(state, sequence.tokens, base, SLICE, for_seconds(budget.reading))
            if rows is None:
                return TokenTree.root(sequence.tokens[-1])
            state.plant(sequence.tokens)
        growth = self._growth(state, budget)
        tree = growth.tree
        if rows is not None and state.guess is not None and branch == 1 and self.trees:
            yield from self._grow_guessing(state, state.guess, sequence, growth, base, depth, rows)
            return tree
        level = [0]
        while True:
            if rows is None:  # drafted ahead
                new = growth.waiting(state.placed, branch)
            elif branch == 1 and self._ahead is not None and not sequence.draws:  # what the target may say instead
                new = self._expand(sequence, growth, level, base, OUTCOMES, rows)[:1]
            else:
                new = self._expand(sequence, growth, level, base, branch, rows)
            enough = branch == 1 and bool(new) and tree.depths[new[0]] >= budget.nodes
            new = [node for node in new if tree.depths[node] < depth]
            if not new or enough:
                break
            level = new if branch == 1 else growth.next_level(new, branch)
            level = placeable(state.cache.forks, tree, level, state.placed)
            if not level or (budget.keep_going is not None and not budget.keep_going(tree, level)):
                break
            rows, *_ = yield state.level(tree, level, base)
        return growth.best()

    def levels_ready(self, sequence: SequenceView) -> int:
        """See Drafter.levels_ready."""
        state = self._slots[sequence.id]
        fits = state.ahead and state.tree is not None and state.start == len(sequence.tokens) - 1
        return max(state.tree.depths) if fits and state.tree is not None else 0

    def draft_ahead(self, sequences: Sequence[SequenceView], seconds: float) -> None:
        """See Drafter.draft_ahead. Sequences whose answers have begun and that were never asked for are left out."""
        growing, ahead = list[Growing](), self._ahead
        for sequence in sequences if ahead is not None else ():
            state = self._slots[sequence.id]
            if ahead is not None and (state.asked is not None or len(sequence.tokens) == sequence.n_prompt):
                state.ahead = True
                if state.tree is not None:
                    state.tree = state.tree.below(0)[0]  # the planner has this one
                growing.append(self._grow_ahead(state, sequence, list(sequence.tokens), ahead))
        if ahead is not None and growing:
            ahead.start(lambda: decode_together(self.context, growing), seconds)

    def stop_ahead(self) -> None:
        """See Drafter.stop_ahead. If the library failed, it is said once, and from then on nothing is drafted ahead."""
        error = self._ahead.stop() if self._ahead is not None else None
        if error is None:
            return
        self._end_ahead()
        for state in self._slots.values():
            state.ahead = False
            state.drop()
        if not isinstance(error, LcspecError):
            raise error
        log.warning("%s drafts no longer while the target decodes: %s", self.model.options.path.name, error)

    def _end_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _grow_ahead(self, state: DraftState, sequence: SequenceView, tokens: Sequence[int], ahead: Ahead) -> Growing:
        """Let the tree grow below the last of `tokens` while there is time, or read a prompt; `sequence` may be ahead
        of them."""
        base, asked, rows, took = len(tokens) - 1, state.asked, None, 0.0
        if state.tree is None:
            rows = yield from self._catch_up(state, tokens, base, MAX_LEVEL, ahead.goes_on, drafts=asked is not None)
            if rows is None:
                return TokenTree.root(tokens[-1])
            state.plant(tokens)
        assert asked is not None, "only who was asked has a tree"
        growth = self._growth(state, replace(asked, branch=max(OUTCOMES, asked.branch), floor=0.0))
        if rows is not None:
            self._expand(sequence, growth, [0], base, growth.budget.branch, rows)
        # A slot's cells are enough for the text and what is drafted when it is asked for.
        most, useful = min(MOST_AHEAD, self.context.n_ctx - base - MOST_AHEAD), state.useful(growth.tree)
        while len(state.placed) < most and ahead.goes_on(took):
            level = placeable(state.cache.forks, growth.tree, growth.likeliest(state.placed, useful), state.placed)
            if not level:
                break
            rows, took, _ = yield state.level(growth.tree, level, base)
            self._expand(sequence, growth, level, base, growth.budget.branch, rows)
        return growth.tree

    def _growth(self, state: DraftState, budget: Budget) -> Growth:
        """How the sequence's tree grows."""
        assert state.tree is not None
        # If a planner is asked after every level, it alone decides when a branch ends.
        return Growth(state.tree, budget, state.p_min if budget.keep_going is None else 0.0)

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Roll the draft model's cache back to the accepted text, or to what was drafted ahead below it."""
        state = self._slots[sequence.id]
        if state.tree is None:
            return
        node: int | None = 0
        path = list[int]()
        for token in verdict.tokens:
            node = state.tree.child(node, token) if node is not None else None
            if node is None or node not in state.placed:
                break
            path.append(node)
        if state.ahead and len(path) == len(verdict.tokens):
            state.follow(path)
            return
        # The last token is the next pending one: its row is needed again even if its cell is in the cache.
        state.cache.commit([state.placed[node] for node in path[: len(verdict.tokens) - 1]])
        state.tree, state.placed = None, {}

    def end(self, sequence: SequenceView) -> None:
        """Keep the cache for later requests whose texts begin alike."""
        state = self._slots.pop(sequence.id, None)
        if state is not None:
            self.prefix_cache.put(state.cache, list(sequence.tokens))

    def forget(self) -> None:
        """Drop the caches of ended texts."""
        self.prefix_cache.clear()

    def rewind(self, number: int, length: int) -> None:
        """Roll sequence `number` back: after `length` tokens its text has another continuation."""
        self._slots[number].cache.truncate(length)

    def step_seconds(self, repeat: int = 9) -> float:
        """See Drafter.step_seconds."""
        return step_seconds(self.context, self.pool, self.n_vocab, repeat)

    def close(self) -> None:
        """Free the draft model."""
        self._end_ahead()
        self.context.close()
        self.model.close()

    def _grow_guessing(
        self,
        state: DraftState,
        guess: Guess,
        sequence: SequenceView,
        growth: Growth,
        base: int,
        deepest: int,
        rows: NDArray[np.float32],
    ) -> Generator[Wanted, Decoded, None]:
        """Grow a chain; every decode takes the newest token and the tokens guessed to follow it."""
        cache, tree, budget = state.cache, growth.tree, growth.budget
        node, guesses, going = 0, list[int](), True
        while True:
            right = 0
            # Row i belongs to the newest token (0) or to guess i - 1; it tells whether guess i is right.
            for i in range(len(guesses) + 1):
                new = self._expand(sequence, growth, [node], base, 1, rows[i : i + 1])
                going = bool(new) and tree.n_drafted < budget.nodes and tree.depths[new[0]] < deepest
                going = going and (budget.keep_going is None or budget.keep_going(tree, new))
                if not going:
                    break
                node = new[0]
                if i == len(guesses) or tree.tokens[node] != guesses[i]:
                    break
                state.placed[node] = len(state.placed)
                right += 1
            cache.retract(len(guesses) - right)
            if not going:
                return
            room = min(budget.nodes - tree.n_drafted, deepest - tree.depths[node], MAX_LEVEL) - 1
            path = [tree.tokens[v] for v in tree.path_to(node)[1:]]
            guesses = list(guess(sequence, path))[: max(0, room)]
            state.placed[node] = len(state.placed)
            tokens = []
            for i, token in enumerate([tree.tokens[node], *guesses]):
                depth, parent = tree.depths[node] + i, state.placed[node] + i - 1
                tokens.append((token, base + depth, cache.extend(parent, depth, False, ())))
            rows, *_ = yield Wanted(tokens)

    def _expand(
        self,
        sequence: SequenceView,
        growth: Growth,
        level: list[int],
        base: int,
        branch: int,
        rows: NDArray[np.float32],
    ) -> list[int]:
        """Add the children of the nodes just decoded; returns those worth expanding."""
        new: list[int] = []
        sharpness = 1.0 if growth.p_min else SHARPNESS  # `p_min` bounds the draft model's own probabilities
        for node, row in zip(level, rows):
            position = base + growth.tree.depths[node] + 1
            room = min(sequence.draws, branch) or branch
            row = checked(self.context, row[: self.n_vocab])
            found = children(sequence, row, position, room, node, sharpness, DRAFT_STREAM + self.index)
            new += growth.add(node, found)
        return new

    def _catch_up(
        self,
        state: DraftState,
        tokens: Sequence[int],
        base: int,
        most: int,
        goes_on: Callable[[float], bool],
        drafts: bool = True,
    ) -> Generator[Wanted, Decoded, NDArray[np.float32] | None]:
        """Decode a slice of the tokens that the draft has not seen, `most` at a time, and further ones while `goes_on`,
        which is told what the last one took, says so. Without `drafts` node 0 is not decoded.

        Returns node 0's row, float32 [1, n_vocab]; None if it was not decoded.
        """
        cache = state.cache
        if base - cache.length > self.context.options.max_width:
            self.prefix_cache.top_up(cache, tokens)
        while True:
            start = cache.length
            stop = min(base + drafts, start + min(most, self.context.options.batch))
            if not self.trees and start + REDECODED < base < stop:
                stop = base  # drafting will roll back to the start of this decode
            last = stop == base + 1
            if stop == start:
                return None
            unread = [(tokens[at], at, cache.main) for at in range(start, stop)]
            if last:
                cache.grow(base)
            rows, took, _ = yield Wanted(unread, only_last=True, logits=last)
            if last:
                return rows
            cache.reached(stop)
            if not goes_on(took):
                return None


def draft_with(env: DrafterEnv, index: int) -> Drafter:
    """The drafter for draft model number `index`; it drafts through text if its vocabulary is not the target's.

    Raises:
        LcspecError: as ModelDrafter raises.
    """
    from lcspec.drafters.translated import TranslatedDrafter

    model = load_draft(env, index)
    try:
        check_same_vocabulary(env.target.vocab, model.vocab)
    except VocabularyMismatch as problem:
        return TranslatedDrafter(replace(env, ahead=False), index, model, problem)
    return ModelDrafter(env, index, model)


for _index in range(MAX_DRAFT_MODELS):
    register(model_drafter(_index))(functools.partial(draft_with, index=_index))
