"""Machines made of numbers that decode recorded drafts again in virtual time.

The planner decides over recorded texts, with a clock that advances by what a machine is said to take. So the same
decisions cost seconds instead of hours and come out the same every time. `scripts/record_drafts.py` makes recordings,
`scripts/ablate_planner.py` compares planners on them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget
from lcspec.drafters.growth import Growth
from lcspec.drafters.suffix import NgramDrafter
from lcspec.planner import auto as auto_module
from lcspec.planner import policy as policy_module
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.base import Limits
from lcspec.planner.record import DrafterRecord
from lcspec.profiles.cost_curve import CostCurve
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.recordings import Answer, Recording, Tree

# What a further row of a draft model's step takes, as a share of the step.
WIDENING = 0.05


@dataclass
class Machine:
    """What takes how long, seconds.

    Attributes:
        widths: of a decode as wide as the step before, by width; a width that is not there takes what the next takes.
        change: a decode takes more if its width is another than the last one's.
        bare, step: Python of a plain step nobody planned, and of one somebody did; `node`: of every node drafted.
    """

    name: str
    widths: dict[int, float]
    change: float = 0.0
    bare: float = 0.0
    step: float = 0.0
    node: float = 0.0
    last: int = 1

    def decode(self, width: int) -> float:
        """Seconds of a target decode."""
        changed, self.last = width != self.last, width
        return self.widths[width] + self.change * changed

    @classmethod
    def of(cls, name: str, points: str, **seconds: float) -> Machine:
        """From `width:milliseconds,...`, straight lines between the points."""
        pairs = [(int(n), float(ms) / 1e3) for n, ms in (p.split(":") for p in points.split(","))]
        widths = {pairs[0][0]: pairs[0][1]}
        for (a, s), (b, t) in zip(pairs, pairs[1:]):
            widths.update({n: s + (t - s) * (n - a) / (b - a) for n in range(a + 1, b + 1)})
        return cls(name, widths, **seconds)

    def curve(self) -> CostCurve:
        """What is measured: one token among decodes of one, other widths right after a change."""
        return CostCurve({n: {0: s + self.change * (n > 1)} for n, s in self.widths.items()})


class Clock:
    """Virtual seconds; stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """The virtual time."""
        return self.now


class Replayed:
    """A drafter that says what was recorded. A costly one takes `level` seconds for every level."""

    default_nodes = 8
    default_branch = 1
    wants_hidden = wants_rows = False

    def __init__(self, name: str, level: float, clock: Clock, machine: Machine) -> None:
        self.name, self.costly, self.level = name, level > 0.0, level
        self.clock, self.machine, self.asked = clock, machine, 0
        self.read = 0  # tokens of the text that a draft model has read

    def begin(self, view: Any, spec: DrafterSpec) -> None:
        """The prompt is read already."""
        self.read = len(view.tokens)

    def draft(self, view: Any, budget: Budget) -> TokenTree:
        """The recorded tree as far as the budget allows."""
        self.asked += 1
        recorded = view.answer.drafts[self.name][len(view.tokens) - view.n_prompt - 1]
        tree = self._grown(view, recorded, budget) if self.costly else self._cut(view, recorded, budget)
        self.clock.now += self.machine.node * tree.n_drafted
        return tree

    def levels_ready(self, view: Any) -> int:
        """None: nothing is drafted ahead."""
        return 0

    def draft_batch(self, views: Sequence[Any], budgets: Sequence[Budget]) -> list[TokenTree]:
        """`draft` for each."""
        return [self.draft(view, budget) for view, budget in zip(views, budgets)]

    def _cut(self, view: Any, recorded: Tree, budget: Budget) -> TokenTree:
        tree, place = TokenTree.root(view.tokens[-1]), {0: 0}
        for node, (parent, token, prob) in enumerate(zip(*recorded), start=1):
            if tree.n_drafted >= budget.nodes:
                break
            at = place.get(parent)
            if at is None or tree.depths[at] >= budget.depth or len(tree.child_map(at)) >= budget.branch:
                continue
            place[node] = tree.add(at, token, prob, budget.source)
        return tree

    def _grown(self, view: Any, recorded: Tree, budget: Budget) -> TokenTree:
        """Level by level, as ModelDrafter does; the first one also reads what the text has gained."""
        missed, self.read = max(0, len(view.tokens) - self.read - 1), len(view.tokens)
        self.clock.now += self.level * WIDENING * missed
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(recorded[0], start=1):
            children.setdefault(parent, []).append(node)
        tree = TokenTree.root(view.tokens[-1])
        growth, origin, level, branch = Growth(tree, budget, 0.0), {0: 0}, [0], budget.branch
        while True:
            self.clock.now += self.level * (1.0 + WIDENING * (len(level) - 1))
            fresh = list[int]()
            for node in level:
                kids = sorted(children.get(origin[node], []), key=lambda k: -recorded[2][k - 1])[:branch]
                new = growth.add(node, [(recorded[1][k - 1], recorded[2][k - 1], None) for k in kids])
                origin.update(zip(new, kids))
                fresh += new
            enough = branch == 1 and tree.n_drafted >= budget.nodes
            if not fresh or enough or tree.depths[fresh[0]] >= budget.depth:
                break
            level = fresh if branch == 1 else growth.next_level(fresh, branch)
            if not level or (budget.keep_going is not None and not budget.keep_going(tree, level)):
                break
        return growth.best()

    def observe(self, view: Any, tree: TokenTree, verdict: Verdict) -> None:
        """It knows the text already."""


