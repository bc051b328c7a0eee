"""llama.cpp's own sampler chain as the source of the target's distribution.

Using its samplers means that a parameter has the same effect here as there. The chain ends before the draw: the
candidates it leaves, softmaxed, are the distribution the verifiers work with. Its state (penalties, DRY, Mirostat,
adaptive-p, grammar) advances only through `accept`, i.e. along the emitted text.
"""

from __future__ import annotations

import copy
import ctypes
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lcspec.errors import GrammarError
from lcspec.llama.chain import CANDIDATE, LONGEST_WINDOW, Chain, candidates, window
from lcspec.llama.lib import C, error_reason, printed_to_stderr
from lcspec.llama.vocab import Vocab
from lcspec.sampling import SamplingParams, coupled_choice
from lcspec.shortlist import Shortlist
from lcspec.tree import Distribution

PARSER = "error parsing grammar: "
# So many of the best candidates are held against a grammar before all of them are.
GRAMMAR_FIRST = 512


class Sampler:
    """The target's sampling distribution for one request.

    The samplers and their order are llama.cpp's (see Chain). A grammar is handled as its `common` sampler does: the
    unconstrained choice stands if the grammar allows it, otherwise the choice is made again from the candidates that it
    allows.
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
        self.seed = seed
        self._cur = C.llama_token_data_array()
        self._cur_ref = ctypes.byref(self._cur)
        self._all = np.arange(vocab.n_tokens)
        self._shortlist = Shortlist(params, window(params.repeat_last_n, n_ctx))
        self._grammar = _grammar(vocab, params.grammar) if params.grammar is not None else None
        self._chain = None if params.plain_greedy else Chain(vocab, params, seed, n_ctx)
        # A favourite among logits that differ by a bias alone needs neither candidates nor their probabilities.
        self._bias: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None
        if params.logit_bias and replace(params, logit_bias=()).plain_greedy:
            tokens, values = zip(*params.logit_bias)
            self._bias = np.array(tokens, dtype=np.int32), np.array(values, dtype=np.float32)

    def choose(self, logits: NDArray[np.float32], position: int) -> int:
        """The token at absolute `position` given `logits` float32 [n_vocab]: greedy, or coupled to the seed."""
        if self._chain is None:
            return int(logits.argmax())
        if self._bias is not None:
            biased = logits.copy()
            biased[self._bias[0]] += self._bias[1]
            best = int(biased.argmax())
            return best if np.isfinite(biased[best]) else self.vocab.eos  # the bias may forbid everything
        choice = self._pick(self._apply(logits, position, constrain=False), position)
        if self._grammar is None or self._allowed(choice):
            return choice
        return self._pick(self._apply(logits, position, constrain=True), position)

    def distribution(self, logits: NDArray[np.float32], position: int) -> Distribution:
        """The distribution of the token at absolute `position`; one point at temperature 0."""
        if self._chain is None:
            return Distribution(np.array([logits.argmax()], dtype=np.int32), np.ones(1))
        dist = self._apply(logits, position, constrain=self._grammar is not None)
        if self.params.greedy:
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
        assert self._grammar is None, "a grammar cannot be forked"
        if self._chain is None or not self._chain.changes:
            return self
        other = copy.copy(self)
        other._cur = C.llama_token_data_array()
        other._cur_ref = ctypes.byref(other._cur)
        other._shortlist = self._shortlist.copy()
        other._chain = self._chain.fork()
        return other

    def accept(self, token: int, *, generated: bool = True) -> None:
        """Advance past `token`; the grammar only sees generated tokens, penalties see the prompt as well."""
        if self._chain is not None:
            self._chain.accept(token, generated=generated)
            self._shortlist.accept(token)
        # End tokens never reach the grammar: it aborts the process on one it does not expect.
        if generated and self._grammar is not None and not self.vocab.is_end(token):
            C.llama_sampler_accept(self._grammar, token)

    def forced_text(self, limit: int) -> str:
        """The text the grammar allows no alternative to from here on, `limit` characters at most."""
        if self._grammar is None:
            return ""
        singles = self.vocab.single_characters
        probe = np.zeros(len(singles) + 1, dtype=CANDIDATE)
        probe["id"][:-1] = list(singles.values())
        probe["id"][-1] = self.vocab.eos  # a grammar that may end here forces nothing
        of_token = {token: char for char, token in singles.items()}
        grammar = C.llama_sampler_clone(self._grammar)
        text = ""
        try:
            while len(text) < limit:
                ids, logits = self._run(grammar, probe.copy())
                allowed = ids[np.isfinite(logits)]
                if len(allowed) != 1 or int(allowed[0]) not in of_token:
                    break
                text += of_token[int(allowed[0])]
                C.llama_sampler_accept(grammar, int(allowed[0]))
        finally:
            C.llama_sampler_free(grammar)
        return text

    def close(self) -> None:
        """Free the chain. Idempotent."""
        if self._chain is not None:
            self._chain.close()
        if self._grammar is not None:
            C.llama_sampler_free(self._grammar)
        self._chain = self._grammar = None

    def _pick(self, dist: Distribution, position: int) -> int:
        if self.params.greedy:
            best = np.flatnonzero(dist.probs == dist.probs.max())
            return int(dist.ids[best].min())
        return coupled_choice(dist, self.seed, position)

    def _allowed(self, token: int) -> bool:
        one = candidates(np.array([token]), np.zeros(1, dtype=np.float32))
        return self._allowed_of(one).size > 0

    def _apply(self, logits: NDArray[np.float32], position: int, constrain: bool) -> Distribution:
        """Candidates after the chain, softmaxed: ids int32 [k], probs float64 [k]."""
        if constrain:
            array = self._fitting(logits)
            if not array.size:
                # Nothing fits: the grammar is finished or stuck. Ending the text is the only honest way on.
                return Distribution(np.array([self.vocab.eos], dtype=np.int32), np.ones(1))
        else:
            tokens = self._shortlist.of(logits)
            array = candidates(self._all, logits) if tokens is None else candidates(tokens, logits[tokens])
        assert self._chain is not None
        return self._softmax(*self._chain.apply(array, position))

    def _softmax(self, ids: NDArray[np.int32], x: NDArray[np.float64]) -> Distribution:
        if not x.size or x.max() == -np.inf:  # the logit bias forbids all that was left
            return Distribution(np.array([self.vocab.eos], dtype=np.int32), np.ones(1))
        weights = np.exp(x - x.max())
        return Distribution(ids, weights / weights.sum())

    def _fitting(self, logits: NDArray[np.float32]) -> NDArray[np.void]:
        """Candidates that the grammar allows: all of them, or as many of the best as the chain can leave."""
        # To hold every token against it takes milliseconds. One that fits is soon found; as many as top-k wants rarely
        # are among the best, where the favourite does not fit.
        tokens = self._shortlist.of(logits, GRAMMAR_FIRST) if self.params.greedy else None
        if tokens is not None:
            found = self._allowed_of(candidates(tokens, logits[tokens]))
            if self._shortlist.enough(found["id"].tolist()):
                return found
        return self._allowed_of(candidates(self._all, logits))

    def _allowed_of(self, array: NDArray[np.void]) -> NDArray[np.void]:
        """The candidates in `array` that the grammar allows next."""
        ids, logits = self._run(self._grammar, array)
        fits = np.isfinite(logits)
        return candidates(ids[fits], logits[fits])

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


def _grammar(vocab: Vocab, text: str) -> ctypes.c_void_p:
    with error_reason("it has no rules") as reason, printed_to_stderr() as printed:
        handle = C.llama_sampler_init_grammar(vocab.handle, text.encode(), b"root") if text.strip() else None
    if not handle:
        # The parser prints what it stumbled over, and logs only that it did.
        said = [line.rpartition(PARSER)[2] for line in printed if PARSER in line]
        raise GrammarError(
            f"the grammar is not valid GBNF ({(said or reason)[0]}): it needs a rule named root; "
            "see llama.cpp's grammars guide"
        )
    return cast(ctypes.c_void_p, handle)
