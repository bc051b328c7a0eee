"""Every sampling parameter can be set everywhere: on the command line, in a request, in the chat's settings."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from pydantic import ValidationError

from lcspec.cli import cli
from lcspec.sampling.parameters import MADE, SamplingParams
from lcspec.server.errors import ApiError
from lcspec.server.parameters import sampling_params
from lcspec.server.schemas import Sampling
from lcspec.tui.choices import SAMPLING_KEYS
from lcspec.tui.settings.schema import PRESET, SAMPLING

# (what is made for a request comes by ways of its own)
NAMES = {f.name for f in fields(SamplingParams)} - set(MADE)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_the_command_line_knows_all_with_the_same_defaults(command: str) -> None:
    options = {p.name: p for p in cli.commands[command].params}
    assert set(options) >= NAMES
    context = cli.commands[command].make_context(command, ["x"] if command == "chat" else ["x", "-p", "y"])
    given = {name: context.params[name] for name in NAMES}
    assert SamplingParams(**given) == SamplingParams()


def test_breakers_replace_the_usual_ones_and_none_is_none() -> None:
    def breakers(*arguments: str) -> Any:
        return cli.commands["chat"].make_context("chat", list(arguments)).params["dry_sequence_breakers"]

    option = "--dry-sequence-breaker"
    assert breakers() == SamplingParams().dry_sequence_breakers
    assert breakers(option, "x", option, "\n") == ("x", "\n")
    assert breakers(option, "none") == ()


def test_requests_know_all() -> None:
    assert set(Sampling.model_fields) == NAMES | {"samplers"}
    body = Sampling(mirostat=2, mirostat_tau=3.0, dry_sequence_breakers=["\n"], top_k=-1, adaptive_target=-1.0, seed=-1)
    params = sampling_params(body, None, None, 100)
    assert (params.mirostat, params.mirostat_tau, params.dry_sequence_breakers) == (2, 3.0, ("\n",))
    assert (params.top_k, params.adaptive_target, params.seed) == (0, -1.0, None)
    assert sampling_params(Sampling(seed=-1), None, None, 100, index=3).seed is None
    assert sampling_params(Sampling(seed=5), None, None, 100, index=3).seed == 8


@pytest.mark.parametrize("body", [{"mirostat": 3}, {"dry_sequence_breakers": [""]}, {"adaptive_decay": 1.0}])
def test_requests_with_impossible_values_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises((ValidationError, ApiError)):
        Sampling(**body)


def test_the_chat_s_settings_and_presets_know_all() -> None:
    assert set(SAMPLING) == NAMES == set(SAMPLING_KEYS) and set(PRESET) >= NAMES
