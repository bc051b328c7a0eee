"""What `lcspec serve` is told, apart from how to load the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping

from lcspec.config import MAX_DRAFT
from lcspec.errors import UsageError
from lcspec.sampling.parameters import SamplingParams

MIB = 1024 * 1024


@dataclass(frozen=True)
class ServerSettings:
    """How the endpoint behaves.

    Attributes:
        models: names a request may use for the model; the first one is reported.
        api_keys: accepted keys; empty = none is asked for.
        queue: requests that may wait beyond those in the slots.
        max_body: bytes of a request body.
        body_seconds: how long a client may take to send its body.
        hosts: names this server may be called by, besides addresses; empty = any.
        header_seconds: how long a client may take to send a request's headers.
        write_seconds: how long a client may take to read a part of its answer.
        drain_seconds: how long accepted requests may take after the signal to stop.
        cors: origins whose pages may call this server from a browser; empty = none.
        log_prompts: write prompts and answers to the log.
        strict: refuse unknown parameters and names of models, as the OpenAI API does.
        ignore_unknown: ignore unknown parameters even if they would change the text.
        speculate, max_draft, verifier, exact: what a request gets that says nothing about speculation.
        chat_template: a chat template (Jinja, or `chatml`) instead of the model's own.
        template_kwargs: what the chat template is given if a request says nothing else.
        max_loaded: models that may be loaded at once; idle_unload: seconds after which one that nobody uses is unloaded
            (0 = never).
        sampling: what is sampled with where a request says nothing, by the names of SamplingParams.
        request_seconds: how long a request may take in all; 0 = as long as it likes.
        tls_cert, tls_key: files for https, given to the HTTP server.
        reasoning_budget: tokens a model may reason for if a request says nothing else; -1 = no limit.
        keep_alive_seconds: a stream that has nothing to say sends a comment this often.
    """

    models: tuple[str, ...] = ("lcspec",)
    api_keys: tuple[str, ...] = ()
    queue: int = 32
    max_body: int = 4 * MIB
    body_seconds: float = 60.0
    hosts: tuple[str, ...] = ()
    header_seconds: float = 30.0
    write_seconds: float = 60.0
    drain_seconds: int = 300
    cors: tuple[str, ...] = ()
    log_prompts: bool = False
    strict: bool = False
    ignore_unknown: bool = False
    speculate: str = "auto"
    max_draft: int | None = None
    verifier: str = "coupled"
    exact: bool = False
    chat_template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_loaded: int = 3
    idle_unload: float = 0.0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    request_seconds: float = 0.0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    reasoning_budget: int = -1
    keep_alive_seconds: float = 15.0

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            UsageError, SamplingError: a value is out of its range.
        """
        if self.strict and self.ignore_unknown:
            raise UsageError("give --strict or --ignore-unknown, not both")
        if self.queue < 0:
            raise UsageError(f"the queue must be 0 or more requests, not {self.queue}")
        if self.request_seconds < 0:
            raise UsageError(f"--timeout must be 0 (none) or more seconds, not {self.request_seconds:g}")
        SamplingParams(**self.sampling)
        if self.max_loaded < 1:
            raise UsageError(f"at least one model must be allowed to be loaded, not {self.max_loaded}")
        if self.idle_unload < 0:
            raise UsageError(f"--idle-unload must be 0 (never) or more seconds, not {self.idle_unload:g}")
        if self.reasoning_budget < -1:
            raise UsageError(f"the reasoning budget must be -1 (no limit) or more tokens, not {self.reasoning_budget}")
        if self.max_body < 1024:
            raise UsageError(f"the largest body must be at least 1024 bytes, not {self.max_body}")
        if self.max_draft is not None and not 0 <= self.max_draft <= MAX_DRAFT:
            raise UsageError(f"max-draft must be from 0 to {MAX_DRAFT}, not {self.max_draft}")
