"""What the shortlist leaves out could not have been chosen: against a chain that looks at everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lcspec.sampling.parameters import SamplingParams
from lcspec.sampling.shortlist import Shortlist

SIZE = 5000
LOOKS_BACK = 8


def survivors(logits: np.ndarray, params: SamplingParams, said: list[int]) -> set[int]:
    """The tokens that a chain leaves after top-k, those that tie with the last of them among them."""
    moved = logits.astype(np.float64)
    for token, bias in params.logit_bias:
        moved[token] += bias
    for token in set(said[-LOOKS_BACK:]):
        if params.penalizes:
            moved[token] = (
                moved[token] / params.repeat_penalty if moved[token] > 0 else moved[token] * params.repeat_penalty
            )
            count = said[-LOOKS_BACK:].count(token)
            moved[token] -= count * params.frequency_penalty + params.presence_penalty
    k = 1 if params.greedy and not params.may_drop_best else params.top_k
    return set(np.flatnonzero(moved >= np.sort(moved)[-k]).tolist())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_k": 1},
        {"top_k": 300},
        {"repeat_penalty": 1.3},
        {"repeat_penalty": 0.7},
        {"presence_penalty": -2.0, "frequency_penalty": 1.5},
        {"temperature": 0.0, "repeat_penalty": 1.8},
        {"temperature": 0.0, "top_n_sigma": 1.0},
        {"temperature": 0.0, "xtc_probability": 0.5},
        {"temperature": 0.0, "logit_bias": ((17, 50.0), (18, -50.0))},
        {"logit_bias": tuple((t, -np.inf) for t in range(0, SIZE, 2)), "repeat_penalty": 1.5},
    ],
    ids=str,
)
def test_nobody_is_left_out_who_might_be_chosen(changes: dict[str, Any]) -> None:
    params = SamplingParams(**changes)
    shortlist, said = Shortlist(params, LOOKS_BACK), list[int]()
    rng = np.random.default_rng(3)
    for _ in range(30):
        logits = (rng.standard_normal(SIZE) * 3).round(1).astype(np.float32)  # ties
        found = shortlist.of(logits)
        assert found is not None
        assert survivors(logits, params, said) <= set(found.tolist())
        # What was said lately is often what is likely.
        token = int(rng.choice(np.argsort(-logits)[:5]))
        shortlist.accept(token)
        said.append(token)


def test_it_is_short() -> None:
    logits = np.random.default_rng(4).standard_normal(SIZE).astype(np.float32)
    found = Shortlist(SamplingParams(), LOOKS_BACK).of(logits)
    assert found is not None and 40 <= found.size < 80


@pytest.mark.parametrize(
    "changes", [{"top_k": 0}, {"dry_multiplier": 0.8}, {"top_n_sigma": 1.0}, {"mirostat": 2}], ids=str
)
def test_some_chains_have_to_see_everything(changes: dict[str, Any]) -> None:
    assert Shortlist(SamplingParams(**changes), LOOKS_BACK).of(np.zeros(SIZE, dtype=np.float32)) is None


def test_a_vocabulary_may_be_smaller_than_top_k() -> None:
    found = Shortlist(SamplingParams(top_k=40, logit_bias=((2, 1.0),)), LOOKS_BACK).of(np.zeros(5, dtype=np.float32))
    assert found is not None and found.tolist() == [0, 1, 2, 3, 4]