class ReplayedCascade(Replayed):
    """The recorded draft model's chain, fewer of whose tokens cost a decode, and n-grams behind it."""

    guesses, tail = 3, 3

    def __init__(self, name: str, model: str, level: float, clock: Clock, machine: Machine) -> None:
        super().__init__(name, level, clock, machine)
        self.model, self.cheap = model, NgramDrafter(cast(Any, None))

    def begin(self, view: Any, spec: DrafterSpec) -> None:
        """Index the prompt."""
        self.cheap.begin(view, DrafterSpec("ngram", {}))

    def draft(self, view: Any, budget: Budget) -> TokenTree:
        """See CascadeDrafter."""
        self.asked += 1
        parents, tokens, probs = view.answer.drafts[self.model][len(view.tokens) - view.n_prompt - 1]
        best: dict[int, int] = {}
        for node, parent in enumerate(parents, start=1):
            if parent not in best or probs[node - 1] > probs[best[parent] - 1]:
                best[parent] = node
        chain, node = list[int](), 0
        while (node := best.get(node, 0)) > 0:
            chain.append(node - 1)
        tree, node = TokenTree.root(view.tokens[-1]), 0
        tail = min(self.tail, budget.nodes - 1)
        guessed, path = list[int](), list[int]()
        self.clock.now += self.level
        for i in chain[: min(budget.nodes - tail, budget.depth)]:
            node = tree.add(node, tokens[i], probs[i], budget.source)
            path.append(tokens[i])
            if tree.n_drafted >= budget.nodes - tail:
                break
            if budget.keep_going is not None and not budget.keep_going(tree, [node]):
                break
            if guessed[:1] == [tokens[i]]:
                guessed = guessed[1:]
            else:
                self.clock.now += self.level
                guessed = self.cheap.continuation(view, path, self.guesses)[0]
        more, matched = self.cheap.continuation(view, path, min(tail, budget.depth - tree.depths[node]))
        for token in more:
            node = tree.add(node, token, matched / (matched + 1), budget.source)
        self.clock.now += self.machine.node * tree.n_drafted
        return tree

    def observe(self, view: Any, tree: TokenTree, verdict: Verdict) -> None:
        """Index what was emitted."""
        self.cheap.observe(view, tree, verdict)


@dataclass
class View:
    """A running request as planner and drafters see it."""

    id: int
    answer: Answer
    drafters: list[Any]
    tokens: list[int] = field(default_factory=list)
    draws: int = 0
    prediction: tuple[int, ...] = ()
    n_uncached: int = 1
    leaves: int = 32

    def __post_init__(self) -> None:
        self.n_prompt = self.answer.n_prompt
        self.tokens = self.answer.tokens[: self.n_prompt + 1]
        self.request = SimpleNamespace(speculation=SimpleNamespace(max_draft=None, drafters=[]))
        self.verifier = SimpleNamespace(lossless=True)
        self.cache = SimpleNamespace(max_leaves=self.leaves)
        self.end_tokens: frozenset[int] = frozenset()
        self.bits = {d.name: 1 << i for i, d in enumerate(self.drafters)}

    @property
    def left(self) -> int:
        """Tokens of the answer that are yet to come."""
        return len(self.answer.tokens) - len(self.tokens)

    def bit_of(self, drafter: Any) -> int:
        """The drafter's bit in TokenTree.sources."""
        return self.bits[drafter.name]


