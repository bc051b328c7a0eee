"""What drafters take from a row of logits."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lcspec.drafters.favourites import draft_distribution, favourites
from lcspec.sampling import SamplingParams

LOGITS = np.array([1.0, 4.0, 3.0, 2.0, 0.0], dtype=np.float32)
TOKENS = np.array([10, 11, 12, 13, 14], dtype=np.int32)


def slot(**params: Any) -> Any:
    return SimpleNamespace(params=SamplingParams(**{"temperature": 0.0, **params}), seed=7)


def test_the_best_first_with_their_shares() -> None:
    found = favourites(slot(), LOGITS, 0, 2)
    assert [token for token, _ in found] == [1, 2]
    assert found[0][1] == pytest.approx(math.exp(4) / np.exp(LOGITS).sum(), rel=1e-5)
    assert [token for token, _ in favourites(slot(), LOGITS, 0, 3, TOKENS)] == [11, 12, 13]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_sharpness_is_the_power_of_the_shares_and_leaves_the_order(temperature: float) -> None:
    view = slot(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
    plain, sharp = favourites(view, LOGITS, 5, 5), favourites(view, LOGITS, 5, 5, sharpness=2.0)
    assert [token for token, _ in sharp] == [token for token, _ in plain]
    total = sum(share**2 for _, share in plain)
    assert [share for _, share in sharp] == pytest.approx([share**2 / total for _, share in plain], rel=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_the_target_may_not_say_is_not_drafted(temperature: float) -> None:
    for bias in (-math.inf, -100.0):
        banned = slot(temperature=temperature, logit_bias=((1, bias), (2, bias)))
        for seed in range(20):
            banned.seed = seed
            assert favourites(banned, LOGITS, seed, 1)[0][0] not in (1, 2)
        reduced = slot(temperature=temperature, logit_bias=((11, bias), (99, 5.0)))
        assert all(favourites(reduced, LOGITS, at, 1, TOKENS)[0][0] != 11 for at in range(20))
    wanted = slot(temperature=temperature, logit_bias=((0, 100.0), (4000, 5.0)))
    assert favourites(wanted, LOGITS, 3, 1)[0][0] == 0
    assert LOGITS.tolist() == [1.0, 4.0, 3.0, 2.0, 0.0], "the row is the model's, and others read it"


@pytest.mark.parametrize("temperature", [0.0, 0.01, 0.8])
@pytest.mark.parametrize("tokens", [None, TOKENS])
def test_a_bias_that_forbids_all_leaves_the_drafts_as_without_it(
    temperature: float, tokens: NDArray[np.int32] | None
) -> None:
    forbidden = slot(temperature=temperature, logit_bias=tuple((t, -math.inf) for t in range(20)))
    free = slot(temperature=temperature)
    assert favourites(forbidden, LOGITS, 3, 2, tokens) == favourites(free, LOGITS, 3, 2, tokens)
    if temperature:
        dist = draft_distribution(LOGITS, forbidden.params)
        assert dist.probs.sum() == pytest.approx(1) and (dist.ids == draft_distribution(LOGITS, free.params).ids).all()


def test_draws_come_from_the_distribution_with_the_bias() -> None:
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, logit_bias=((4, 4.0),))
    dist = draft_distribution(LOGITS, params)
    by_token = dict(zip(dist.ids.tolist(), dist.probs.tolist()))
    assert by_token[4] == pytest.approx(by_token[1])
