"""Counter-based noise, the samplers made from it, and the ranges of SamplingParams."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lcspec.errors import SamplingError
from lcspec.sampling.distribution import Distribution
from lcspec.sampling.parameters import (
    SEED_LIMIT,
    SMALL,
    SamplingParams,
    coupled_choice,
    coupled_scores,
    coupled_top,
    gumbel_noise,
    inverse_cdf,
    normalized,
    uniform,
    uniform_noise,
)
from tests.oracle import assert_sample_of, sparse

# --- the noise --------------------------------------------------------------------------------------------------------

# If these change, the same seed gives another text than before: every saved seed of every user is lost.
GOLDEN = [
    # seed, position, id, stream, noise
    (0, 0, 0, 0, 0.33805245419550556),
    (0, 1, 0, 0, 0.11260056966858045),
    (42, 7, 1234, 0, 0.6670213130806742),
    (42, 7, 1234, 1, 0.9639371680052328),
    (18446744073709551615, 100000, 151935, 0, 0.2735342504492827),
    (123456789, 2047, 31999, 3, 0.07506970297890236),
]


@pytest.mark.parametrize(("seed", "position", "token", "stream", "noise"), GOLDEN)
def test_golden_values(seed: int, position: int, token: int, stream: int, noise: float) -> None:
    assert uniform_noise(seed, position, [token], stream)[0] == noise
    assert uniform(seed, position, token, stream) == noise


def test_golden_choices() -> None:
    dist = sparse([0.05, 0.1, 0.15, 0.2, 0.2, 0.15, 0.1, 0.05])
    assert [coupled_choice(dist, 42, position) for position in range(24)] == [
        5,
        6,
        6,
        4,
        5,
        7,
        5,
        3,
        4,
        5,
        1,
        4,
        1,
        3,
        4,
        0,
        4,
        7,
        0,
        5,
        4,
        3,
        5,
        6,
    ]


def test_noise_of_an_id_does_not_depend_on_its_company() -> None:
    together = uniform_noise(3, 9, np.arange(100), 2)
    alone = [uniform_noise(3, 9, [i], 2)[0] for i in range(100)]
    assert together.tolist() == alone == [uniform(3, 9, i, 2) for i in range(100)]
    assert uniform_noise(3, 9, np.arange(100, dtype=np.int32)[::-1], 2).tolist() == alone[::-1]
    assert uniform_noise(3, 9, [5, 5], 2).tolist() == [alone[5], alone[5]]


def test_every_argument_matters() -> None:
    base = (7, 11, 13, 1)
    values = {float(uniform_noise(*base[:2], [base[2]], base[3])[0])}
    for i in range(4):
        changed = [x + (i == k) for k, x in enumerate(base)]
        values.add(float(uniform_noise(changed[0], changed[1], [changed[2]], changed[3])[0]))
    assert len(values) == 5


def test_seeds_are_64_bits() -> None:
    assert uniform_noise(SEED_LIMIT - 1, 0, [0])[0] != uniform_noise(2**32 - 1, 0, [0])[0]
    assert uniform_noise(SEED_LIMIT + 3, 0, [0])[0] == uniform_noise(3, 0, [0])[0]


def test_noise_is_never_0_or_1() -> None:
    # what the extreme states of the generator become
    for bits in (0, 2**64 - 1):
        u = ((np.array([bits], dtype=np.uint64) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        assert 0.0 < u[0] < 1.0
    noise = uniform_noise(1, 2, np.arange(200_000))
    assert noise.min() > 0.0 and noise.max() < 1.0
    assert (noise % 2.0**-53 == 0).all() and (noise % 2.0**-52 != 0).all()  # odd multiples: half-way values, all exact
    assert np.isfinite(gumbel_noise(1, 2, np.arange(200_000))).all()


def grid(axis: str, n: int) -> np.ndarray[Any, Any]:
    """`n` noise values along one argument, the others fixed."""
    if axis == "ids":
        return uniform_noise(5, 17, np.arange(n))
    one: dict[str, Callable[[int], tuple[int, int, list[int], int]]] = {
        "position": lambda i: (5, i, [3], 0),
        "seed": lambda i: (i, 17, [3], 0),
        "stream": lambda i: (5, 17, [3], i),
    }
    return np.array([uniform_noise(*one[axis](i))[0] for i in range(n)])


@pytest.mark.parametrize(("axis", "n"), [("ids", 100_000), ("position", 4000), ("seed", 4000), ("stream", 4000)])
def test_noise_is_uniform_and_uncorrelated(axis: str, n: int) -> None:
    u = grid(axis, n)
    # Kolmogorov and Smirnov: P(sup |F_n - F| > 2.6 / sqrt(n)) is about 3e-6
    steps = np.arange(1, n + 1) / n
    ranked = np.sort(u)
    assert max(np.abs(ranked - steps).max(), np.abs(ranked - steps + 1 / n).max()) < 2.6 / math.sqrt(n)
    for lag in (1, 2, 3, 16, 64):
        assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 5 / math.sqrt(n - lag), lag


def test_neighbours_in_two_arguments_are_independent() -> None:
    ids = np.arange(50_000)
    rows = {
        (seed, position, stream): uniform_noise(seed, position, ids, stream)
        for seed in (0, 1)
        for position in (0, 1, 2)
        for stream in (0, 1, 2, 3)
    }
    correlation = np.corrcoef(np.array(list(rows.values())))
    np.fill_diagonal(correlation, 0.0)
    assert np.abs(correlation).max() < 5.5 / math.sqrt(ids.size)


# --- samplers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_vocab", [2, 4, 16])
@pytest.mark.parametrize("vary", ["seed", "position"])
def test_coupled_choice_is_an_exact_sampler(n_vocab: int, vary: str) -> None:
    p = np.random.default_rng(n_vocab).dirichlet(np.full(n_vocab, 0.5))
    dist, n = sparse(p), 8000
    counts = np.zeros(n_vocab, dtype=np.int64)
    for i in range(n):
        counts[coupled_choice(dist, *((i, 3) if vary == "seed" else (3, i)))] += 1
    assert_sample_of(counts, p)


def test_coupled_choice_does_not_depend_on_the_order_or_on_improbable_candidates() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1])
    plain = [coupled_choice(sparse(p), seed, 1) for seed in range(500)]
    assert plain == [coupled_choice(sparse(p, [3, 1, 0, 2]), seed, 1) for seed in range(500)]
    padded = Distribution(np.array([9, 0, 1, 2, 3], dtype=np.int32), np.array([0.0, *p]))
    assert plain == [coupled_choice(padded, seed, 1) for seed in range(500)]


def test_similar_distributions_are_coupled() -> None:
    # the point of the shared noise: independent samples would agree with probability sum p * q = 0.3
    p, q = sparse([0.4, 0.3, 0.2, 0.1]), sparse([0.38, 0.32, 0.2, 0.1])
    agree = sum(coupled_choice(p, seed, 0) == coupled_choice(q, seed, 0) for seed in range(2000)) / 2000
    assert agree > 0.93


def test_ties_go_to_the_smaller_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcspec.sampling.parameters.gumbel_noise", lambda seed, position, ids: np.zeros(len(ids)))
    monkeypatch.setattr("lcspec.sampling.parameters._gumbel", lambda key, token: 0.0)
    even = Distribution(np.array([8, 3, 5], dtype=np.int32), np.full(3, 1 / 3))
    assert coupled_choice(even, 0, 0) == 3
    assert coupled_choice(Distribution(even.ids, np.array([0.4, 0.2, 0.4])), 0, 0) == 5
    many = Distribution(np.arange(SMALL + 1, dtype=np.int32)[::-1].copy(), np.full(SMALL + 1, 1 / (SMALL + 1)))
    assert coupled_choice(many, 0, 0) == 0


def test_few_candidates_are_chosen_from_as_many_are() -> None:
    p = np.random.default_rng(5).dirichlet(np.full(SMALL, 0.3))
    few = sparse(p)
    many = Distribution(np.arange(SMALL + 1, dtype=np.int32), np.array([*p, 0.0]))
    assert few.ids.size <= SMALL < many.ids.size
    choices = [coupled_choice(few, seed, 4) for seed in range(500)]
    assert choices == [coupled_choice(many, seed, 4) for seed in range(500)]
    assert len(set(choices)) > 5


def test_a_single_candidate_needs_no_noise() -> None:
    assert coupled_choice(Distribution(np.array([6], dtype=np.int32), np.ones(1)), 0, 0) == 6


def test_coupled_top_is_a_sample_without_replacement_in_order() -> None:
    p = np.array([0.1, 0.4, 0.2, 0.3])
    dist = sparse(p)
    n = 8000
    counts = np.zeros((4, 4), dtype=np.int64)
    for seed in range(n):
        top = dist.ids[coupled_top(coupled_scores(dist, seed, 7), 2)]
        assert top[0] == coupled_choice(dist, seed, 7)
        counts[tuple(top)] += 1
    expected = np.array([[0.0 if i == j else p[i] * p[j] / (1 - p[i]) for j in range(4)] for i in range(4)])
    assert_sample_of(counts, expected)


def test_coupled_top_is_nested_and_ends_with_the_candidates() -> None:
    dist = sparse([0.1, 0.4, 0.2, 0.3])
    score = coupled_scores(dist, 5, 2)
    ranked = coupled_top(score, 9).tolist()
    assert sorted(ranked) == [0, 1, 2, 3]
    assert all(coupled_top(score, k).tolist() == ranked[:k] for k in range(5))


def test_inverse_cdf() -> None:
    dist = Distribution(np.array([4, 9, 2, 7], dtype=np.int32), np.array([0.25, 0.5, 0.25, 0.0]))
    cases = [(1e-17, 4), (0.2499, 4), (0.25, 9), (0.7499, 9), (0.75, 2), (1 - 2.0**-53, 2)]
    assert [inverse_cdf(dist, u) for u, _ in cases] == [token for _, token in cases]
    leading = Distribution(dist.ids, np.array([0.0, 0.5, 0.0, 0.5]))
    assert [inverse_cdf(leading, u) for u in (1e-17, 0.5, 1 - 2.0**-53)] == [9, 7, 7]


def test_inverse_cdf_never_takes_an_impossible_token_however_the_sums_round() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        probs = rng.random(50)
        probs[rng.random(50) < 0.3] = 0.0
        probs[-5:] = 0.0
        dist = Distribution(np.arange(50, dtype=np.int32), probs / probs.sum())
        for u in (2.0**-53, 0.5, 1 - 2.0**-53):
            assert probs[inverse_cdf(dist, u)] > 0


def test_inverse_cdf_is_an_exact_sampler() -> None:
    p = np.array([0.5, 0.05, 0.15, 0.3])
    counts = np.zeros(4, dtype=np.int64)
    for u in uniform_noise(1, 1, np.arange(20_000)):
        counts[inverse_cdf(sparse(p), float(u))] += 1
    assert_sample_of(counts, p)


def test_normalized() -> None:
    dist = normalized(np.array([1, 2], dtype=np.int32), np.array([1.0, 3.0]))
    assert dist.probs.tolist() == [0.25, 0.75] and dist.prob_of(2) == 0.75 and dist.prob_of(3) == 0.0


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0.0, 0, 2.5], [-0.1, 101.0, math.nan, math.inf]),
        ("top_k", [0, 1, 100_000], []),
        ("top_p", [0.0, 1.0], [-0.01, 1.01, math.nan]),
        ("min_p", [0.0, 1.0], [-0.01, 1.01]),
        ("typical_p", [0.5], [1.5]),
        ("repeat_penalty", [0.5, 1.0, 2.0], [0.0, -1.0, math.inf]),
        ("repeat_last_n", [-1, 0, 64], [-2]),
        ("frequency_penalty", [-2.0, 2.0], [-2.1, 2.1]),
        ("presence_penalty", [-2.0, 2.0], [-2.1, 2.1]),
        ("dry_multiplier", [0.0, 0.8], [-0.1]),
        ("xtc_probability", [0.0, 1.0], [1.1]),
        ("xtc_threshold", [0.0, 1.0], [-0.1]),
        ("dry_base", [0.0, 1.0, 3.0], [-0.1, math.nan]),
        ("dry_allowed_length", [0, 5], [-1]),
        ("dry_penalty_last_n", [-1, 0, 64], [-2]),
        ("dry_sequence_breakers", [(), ("x", "\n\n")], [("",), ("x",) * 65, ["x"], "x", (1,)]),
        ("top_n_sigma", [-1.0, 0.0, 1.5], [math.nan]),
        ("dynatemp_range", [0.0, 0.5], [-0.1]),
        ("dynatemp_exponent", [0.0, 2.0], [-0.1]),
        ("mirostat", [0, 1, 2], [-1, 3]),
        ("mirostat_tau", [0.0, 5.0], [-0.1, math.inf]),
        ("mirostat_eta", [0.0, 1.0], [-0.1, 1.1]),
        ("adaptive_target", [-1.0, 0.0, 1.0], [1.1, -math.inf]),
        ("adaptive_decay", [0.0, 0.99], [-0.1, 1.0]),
        ("seed", [None, 0, SEED_LIMIT - 1], [-2, SEED_LIMIT]),
        (
            "logit_bias",
            [(), ((3, 100.0), (0, -100.0)), ((7, -math.inf),)],
            [((3, 1.1e6),), ((3, math.nan),), ((3, math.inf),), ((-1, 1.0),), ((True, 1.0),), ((1, 1.0), (1, 2.0))],
        ),
    ],
)
def test_ranges(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(SamplingParams(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(SamplingError, match=name) as caught:
            SamplingParams(**{name: value})
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 2


def test_what_llama_cpp_takes_for_off_and_for_random_is_taken_for_it() -> None:
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


def test_mirostat_leaves_out_what_it_replaces() -> None:
    params = SamplingParams(
        temperature=0.7, mirostat=2, top_p=0.5, repeat_penalty=1.5, dry_multiplier=1.0, xtc_probability=1.0,
        dynatemp_range=0.5, adaptive_target=0.3, logit_bias=((3, 1.0),), seed=4,
    )  # fmt: skip
    left = params.effective
    assert (left.mirostat, left.temperature, left.logit_bias, left.seed) == (2, 0.7, ((3, 1.0),), 4)
    assert not (left.penalizes or left.dry or left.may_drop_best or left.top_k or left.min_p or left.dynatemp_range)
    assert left.top_p == 1.0 and left.adaptive_target < 0
    assert SamplingParams(top_k=3).effective == SamplingParams(top_k=3)


@pytest.mark.parametrize(
    ("params", "greedy", "plain"),
    [
        (SamplingParams(), False, False),
        (SamplingParams(temperature=0.0), True, True),
        (SamplingParams(temperature=0.0, top_k=1, top_p=0.1, min_p=0.9), True, True),
        (SamplingParams(temperature=0.0, repeat_penalty=1.1), True, False),
        (SamplingParams(temperature=0.0, frequency_penalty=0.1), True, False),
        (SamplingParams(temperature=0.0, presence_penalty=0.1), True, False),
        (SamplingParams(temperature=0.0, dry_multiplier=0.8), True, False),
        (SamplingParams(temperature=0.0, dry_multiplier=0.8, dry_base=0.5), True, True),
        (SamplingParams(temperature=0.0, typical_p=0.5), True, False),
        (SamplingParams(temperature=0.0, xtc_probability=0.5), True, False),
        (SamplingParams(temperature=0.0, xtc_probability=0.5, xtc_threshold=0.6), True, True),
        (SamplingParams(temperature=0.0, top_n_sigma=1.0, adaptive_target=0.3), True, True),
        (SamplingParams(temperature=0.0, dynatemp_range=0.5), False, False),
        (SamplingParams(temperature=0.0, dynatemp_range=0.5, mirostat=1), True, True),
        (SamplingParams(temperature=0.0, repeat_penalty=1.1, mirostat=1), True, True),
        (SamplingParams(temperature=0.0, logit_bias=((3, 1.0),)), True, False),
        (SamplingParams(temperature=0.0, grammar='root ::= "a"'), True, False),
    ],
)
def test_greedy(params: SamplingParams, greedy: bool, plain: bool) -> None:
    assert (params.greedy, params.plain_greedy) == (greedy, plain)


def test_a_token_outside_the_vocabulary_is_named() -> None:
    params = SamplingParams(logit_bias=((3, 1.0), (300, 1.0)))
    params.check_vocabulary(301)
    with pytest.raises(SamplingError, match="token 300 is outside .* 0 to 299"):
        params.check_vocabulary(300)
