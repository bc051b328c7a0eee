"""The drafters of an engine, and their planners."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from dataclasses import replace
from typing import Iterable, Iterator, Sequence

from lcspec.config import SpeculationParams
from lcspec.drafters import Drafter, DrafterEnv, create
from lcspec.drafters.memory import keep_texts, restored
from lcspec.engine.learned import keep, meet, prepare
from lcspec.engine.request import Request
from lcspec.engine.sequence import ActiveSequence
from lcspec.engine.step_plan import StepPlan
from lcspec.llama import Context
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.base import Planner
from lcspec.planner.fixed import FixedPlanner
from lcspec.planner.worth import could_pay
from lcspec.profiles.step_cost import Progress, load_curve
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict


class Drafting:
    """Makes drafters when they are first named, and starts and ends them with their sequences.

    Attributes:
        env: what drafters are made from.
        drafters: by name, in the order of their bits.
        auto: the planner that decides; made when it is first needed, because it needs a measured cost curve.
    """

    def __init__(
        self, context: Context, scratch: int, env: DrafterEnv, drafters: dict[str, Drafter] | None = None
    ) -> None:
        """Draft for decodes in `context`. The sequence id `scratch` must be unused between steps.

        `drafters`: those of another engine, which closes them.
        """
        self.env = env
        self.drafters = {} if drafters is None else drafters
        self.auto: AutoPlanner | None = None
        self._fixed = FixedPlanner()
        self._context, self._scratch = context, scratch
        self._owned = drafters is None
        self._forgot = False  # forget_texts was called: from then on nothing that drafters know is stored

    # ------------------------------------------------------------ before a request runs

    def make(self, names: Iterable[str]) -> None:
        """Make the drafters that do not exist yet.

        Raises:
            LcspecError: a drafter cannot be made; the message says why.
        """
        for name in names:
            if name not in self.drafters:
                self.drafters[name] = restored(create(name, self.env), self.env)

    def make_planner(self, progress: Progress | None = None) -> AutoPlanner:
        """Make the planner that decides, if it does not exist; that may measure T(n)."""
        if self.auto is None:
            self.auto = prepare(self._context, self._scratch, self.env, list(self.drafters), progress)
        return self.auto

    def plan_with(self, planner: AutoPlanner | None) -> None:
        """Let `planner` decide from the next request on; None: one that is made when it is needed."""
        self.auto = planner

    def meet(self, names: Iterable[str]) -> None:
        """Time the drafters that the planner has never asked; only between requests."""
        if self.auto is not None:
            meet(self.auto, [self.drafters[name] for name in names])

    def without_hopeless(self, speculation: SpeculationParams) -> SpeculationParams:
        """The parameters of a request that a planner decides for, without heads that cannot pay here: loading one takes
        a while, and it reads states at every step, also when it is never asked.

        Raises:
            ModelFileError: a head's file cannot be read.
        """
        if not any(spec.name in self._chances for spec in speculation.drafters):
            return speculation
        curve = load_curve(self._context) if self.auto is None else self.auto.curve
        if curve is None:
            return speculation
        costs = curve.effective(0)

        def hopeful(name: str) -> bool:
            level = 0.0 if self.auto is None else self.auto.costly.level_seconds(name)
            return could_pay(costs, self._chances.get(name, ()), level)

        return replace(speculation, drafters=tuple(spec for spec in speculation.drafters if hopeful(spec.name)))

    @functools.cached_property
    def _chances(self) -> dict[str, tuple[float, ...]]:
        return self.env.chances()

    # ------------------------------------------------------------ while a request runs

    @property
    def planners(self) -> tuple[Planner, ...]:
        """The planners that exist."""
        return (self._fixed,) if self.auto is None else (self._fixed, self.auto)

    def planner_of(self, request: Request) -> Planner:
        """The planner for a request."""
        return self.auto if self.auto is not None and request.speculation.auto else self._fixed

    def begin(self, sequence: ActiveSequence) -> None:
        """Start the request's drafters.

        Raises:
            LcspecError: a drafter cannot start.
        """
        bits = {name: 1 << i for i, name in enumerate(self.drafters)}
        sequence.bits = {spec.name: bits[spec.name] for spec in sequence.request.speculation.drafters}
        sequence.hidden, sequence.unobserved = None, 0  # values from an earlier set of drafters are out of date
        sequence.drafters = []
        for spec in sequence.request.speculation.drafters:
            self.drafters[spec.name].begin(sequence, spec)
            sequence.drafters.append(self.drafters[spec.name])
        sequence.wants_hidden = any(drafter.wants_hidden for drafter in sequence.drafters)

    def swap(self, sequence: ActiveSequence, request: Request) -> None:
        """Continue with the drafters that `request` names.

        Raises:
            LcspecError: a drafter cannot start.
        """
        for drafter in sequence.drafters:
            drafter.end(sequence)
        sequence.request = request
        self.begin(sequence)

    def end(self, sequence: ActiveSequence) -> None:
        """End the drafters of a request that has ended."""
        for drafter in sequence.drafters:
            drafter.end(sequence)
        if self.auto is not None:
            self.auto.forget(sequence)

    def keep_states(self, running: Sequence[ActiveSequence]) -> None:
        """Have the context keep the hidden states that drafters of the `running` requests read, and no others."""
        self._context.want_hidden(any(sequence.wants_hidden for sequence in running))
        drafters = [drafter for sequence in running for drafter in sequence.drafters]
        self._context.want_states(layer for drafter in drafters for layer in drafter.wants_states)

    def start_ahead(self, plan: StepPlan) -> list[Drafter]:
        """While the target decodes `plan`, draft models that can go on drafting (see lcspec.drafters.ahead), and read
        the prompts that it reads; returns those for `stop_ahead`."""
        if any(part.unobserved for part in plan.parts):
            return []
        seconds = plan.plan.seconds if all(part.decodes for part in plan.parts) else math.inf
        return self._go_ahead([part.sequence for part in plan.parts], seconds)

    @contextlib.contextmanager
    def reading_ahead(self, sequence: ActiveSequence) -> Iterator[None]:
        """The same inside, where a prompt is read in a context of its own."""
        going = self._go_ahead([sequence], math.inf)
        try:
            yield
        finally:
            self.stop_ahead(going)

    def stop_ahead(self, going: Sequence[Drafter]) -> None:
        """The target has decoded."""
        if not going:
            return
        start = time.perf_counter()
        for drafter in going:
            drafter.stop_ahead()
        if self.auto is not None:
            self.auto.overlap.gained -= time.perf_counter() - start

    def _go_ahead(self, sequences: Sequence[ActiveSequence], seconds: float) -> list[Drafter]:
        """`seconds`: see Drafter.draft_ahead. Where the text depends on the drafts they must not depend on time."""
        if not any(drafter.goes_ahead for drafter in self.drafters.values()):
            return []
        if self.auto is not None and any(sequence.request.speculation.auto for sequence in sequences):
            overlap = self.auto.overlap
            if overlap.pauses if seconds == math.inf else not overlap.start():  # nothing is learned from prompts
                return []
        going: dict[str, list[ActiveSequence]] = {}
        for sequence in sequences:
            if sequence.verifier.lossless and not sequence.draws:
                for drafter in sequence.drafters:
                    if drafter.goes_ahead:
                        going.setdefault(drafter.name, []).append(sequence)
        for name, asking in going.items():
            self.drafters[name].draft_ahead(asking, seconds)
        return [self.drafters[name] for name in going]

    @staticmethod
    def flush(sequence: ActiveSequence) -> None:
        """Let the drafters observe the plain steps that they missed, as one step."""
        if sequence.unobserved:
            n, sequence.unobserved = sequence.unobserved, 0
            tree = TokenTree.root(sequence.tokens[-n - 1])
            verdict = Verdict([], sequence.tokens[-n:], bonus=False)
            for drafter in sequence.drafters:
                drafter.observe(sequence, tree, verdict)

    # ------------------------------------------------------------ between requests

    def forget_texts(self) -> None:
        """Let no drafter remember earlier texts: replace those that run no model by new ones, and clear the caches of
        the others. From then on drafters store nothing for later sessions.
        """
        self._forgot = True
        for name, drafter in self.drafters.items():
            if not drafter.costly:
                drafter.close()
                self.drafters[name] = create(name, self.env)
            else:
                drafter.forget()

    def close(self) -> None:
        """Store what was learned, and free the drafters."""
        keep(self.auto, self._context, self.env, list(self.drafters))
        if not self._owned:
            return
        if not self._forgot:
            keep_texts(self.drafters.values(), self.env)
        for drafter in self.drafters.values():
            drafter.close()
        self.drafters.clear()
