"""What scripts/real_bench.py measures in an open session: answers that may end, and the time to the first token."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from peers.ending import run_of
from peers.outputs import Run as PeerRun
from peers.prompts import Prompt as PeerPrompt
from peers.prompts import balanced
from peers.runners import RunError

from lcspec.bench.prompts import Prompt, groups, read_prompts, spread
from lcspec.bench.records import PromptResult, Run
from lcspec.bench.runner import PLAIN, Bench
from lcspec.bench.stats import median
from lcspec.engine.events import Event, Tokens
from lcspec.engine.request import Request
from lcspec.errors import UsageError
from lcspec.llama.template import ChatTemplate
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, parse_speculation

# `auto` on a question that was asked before: its first answer is known.
AGAIN = "auto, asked again"
# Tokens between the beginnings of two prompts cut from the same text.
SHIFT = 37


def chosen(
    path: Path, kinds: Sequence[str], limit: int | None, tune: int
) -> tuple[list[Prompt], list[Prompt], dict[str, str]]:
    """Prompts of the table with the categories taking turns, others to tune peers on, and the categories by id.

    Raises:
        UsageError: there is no such prompt, or an id appears twice.
    """
    everything = [p for p in read_prompts(path) if not kinds or p.category in kinds or p.set in kinds]
    if not everything:
        raise UsageError(f"{path} has no prompt of the category or set {' or '.join(kinds)}")
    if len({p.id for p in everything}) < len(everything):
        raise UsageError(f"{path} has several prompts of one id: give every prompt its own")
    wanted = spread(everything, limit)
    taken = {p.id for p in wanted}
    left = [p for p in everything if p.id not in taken]
    categories = {wanted[i].id: label for label, members in groups(wanted).items() for i in members}
    return balanced(wanted), spread(left, tune), categories  # type: ignore[arg-type,return-value]


@dataclass
class EndingBench(Bench):
    """A benchmark whose answers end where the model ends them.

    `ends`: off while warming up, so that every strategy makes a step there.
    """

    ends: bool = field(init=False, default=False)
    stop: tuple[str, ...] = field(init=False, default=())

    def prepare(self, *progress: Any) -> None:
        """See Bench."""
        super().prepare(*progress)
        if self.options.chat:
            self.stop = self.session.chat_ids([{"role": "user", "content": "Hello"}])[1]
        self.ends = True

    def answer(self, ids: tuple[int, ...], strategy: str) -> Run:
        """One answer to a prompt, by nobody's turn."""
        return self._run(ids, strategy, 0, 0, self.options.n)

    def _request(self, prompt: tuple[int, ...], strategy: str, n: int) -> Request:
        return replace(super()._request(prompt, strategy, n), stop=self.stop, ignore_end=not self.ends)

    def _events(self, request: Request, run: Run) -> list[Event]:
        if run.strategy == AGAIN:
            super()._events(request, run)  # nothing stays of the first time but what drafters remember
        return super()._events(request, run)

    def peer_prompt(self, prompt: Prompt) -> tuple[PeerPrompt, tuple[int, ...]] | None:
        """A prompt as every program gets it, and its ids here; None if it has to be cut."""
        fitted = self.fit(prompt)
        if isinstance(fitted, str) or fitted[1]:
            return None
        text = prompt.text
        if self.options.chat:
            template = ChatTemplate(self.session.model)
            text = template.render([{"role": "user", "content": text}])
            if template.has_bos(text):  # every program adds it again
                text = text[len(template.tokens["bos_token"]) :]
        return PeerPrompt(prompt.id, prompt.category, text, len(fitted[0])), fitted[0]

    def peer_run(self, ids: tuple[int, ...], strategy: str) -> PeerRun:
        """An answer with the figures of compare_peers.

        Raises:
            RunError: there is none.
        """
        run = self.answer(ids, strategy)
        if run.error is not None:
            raise RunError(run.error)
        return run_of(run.tokens_per_second, run.tokens, run.stats["decode_seconds"], len(ids), run.stats, run.text)


def condensed(result: PromptResult | str) -> dict[str, Any]:
    """What is kept of a prompt: rates and lengths by strategy, whether texts are the plain one's, the plain step.

    A prompt that some strategy could not run is `skipped`, with the reason.
    """
    if isinstance(result, str):
        return {"skipped": result}
    failed = next((run for run in result.runs if run.error is not None), None)
    if failed is not None:
        return {"skipped": f"{failed.strategy}: {failed.error}"}
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in result.runs:
        same, rate = run.difference is None, run.tokens_per_second
        runs.setdefault(run.strategy, []).append(
            {"rate": rate, "tokens": run.tokens, "seconds": run.stats["decode_seconds"], "same": same}
        )
    steps = [step.target + step.draft + step.overhead for run in result.of(PLAIN) for step in run.steps]
    return {"tokens": result.tokens, "cut": result.cut_characters, "plain_ms": 1e3 * median(steps), "runs": runs}


def first_tokens(
    session: Session, texts: Sequence[str], lengths: Sequence[int], repeat: int, exact: bool
) -> dict[str, list[float]]:
    """Seconds from a request to its first token, by length of the prompt; lengths that do not fit are left out.

    Prompts are pieces of `texts`, each beginning somewhere else, so that none finds the other in the cache.
    """
    found: dict[str, list[float]] = {}
    fitting = [length for length in lengths if length < session.engine.context.n_ctx]
    pieces = _pieces(session, texts, fitting, (repeat + 1) * len(fitting))
    for number in range(repeat + 1):
        for length in fitting:
            session.engine.forget_texts()
            session.engine.prefix_cache.clear()
            seconds = _first_token(session, next(pieces)[:length], exact)
            if number > 0:  # the first round warms up
                found.setdefault(str(length), []).append(seconds)
    return found


def _pieces(session: Session, texts: Sequence[str], lengths: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """The ends of one long text from `count` places on, each with enough tokens for every length."""
    need = max(lengths, default=0) + SHIFT * count
    ids: list[int] = []
    for text in itertools.cycle(texts):
        if len(ids) >= need:
            break
        ids += session.prompt_ids(text)
    return (tuple(ids[at:]) for at in range(0, SHIFT * count, SHIFT))


def _first_token(session: Session, ids: tuple[int, ...], exact: bool) -> float:
    speculation = parse_speculation("off", exact=exact)
    request = Request(ids, SamplingParams(temperature=0.0, seed=1), speculation, max_tokens=1, ignore_end=True)
    start = time.perf_counter()
    seconds = 0.0
    for event in session.engine.run(request):
        if isinstance(event, Tokens) and not seconds:
            seconds = time.perf_counter() - start
    return seconds
