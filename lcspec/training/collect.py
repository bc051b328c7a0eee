"""Letting the target write many texts at once, and keeping the hidden state after every token.

Not the engine's loop: nothing is speculated, stopped or streamed here, so a plain batched loop over a context with a
cache of its own for every text is faster. Half of the answers are greedy and half are sampled as `lcspec generate`
samples by default, because heads are asked for both. A few go on past the end of the answer, as benchmarks do that give
all answers the same length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lcspec.errors import ContextOverflow
from lcspec.llama import Context, Model
from lcspec.llama.template import ChatTemplate
from lcspec.sampling.top_k import largest
from lcspec.training.prompts import PromptMaker, Source, chat_ids, opening

TEMPERATURES = (0.0, 0.8)
TOP_K = 40
GO_ON_EVERY = 6


@dataclass
class Job:
    """A text to write. `group` is kept with it; `limit` counts the tokens to write; `go_on`: past an end token.
    `states` and `choices` are what the writer keeps of every token (see its class)."""

    group: int
    prompt: tuple[int, ...]
    limit: int
    temperature: float
    go_on: bool = False
    tokens: list[int] = field(default_factory=list)
    states: list[NDArray[np.float16]] = field(default_factory=list)
    choices: list[tuple[NDArray[np.int32], NDArray[np.float16]]] = field(default_factory=list)


Done = Callable[[Job], bool | None]


class Writer:
    """Writes texts side by side in a context with streams."""

    def __init__(self, context: Context, seed: int) -> None:
        self.context = context
        self.rng = np.random.default_rng(seed)
        self.ends = context.model.vocab.end_mask
        self._watch()

    def run(self, jobs: Iterator[Job], done: Done) -> None:
        """Run `jobs` until they end or `done` (called with every finished one) returns False.

        Raises:
            DecodeError: the library failed.
        """
        running: dict[int, Job] = {}
        free = list(range(self.context.n_seq))
        while True:
            while free:
                job = next(jobs, None)
                if job is None:
                    break
                self._prefill(free[0], job)
                running[free.pop(0)] = job
            if not running:
                return
            for seq in self._step(running):
                self.context.memory.remove(seq, 0)
                free.append(seq)
                if done(running.pop(seq)) is False:
                    self.context.memory.clear()
                    return
            free.sort()

    def _prefill(self, seq: int, job: Job) -> None:
        """Decode the prompt but its last token."""
        batch, ids = self.context.batch, job.prompt[:-1]
        if len(job.prompt) + job.limit > self.context.n_ctx:
            raise ContextOverflow(f"a prompt of {len(job.prompt)} tokens leaves no room for {job.limit} more")
        step = self.context.options.batch
        for start in range(0, len(ids), step):
            batch.clear()
            batch.add_run(ids[start : start + step], start, seq)
            self.context.decode()
            self._keep_prompt(job)

    def _step(self, running: dict[int, Job]) -> list[int]:
        """One token for everybody; returns the ids that are finished."""
        batch, order = self.context.batch, sorted(running)
        batch.clear()
        for seq in order:
            job = running[seq]
            at = len(job.prompt) + len(job.tokens) - 1
            batch.add(job.tokens[-1] if job.tokens else job.prompt[-1], at, (seq,), logits=True)
        self.context.decode()
        self._keep_step([running[seq] for seq in order])
        chosen = self._choose(self.context.logits(), [running[seq].temperature for seq in order])
        finished = []
        for seq, token in zip(order, chosen):
            job = running[seq]
            job.tokens.append(int(token))
            if (self.ends[token] and not job.go_on) or len(job.tokens) >= job.limit:
                finished.append(seq)
        return finished

    # What is kept of a text.

    def _watch(self) -> None:
        """Have the library hand out what is kept."""
        self.context.want_hidden()

    def _keep_prompt(self, job: Job) -> None:
        """A piece of the prompt was decoded."""

    def _keep_step(self, jobs: list[Job]) -> None:
        """A token of every job was decoded."""
        for job, state in zip(jobs, self.context.hidden().astype(np.float16)):
            job.states.append(state)

    def _choose(self, logits: NDArray[np.float32], temperatures: list[float]) -> NDArray[np.int64]:
        """The next tokens, for logits [n, n_vocab]: the largest, or a sample from the TOP_K largest."""
        chosen: NDArray[np.int64] = logits.argmax(axis=1)
        for i, temperature in enumerate(temperatures):
            if temperature > 0:
                top = largest(logits[i], TOP_K)
                chosen[i] = top[(logits[i][top] / temperature + self.rng.gumbel(size=top.size)).argmax()]
        return chosen


def answer_jobs(
    maker: PromptMaker, limit: int, skip: int, temperatures: tuple[float, ...] = TEMPERATURES
) -> Iterator[Job]:
    """Endless jobs that answer prompts, the temperatures in turn; with several, one in GO_ON_EVERY goes on."""
    for i, (group, ids) in enumerate(maker.prompts(skip), start=skip):
        go_on = len(temperatures) > 1 and i // len(temperatures) % GO_ON_EVERY == 0
        yield Job(group, ids, limit, temperatures[i % len(temperatures)], go_on)


def invent(model: Model, writer: Writer, n: int, room: int, enough: Callable[[int], bool]) -> list[Source]:
    """User messages (or beginnings of text, for a model without a chat template) of the model's own invention: `n` of
    at most `room` tokens, or fewer when `enough(number so far)` says so."""
    start = opening(model)
    chat = bool(model.header.chat_template)
    found: list[Source] = []

    def keep(job: Job) -> bool:
        text = model.vocab.text([t for t in job.tokens if not model.vocab.is_end(t)]).strip()
        if text:
            found.append(Source(({"role": "user", "content": text},)) if chat else Source(text=text))
        return len(found) < n and not enough(len(found))

    writer.run((Job(i, start, room, 1.0) for i in range(4 * n)), keep)
    if chat:
        template = ChatTemplate(model)
        fits = [s for s in found if len(chat_ids(model, template, s.messages)) <= 2 * room]
        return fits or [Source(text=model.vocab.text(list(start)))]
    return found or [Source(text=model.vocab.text(list(start)))]
