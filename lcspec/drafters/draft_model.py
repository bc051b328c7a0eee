"""A draft model: a small GGUF with the target's vocabulary proposes a chain or a tree.

Chains: Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023 (arXiv:2302.01318). Trees grow level by level, the
most probable nodes first, as EAGLE-2's do (Li et al. 2024, arXiv:2406.16858). The draft model's cache is rolled back
to the accepted text after every step and never filled twice.

At temperature > 0 with the `coupled` verifier the draft uses the very noise the target will use, so a draft
distribution close to the target's leads to the same choice more often than two independent samples would.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Callable, Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.config import MAX_BRANCH, MAX_DRAFT_MODELS, DrafterSpec, ModelOptions, model_drafter
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView, register
from lcspec.drafters.decoding import Decoded, Growing, Wanted, decode_together
from lcspec.drafters.growth import MAX_LEVEL, Growth
from lcspec.drafters.top_candidates import SHARPNESS, draft_distribution, top_candidates
from lcspec.errors import UnsupportedModel, UsageError, VocabularyMismatch
from lcspec.kv_cache.prefix_cache import PrefixCache
from lcspec.kv_cache.sequence_cache import SequenceCache, SequencePool
from lcspec.llama import Branching, Context, Model, check_same_vocabulary
from lcspec.profiles.attention import with_attention
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import inverse_cdf, uniform_noise
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import DRAFT_STREAM, Verdict

# A child less likely than this (in the draft model's eyes) ends its branch, if the user says so.
P_MIN = 0.0
# Tokens of a prompt that the draft model reads at a time.
SLICE = 128
# Tokens that a draft model with a recurrent state may decode once more after every draft.
REDECODED = 8


# Given a slot and what has been drafted for it so far, what may follow (see ModelDrafter.begin).
Guess = Callable[[SequenceView, Sequence[int]], Sequence[int]]


@dataclass
class _State:
    """One slot's share of the draft model."""

    cache: SequenceCache
    p_min: float
    guess: Guess | None = None
    tree: TokenTree | None = None
    placed: dict[int, int] = field(default_factory=dict)  # tree node -> index among the decoded nodes


