"""Runs strategies side by side on one engine.

So that nothing but the strategy differs: every prompt is in the target's cache before the first strategy starts and has
to be read by every strategy's draft model (where heads draft, the target reads it for every strategy, because they read
along), all answers have the same length (end tokens are ignored) and the same seed, the order rotates from prompt to
prompt and repeat to repeat, and drafters that remember earlier answers start each one without memory (they would
otherwise know it from the strategy before). What the planner learns about acceptance stays, as it does in everyday use;
strategies that plan have a planner each, which sees that strategy's steps alone.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, field
from typing import Callable, Mapping, Sequence

from lcspec.bench.prompts import Prompt, fit
from lcspec.bench.records import PromptResult, Run, Step, first_difference
from lcspec.config import SpeculationParams
from lcspec.drafters.base import state_drafters
from lcspec.engine.engine import Engine
from lcspec.engine.events import Event, Finished, StepStats, Tokens
from lcspec.engine.learned import prepare
from lcspec.engine.request import Request
from lcspec.errors import LcspecError, TokenizeError, UsageError
from lcspec.llama import Branching
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.base import Proposal
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.step_cost import load_curve, measure, save_curve
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session
from lcspec.spec.token_tree import TokenTree

PLAIN = "off"
AUTO = "auto"
WARM_UP_TEXT = "The benchmark warms up with a short text, and the text is short because the benchmark warms up."
WARM_UP_TOKENS = 12
# A prompt that keeps fewer tokens than this is not worth running.
LEAST_PROMPT = 8


class Interrupted(Exception):
    """The user wants to stop; what is finished is kept."""


class WitnessPlanner(AutoPlanner):
    """Remembers every proposal in full: the steps' events show only what was kept of it."""

    def __init__(self, planner: AutoPlanner) -> None:
        """Begin with another planner's knowledge. T(n) is shared: whoever measures it, it is the machine's."""
        super().__init__(planner.curve, copy.deepcopy(planner.acceptance))
        self.costly.records = copy.deepcopy(planner.costly.records)
        self.proposed: list[TokenTree] = []

    def observe(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Learn, and remember."""
        super().observe(proposal, tokens)
        self.proposed.append(proposal.tree)


@dataclass(frozen=True)
class BenchOptions:
    """What is run on every prompt.

    Attributes:
        strategies: by name; contains `off`.
        sampling: with a seed.
        n: tokens an answer.
        repeat: runs of every strategy.
        chat: prompts are a user's messages.
    """

    strategies: Mapping[str, SpeculationParams]
    sampling: SamplingParams
    n: int = 128
    repeat: int = 3
    chat: bool = False


def default_strategies(session: Session) -> list[str]:
    """Every drafter worth comparing that this session can have, and the planner."""
    if session.engine.context.memory.branching is Branching.NONE:
        return [PLAIN, AUTO]
    return [PLAIN, "ngram", *session.engine.drafting.env.draft.drafters, AUTO]


@dataclass
class Bench:
    """A benchmark on an open session.

    Attributes:
        session: what runs.
        options: what is run.
        stopped: asked between events; True ends the benchmark with `Interrupted`.
        curve: T(n) as it was before the first run.
        curve_stored: whether it was measured earlier.
    """

    session: Session
    options: BenchOptions
    stopped: Callable[[], bool] = lambda: False
    curve: CostCurve = field(init=False)
    curve_stored: bool = field(init=False, default=True)
    _base: AutoPlanner | None = field(
        init=False, default=None
    )  # corrects T(n) while a strategy runs that plans nothing
    _witnesses: dict[str, WitnessPlanner] = field(init=False, default_factory=dict)

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.session.engine

    @property
    def widths(self) -> frozenset[int] | None:
        """The widths that steps are limited to; None: any."""
        exact = any(s.exact for s in self.options.strategies.values())
        certificate = self.engine.exact.certificate
        return certificate.widths if exact and certificate is not None and not certificate.independent else None

    def prepare(self, progress: Callable[[float], None] | None = None) -> None:
        """Load drafters, get the cost curve, and warm every strategy up, which finds options that cannot work.

        Raises:
            LcspecError: a strategy cannot run here, or `n` does not fit the context.
        """
        engine, room = self.engine, self.engine.context.n_ctx - self.options.n
        if room < LEAST_PROMPT:
            raise UsageError(
                f"the context holds {engine.context.n_ctx} tokens, which leaves no room for a prompt and "
                f"{self.options.n} tokens of answer: use a smaller -n or a larger --ctx"
            )
        stored = load_curve(engine.context)
        self.curve_stored = stored is not None
        self.curve = stored or measure(engine.context, engine.padding.seq, repeat=3, progress=progress)
        if stored is None:
            save_curve(engine.context, self.curve)
        if engine.context.memory.branching is not Branching.NONE:
            engine.drafting.make(d.name for s in self.options.strategies.values() for d in s.drafters)
            planned = [name for name, s in self.options.strategies.items() if s.auto]
            if planned:
                self._base = prepare(
                    engine.context, engine.padding.seq, engine.drafting.env, list(engine.drafting.drafters)
                )
                self._witnesses = {name: WitnessPlanner(self._base) for name in planned}
        prompt = self.session.prompt_ids(WARM_UP_TEXT)[: room - 1]
        for strategy in self.options.strategies:
            run = self._run(prompt, strategy, 0, 0, min(self.options.n, WARM_UP_TOKENS))
            if run.error is not None:
                raise UsageError(f"strategy {strategy}: {run.error}")

    def fit(self, prompt: Prompt) -> tuple[tuple[int, ...], int] | str:
        """The prompt's token ids and how many characters were cut off its beginning, or why it is skipped."""
        try:
            ids, cut = fit(prompt.text, self.engine.context.n_ctx - self.options.n, self._encode)
        except TokenizeError as error:
            return str(error)
        if not ids or (cut and len(ids) < LEAST_PROMPT):
            return "the context has no room for it"
        return ids, cut

    def _encode(self, text: str) -> Sequence[int]:
        if self.options.chat:
            return self.session.chat_ids([{"role": "user", "content": text}])[0]
        return self.session.prompt_ids(text)

    def run_prompt(self, prompt: Prompt, index: int, progress: Callable[[], None] = lambda: None) -> PromptResult | str:
        """Every strategy, `repeat` times; or why the prompt was skipped.

        Raises:
            Interrupted: `stopped` said so.
        """
        fitted = self.fit(prompt)
        if isinstance(fitted, str):
            return fitted
        ids, cut = fitted
        result = PromptResult(prompt, len(ids), cut)
        self._run(ids, PLAIN, 0, 0, 1)  # brings the prompt into the cache
        names = list(self.options.strategies)
        for repeat in range(self.options.repeat):
            first = (index + repeat) % len(names)
            for order, name in enumerate(names[first:] + names[:first]):
                result.runs.append(self._run(ids, name, repeat, order, self.options.n))
                progress()
        plain = result.of(PLAIN)
        for run in result.runs:
            run.difference = first_difference(plain[0].ids, run.ids) if plain else None
        return result

    def _forget(self) -> None:
        """Forget earlier texts: free drafters start afresh in their old places (see the module's note). Where heads
        draft, cells go, too: of a prompt that was read while none of them wanted its states they know nothing."""
        self.engine.forget_texts()
        if state_drafters(self.engine.drafting.drafters.values()):
            self.engine.prefix_cache.clear()

    def _run(self, prompt: tuple[int, ...], strategy: str, repeat: int, order: int, n: int) -> Run:
        self._forget()
        witness = self._witnesses.get(strategy)
        if witness is not None:
            witness.proposed.clear()
        self.engine.drafting.plan_with(witness or self._base)
        run = Run(strategy, repeat, order)
        events = self._events(self._request(prompt, strategy, n), run)
        if AUTO in self._witnesses:
            self.engine.drafting.plan_with(self._witnesses[AUTO])  # what it learned is kept in the end
        self._read(run, events, witness.proposed if witness is not None else [])
        return run

    def _request(self, prompt: tuple[int, ...], strategy: str, n: int) -> Request:
        return Request(prompt, self.options.sampling, self.options.strategies[strategy], n, ignore_end=True)

    def _events(self, request: Request, run: Run) -> list[Event]:
        """The events of a request up to its end, or up to the error that `run` gets."""
        events = list[Event]()
        try:
            with contextlib.closing(self.engine.run(request)) as stream:
                for event in stream:
                    if self.stopped():
                        raise Interrupted
                    events.append(event)
        except LcspecError as error:
            run.error = str(error)
        return events

    @staticmethod
    def _read(run: Run, events: Sequence[Event], proposed: Sequence[TokenTree]) -> None:
        """Fill a run from its events. Done after the run: the time between events counts as its own."""
        steps = [e for e in events if isinstance(e, StepStats)]
        if len(proposed) != len(steps):
            proposed = [e.tree for e in steps]
        for event in events:
            if isinstance(event, Tokens):
                run.ids += [t.id for t in event.tokens]
                run.text += event.text
            elif isinstance(event, Finished):
                run.tokens_per_second = event.stats.tokens_per_second
                run.stats, run.lossless = event.stats.as_dict(), event.lossless
        decoded, position = run.ids[1:], 0
        for event, tree in zip(steps, proposed):
            emitted = min(len(event.emitted), len(decoded) - position)
            run.steps.append(
                Step(
                    position=position,
                    width=max(event.width, event.plan.width),
                    drafted=event.tree.n_drafted,
                    depth=max(event.tree.depths),
                    accepted=event.accepted,
                    emitted=emitted,
                    target=event.target_seconds,
                    draft=event.draft_seconds,
                    overhead=event.overhead_seconds,
                    plan_tokens=event.plan.tokens if event.plan.seconds > 0 else 0.0,
                    plan_seconds=event.plan.seconds,
                    matched=matched(tree, decoded[position:]),
                )
            )
            position += emitted
        if not run.error and not run.tokens:
            run.error = "no decode step was made"


def matched(tree: TokenTree, tokens: Sequence[int]) -> int:
    """How deep `tokens` follow a path of the tree from its root."""
    node, depth = 0, 0
    for token in tokens:
        child = tree.child(node, token)
        if child is None:
            break
        node, depth = child, depth + 1
    return depth
