"""A draft model with another vocabulary: it drafts text, which is tokenized again for the target.

Universal assisted decoding (Timor et al. 2025, arXiv:2502.05202; this is their string-level exact match). The target
verifies proposals without a draft distribution, so the coupled and greedy verifiers lose nothing. The sampling
verifiers need the draft's probabilities of the target's tokens, which are unknown, and are refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec.answers.text import StreamDecoder
from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, Drafter, DrafterEnv, SequenceView
from lcspec.drafters.draft_model import ModelDrafter
from lcspec.drafters.retokenize import GrowingText, carried_over, puts_space
from lcspec.errors import TokenizeError, VocabularyMismatch
from lcspec.llama import Model
from lcspec.sampling.parameters import SamplingParams
from lcspec.spec import cutting
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

log = logging.getLogger(__name__)

# Draft tokens beyond the number asked for: the target's tokens may be longer.
EXTRA = 3
# Estimate of a target token that ends inside a draft token.
WITHIN = 0.9


@dataclass
class _View:
    """What the draft model sees: the text in its own vocabulary, without sampling (it drafts its most probable
    text)."""

    id: int
    tokens: Sequence[int]
    n_prompt: int
    params: SamplingParams
    seed: int
    draws: int = 0
    prediction: Sequence[int] = ()
    hidden: NDArray[np.float32] | None = None

    def forced_text(self, limit: int) -> str:
        return ""


@dataclass
class _State:
    text: GrowingText
    view: _View
    read: int = 0  # how many of the target's tokens `text` holds
    mute: bool = False  # the draft model's vocabulary cannot express the text
    drafted: TokenTree | None = field(default=None, repr=False)


class TranslatedDrafter(Drafter):
    """Drafts with a model whose vocabulary is not the target's. It replaces ModelDrafter under the same name."""

    default_nodes = 5
    costly = True

    def __init__(self, env: DrafterEnv, index: int, model: Model, problem: VocabularyMismatch) -> None:
        """Draft with `model`; `problem` says how its vocabulary differs."""
        # Its tokens may be shorter than the target's, so the same text may need more of them.
        options = replace(model.options, ctx=2 * env.ctx)
        self.inner = ModelDrafter(env, index, model, options)
        self.inner.n_vocab = model.n_vocab
        self.name = self.inner.name
        self._problem = problem
        self._told = False
        self._target, self._draft = env.target.vocab, model.vocab
        self._spaced = puts_space(self._target)
        self._slots: dict[int, _State] = {}

    def begin(self, sequence: SequenceView, spec: DrafterSpec) -> None:
        """Options: `nodes` and `p_min` as for `model`.

        Raises:
            VocabularyMismatch: the verifier needs drawn drafts.
        """
        spec.check_keys({"nodes", "p_min", "branch"})
        if sequence.draws:
            raise VocabularyMismatch(f"{self._problem}; the coupled verifier takes drafts through text")
        if not self._told:
            log.warning("%s drafts through text: its vocabulary is not the target's", self._draft.path.name)
            self._told = True
        text = GrowingText(self._draft)
        view = _View(sequence.id, text.tokens, 0, SamplingParams(temperature=0.0), sequence.seed)
        state = self._slots[sequence.id] = _State(text, view)
        self._read(state, sequence)
        view.tokens = text.tokens
        options = {k: v for k, v in spec.options.items() if k == "p_min"}
        self.inner.begin(view, DrafterSpec(self.name, options))

    def _read(self, state: _State, sequence: SequenceView) -> int:
        """Add the target's new tokens to the text; returns how many of the draft's tokens did not change."""
        start, state.read = state.read, len(sequence.tokens)
        new = sequence.tokens[start:]
        if start == 0 and self._target.add_bos and new and new[0] == self._target.bos:
            new = new[1:]  # the draft model has its own token for the start of a text
        if state.mute:
            return len(state.text.tokens)
        try:
            return state.text.add(b"".join(self._target.piece(t, special=True) for t in new))
        except TokenizeError:
            state.mute = True
            return 0

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        """The draft model's continuation as a chain of the target's tokens."""
        return self.draft_batch([sequence], [budget])[0]

    def draft_batch(self, sequences: Sequence[SequenceView], budgets: Sequence[Budget]) -> list[TokenTree]:
        """`draft` for all sequences together: a decode of the draft model serves a token of each."""
        out = [TokenTree.root(sequence.tokens[-1]) for sequence in sequences]
        states = [self._slots[sequence.id] for sequence in sequences]
        able = [i for i, s in enumerate(states) if not (s.mute or s.text.held or not s.text.tokens)]
        asked = [self._asked(sequences[i], budgets[i]) for i in able]
        for i, drafted in zip(able, self.inner.draft_batch([states[i].view for i in able], asked)):
            states[i].drafted = drafted
            out[i] = cutting.best(self._translate(sequences[i], drafted, budgets[i]), budgets[i].nodes)
        return out

    def _asked(self, sequence: SequenceView, budget: Budget) -> Budget:
        """What the draft model is asked for: one token of the target may need several of its own."""
        translated = TokenTree.root(sequence.tokens[-1])

        def keep_going(tree: TokenTree, frontier: Iterable[int]) -> bool:
            nonlocal translated
            assert budget.keep_going is not None
            translated = self._translate(sequence, tree, budget)
            enough = translated.n_drafted > budget.nodes or max(translated.depths) > budget.depth
            return not enough and budget.keep_going(translated, [len(translated) - 1])

        ask = Budget(budget.nodes + EXTRA, budget.depth + EXTRA, 1, budget.source, reading=budget.reading)
        return ask if budget.keep_going is None else replace(ask, keep_going=keep_going)

    def _translate(self, sequence: SequenceView, chain: TokenTree, budget: Budget) -> TokenTree:
        """The draft's chain as target tokens."""
        tree = TokenTree.root(sequence.tokens[-1])
        data, ends = bytearray(), list[tuple[int, float]]()
        for token, prob in zip(chain.tokens[1:], chain.probs[1:]):
            if not self._draft.piece(token):
                break  # an end token or another control token
            data += self._draft.piece(token)
            ends.append((len(data), prob))
        text = StreamDecoder().feed(bytes(data))
        if not text:
            return tree
        try:
            tokens = carried_over(self._target, sequence.tokens, text, self._spaced)
        except TokenizeError:
            return tree
        node, at = 0, 0
        for token in tokens[: budget.depth]:
            end = at + len(self._target.piece(token))
            within = [p for e, p in ends if at < e <= end]
            prob = WITHIN
            for p in within:
                prob = min(prob, p) if len(within) == 1 else prob * p
            node = tree.add(node, token, prob, budget.source)
            at = end
        return tree

    def observe(self, sequence: SequenceView, tree: TokenTree, verdict: Verdict) -> None:
        """Follow the text, and roll the draft model's cache back to the tokens that did not change."""
        state = self._slots[sequence.id]
        before, kept = len(state.text.tokens), self._read(state, sequence)
        tokens = state.text.tokens
        if state.drafted is not None:
            fresh = tokens[before:] if kept >= before else []
            self.inner.observe(state.view, state.drafted, Verdict([], fresh, bonus=False))
            state.drafted = None
        self.inner.rewind(sequence.id, min(len(tokens) - 1, kept if kept < before else len(tokens)))
        state.view.tokens = tokens

    def end(self, sequence: SequenceView) -> None:
        """Keep the cache for later requests whose texts begin alike."""
        state = self._slots.pop(sequence.id, None)
        if state is not None:
            self.inner.end(state.view)

    def step_seconds(self, repeat: int = 9) -> float:
        """See Drafter.step_seconds."""
        return self.inner.step_seconds(repeat)

    def forget(self) -> None:
        """Drop the caches of ended texts."""
        self.inner.forget()

    def close(self) -> None:
        """Free the draft model."""
        self.inner.close()