@dataclass
class Result:
    """What one answer took."""

    kind: str
    tokens: int = 0
    seconds: float = 0.0
    plain: float = 0.0  # seconds of plain decoding without a planner
    steps: int = 0
    changes: int = 0

    @property
    def speedup(self) -> float:
        """Over plain decoding."""
        return self.plain / self.seconds


@contextlib.contextmanager
def virtual(clock: Clock) -> Iterator[None]:
    """Virtual time inside the planner."""
    before = [(m, m.time) for m in (auto_module, policy_module)]  # type: ignore[attr-defined]
    for module, _ in before:
        module.time = clock  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, real in before:
            module.time = real  # type: ignore[attr-defined]


def decode(
    planner: Any, view: View, machine: Machine, clock: Clock, noise: Callable[[], float] = lambda: 1.0
) -> Result:
    """One answer from its first token to its last."""
    out = Result(view.answer.kind)
    machine.last = 1
    for drafter in view.drafters:
        drafter.begin(view, DrafterSpec(drafter.name, {}))
    missed = 0
    widest = max(machine.widths)
    while view.left > 0:
        began, changed = clock.now, machine.last
        pause = planner.backoff(1)
        if pause is not None:
            width, seconds = max(1, pause.width), 0.0
            seconds = machine.decode(width) * noise()
            clock.now += seconds + machine.bare
            view.tokens.append(view.answer.tokens[len(view.tokens)])
            missed += 1
            new = 1
            planner.timed(width, len(view.tokens), seconds)
        else:
            if missed:
                tree = TokenTree.root(view.tokens[-missed - 1])
                verdict = Verdict([], view.tokens[-missed:], bonus=False)
                for drafter in view.drafters:
                    drafter.observe(view, tree, verdict)
                missed = 0
            room = Limits(widest - 1, max(0, view.left - 1), view.leaves)
            clock.now += machine.step
            [proposal] = planner.propose([view], [room], 0)
            plan = planner.select([proposal], 1, len(view.tokens), 1)
            width = max(len(proposal.kept), plan.width)
            seconds = machine.decode(width) * noise()
            clock.now += seconds
            emitted = taken(proposal.kept, view.answer.tokens[len(view.tokens) :])
            view.tokens += emitted
            for drafter in view.drafters:
                drafter.observe(view, proposal.kept, Verdict([], emitted, bonus=False))
            planner.observe(proposal, emitted)
            new = len(emitted)
            planner.timed(width, len(view.tokens), seconds)
        took = clock.now - began
        planner.observe_overhead(took - seconds)
        out.tokens, out.seconds, out.steps = out.tokens + new, out.seconds + took, out.steps + 1
        out.changes += machine.last != changed
    out.plain = out.tokens * (machine.widths[1] + machine.bare)
    return out


def taken(tree: TokenTree, text: Sequence[int]) -> list[int]:
    """What a lossless verifier emits of `text` after verifying `tree`."""
    node: int | None = 0
    out: list[int] = []
    for token in text:
        out.append(token)
        node = tree.child(cast(int, node), token)
        if node is None:
            break
    return out


def replay(
    recording: Recording,
    machine: Machine,
    names: Sequence[str],
    make: Callable[[CostCurve], Any] = AutoPlanner,
    noise: float = 0.0,
    warm: int = 0,
    leaves: int = 32,
) -> list[Result]:
    """All answers in turn with the drafters `names` under one planner, as a session without history meets them.

    `warm`: so many answers are decoded first and not counted. `noise`: spread (log) of the target's times. `leaves`: of
    a tree that can be verified, at most.
    """
    import random

    rng, clock = random.Random(1), Clock()
    planner = make(machine.curve())
    results = []
    with virtual(clock):
        for number, answer in enumerate([*recording.answers[:warm], *recording.answers]):
            drafters = list[Replayed]()
            for name in names:
                model = name.replace("cascade", "model")
                level = recording.costly.get(model, 0.0) * machine.widths[1]
                if name.startswith("cascade"):
                    drafters.append(ReplayedCascade(name, model, level, clock, machine))
                else:
                    drafters.append(Replayed(name, level, clock, machine))
                if level and not planner.costly.level_seconds(name):
                    planner.costly.records[name] = DrafterRecord(level_seconds=level)
            view = View(number, answer, drafters, leaves=leaves)
            results.append(decode(planner, view, machine, clock, lambda: rng.lognormvariate(0.0, noise)))
            planner.forget(view)
    return results[warm:]
