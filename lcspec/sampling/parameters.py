"""Sampling parameters, and the counter-based noise of coupled sampling (numpy only).

Coupled sampling draws the token at absolute position t as

    argmax_i  log p(i) + Gumbel(hash(seed, t, i))

which is an exact sample from p (the Gumbel-max trick, Gumbel 1954; Maddison et al. 2014, arXiv:1411.0030),
with no generator state: the noise of a token at a position depends on the seed, the position and the token id
and on nothing else. So whoever drafts, and however, the target's choice at a position is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lcspec.errors import SamplingError
from lcspec.sampling.distribution import SMALL, Distribution

if TYPE_CHECKING:
    from lcspec.sampling.grammar import CompiledGrammar
    from lcspec.sampling.reasoning_budget import ReasoningBudget

SEED_LIMIT = 2**64
# A temperature below this is taken for 0: it scales logits out of the range of a float.
COLDEST = 1e-3
# Furthest that a logit bias reaches, as in OpenAI's API.
BIAS_LIMIT = 1e6
# XTC looks at nothing where its threshold is higher: no two tokens can reach it.
XTC_HIGHEST = 0.5
# Each breaker costs a pass over the vocabulary.
MAX_BREAKERS = 64
# Stream of the noise that decides whether XTC acts at a position (others: `uniform_noise` and lcspec.spec.verifiers).
XTC_STREAM = 1 << 16

_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_MASK = SEED_LIMIT - 1
# What an impossible candidate counts as: no noise makes up for its logarithm of -708.
TINY = 2.0**-1022

# What no option or setting names: they are made for a request.
MADE = ("logit_bias", "grammar", "reasoning_budget")

# Smallest and largest value of each.
BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("typical_p", 0.0, 1.0),
    ("repeat_last_n", -1, float("inf")),
    ("dry_penalty_last_n", -1, float("inf")),
    ("frequency_penalty", -2.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
    ("dry_multiplier", 0.0, float("inf")),
    ("dry_base", 0.0, float("inf")),
    ("dry_allowed_length", 0, float("inf")),
    ("xtc_probability", 0.0, 1.0),
    ("xtc_threshold", 0.0, 1.0),
    ("dynatemp_range", 0.0, 100.0),
    ("dynatemp_exponent", 0.0, 100.0),
    ("mirostat", 0, 2),
    ("mirostat_tau", 0.0, 100.0),
    ("mirostat_eta", 0.0, 1.0),
    ("adaptive_target", float("-inf"), 1.0),
    ("adaptive_decay", 0.0, 0.99),
)

_Bits = TypeVar("_Bits", int, NDArray[Any])


def _mix(x: _Bits) -> _Bits:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014), on an integer or a uint64 array of any shape."""
    x = ((x ^ (x >> 30)) * _MIX1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX2) & _MASK
    mixed: _Bits = x ^ (x >> 31)
    return mixed


def _key(seed: int, position: int, stream: int) -> int:
    """What the noise of one position hangs on besides the token."""
    key = _mix((seed % SEED_LIMIT + _GOLDEN) & _MASK)
    return _mix(key ^ ((int(position) * _GOLDEN + stream) & _MASK))


