"""llama.cpp's sampler chain without its draw: what it leaves is the target's distribution.

Two kinds of the library's samplers cannot be used as they are, because they change whenever they are *applied*: XTC
takes a number from a generator of its own, Mirostat and adaptive-p draw the token themselves and learn from it. A
rejected draft must change nothing, so their state is kept here and moves only when a token is emitted. A fresh sampler
of the library's, made to stand at that state, does the work at each position.
"""

from __future__ import annotations

import copy
import ctypes
import weakref
from typing import Any, Callable, cast

import numpy as np
from numpy.typing import NDArray

from lcspec.llama.lib import C
from lcspec.llama.vocab import Vocab
from lcspec.sampling.parameters import XTC_STREAM, SamplingParams, uniform

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
# The library allocates as many entries as a penalty is told to look back.
LONGEST_WINDOW = 1 << 20
# Tokens from which Mirostat 1 estimates the shape of the distribution, as in the paper and in llama.cpp.
MIROSTAT_TOKENS = 100
# A logit so far below the best has a probability of 0 in a float.
IMPOSSIBLE = 87.0

Handle = ctypes.c_void_p
Stage = Callable[["Candidates", int], None]


def candidates(tokens: NDArray[np.integer[Any]], logits: NDArray[np.float32]) -> NDArray[np.void]:
    """`tokens` int [k] with their `logits` float32 [k], as the library takes them."""
    array = np.zeros(tokens.size, dtype=CANDIDATE)
    array["id"], array["logit"] = tokens, logits
    return array


class Candidates:
    """Candidates on their way through samplers. The array given is worked on in place."""

    def __init__(self, array: NDArray[np.void]) -> None:
        self._array = array
        self._cur = C.llama_token_data_array()
        self.keep(array)

    def run(self, sampler: Handle) -> None:
        """Apply a sampler of the library's."""
        C.llama_sampler_apply(sampler, ctypes.byref(self._cur))

    def left(self) -> NDArray[np.void]:
        """Those that are left: a view."""
        cur, array = self._cur, self._array
        start, address = array.ctypes.data, ctypes.addressof(cur.data.contents)
        if address != start:  # a sampler may leave the survivors further on, or in a buffer of its own
            array = np.frombuffer((ctypes.c_char * (cur.size * CANDIDATE.itemsize)).from_address(address), CANDIDATE)
        return array[: cur.size]

    def keep(self, array: NDArray[np.void]) -> None:
        """Go on with `array`."""
        self._array, cur = array, self._cur
        cur.data = ctypes.cast(array.ctypes.data, type(cur.data))
        cur.size, cur.selected, cur.sorted = array.size, -1, False


