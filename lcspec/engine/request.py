"""What a front end asks the engine for."""

from __future__ import annotations

from dataclasses import dataclass, field

from lcspec.config import SpeculationParams
from lcspec.sampling.parameters import SamplingParams


@dataclass(frozen=True)
class Request:
    """One completion to make.

    Attributes:
        prompt: token ids, at least one.
        sampling: how the target samples.
        speculation: how to speculate.
        max_tokens: tokens to generate at most; None = until the model or the context ends.
        stop: strings that end the text (not included in it).
        logprobs: None = none; k = each token's log-probability and the k most probable tokens.
        ignore_end: go on after end-of-text tokens (for benchmarks).
        prediction: the answer the caller expects, as token ids (OpenAI's predicted outputs).
        emitted: tokens of the answer that the caller has already, from an engine that has died (then `sampling` needs
            its seed): what follows is what would have followed there, and only that is told.
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
