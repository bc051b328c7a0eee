"""What drafters take from a row of logits."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lcspec.drafters.top_candidates import draft_distribution, top_candidates
from lcspec.sampling.parameters import SamplingParams

LOGITS = np.array([1.0, 4.0, 3.0, 2.0, 0.0], dtype=np.float32)
TOKENS = np.array([10, 11, 12, 13, 14], dtype=np.int32)


def sequence(**params: Any) -> Any:
    return SimpleNamespace(params=SamplingParams(**{"temperature": 0.0, **params}), seed=7)


def test_the_best_first_with_their_shares() -> None:
    found = top_candidates(sequence(), LOGITS, 0, 2)
    assert [token for token, _ in found] == [1, 2]
    assert found[0][1] == pytest.approx(math.exp(4) / np.exp(LOGITS).sum(), rel=1e-5)
    assert [token for token, _ in top_candidates(sequence(), LOGITS, 0, 3, TOKENS)] == [11, 12, 13]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_sharpness_is_the_power_of_the_shares_and_leaves_the_order(temperature: float) -> None:
    view = sequence(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
    plain, sharp = top_candidates(view, LOGITS, 5, 5), top_candidates(view, LOGITS, 5, 5, sharpness=2.0)
    assert [token for token, _ in sharp] == [token for token, _ in plain]
    total = sum(share**2 for _, share in plain)
    assert [share for _, share in sharp] == pytest.approx([share**2 / total for _, share in plain], rel=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_the_target_may_not_say_is_not_drafted(temperature: float) -> None:
    for bias in (-math.inf, -100.0):
        banned = sequence(temperature=temperature, logit_bias=((1, bias), (2, bias)))
        for seed in range(20):
            banned.seed = seed
            assert top_candidates(banned, LOGITS, seed, 1)[0][0] not in (1, 2)
        reduced = sequence(temperature=temperature, logit_bias=((11, bias), (99, 5.0)))
        assert all(top_candidates(reduced, LOGITS, at, 1, TOKENS)[0][0] != 11 for at in range(20))
    wanted = sequence(temperature=temperature, logit_bias=((0, 100.0), (4000, 5.0)))
    assert top_candidates(wanted, LOGITS, 3, 1)[0][0] == 0
    assert LOGITS.tolist() == [1.0, 4.0, 3.0, 2.0, 0.0], "the row is the model's, and others read it"


@pytest.mark.parametrize("temperature", [0.0, 0.01, 0.8])
@pytest.mark.parametrize("tokens", [None, TOKENS])
def test_a_bias_that_forbids_all_leaves_the_drafts_as_without_it(
    temperature: float, tokens: NDArray[np.int32] | None
) -> None:
    forbidden = sequence(temperature=temperature, logit_bias=tuple((t, -math.inf) for t in range(20)))
    free = sequence(temperature=temperature)
    assert top_candidates(forbidden, LOGITS, 3, 2, tokens) == top_candidates(free, LOGITS, 3, 2, tokens)
    if temperature:
        dist = draft_distribution(LOGITS, forbidden.params)
        assert dist.probs.sum() == pytest.approx(1) and (dist.ids == draft_distribution(LOGITS, free.params).ids).all()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_head_with_a_vocabulary_of_its_own_drafts_as_if_it_had_all_tokens(temperature: float) -> None:
    whole = np.full(20, -np.inf, np.float32)
    whole[TOKENS] = LOGITS
    view = sequence(temperature=temperature, logit_bias=((12, 0.5), (3, 9.0)))
    found, wanted = top_candidates(view, LOGITS, 4, 3, TOKENS), top_candidates(view, whole, 4, 3)
    assert [token for token, _ in found] == [token for token, _ in wanted] and len(found) == 3
    assert [share for _, share in found] == pytest.approx([share for _, share in wanted], rel=1e-6)
    if temperature:
        own, full = draft_distribution(LOGITS, view.params, TOKENS), draft_distribution(whole, view.params)
        likely = full.probs > 0
        assert own.ids.dtype == np.int32 and (own.ids == full.ids[likely]).all()
        assert own.probs == pytest.approx(full.probs[likely])


def test_draws_come_from_the_distribution_with_the_bias() -> None:
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, logit_bias=((4, 4.0),))
    dist = draft_distribution(LOGITS, params)
    by_token = dict(zip(dist.ids.tolist(), dist.probs.tolist()))
    assert by_token[4] == pytest.approx(by_token[1])