class ModelDrafter(Drafter):
    """Drafts with a second, smaller model (`--draft`)."""

    default_nodes = 5
    costly = True

    def __init__(
        self, env: DrafterEnv, index: int = 0, model: Model | None = None, options: ModelOptions | None = None
    ) -> None:
        """Draft with `model`, whose vocabulary the caller has looked at, or load the draft model number `index`.

        Raises:
            UsageError: it was not named.
            VocabularyMismatch: its vocabulary is another.
            UnsupportedModel: its memory cannot be rolled back.
        """
        self.name = model_drafter(index)
        self.index = index
        self.model = load_draft(env, index) if model is None else model
        try:
            if model is None:
                check_same_vocabulary(env.target.vocab, self.model.vocab)
            self.context = Context(self.model, with_attention(self.model, options or self.model.options))
            if self.context.branching is Branching.NONE:
                self.context.close()
                raise UnsupportedModel(
                    f"{self.model.options.path.name} cannot draft: its recurrent state cannot be taken back; "
                    "use a draft model with plain attention"
                )
        except BaseException:
            self.model.close()
            raise
        self.pool = SequencePool(self.context.n_seq)
        self.prefix_cache = PrefixCache(
            self.context, self.pool, env.slots, share=self.context.branching is Branching.TREE
        )
        self.n_vocab = min(self.model.n_vocab, env.target.n_vocab)
        self._slots: dict[int, _State] = {}

    def begin(self, sequence: SequenceView, spec: DrafterSpec, guess: Guess | None = None) -> None:
        """Options: `branch` (children a node; 1 is a chain), `nodes`, `p_min` (least probable child still drafted).

        With `guess` a chain is drafted with fewer decodes: what it returns is decoded along with each drafted token,
        and stays as far as the draft model would have chosen it itself. The chain is the same with and without it.
        """
        spec.check_keys({"branch", "nodes", "p_min"})
        p_min = spec.number("p_min", P_MIN)
        self._slots[sequence.id] = _State(self.prefix_cache.take(sequence.tokens), p_min, guess)

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """Grow a tree below the pending token, a level per draft decode; nothing while a long text is being read."""
        return self.draft_batch([sequence], [budget])[0]

    def draft_batch(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[TokenTree]:
        """`draft` for all sequences together: a level of everybody's tree per draft decode."""
        growing = [self._grow(sequence, budget) for sequence, budget in zip(sequences, budgets)]
        if self.context.branching is Branching.TREE:
            return decode_together(self.context, growing)
        # Where states are saved and loaded, a decode is one sequence's.
        return [tree for one in growing for tree in decode_together(self.context, [one])]

    def _grow(self, sequence: SequenceView, budget: Budget) -> Growing:
        state = self._slots[sequence.id]
        tree = TokenTree.root(sequence.tokens[-1])
        depth, branch = budget.depth, budget.branch
        if self.context.branching is Branching.CHAIN:
            branch = 1
        base = len(sequence.tokens) - 1
        depth = min(depth, self.context.n_ctx - base - 1)
        if depth <= 0 or budget.nodes <= 0:
            return tree
        rows = yield from self._catch_up(state, sequence, base, budget.reading)
        if rows is None:
            return tree
        # Where a planner asks after every level, it is the one to say when a branch ends.
        growth = Growth(sequence.tokens[-1], budget, state.p_min if budget.keep_going is None else 0.0)
        tree = growth.tree
        state.tree, state.placed = tree, {0: 0}
        if state.guess is not None and branch == 1 and self.context.branching is Branching.TREE:
            yield from self._grow_guessing(state, state.guess, sequence, growth, base, depth, rows)
            return tree
        level = [0]
        while True:
            fresh = self._expand(sequence, growth, level, base, branch, rows)
            enough = branch == 1 and tree.n_drafted >= budget.nodes
            if not fresh or enough or tree.depths[fresh[0]] >= depth:
                break
            level = fresh if branch == 1 else growth.next_level(fresh, branch)
            level = self._placeable(state.cache, tree, level)
            if not level or (budget.keep_going is not None and not budget.keep_going(tree, level)):
                break
            rows, _ = yield self._level(state, tree, level, base)
        return growth.best()

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Roll the draft's cache back to the accepted text."""
        state = self._slots[sequence.id]
        if state.tree is None:
            return
        node: int | None = 0
        path = []
        # The last token is the next pending one: its row is needed again even if its cell is there.
        for token in verdict.tokens[:-1]:
            node = state.tree.child(node, token) if node is not None else None
            if node is None or node not in state.placed:
                break
            path.append(state.placed[node])
        state.cache.commit(path)
        state.tree, state.placed = None, {}

    def end(self, sequence: SequenceView) -> None:
        """Keep the cache for a later request with the same beginning."""
        state = self._slots.pop(sequence.id, None)
        if state is not None:
            self.prefix_cache.put(state.cache, list(sequence.tokens))

    def forget(self) -> None:
        """Later requests read their texts from the beginning."""
        self.prefix_cache.clear()

    def rewind(self, number: int, length: int) -> None:
        """The text of slot `number` has another continuation after `length` tokens."""
        self._slots[number].cache.truncate(length)

    def step_seconds(self, repeat: int = 9) -> float:
        """See Drafter.step_seconds."""
        seq = self.pool.take()
        try:
            return self.context.step_seconds(seq, range(self.n_vocab), repeat)
        finally:
            self.pool.give(seq)

    def close(self) -> None:
        """Free the draft model."""
        self.context.close()
        self.model.close()

    def _grow_guessing(
        self,
        state: _State,
        guess: Guess,
        sequence: SequenceView,
        growth: Growth,
        base: int,
        deepest: int,
        rows: NDArray[np.float32],
    ) -> Generator[Wanted, Decoded, None]:
        """Grow a chain; every decode takes the newest token and what is guessed to follow it."""
        cache, tree, budget = state.cache, growth.tree, growth.budget
        node, guesses, going = 0, list[int](), True
        while True:
            right = 0
            # Row i is that of the newest token (0) or of guess i - 1, and tells whether guess i is right.
            for i in range(len(guesses) + 1):
                fresh = self._expand(sequence, growth, [node], base, 1, rows[i : i + 1])
                going = bool(fresh) and tree.n_drafted < budget.nodes and tree.depths[fresh[0]] < deepest
                going = going and (budget.keep_going is None or budget.keep_going(tree, fresh))
                if not going:
                    break
                node = fresh[0]
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
            rows, _ = yield Wanted(tokens)

    def _expand(
        self,
        sequence: SequenceView,
        growth: Growth,
        level: list[int],
        base: int,
        branch: int,
        rows: NDArray[np.float32],
    ) -> list[int]:
        """Add the children of the nodes just decoded; returns those worth looking below."""
        fresh: list[int] = []
        sharpness = 1.0 if growth.p_min else SHARPNESS  # `p_min` is about the draft model's own probabilities
        for node, row in zip(level, rows):
            position = base + growth.tree.depths[node] + 1
            room = min(sequence.draws, branch) or branch
            fresh += growth.add(node, self._children(sequence, row[: self.n_vocab], position, room, node, sharpness))
        return fresh

    @staticmethod
    def _placeable(cache: SequenceCache, tree: TokenTree, level: list[int]) -> list[int]:
        """The nodes of a level there are sequence ids for: a node's first child needs none, every other one does."""
        forks, continued, out = cache.forks, set(), []
        for node in level:
            forks -= tree.parents[node] in continued
            if forks < 0:
                break
            continued.add(tree.parents[node])
            out.append(node)
        return out

    def _catch_up(
        self, state: _State, sequence: SequenceView, base: int, seconds: float
    ) -> Generator[Wanted, Decoded, NDArray[np.float32] | None]:
        """Decode tokens the draft has not seen: a slice of them, and more while that has taken less than `seconds`.

        Returns node 0's row, float32 [1, n_vocab]; None if there is more to read.
        """
        cache = state.cache
        if base - cache.length > self.context.options.max_width:
            self.prefix_cache.top_up(cache, sequence.tokens)
        while True:
            start = cache.length
            stop = min(base + 1, start + min(SLICE, self.context.options.batch))
            if self.context.branching is Branching.CHAIN and start + REDECODED < base < stop:
                stop = base  # the draft goes back to where this decode begins
            last = stop == base + 1
            unread = [(sequence.tokens[at], at, cache.main) for at in range(start, stop)]
            if last:
                cache.grow(base)
            rows, took = yield Wanted(unread, only_last=True, logits=last)
            if last:
                return rows
            cache.length = stop
            seconds -= took
            if seconds <= 0.0:
                return None

    def _level(self, state: _State, tree: TokenTree, level: list[int], base: int) -> Wanted:
        """The nodes of one level side by side; the first child of a node continues its branch, others fork."""
        tokens = []
        continued: set[int] = set()
        for node in level:
            parent = tree.parents[node]
            path = [state.placed[v] for v in tree.path_to(parent)]
            seq = state.cache.extend(state.placed[parent], tree.depths[node], parent in continued, path)
            continued.add(parent)
            state.placed[node] = len(state.placed)
            tokens.append((tree.tokens[node], base + tree.depths[node], seq))
        return Wanted(tokens)

    def _children(
        self, sequence: SequenceView, logits: NDArray[np.float32], position: int, n: int, node: int, sharpness: float
    ) -> list[tuple[int, float, Distribution | None]]:
        """The `n` best continuations: (token, probability that the target agrees, the distribution if it was drawn)."""
        if not sequence.draws:
            return [
                (token, prob, None)
                for token, prob in top_candidates(sequence, logits, position, n, sharpness=sharpness)
            ]
        dist = draft_distribution(logits, sequence.params)
        # Draws below different nodes at one position must be independent.
        counters = [node * MAX_BRANCH + i for i in range(n)]
        # ... and so must those of several draft models.
        noise = uniform_noise(sequence.seed, position, counters, DRAFT_STREAM + self.index)
        return [(inverse_cdf(dist, float(u)), float(dist.probs.max()), dist) for u in noise]


def draft_with(env: DrafterEnv, index: int) -> Drafter:
    """The drafter for the draft model number `index`: through text where its vocabulary is not the target's.

    Raises:
        LcspecError: see ModelDrafter.
    """
    from lcspec.drafters.translated import TranslatedDrafter

    model = load_draft(env, index)
    try:
        check_same_vocabulary(env.target.vocab, model.vocab)
    except VocabularyMismatch as problem:
        return TranslatedDrafter(env, index, model, problem)
    return ModelDrafter(env, index, model)


for _index in range(MAX_DRAFT_MODELS):
    register(model_drafter(_index))(functools.partial(draft_with, index=_index))


def load_draft(env: DrafterEnv, index: int) -> Model:
    """Load the draft model number `index`.

    Raises:
        UsageError: it was not named.
        ModelFileError, ModelLoadError: it cannot be loaded.
    """
    if index >= len(env.draft.models):
        which = "a draft model" if index == 0 else f"{index + 1} draft models, and {len(env.draft.models)} are named"
        raise UsageError(f"the drafter {model_drafter(index)} needs {which}: add --draft DRAFT.gguf")
    path, progress = env.draft.models[index], env.progress
    options = ModelOptions(
        path,
        ctx=env.ctx,
        slots=env.slots,
        threads=env.threads,
        gpu_layers=env.gpu_layers,
        max_width=MAX_LEVEL,
        planes=False,  # it decodes token by token, and planes are those of one decode
    )
    return Model.load(options, None if progress is None else lambda fraction: progress(path.name, fraction))
