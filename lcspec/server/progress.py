"""How far a text is while it is made, for streams that ask for it: `timings_per_token` and `return_progress`."""

from __future__ import annotations

import json
import time
from typing import Any

from lcspec.engine.events import Event, Prefill, RequestStats, Started, Step, Tokens
from lcspec.engine.request import Request
from lcspec.server import answer
from lcspec.server.schemas import Generating
from lcspec.spec.verifiers import make_verifier


class Progress:
    """Follows one text by its events, the account of steps among them (see EngineHost.submit)."""

    def __init__(self, body: Generating, request: Request) -> None:
        self._timed, self._shown = bool(body.timings_per_token), bool(body.return_progress)
        self._request = request
        self._stats = RequestStats()
        self._started: Started | None = None
        self._begun = 0.0
        self._written = 0

    def see(self, event: Event) -> dict[str, Any] | None:
        """Take note of an event; what the stream says of the prompt then (`prompt_progress`), if that is asked for."""
        if isinstance(event, Started):
            self._started, self._begun = event, time.perf_counter()
            return self._of_prompt(event.reused)
        if isinstance(event, Prefill):
            return self._of_prompt(event.done)
        if isinstance(event, Step):
            self._count(event)
        elif isinstance(event, Tokens):
            if not self._written:
                self._stats.prefill_seconds = time.perf_counter() - self._begun
            self._written += len(event.tokens)
        return None

    def said(self) -> dict[str, Any]:
        """What a chunk of text says besides: `timings` so far, if they are asked for."""
        if not self._timed or self._started is None:
            return {}
        lossless = make_verifier(self._request.speculation.verifier).lossless
        return {"timings": answer.timings_of(self._stats, self._started, self._written, lossless)}

    def rest(self) -> str:
        """The same as the end of a JSON object."""
        return "".join(f', "{name}": {json.dumps(value)}' for name, value in self.said().items())

    def _of_prompt(self, done: int) -> dict[str, Any] | None:
        if not self._shown or self._started is None:
            return None
        return {
            "total": self._started.prompt_tokens,
            "cache": self._started.reused,
            "processed": done,
            "time_ms": int((time.perf_counter() - self._begun) * 1000),
        }

    def _count(self, step: Step) -> None:
        tree, path, node = step.stats.tree, list[int](), 0
        for token in step.stats.emitted:
            child = tree.child(node, token)
            if child is None:
                break
            path.append(node := child)
        bits = {name: 1 << i for i, name in enumerate(step.names)}
        self._stats.count(tree, path, len(step.stats.emitted), bits)
        self._stats.decode_seconds += step.seconds
