"""llama.cpp's `samplers`: each letter and each name leaves on the step that it stands for there, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from lcspec.sampling.parameters import SamplingParams
from lcspec.server.parameters import sampling_params
from lcspec.server.schemas import Sampling

# Of each step (by its name in llama.cpp) the letter, the other names, and what makes it act.
STEPS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "penalties": ("e", [], {"repeat_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": 0.4}),
    "dry": ("d", [], {"dry_multiplier": 0.8}),
    "top_n_sigma": ("s", ["top-n-sigma", "topnsigma"], {"top_n_sigma": 2.0}),
    "top_k": ("k", ["top-k", "topk"], {"top_k": 7}),
    "typ_p": ("y", ["typ-p", "typp", "typ", "typical_p"], {"typical_p": 0.6}),
    "top_p": ("p", ["top-p", "topp", "nucleus"], {"top_p": 0.7}),
    "min_p": ("m", ["min-p", "minp"], {"min_p": 0.2}),
    "xtc": ("x", [], {"xtc_probability": 0.5}),
    "temperature": ("t", ["temp"], {"temperature": 1.3, "dynatemp_range": 0.3}),
    "adaptive_p": ("a", ["adaptive-p", "adaptivep"], {"adaptive_target": 0.4}),
}
ALL: dict[str, Any] = {key: value for _, _, acts in STEPS.values() for key, value in acts.items()}
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def acting(samplers: str | list[str]) -> SamplingParams:
    return sampling_params(Sampling(**ALL, samplers=samplers), None, None, 100)


@pytest.mark.parametrize("step", STEPS)
def test_each_letter_and_name_stands_for_its_step(step: str) -> None:
    letter, aliases, acts = STEPS[step]
    alone = SamplingParams(**{**OFF, **acts})
    assert acting(letter) == alone
    for name in (step, *aliases):
        assert acting([name]) == acting([name.upper()]) == acting(["infill", name.title()]) == alone


@pytest.mark.parametrize("step", STEPS)
def test_what_is_not_named_is_off(step: str) -> None:
    off = {key: OFF.get(key, getattr(SamplingParams(), key)) for key in STEPS[step][2]}
    without = SamplingParams(**{**ALL, **off})
    assert acting([other for other in STEPS if other != step]) == without
    assert acting("".join(letter for letter, _, _ in STEPS.values() if letter != STEPS[step][0]) + "i?") == without


@pytest.mark.parametrize("none", [[], ""])
def test_without_any_step_the_model_s_own_distribution_is_sampled(none: str | list[str]) -> None:
    assert acting(none) == SamplingParams(**OFF)


def test_the_default_of_llama_cpp_leaves_all_on_but_adaptive_p() -> None:
    assert acting("edskypmxt") == SamplingParams(**{**ALL, "adaptive_target": -1.0})
    assert acting("edskypmxta") == SamplingParams(**ALL)