def uniform_noise(seed: int, position: int, ids: ArrayLike, stream: int = 0) -> NDArray[np.float64]:
    """Uniform noise in (0, 1) for token `ids` int [k] at `position`, float64 [k]; a pure function of its arguments.

    `stream` separates independent uses at the same position (0 choice, 1 acceptance tests, 2 draft sampling ...).
    """
    bits = _mix(_key(seed, position, stream) + (np.asarray(ids).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    # 52 bits, so that adding a half is exact and the result is never rounded up to 1
    uniform: NDArray[np.float64] = ((bits >> 12).astype(np.float64) + 0.5) * 2.0**-52
    return uniform


def uniform(seed: int, position: int, token: int, stream: int = 0) -> float:
    """`uniform_noise` of one token."""
    return _uniform(_key(seed, position, stream), token)


def _uniform(key: int, token: int) -> float:
    return ((_mix((key + (token + 1) * _GOLDEN) & _MASK) >> 12) + 0.5) * 2.0**-52


def gumbel_noise(seed: int, position: int, ids: ArrayLike, stream: int = 0) -> NDArray[np.float64]:
    """Standard Gumbel noise for token `ids` at `position`, float64 [k]."""
    noise: NDArray[np.float64] = -np.log(-np.log(uniform_noise(seed, position, ids, stream)))
    return noise


def _gumbel(key: int, token: int) -> float:
    """`gumbel_noise` of one token, but for the last bit."""
    return -math.log(-math.log(_uniform(key, token)))


def log_sum_exp(logits: NDArray[np.float32]) -> float:
    """What log-probabilities are short of `logits` float32 [k]; right to about 1e-6, in a sixth of float64's time."""
    top = logits.max()
    return float(top) + math.log(float(np.exp(logits - top).sum(dtype=np.float64)))


def normalized(ids: NDArray[np.int32], weights: NDArray[np.float64]) -> Distribution:
    """A Distribution from non-negative weights with a positive sum."""
    return Distribution(ids, weights / weights.sum())


def coupled_choice(dist: Distribution, seed: int, position: int) -> int:
    """The coupled sample of `dist` at `position`. Ties go to the smaller token id."""
    if dist.ids.size > SMALL:
        score = coupled_scores(dist, seed, position)
        return int(dist.ids[score == score.max()].min())
    tokens, key, best = dist.ids.tolist(), _key(seed, position, 0), -math.inf
    choice: int = tokens[0]
    for token, p in zip(tokens, dist.probs.tolist()):
        score_of = math.log(max(p, TINY)) + _gumbel(key, token)
        if score_of > best or (score_of == best and token < choice):
            best, choice = score_of, token
    return choice


def coupled_scores(dist: Distribution, seed: int, position: int) -> NDArray[np.float64]:
    """log p + Gumbel of the candidates of `dist` at `position`, float64 [k]."""
    score: NDArray[np.float64] = np.log(np.maximum(dist.probs, TINY)) + gumbel_noise(seed, position, dist.ids)
    return score


def coupled_top(score: NDArray[np.float64], k: int) -> NDArray[np.intp]:
    """Where the k largest `coupled_scores` are, best first.

    That is a sample of size k without replacement (Kool et al. 2019, arXiv:1903.06059), made with the very
    noise the target will use at that position, so a drafter that agrees with the target agrees in its samples.
    """
    return np.argsort(-score, kind="stable")[:k]


def inverse_cdf(dist: Distribution, u: float) -> int:
    """The token at which the cumulative distribution first exceeds `u` in (0, 1); never one of probability 0."""
    cumulative = dist.probs.cumsum()
    return int(dist.ids[cumulative.searchsorted(u * cumulative[-1], side="right")])


@dataclass(frozen=True)
class SamplingParams:
    """What the target's distribution at each position is made of; names, meanings and "off" values are llama.cpp's.

    Attributes:
        temperature: 0 takes the most probable token that the other samplers leave.
        top_k: 0 or less is off (kept as 0).
        repeat_last_n, dry_penalty_last_n: tokens to look back; 0 is off, -1 the whole context.
        dry_base: below 1 switches DRY off.
        dry_sequence_breakers: texts that end a repetition.
        xtc_threshold: above 0.5 switches XTC off.
        top_n_sigma: 0 or less is off.
        dynatemp_range: the temperature lies within `temperature` -/+ this, by the entropy; 0 is off.
        mirostat: 0 off, 1 Mirostat, 2 Mirostat 2.0; only logit bias, grammar and temperature act beside it.
        mirostat_tau: target surprise in bits; mirostat_eta: learning rate.
        adaptive_target: probability that tokens should have on average; negative is off.
        adaptive_decay: how slowly adaptive-p forgets, 0 to 0.99.
        logit_bias: (token id, what is added to its logit) pairs, at most `BIAS_LIMIT` up or down; -inf forbids a token.
        grammar: GBNF or Lark (see lcspec.sampling.grammar), or one compiled for the model beforehand.
        reasoning_budget: how long the text may reason; not beside a grammar, under which there is no reasoning.
        seed: None means that the engine draws one and reports it; so does -1 (kept as None).
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    top_n_sigma: float = -1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | CompiledGrammar | None = None
    reasoning_budget: ReasoningBudget | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            SamplingError: a value is not a number or out of its range; the message names it.
        """
        if self.seed == -1:
            object.__setattr__(self, "seed", None)
        if self.top_k < 0:
            object.__setattr__(self, "top_k", 0)
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise SamplingError(f"{name} must be a finite number, not {value}")
        for name, low, high in BOUNDS:
            value = getattr(self, name)
            if not low <= value <= high:
                limit = f"between {low:g} and {high:g}"
                if low == float("-inf"):
                    limit = f"at most {high:g}"
                elif high == float("inf"):
                    limit = f"at least {low:g}"
                shown = f"{value:g}" if abs(value) < 1e300 else "a number that large"
                raise SamplingError(f"{name} must be {limit}, not {shown}")
        if self.repeat_penalty <= 0:
            raise SamplingError(
                f"repeat_penalty must be greater than 0 (1 switches it off), not {self.repeat_penalty:g}"
            )
        self._check_bias()
        self._check_breakers()
        if self.grammar is not None and self.reasoning_budget is not None:
            raise SamplingError("a reasoning budget cannot go with a grammar or JSON schema: leave one of them out")
        if self.seed is not None and not 0 <= self.seed < SEED_LIMIT:
            raise SamplingError(f"seed must be between 0 and 2^64 - 1, or -1 for a random one, not {self.seed}")

    def _check_breakers(self) -> None:
        breakers = self.dry_sequence_breakers
        if not isinstance(breakers, tuple) or not all(isinstance(text, str) and text for text in breakers):
            raise SamplingError(f"dry_sequence_breakers must be texts, none of them empty, not {breakers!r}")
        if len(breakers) > MAX_BREAKERS:
            raise SamplingError(f"dry_sequence_breakers must be at most {MAX_BREAKERS} texts, not {len(breakers)}")

    def _check_bias(self) -> None:
        for entry in self.logit_bias:
            if not (isinstance(entry, tuple) and len(entry) == 2):
                raise SamplingError(f"logit_bias must be pairs of a token id and a number, not {entry!r}")
            token, bias = entry
            if isinstance(token, bool) or not isinstance(token, (int, np.integer)) or token < 0:
                raise SamplingError(f"logit_bias: {token!r} is not a token id")
            if not abs(bias) <= BIAS_LIMIT and bias != -math.inf:
                raise SamplingError(
                    f"logit_bias of token {token} must be between -{BIAS_LIMIT:g} and {BIAS_LIMIT:g}, not {bias:g}"
                )
        if len({token for token, _ in self.logit_bias}) < len(self.logit_bias):
            raise SamplingError("logit_bias names a token more than once")

    def check_vocabulary(self, n_vocab: int) -> None:
        """Check what depends on the model.

        Raises:
            SamplingError: a token id is outside a vocabulary of `n_vocab` tokens.
        """
        for token, _ in self.logit_bias:
            if token >= n_vocab:
                raise SamplingError(
                    f"logit_bias: token {token} is outside the model's vocabulary (ids from 0 to {n_vocab - 1})"
                )

    @property
    def effective(self) -> SamplingParams:
        """These parameters without those that Mirostat leaves out: beside it llama.cpp has the bias and the temperature
        only."""
        if not self.mirostat:
            return self
        kept = ("mirostat", "mirostat_tau", "mirostat_eta", "temperature", "logit_bias", "seed")
        ruled = ("grammar", "reasoning_budget")
        return SamplingParams(**_OFF, **{name: getattr(self, name) for name in (*kept, *ruled)})

    @cached_property
    def unconstrained(self) -> SamplingParams:
        """These parameters without what says which tokens may come."""
        return replace(self, grammar=None, reasoning_budget=None)

    @property
    def constrained(self) -> bool:
        """Whether something besides the model says which tokens may come."""
        return self.grammar is not None or self.reasoning_budget is not None

    @property
    def greedy(self) -> bool:
        """Whether the most probable of the tokens that are left is always taken."""
        return self.temperature < COLDEST and (self.dynatemp_range == 0.0 or self.mirostat > 0)

    @property
    def penalizes(self) -> bool:
        """Whether tokens said lately become more or less likely."""
        return self.repeat_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    @property
    def dry(self) -> bool:
        """Whether DRY acts."""
        return self.dry_multiplier != 0.0 and self.dry_base >= 1.0

    @property
    def xtc(self) -> bool:
        """Whether XTC may act."""
        return self.xtc_probability > 0.0 and self.xtc_threshold <= XTC_HIGHEST

    @property
    def may_drop_best(self) -> bool:
        """Whether a sampler may leave the most probable token out: then it has to run at temperature 0 as well."""
        return self.typical_p < 1.0 or self.xtc

    @property
    def plain_greedy(self) -> bool:
        """Whether the argmax of the raw logits is the choice: greedy, and nothing changes the order of the logits."""
        params = self.effective
        return (
            params.greedy
            and not params.penalizes
            and not params.dry
            and not params.may_drop_best
            and not params.logit_bias
            and not params.constrained
        )


# What switches every sampler off that Mirostat leaves out.
_OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
