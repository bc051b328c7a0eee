"""The engine as the interface sees it, in a process of its own. Events cross threads in a deque: the engine's host
appends, the interface drains.

Nothing here waits: a slow screen makes the deque longer and the engine no slower.
"""

from __future__ import annotations

import asyncio
import collections
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from lcspec import engine_host
from lcspec.answers.formats import format_of
from lcspec.answers.openings import opened_by
from lcspec.answers.stored import ThinkTags
from lcspec.config import DraftFiles, ModelOptions, SpeculationParams
from lcspec.engine.events import Event, Failed, Finished, StepStats
from lcspec.engine_host import EngineHost, Ticket
from lcspec.engine_thread import EngineThread
from lcspec.errors import LcspecError
from lcspec.profiles.steadiness import disturbance
from lcspec.tui.source import Asked, Item, Loaded, Progress, Question, Running
from lcspec.tui.wording import name_of

if TYPE_CHECKING:
    from lcspec.engine.request import Request
    from lcspec.profiles.cost_curve import CostCurve

# The share of right guesses that an expected speed-up is told for.
TYPICAL = 0.7
# A speed-up below this is none.
WORTH_SAYING = 1.05

# Tokens at the end of a prompt that may open the reasoning.
TAIL = 24


class Answer:
    """One running request. `sink` is called on another thread, everything else by the interface."""

    counts = True

    def __init__(self) -> None:
        self.done = False
        self.ticket: Ticket | None = None
        self._queue: collections.deque[Item] = collections.deque()
        self._cancelled = False

    def sink(self, events: Sequence[Event]) -> None:
        """Hand events on; never blocks."""
        for event in events:
            assert not isinstance(event, StepStats), "details were asked for"
            self._queue.append(event)

    def drain(self) -> list[Item]:
        """Everything that came since the last time."""
        out: list[Item] = []
        while self._queue:
            out.append(self._queue.popleft())
        if out and isinstance(out[-1], (Finished, Failed)):
            self.done = True
        return out

    @property
    def accepted(self) -> bool:
        """Whether the engine has taken the request."""
        return self.ticket is not None

    @property
    def waiting(self) -> int:
        """Items nobody has drained yet."""
        return len(self._queue)

    def settled(self, future: Future[Ticket]) -> None:
        """The engine took the request, or refused it: a refusal comes out of `drain` as Failed."""
        error = future.exception()
        if error is not None:
            shown = error if isinstance(error, LcspecError) else LcspecError(f"the engine failed: {error!r}")
            self._queue.append(Failed(0, shown))
            return
        self.ticket = future.result()
        if self._cancelled:
            self.ticket.cancel()

    def cancel(self) -> None:
        """Stop it between two steps, as soon as there is something to stop."""
        self._cancelled = True
        if self.ticket is not None:
            self.ticket.cancel()


