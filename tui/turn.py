"""One answer on its way: from the engine's events to the store and to what the screen shows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Sequence

from lcspec.answers.stored import ThinkTags
from lcspec.answers.text import Piece
from lcspec.engine.events import Failed, Finished, Prefill, Started, Step, Tokens
from lcspec.errors import LcspecError
from lcspec.tui.conversation import ContextFill, Prompt
from lcspec.tui.source import Running
from lcspec.tui.speculation import SpeculationLog
from lcspec.tui.store import Answer as StoredAnswer
from lcspec.tui.store import Message


@dataclass
class Turn:
    """A running answer.

    Attributes:
        running: the request.
        stored: the answer in the store; text goes there as soon as it is drained.
        prompt: what was asked.
        asked: the message it answers, if it was sent for this answer: given back when nothing comes.
        before: the answer as it was, if this one goes on with it.
        log: what speculation did.
        fresh: text that the screen has not been told of.
        error: why it failed.
        tags: reads the answer as its model writes it; None takes it as it is.
    """

    running: Running
    stored: StoredAnswer
    prompt: Prompt
    asked: Message | None = None
    before: Message | None = None
    log: SpeculationLog = field(default_factory=SpeculationLog)
    fresh: list[Piece] = field(default_factory=list)
    tags: ThinkTags | None = None
    error: LcspecError | None = None
    tokens: int = 0
    stopping: bool = False
    prefill: tuple[int, int] = (0, 0)
    first_at: float = 0.0
    last_at: float = 0.0
    result: Message | None = None

    def drain(self) -> bool:
        """Take over what came; True when the answer has ended."""
        for item in self.running.drain():
            if isinstance(item, Tokens):
                self._take(item)
            elif isinstance(item, Step):
                self.log.add(item)
            elif isinstance(item, Prefill):
                self.prefill = (item.done, item.total)
            elif isinstance(item, Started):
                self.stored.update(seed=item.seed)
                self.prefill = (item.reused, item.prompt_tokens)
            elif isinstance(item, Finished):
                self._finish(item)
            elif isinstance(item, Failed):
                self.error = item.error
                self.result = self.stored.finish("failed", error=str(item.error), tokens=self.all_tokens(self.tokens))
        return self.result is not None

    def _take(self, item: Tokens) -> None:
        self.tokens += len(item.tokens)
        self.last_at = time.monotonic()
        self.first_at = self.first_at or self.last_at
        self._show(self.tags.feed(item.pieces) if self.tags is not None else item.pieces, len(item.tokens))

    def _show(self, pieces: Sequence[Piece], tokens: int = 0) -> None:
        self.stored.append(pieces, tokens)
        self.fresh += pieces

    def _finish(self, item: Finished) -> None:
        if self.tags is not None:
            self._show(self.tags.finish(item.reason == "stop"))
        if not self.running.counts:  # a server says at the end how many there were
            self.tokens = item.completion_tokens
            self.prompt = replace(self.prompt, fill=replace(self.prompt.fill, used=item.prompt_tokens))
        stats: dict[str, Any] = item.stats.as_dict()
        self.log.settle(item.stats)
        if self.log.saved is not None:
            stats["saved_seconds"] = self.log.saved
        self.result = self.stored.finish(
            "stopped" if item.reason == "cancelled" else "done",
            stop_reason=item.reason,
            tokens=self.all_tokens(item.completion_tokens),
            seed=item.seed,
            stats=stats,
        )

    def all_tokens(self, fresh: int) -> int:
        """Of the whole answer, `fresh` of them new."""
        return fresh + ((self.before.tokens or 0) if self.before is not None else 0)

    def take_fresh(self) -> list[Piece]:
        """Text for the screen."""
        fresh, self.fresh = self.fresh, []
        return fresh

    def stop(self) -> None:
        """End it after the current step."""
        self.stopping = True
        self.running.cancel()

    @property
    def fill(self) -> ContextFill:
        """Of the context, the answer included."""
        return self.prompt.fill.plus(self.tokens)

    @property
    def rate(self) -> float | None:
        """Tokens a second as they arrive; None before the second one, and where nobody counts them."""
        if not self.running.counts:
            return None
        span = self.last_at - self.first_at
        return (self.tokens - 1) / span if self.tokens > 1 and span > 0 else None

    @property
    def phase(self) -> str:
        """What it is doing."""
        if self.stopping:
            return "stopping ..."
        done, total = self.prefill
        if self.tokens:
            return "answering"
        if not self.running.accepted:
            return "preparing ..."
        return f"reading the prompt {done}/{total}" if total else "waiting ..."
