"""A request, as front ends hand it to the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from lcspec.config import SpeculationParams
from lcspec.sampling.parameters import SamplingParams


@dataclass(frozen=True)
class Request:
    """One completion to generate.

    Attributes:
        prompt: token ids, at least one.
        sampling: how the target samples.
        speculation: how to speculate.
        max_tokens: the most tokens to generate; None: until the model or the context ends the text.
        warm: with a `max_tokens` of 0, read the prompt all the same: what continues it finds it in the cache.
        stop: strings that end the text (not included in it).
        logprobs: None: none; k: each token's log-probability and the k most probable tokens.
        sampled_probs: log-probabilities are those of the distribution that was sampled from, not the model's own.
        ignore_end: continue after end-of-text tokens (for benchmarks).
        prediction: the answer that the caller expects, as token ids (OpenAI's predicted outputs).
        emitted: tokens of the answer that the caller already has, from an engine that has died (`sampling` then needs
            its seed). The request continues after them, and events contain only what follows.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    ignore_end: bool = False
    prediction: tuple[int, ...] = ()
    emitted: tuple[int, ...] = ()
    warm: bool = False
    sampled_probs: bool = False