class Bridge:
    """One engine, and the requests on it: a `Source`."""

    local = True

    def __init__(self, options: ModelOptions, files: DraftFiles, history: bool = True, *, apart: bool = True) -> None:
        """Start loading. `apart`: in a process of its own, which can die without the interface."""
        self.options = options
        self.files = files
        self.progress = Progress()
        self.worker: EngineHost
        if apart:
            from lcspec.engine_process.parent import EngineProcess

            self.worker = EngineProcess(options, files, self.progress, history, quiet=True)
        else:
            self.worker = EngineThread(options, files, self.progress, history)
        self._loaded: engine_host.Loaded | None = None
        self._restarts = 0  # of the engine before the latest request

    @property
    def draft(self) -> Path | None:
        """The first draft model."""
        return next(iter(self.files.models), None)

    @property
    def title(self) -> str:
        """The files."""
        draft = f" with {self.draft.name}" if self.draft is not None else ""
        return f"{self.options.path.name}{draft}"

    @property
    def alive(self) -> bool:
        """Whether the engine runs."""
        return self.worker.alive

    @property
    def tokenizer(self) -> engine_host.Loaded:
        """The loaded model."""
        return self.loaded

    def tokenize(self, text: str) -> Sequence[int]:
        """Token ids, without special tokens."""
        return self.loaded.vocab.tokenize(text)

    def piece(self, token: int) -> str:
        """The text of a token."""
        return self.loaded.vocab.text([token], special=True)

    @property
    def loaded(self) -> engine_host.Loaded:
        """The loaded model.

        Raises:
            RuntimeError: it is still loading.
        """
        if self._loaded is None:
            raise RuntimeError("the model is still loading")
        return self._loaded

    async def ready(self) -> engine_host.Loaded:
        """Wait for the model.

        Raises:
            LcspecError: it cannot be loaded.
        """
        self._loaded = await asyncio.wrap_future(self.worker.loading())  # a thread that waits would keep the chat open
        return self._loaded

    async def prepare(self, speculation: SpeculationParams) -> Loaded:
        """Load what drafting needs, measure this machine on first use, and say what was decided.

        Raises:
            LcspecError: the drafters cannot be had.
        """
        found = await asyncio.wrap_future(self.worker.prepare(speculation))
        header, facts = self.loaded.header, self.loaded.facts
        drafting = decisions(speculation, found.speculation, found.curve, found.draft_seconds)
        return Loaded(
            path=self.options.path,
            files=self.files,
            name=name_of(self.options.path, header.name),
            quantization=header.quantization,
            n_ctx=facts.n_ctx,
            threads=facts.threads,
            spare=facts.spare,
            exact=facts.exact,
            n_ctx_train=header.context_length or 0,
            notes=(*(f"{note}." for note in facts.notes), *drafting),
        )

    def interruption(self) -> str | None:
        """See Source."""
        life = self.worker.life
        return life.last if life.restarts > self._restarts else None

    def submit(self, request: Request) -> Answer:
        """Submit a request; its events, a refusal included, come out of `Answer.drain`."""
        answer, self._restarts = Answer(), self.worker.life.restarts
        self.worker.submit(request, answer.sink, details=True).add_done_callback(answer.settled)
        return answer

    async def ask(self, question: Question) -> Asked:
        """Submit the request of a question."""
        from lcspec.engine.request import Request

        vocab, prompt, before = self.loaded.vocab, question.prompt, question.before
        form = format_of(self.loaded.header.chat_template or "")
        tags: ThinkTags | None = ThinkTags(form, opened_by(form, vocab.text(list(prompt.ids[-TAIL:]), special=True)))
        if before is not None:
            opening = "".join(piece.text for piece in tags.opening) if tags is not None else ""
            start = len(opening) if before.text.startswith(opening) else 0  # the prompt has it already
            written = await asyncio.to_thread(vocab.tokenize, before.text[start:], special=False)
            prompt = replace(prompt, ids=(*prompt.ids, *written), fill=prompt.fill.plus(len(written)))
            tags = None
        request = Request(prompt.ids, question.sampling, question.speculation, question.max_tokens, prompt.stop)
        return Asked(self.submit(request), prompt, tags)

    async def switch(self, running: Running, speculation: SpeculationParams) -> None:
        """Give a running answer other drafters.

        Raises:
            LcspecError: they cannot be had; the answer goes on as before.
        """
        if isinstance(running, Answer) and running.ticket is not None and not running.done:
            await asyncio.wrap_future(running.ticket.switch(speculation))

    def give_up(self) -> None:
        """Stop loading: a thread as soon as the library asks whether to go on, a process at once."""
        self.progress.given_up = True
        if not isinstance(self.worker, EngineThread):
            self.worker.close(timeout=0)

    def close(self, timeout: float = 10.0) -> bool:
        """End everything; False if the engine did not come back in time (a decode cannot be interrupted)."""
        self.progress.given_up = True
        return self.worker.close(timeout=timeout)


def decisions(
    asked: SpeculationParams, settled: SpeculationParams, curve: CostCurve | None, draft_seconds: float = 0.0
) -> list[str]:
    """What was decided about drafting, in sentences for somebody who has not read about it.

    `draft_seconds`: what a step of the draft model takes (0.0: there is none, or it was not timed).
    """
    if not settled.drafters:
        if asked.drafters:
            return ["Drafting (guessing several words ahead) does not work with this kind of model: it writes plainly."]
        return ["Drafting (guessing several words ahead) is switched off; F4 switches it on."]
    out = []
    if settled.auto and curve is not None and 1 in curve.points:
        from lcspec.commands.calibrate import break_even, speedup

        gain = speedup(curve, 0, TYPICAL, draft_seconds)
        if gain < WORTH_SAYING:
            never = break_even(curve, 0, 0.0) is None
            out.append(
                "Drafting (guessing several words ahead) "
                + (
                    "is not expected to pay here: it will write plainly."
                    if never
                    else "may pay here where a text repeats itself, as code and edits do; elsewhere it writes plainly."
                )
            )
        else:
            out.append(
                "Drafting (guessing several words ahead) is expected to pay here: "
                f"about {gain:.1f}x where {TYPICAL * 10:.0f} of 10 guesses are right."
            )
        told = disturbance(curve.retaken, curve.unsteady)
        out += [told] if told is not None else []
    else:
        names = ", ".join(s.name for s in settled.drafters)
        out.append(f"Drafting (guessing several words ahead) is done by {names} in every step.")
    out.append("F2 shows who guessed which words, F3 how many guesses were right and what that saved.")
    return out
