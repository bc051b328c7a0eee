"""llama.cpp's own sampler chain as the source of the target's distribution.

Using its samplers means that a parameter has the same effect here as there. The chain ends before the draw: the
candidates it leaves, softmaxed, are the distribution the verifiers work with. Its state (penalties, DRY, Mirostat,
adaptive-p, grammar) advances only through `accept`, i.e. along the emitted text.

A grammar comes first, for every verifier and at every temperature: tokens that it does not allow are gone before any
sampler looks, so top-k, top-p, min-p and the others choose among the allowed ones. So does the end of reasoning whose
budget is used up.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lcspec.errors import GrammarFailed
from lcspec.llama.chain import LONGEST_WINDOW, Chain, candidates, window
from lcspec.llama.grammar import compile_grammar
from lcspec.llama.vocab import Vocab
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.grammar import Constraint
from lcspec.sampling.parameters import SamplingParams, coupled_choice
from lcspec.sampling.reasoning_budget import BudgetedReasoning
from lcspec.sampling.shortlist import Shortlist


class Sampler:
    """The target's sampling distribution for one request.

    The order is the grammar, then llama.cpp's samplers in its own order (see Chain).
    """

    def __init__(self, vocab: Vocab, params: SamplingParams, seed: int, n_ctx: int = LONGEST_WINDOW) -> None:
        """Build the chain; penalties look back over `n_ctx` tokens at most.

        Raises:
            GrammarError: the grammar does not compile.
            SamplingError: the logit bias names a token that is not in the vocabulary.
        """
        params.check_vocabulary(vocab.n_tokens)
        params = params.effective
        self.vocab = vocab
        self.params = params
        self.greedy = params.greedy
        self.seed = seed
        self._all = np.arange(vocab.n_tokens)
        self._shortlist = Shortlist(params, window(params.repeat_last_n, n_ctx))
        self._constraint = _constraint(vocab, params)
        free = params.unconstrained if params.constrained else params
        self._chain = None if free.plain_greedy else Chain(vocab, params, seed, n_ctx)
        # A favourite among logits that differ by a bias alone needs neither candidates nor their probabilities.
        self._bias: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None
        if params.logit_bias and replace(free, logit_bias=()).plain_greedy:
            tokens, values = zip(*params.logit_bias)
            self._bias = np.array(tokens, dtype=np.int32), np.array(values, dtype=np.float32)

    def choose(self, logits: NDArray[np.float32], position: int) -> int:
        """The token at absolute `position` given `logits` float32 [n_vocab]: greedy, or coupled to the seed."""
        if self._chain is None:
            best = int(logits.argmax())
            if self._constraint is None or self._constraint.allows(best):
                return best
            return int(self._constrained(logits).argmax())
        logits = self._constrained(logits)
        if self._bias is not None:
            biased = logits.copy()
            biased[self._bias[0]] += self._bias[1]
            best = int(biased.argmax())
            return best if np.isfinite(biased[best]) else self._nothing_left()
        return self._pick(self._apply(logits, position), position)

    def distribution(self, logits: NDArray[np.float32], position: int) -> Distribution:
        """The distribution of the token at absolute `position`; one point at temperature 0."""
        if self._chain is None:
            return Distribution(np.array([self.choose(logits, position)], dtype=np.int32), np.ones(1))
        dist = self._apply(self._constrained(logits), position)
        if self.greedy:
            return Distribution(np.array([self._pick(dist, position)], dtype=np.int32), np.ones(1))
        return dist

    def unscaled(self, logits: NDArray[np.float32]) -> Distribution:
        """The distribution at temperature 1 of the whole vocabulary, after logit bias, penalties and DRY alone."""
        if self._chain is None:
            return self._softmax(self._all.astype(np.int32), logits.astype(np.float64))
        return self._softmax(*self._chain.move(candidates(self._all, logits)))

    def fork(self) -> Sampler:
        """A sampler that goes on by itself from here, for texts that may come to nothing; not with a grammar. This one
        must outlive it."""
        assert self._constraint is None, "a grammar cannot be forked"
        if self._chain is None or not self._chain.changes:
            return self
        other = copy.copy(self)
        other._shortlist = self._shortlist.copy()
        other._chain = self._chain.fork()
        return other

    def accept(self, token: int, *, generated: bool = True) -> None:
        """Advance past `token`; the grammar only sees generated tokens, penalties see the prompt as well."""
        if self._chain is not None:
            self._chain.accept(token, generated=generated)
            self._shortlist.accept(token)
        # An end that is passed over (`ignore_end`) is no part of the text.
        if generated and self._constraint is not None and not self.vocab.is_end(token):
            self._constraint.accept(token)

    @property
    def learns(self) -> bool:
        """Whether its choice depends on what the tokens before were chosen from (Mirostat, adaptive-p)."""
        return self._chain is not None and self._chain.learns

    def forced_text(self, limit: int) -> str:
        """The text the grammar allows no alternative to from here on, `limit` characters at most."""
        if self._constraint is None:
            return ""
        return self._constraint.forced()[: limit * 4].decode("utf-8", "ignore")[:limit]

    def close(self) -> None:
        """Free the chain. Idempotent."""
        if self._chain is not None:
            self._chain.close()
        self._chain = None

    def _pick(self, dist: Distribution, position: int) -> int:
        if self.greedy:
            best = np.flatnonzero(dist.probs == dist.probs.max())
            return int(dist.ids[best].min())
        return coupled_choice(dist, self.seed, position)

    def _constrained(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """`logits` with -inf for what the grammar does not allow."""
        if self._constraint is None or self._constraint.free:
            return logits
        return np.where(self._constraint.mask(), logits, np.float32(-np.inf))

    def _nothing_left(self) -> int:
        """What follows where the logit bias forbids everything: the end of the text, unless a grammar forbids that."""
        if self._constraint is not None and not self._constraint.allows(self.vocab.eos):
            raise GrammarFailed("the logit bias forbids every token that the grammar, schema or budget allows here")
        return self.vocab.eos

    def _apply(self, logits: NDArray[np.float32], position: int) -> Distribution:
        """Candidates after the chain, softmaxed: ids int32 [k], probs float64 [k]."""
        tokens = self._shortlist.of(logits)
        if self._constraint is not None and not self._constraint.free:
            tokens = self._all if tokens is None else tokens
            tokens = tokens[logits[tokens] > -np.inf]  # samplers see allowed tokens only
        array = candidates(self._all, logits) if tokens is None else candidates(tokens, logits[tokens])
        assert self._chain is not None
        return self._softmax(*self._chain.apply(array, position))

    def _softmax(self, ids: NDArray[np.int32], x: NDArray[np.float64]) -> Distribution:
        finite = np.isfinite(x)
        if not finite.all():
            ids, x = ids[finite], x[finite]
        if not x.size:  # the logit bias forbids all that was left
            return Distribution(np.array([self._nothing_left()], dtype=np.int32), np.ones(1))
        weights = np.exp(x - x.max())
        return Distribution(ids, weights / weights.sum())


def _constraint(vocab: Vocab, params: SamplingParams) -> Constraint | BudgetedReasoning | None:
    """The request's own way through its grammar, or through its reasoning."""
    if params.reasoning_budget is not None:
        return params.reasoning_budget.start()
    if params.grammar is None:
        return None
    compiled = compile_grammar(vocab, params.grammar) if isinstance(params.grammar, str) else params.grammar
    return compiled.start()