class Chain:
    """The samplers of one request, in llama.cpp's default order.

    That is logit bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature (dynamic or not) and
    adaptive-p; with Mirostat logit bias, temperature and Mirostat. At temperature 0 those are left out that cannot
    change which token is the most probable.
    """

    def __init__(self, vocab: Vocab, params: SamplingParams, seed: int, n_ctx: int) -> None:
        """Build it for `SamplingParams.effective`; penalties look back over `n_ctx` tokens at most."""
        self._seed = seed
        self._xtc_probability = params.xtc_probability
        self._moves = _chain(_moves(vocab, params, n_ctx))
        self._may_overflow = params.penalizes or params.dry
        self._banned = np.array([token for token, bias in params.logit_bias if bias == -np.inf], dtype=np.int32)
        self._stages: list[Stage] = []
        self._learner: Mirostat | AdaptiveP | None = None
        self._handles = [self._moves] if self._moves else []
        for part in self._parts(vocab, params):
            if not isinstance(part, list):
                self._stages.append(part)
            elif (handle := _chain(part)) is not None:
                self._handles.append(handle)
                self._stages.append(_applying(handle))
        self._free = weakref.finalize(self, _free_all, self._handles)

    @property
    def changes(self) -> bool:
        """Whether the text so far has a say."""
        return self._moves is not None or self._learner is not None

    @property
    def learns(self) -> bool:
        """Whether it depends on what the tokens before were chosen from."""
        return self._learner is not None

    def apply(self, array: NDArray[np.void], position: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """What is left of the candidates in `array` for the token at `position`: ids int32 [k], logits float64 [k].

        k is 0 where the logit bias bans them all.
        """
        left = self._moved(array)
        if np.isfinite(left.left()["logit"]).any():
            for stage in self._stages:
                stage(left, position)
        rest = left.left()
        ids, logits = rest["id"].copy(), rest["logit"].astype(np.float64)
        finite = np.isfinite(logits)
        if not finite.all():
            ids, logits = ids[finite], logits[finite]
        if self._learner is not None:
            self._learner.seen(ids, logits)
        return ids, logits

    def move(self, array: NDArray[np.void]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The candidates in `array` after bias, penalties and DRY alone: ids int32 [k], logits float64 [k]."""
        left = self._moved(array).left()
        return left["id"].copy(), left["logit"].astype(np.float64)

    def accept(self, token: int, *, generated: bool) -> None:
        """Go on past `token` of the text."""
        if self._moves is not None:
            C.llama_sampler_accept(self._moves, token)
        if generated and self._learner is not None:
            self._learner.accept(token)

    def fork(self) -> Chain:
        """A chain that goes on by itself from here. The two share what never changes, so this one must outlive it."""
        other = copy.copy(self)
        other._moves = cast(Handle, C.llama_sampler_clone(self._moves)) if self._moves else None
        if self._learner is not None:
            other._learner = copy.copy(self._learner)
            other._stages = [*self._stages[:-1], other._learner.apply]
        other._handles = [other._moves] if other._moves else []
        other._free = weakref.finalize(other, _free_all, other._handles)
        return other

    def close(self) -> None:
        """Free the library's samplers. Idempotent."""
        self._free()

    def _moved(self, array: NDArray[np.void]) -> Candidates:
        left = Candidates(array)
        if self._moves is not None:
            left.run(self._moves)
            if self._may_overflow:
                _penalties_forbid_nothing(left, self._banned)
        return left

    def _parts(self, vocab: Vocab, params: SamplingParams) -> list[list[Handle] | Stage]:
        """What follows the moves: samplers of the library's that go into one chain, and stages of this module's."""
        if params.greedy and not params.may_drop_best:
            return []
        parts: list[list[Handle] | Stage] = [[]]

        def add(sampler: Handle) -> None:
            if not isinstance(parts[-1], list):
                parts.append([])
            cast("list[Handle]", parts[-1]).append(sampler)

        if params.top_n_sigma > 0.0:
            add(C.llama_sampler_init_top_n_sigma(params.top_n_sigma))
        if params.top_k > 0:
            add(C.llama_sampler_init_top_k(min(params.top_k, vocab.n_tokens)))
        if params.typical_p < 1.0:
            parts.append(_drop_impossible)
            add(C.llama_sampler_init_typical(params.typical_p, 1))
        if params.top_p < 1.0:
            add(C.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p > 0.0:
            add(C.llama_sampler_init_min_p(params.min_p, 1))
        if params.xtc:
            xtc = C.llama_sampler_init_xtc(1.0, params.xtc_threshold, 1, 0)
            parts.append(self._sometimes(xtc))
        if params.greedy:
            return parts
        if params.dynatemp_range > 0.0:
            temp = C.llama_sampler_init_temp_ext(params.temperature, params.dynatemp_range, params.dynatemp_exponent)
            parts.append(self._or_the_best(temp))
        elif self._may_overflow:
            parts.append(self._or_the_best(C.llama_sampler_init_temp(params.temperature)))
        else:
            add(C.llama_sampler_init_temp(params.temperature))
        if params.mirostat:
            self._learner = Mirostat(params, vocab.n_tokens)
            parts.append(_drop_impossible)
        elif params.adaptive_target >= 0.0:
            self._learner = AdaptiveP(params)
        if self._learner is not None:
            parts.append(self._learner.apply)
        return parts

    def _sometimes(self, xtc: Handle) -> Stage:
        """XTC at the positions that the seed chooses. The library's generator would go on with every application."""
        self._handles.append(xtc)
        seed, probability = self._seed, self._xtc_probability

        def stage(left: Candidates, position: int) -> None:
            if uniform(seed, position, 0, XTC_STREAM) <= probability:
                left.run(xtc)

        return stage

    def _or_the_best(self, temperature: Handle) -> Stage:
        """A temperature that leaves the best candidate alone where all logits, or the best, overflow a float."""
        self._handles.append(temperature)

        def stage(left: Candidates, position: int) -> None:
            array = left.left()
            best = array[[array["logit"].argmax()]]
            left.run(temperature)
            if not np.isfinite(left.left()["logit"].max()):
                best["logit"] = 0.0
                left.keep(best)

        return stage


class Mirostat:
    """Mirostat (Basu et al. 2021, arXiv:2007.14966), versions 1 and 2: keeps a text's surprise near `tau` bits."""

    def __init__(self, params: SamplingParams, n_vocab: int) -> None:
        self.version, self.n_vocab = params.mirostat, n_vocab
        self.tau, self.eta = np.float32(params.mirostat_tau), np.float32(params.mirostat_eta)
        self.mu = np.float32(2.0) * self.tau
        self._ids: NDArray[np.int32] | None = None

    def apply(self, left: Candidates, position: int) -> None:
        """Leave those whose surprise is not too large."""
        # The library begins with a mu of twice its tau.
        tau = float(self.mu) / 2.0
        if self.version == 1:
            sampler = C.llama_sampler_init_mirostat(self.n_vocab, 0, tau, 0.0, MIROSTAT_TOKENS)
        else:
            sampler = C.llama_sampler_init_mirostat_v2(0, tau, 0.0)
        left.run(sampler)
        C.llama_sampler_free(sampler)

    def seen(self, ids: NDArray[np.int32], logits: NDArray[np.float64]) -> None:
        """`ids` int32 [k] with `logits` float64 [k] were left."""
        self._ids, self._logits = ids, logits

    def accept(self, token: int) -> None:
        """Learn from the surprise of an emitted token."""
        if self._ids is None or not (at := np.flatnonzero(self._ids == token)).size:
            return
        weights = np.exp(self._logits - self._logits.max())
        surprise = -np.log2(np.float32(weights[at[0]] / weights.sum()))
        self.mu = np.float32(self.mu - self.eta * (surprise - self.tau))
        self._ids = None


class AdaptiveP:
    """Adaptive-p (llama.cpp pull request 17927): prefers tokens whose probability is near a target on average."""

    def __init__(self, params: SamplingParams) -> None:
        self.target, self.decay = np.float32(params.adaptive_target), np.float32(params.adaptive_decay)
        self.total = np.float32(1.0) / (np.float32(1.0) - self.decay)
        self.weighted = self.target / (np.float32(1.0) - self.decay)
        self._ids: NDArray[np.int32] | None = None

    def apply(self, left: Candidates, position: int) -> None:
        """Turn probabilities into how near they are to what is wanted now."""
        before = left.left()
        self._ids, x = before["id"].copy(), before["logit"].astype(np.float64)
        weights = np.exp(x - x.max())
        self._probs = (weights / weights.sum()).astype(np.float32)
        wanted = np.clip(np.float32(2.0) * self.target - self.weighted / self.total, 0.0, 1.0)
        # With a decay of 0 a new one aims at its target.
        sampler = C.llama_sampler_init_adaptive_p(float(wanted), 0.0, 0)
        left.run(sampler)
        C.llama_sampler_free(sampler)

    def seen(self, ids: NDArray[np.int32], logits: NDArray[np.float64]) -> None:
        """What counts is what the probabilities were before."""

    def accept(self, token: int) -> None:
        """Learn from the probability that an emitted token had."""
        if self._ids is None or not (at := np.flatnonzero(self._ids == token)).size:
            return
        self.weighted = np.float32(self._probs[at[0]] + self.decay * self.weighted)
        self.total = np.float32(np.float32(1.0) + self.decay * self.total)
        self._ids = None


def window(n: int, n_ctx: int) -> int:
    """Tokens a penalty looks back; -1 is the whole context, which the library's samplers would take for nothing."""
    longest = min(n_ctx, LONGEST_WINDOW)
    return longest if n < 0 else min(n, longest)


def _drop_impossible(left: Candidates, position: int) -> None:
    """Leave out what has a probability of 0: the logarithm of that would make everybody's score not a number."""
    array = left.left()
    possible = array["logit"] > array["logit"].max() - IMPOSSIBLE
    if not possible.all() and possible.any():
        left.keep(array[possible].copy())


def _penalties_forbid_nothing(left: Candidates, banned: NDArray[np.int32]) -> None:
    """Where penalties overflow a float: tokens of infinite logit are all that is left; where nothing finite is left,
    all that the logit bias does not ban."""
    array = left.left()
    logits = array["logit"]
    over = np.isposinf(logits)
    if not over.any():
        if np.isfinite(logits).any():
            return
        over = ~np.isin(array["id"], banned)
    if over.any():
        rest = array[over].copy()
        rest["logit"] = 0.0
        left.keep(rest)


def _applying(handle: Handle) -> Stage:
    return lambda left, position: left.run(handle)


def _free_all(handles: list[Handle]) -> None:
    for handle in handles:
        C.llama_sampler_free(handle)


def _chain(samplers: list[Handle]) -> Handle | None:
    """The library's chain of `samplers`, None of none."""
    if not samplers:
        return None
    chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    for sampler in samplers:
        C.llama_sampler_chain_add(chain, sampler)
    return cast(Handle, chain)


def _moves(vocab: Vocab, params: SamplingParams, n_ctx: int) -> list[Handle]:
    """What makes single tokens more or less likely: logit bias, penalties, DRY."""
    samplers: list[Handle] = []
    if params.logit_bias:
        biases = (C.llama_logit_bias * len(params.logit_bias))()
        for slot, (token, bias) in zip(biases, params.logit_bias):
            slot.token, slot.bias = int(token), float(bias)
        samplers.append(C.llama_sampler_init_logit_bias(vocab.n_tokens, len(biases), biases))
    if params.penalizes:
        samplers.append(
            C.llama_sampler_init_penalties(
                vocab.n_tokens,
                window(params.repeat_last_n, n_ctx),
                params.repeat_penalty,
                params.frequency_penalty,
                params.presence_penalty,
            )
        )
    if params.dry:
        texts = [text.encode() for text in params.dry_sequence_breakers]
        samplers.append(
            C.llama_sampler_init_dry(
                vocab.handle,
                params.dry_multiplier,
                params.dry_base,
                min(params.dry_allowed_length, LONGEST_WINDOW),
                window(params.dry_penalty_last_n, n_ctx),
                (ctypes.c_char_p * len(texts))(*texts),
                len(texts),
            )
        )
    return samplers
