"""llama.cpp's own sampler chain as the source of the target's distribution.

Using its samplers means that a parameter has the same effect here as there. The chain ends before the draw: the
candidates it leaves, softmaxed, are the distribution the verifiers work with. Its state (penalties, DRY, grammar)
advances only through `accept`, i.e. along the emitted text.

A grammar comes first, for every verifier and at every temperature: tokens that it does not allow are gone before any
sampler looks, so top-k, top-p, min-p and the others choose among the allowed ones.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lcspec.errors import GrammarFailed
from lcspec.grammar import Constraint
from lcspec.llama.grammar import compile_grammar
from lcspec.llama.lib import C
from lcspec.llama.vocab import Vocab
from lcspec.sampling import SamplingParams, coupled_choice
from lcspec.shortlist import Shortlist
from lcspec.tree import Distribution

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
# The library allocates as many entries as a penalty is told to look back.
LONGEST_WINDOW = 1 << 20
DRY_BREAKERS = (b"\n", b":", b'"', b"*")


class Sampler:
    """The target's sampling distribution for one request.

    The order is the grammar, then llama.cpp's default chain: logit bias, penalties, DRY, top-k, typical, top-p, min-p,
    XTC, temperature.
    """

    def __init__(self, vocab: Vocab, params: SamplingParams, seed: int, n_ctx: int = LONGEST_WINDOW) -> None:
        """Build the chain; penalties look back over `n_ctx` tokens at most.

        Raises:
            GrammarError: the grammar does not compile.
            SamplingError: the logit bias names a token that is not in the vocabulary.
        """
        params.check_vocabulary(vocab.n_tokens)
        self.vocab = vocab
        self.params = params
        self.seed = seed
        self._cur = C.llama_token_data_array()
        self._cur_ref = ctypes.byref(self._cur)
        self._all = np.arange(vocab.n_tokens)
        self._shortlist = Shortlist(params, _window(params.repeat_last_n, n_ctx))
        self._constraint = _constraint(vocab, params)
        free = replace(params, grammar=None)
        self._chain = None if free.plain_greedy else _chain(vocab, params, seed, n_ctx)
        # A favourite among logits that differ by a bias alone needs neither candidates nor their probabilities.
        self._bias: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None
        if params.logit_bias and replace(free, logit_bias=()).plain_greedy:
            tokens, values = zip(*params.logit_bias)
            self._bias = np.array(tokens, dtype=np.int32), np.array(values, dtype=np.float32)

    def choose(self, logits: NDArray[np.float32], position: int) -> int:
        """The token at absolute `position` given `logits` float32 [n_vocab]: greedy, or coupled to the seed."""
        if self._chain is None:
            return self._favourite(logits)
        if self._constraint is not None:
            logits = self._constrained(logits)
        if self._bias is not None:
            biased = logits.copy()
            biased[self._bias[0]] += self._bias[1]
            best = int(biased.argmax())
            return best if np.isfinite(biased[best]) else self._nothing_left()
        return self._pick(self._apply(logits), position)

    def distribution(self, logits: NDArray[np.float32]) -> Distribution:
        """The distribution at this point of the text; one point at temperature 0."""
        if self._chain is None:
            return Distribution(np.array([self._favourite(logits)], dtype=np.int32), np.ones(1))
        dist = self._apply(logits if self._constraint is None else self._constrained(logits))
        if self.params.greedy:
            return Distribution(np.array([self._pick(dist, 0)], dtype=np.int32), np.ones(1))
        return dist

    def accept(self, token: int, *, generated: bool = True) -> None:
        """Advance past `token`; the grammar only sees generated tokens, penalties see the prompt as well."""
        if self._chain is not None:
            C.llama_sampler_accept(self._chain, token)
            self._shortlist.accept(token)
        # An end that is passed over (`ignore_end`) is no part of the text.
        if generated and self._constraint is not None and not self.vocab.is_end(token):
            self._constraint.accept(token)

    def forced_text(self, limit: int) -> str:
        """The text the grammar allows no alternative to from here on, `limit` characters at most."""
        if self._constraint is None:
            return ""
        return self._constraint.forced()[: limit * 4].decode("utf-8", "ignore")[:limit]

    def close(self) -> None:
        """Free the chain. Idempotent."""
        if self._chain is not None:
            C.llama_sampler_free(self._chain)
        self._chain = None

    def _pick(self, dist: Distribution, position: int) -> int:
        if self.params.greedy:
            best = np.flatnonzero(dist.probs == dist.probs.max())
            return int(dist.ids[best].min())
        return coupled_choice(dist, self.seed, position)

    def _favourite(self, logits: NDArray[np.float32]) -> int:
        """The most probable token that the grammar allows."""
        best = int(logits.argmax())
        if self._constraint is None or self._constraint.allows(best):
            return best
        return int(self._constrained(logits).argmax())

    def _constrained(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """`logits` with -inf for what the grammar does not allow."""
        assert self._constraint is not None
        return np.where(self._constraint.mask(), logits, np.float32(-np.inf))

    def _nothing_left(self) -> int:
        """What follows where the logit bias forbids everything: the end of the text, unless a grammar forbids that."""
        if self._constraint is not None and not self._constraint.allows(self.vocab.eos):
            raise GrammarFailed("the logit bias forbids every token that the grammar or JSON schema allows here")
        return self.vocab.eos

    def _apply(self, logits: NDArray[np.float32]) -> Distribution:
        """Candidates after the chain, softmaxed: ids int32 [k], probs float64 [k]."""
        tokens = self._shortlist.of(logits)
        if self._constraint is not None:
            tokens = self._all if tokens is None else tokens
            tokens = tokens[logits[tokens] > -np.inf]  # samplers see allowed tokens only
        array = _candidates(self._all, logits) if tokens is None else _candidates(tokens, logits[tokens])
        ids, left = self._run(self._chain, array)
        x = left.astype(np.float64)
        finite = np.isfinite(x)
        if not finite.all():
            ids, x = ids[finite], x[finite]
        if not x.size:  # the logit bias forbids all that was left
            return Distribution(np.array([self._nothing_left()], dtype=np.int32), np.ones(1))
        weights = np.exp(x - x.max())
        return Distribution(ids, weights / weights.sum())

    def _run(
        self, sampler: ctypes.c_void_p | None, array: NDArray[np.void]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        cur, start = self._cur, array.ctypes.data
        cur.data, cur.size, cur.selected, cur.sorted = ctypes.cast(start, type(cur.data)), array.size, -1, False
        C.llama_sampler_apply(sampler, self._cur_ref)
        kept, address = array, ctypes.addressof(cur.data.contents)
        if address != start:  # a sampler may leave the survivors in a buffer of its own
            kept = np.frombuffer((ctypes.c_char * (cur.size * CANDIDATE.itemsize)).from_address(address), CANDIDATE)
        kept = kept[: cur.size]
        return kept["id"].copy(), kept["logit"].copy()


def _candidates(tokens: NDArray[np.integer[Any]], logits: NDArray[np.float32]) -> NDArray[np.void]:
    array = np.zeros(tokens.size, dtype=CANDIDATE)
    array["id"], array["logit"] = tokens, logits
    return array


def _constraint(vocab: Vocab, params: SamplingParams) -> Constraint | None:
    """The request's own way through its grammar."""
    if params.grammar is None:
        return None
    compiled = compile_grammar(vocab, params.grammar) if isinstance(params.grammar, str) else params.grammar
    return compiled.start()


def _window(n: int, n_ctx: int) -> int:
    """Tokens a penalty looks back; -1 is the whole context, which the library's samplers would take for nothing."""
    longest = min(n_ctx, LONGEST_WINDOW)
    return longest if n < 0 else min(n, longest)


def _chain(vocab: Vocab, params: SamplingParams, seed: int, n_ctx: int) -> ctypes.c_void_p:
    chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())

    def add(sampler: ctypes.c_void_p) -> None:
        C.llama_sampler_chain_add(chain, sampler)

    if params.logit_bias:
        biases = (C.llama_logit_bias * len(params.logit_bias))()
        for slot, (token, bias) in zip(biases, params.logit_bias):
            slot.token, slot.bias = int(token), float(bias)
        add(C.llama_sampler_init_logit_bias(vocab.n_tokens, len(biases), biases))
    if params.penalizes:
        add(
            C.llama_sampler_init_penalties(
                vocab.n_tokens,
                _window(params.repeat_last_n, n_ctx),
                params.repeat_penalty,
                params.frequency_penalty,
                params.presence_penalty,
            )
        )
    if params.dry_multiplier:
        breakers = (ctypes.c_char_p * len(DRY_BREAKERS))(*DRY_BREAKERS)
        add(
            C.llama_sampler_init_dry(
                vocab.handle,
                params.dry_multiplier,
                params.dry_base,
                min(params.dry_allowed_length, LONGEST_WINDOW),
                _window(params.dry_penalty_last_n, n_ctx),
                breakers,
                len(DRY_BREAKERS),
            )
        )
    if not params.greedy:
        if params.top_k > 0:
            add(C.llama_sampler_init_top_k(min(params.top_k, vocab.n_tokens)))
        if params.typical_p < 1.0:
            add(C.llama_sampler_init_typical(params.typical_p, 1))
        if params.top_p < 1.0:
            add(C.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p > 0.0:
            add(C.llama_sampler_init_min_p(params.min_p, 1))
        if params.xtc_probability > 0.0:
            add(C.llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, 1, seed % 2**32))
        add(C.llama_sampler_init_temp(params.temperature))
    return cast(ctypes.c_void_p, chain)
