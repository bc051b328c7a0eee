"""A machine, a target and drafters made of numbers, to see what the planner makes of them.

Time is virtual: a decode advances the clock by what the simulated curve says, a level of a costly drafter by its own
cost. The target's text is known in advance; drafters hit it with the probabilities a test gives them.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lcspec.config import DrafterSpec
from lcspec.drafters.base import Budget, Drafter
from lcspec.planner import auto as auto_module
from lcspec.planner import policy as policy_module
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.base import Limits
from lcspec.profiles.cost_curve import CostCurve
from lcspec.spec.token_tree import TokenTree

# Time of a decode of 1, 2, 3 ... tokens relative to one, as measured (design.md; widths in between filled in alike).
Q4_0 = [1.0, 1.36, 1.92, 1.33, 1.89, 2.2, 2.6, 2.3, 2.8, 3.1, 3.5, 2.9, 3.4, 3.6, 3.9, 3.26] + [
    3.9 + 0.16 * i - (0.6 if i % 4 == 3 else 0.0) for i in range(16)
]
Q4_K_M = [1.0, 1.55, 2.0, 2.42, 2.9, 3.3, 3.7, 4.1, 4.3, 4.4, 4.5, 4.6, 4.8, 4.9, 5.1, 5.2] + [
    5.4 + 0.25 * i for i in range(16)
]
Q8_0 = [1.0, 2.0, 2.4, 2.7, 2.9, 3.1, 3.2, 3.4, 3.7, 3.9, 4.1, 4.4, 4.6, 4.8, 5.1, 5.3] + [
    5.7 + 0.3 * i for i in range(16)
]
GPU = [1.0 + 0.01 * i for i in range(16)] + [1.6 + 0.01 * i for i in range(16)]
# Every further token costs as much as the first: speculation can never pay.
STEEP = [float(n) for n in range(1, 33)]
CURVES = {"Q4_0": Q4_0, "Q4_K_M": Q4_K_M, "Q8_0": Q8_0, "GPU": GPU, "STEEP": STEEP}

UNIT = 0.02  # seconds of a decode of one token


def curve_of(relative: Sequence[float]) -> CostCurve:
    """A measured curve whose width n takes `relative[n - 1]` units."""
    return CostCurve({n: {0: UNIT * r} for n, r in enumerate(relative, start=1)})


class Clock:
    """Virtual seconds; stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """The virtual time."""
        return self.now


# The chance that a drafter's best child at a text position is right, and the confidence it states for it.
Skill = Callable[[int, random.Random], tuple[float, float]]


@functools.cache
def steady(acceptance: float, stated: float = 0.5) -> Skill:
    """Right with the same probability everywhere, and it always states the same confidence."""
    return lambda position, rng: (acceptance, stated)


@functools.cache
def confident(mean: float, exponent: float = 1.0) -> Skill:
    """Sure in some places and unsure in others, on average right with about `mean`; stated ** exponent is the truth."""

    def skill(position: int, rng: random.Random) -> tuple[float, float]:
        stated = rng.betavariate(2.0 * mean, 2.0 * (1.0 - mean))
        return stated**exponent, stated

    return skill


@functools.cache
def switching(first: Skill, second: Skill, every: int) -> Skill:
    """`first` for `every` tokens, then `second`, and so on."""
    return lambda position, rng: (first if position // every % 2 == 0 else second)(position, rng)


Known = dict[int, tuple[bool, float, bool]]


@functools.cache
def known_of(skill: Skill, name: str, share: float, seed: int) -> Known:
    """What drafters that are alike know, in all tests: to draw it takes longer than to plan with it."""
    return {}


@dataclass
class FakeDrafter(Drafter):
    """Proposes a chain (and, with `branch`, wrong siblings); token `position` is right, negative ones are wrong."""

    name: str
    skill: Skill
    clock: Clock
    level_seconds: float = 0.0
    extra: float = 0.0  # seconds an ask costs besides its levels
    share: float = 1.0  # of the positions at which it has anything to say
    chain: int = 64
    branch: int = 1
    seed: int = 0
    asked: int = 0
    spent: float = 0.0
    default_nodes: int = 8
    wants_hidden: bool = False
    _level: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.known = known_of(self.skill, self.name, self.share, self.seed)

    @property
    def costly(self) -> bool:
        """Whether asking takes time."""
        return self.level_seconds > 0

    def at(self, position: int) -> tuple[bool, float, bool]:
        """(whether it is right at this position, what it states, whether it says anything when asked there)."""
        known = self.known.get(position)
        if known is None:
            rng = random.Random(f"{self.seed}:{self.name}:{position}")
            truth, stated = self.skill(position, rng)
            known = self.known[position] = rng.random() < truth, stated, rng.random() < self.share
        return known

    def draft(self, sequence: Any, budget: Budget) -> TokenTree:
        """A chain of at most `budget.nodes`, a level at a time if it is costly."""
        return self.draft_batch([sequence], [budget])[0]

    def draft_batch(self, sequences: Sequence[Any], budgets: Sequence[Budget]) -> list[TokenTree]:
        """A level of everybody's chain takes the time of one."""
        self.asked += len(sequences)
        self._takes(self.extra)
        if not self.costly and self.branch == 1:
            return [self._chain(*each) for each in zip(sequences, budgets)]
        trees = [TokenTree.root(sequence.tokens[-1]) for sequence in sequences]
        growing = [self._grow(*each) for each in zip(trees, sequences, budgets)]
        while growing := [one for one in growing if next(one, False)]:
            pass
        return trees

    def _takes(self, seconds: float) -> None:
        self.clock.now += seconds
        self.spent += seconds

    def _chain(self, sequence: Any, budget: Budget) -> TokenTree:
        """What `_grow` makes where levels take no time and have no siblings, all at once."""
        start = len(sequence.tokens)
        length = min(budget.nodes, budget.depth, self.chain) if self.at(start)[2] else 0
        said = [self.at(position) for position in range(start, start + length)]
        right = next((i for i, (hit, _, _) in enumerate(said) if not hit), length)
        tokens = [*range(start, start + right), *range(-(start + right + 1), -(start + length + 1), -1)]
        return TokenTree.chain(sequence.tokens[-1], tokens, [stated for _, stated, _ in said], budget.source)

    def _grow(self, tree: TokenTree, sequence: Any, budget: Budget) -> Iterator[bool]:
        start = len(sequence.tokens)
        if not self.costly and not self.at(start)[2]:
            return
        node, right = 0, True
        for depth in range(1, min(budget.nodes, budget.depth, self.chain) + 1):
            if self.costly and self._level != (round_ := (self.asked, depth)):
                self._level = round_
                self._takes(self.level_seconds)
            hit, stated, _ = self.at(start + depth - 1)
            # Below a wrong token it is as sure of itself as anywhere.
            right = right and hit
            parent = node
            node = tree.add(parent, start + depth - 1 if right else -(start + depth), stated, budget.source)
            for rank in range(1, min(self.branch, budget.branch)):
                if tree.n_drafted < budget.nodes:
                    wrong = -1000 * (start + depth) - rank
                    tree.add(parent, wrong, stated * 0.3**rank * (1 - stated), budget.source)
            more = self.costly and tree.n_drafted < budget.nodes and depth < budget.depth
            if more and budget.keep_going is not None and not budget.keep_going(tree, [node]):
                return
            yield True


def slot_of(drafters: Sequence[FakeDrafter], number: int = 1, max_draft: int | None = None, prompt: int = 8) -> Any:
    """What the planner sees of a slot; its text is 0, 1, 2 ..."""
    bits = {d.name: 1 << i for i, d in enumerate(drafters)}
    specs = [DrafterSpec(d.name, {}) for d in drafters]
    return SimpleNamespace(
        id=number,
        tokens=list(range(prompt)),
        drafters=list(drafters),
        request=SimpleNamespace(speculation=SimpleNamespace(max_draft=max_draft, drafters=specs)),
        bit_of=lambda drafter: bits[drafter.name],
        end_tokens=frozenset(),
        draws=0,
        verifier=SimpleNamespace(lossless=True),
    )


def emitted(tree: TokenTree, text: Iterable[int]) -> list[int]:
    """What a lossless verifier emits of `text` after verifying `tree`."""
    node: int | None = 0
    out: list[int] = []
    for token in text:
        out.append(token)
        node = tree.child(cast(int, node), token)
        if node is None:
            break
    return out


@dataclass
class Outcome:
    """What a simulated generation took."""

    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    drafting: float = 0.0
    expected: float = 0.0  # tokens the plans promised
    widths: dict[int, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens per unit of time, so that plain decoding has rate 1."""
        return self.tokens / self.seconds * UNIT


def run(
    planner: AutoPlanner,
    slots: Sequence[Any],
    relative: Sequence[float],
    tokens: int,
    clock: Clock,
    limits: Limits | None = None,
    noise: float = 0.03,
    seed: int = 0,
    together: bool = False,
    change: tuple[float, float] = (0.0, 0.0),
) -> Outcome:
    """Decode until every slot (`together`: the first) has `tokens` more; the machine's times scatter by `noise`.

    `change`: what the first and the second plain step after one with drafts take longer, in plain steps.
    """
    rng, since = random.Random(seed), 2
    out = Outcome()
    ends = {s.id: len(s.tokens) + tokens for s in slots}
    while running := [s for s in slots if len(s.tokens) < ends[s.id]]:
        if together and len(running) < len(slots):
            break
        base = len(running)
        began = clock.now
        if (rest := planner.backoff(base)) is not None:
            width = max(1, rest.width)
            seconds = UNIT * (relative[width - 1] + (*change, 0.0)[since]) * rng.lognormvariate(0.0, noise)
            since = min(2, since + 1)
            clock.now += seconds
            out.steps += 1
            out.expected += base
            out.tokens += base
            out.seconds += clock.now - began
            for s in running:
                s.tokens.append(len(s.tokens))
            planner.timed(width, len(slots[0].tokens), seconds)
            planner.observe_overhead(0.0)
            continue
        room = limits or Limits(len(relative) - base, 64, 32)
        proposals = planner.propose(running, [room] * len(running), base - 1)
        out.drafting += clock.now - began
        plan = planner.select(proposals, base, sum(len(s.tokens) for s in running) // base)
        width = base + sum(p.kept.n_drafted for p in proposals if p.kept is not None)
        width = max(width, plan.width)
        longer = (*change, 0.0)[since] if width == base else 0.0
        since = min(2, since + 1) if width == base else 0
        seconds = UNIT * (relative[width - 1] + longer) * rng.lognormvariate(0.0, noise)
        clock.now += seconds
        out.steps += 1
        out.expected += plan.tokens
        out.widths[width] = out.widths.get(width, 0) + 1
        for s, p in zip(running, proposals):
            assert p.kept is not None
            new = emitted(p.kept, range(len(s.tokens), len(s.tokens) + 64))
            s.tokens += new
            out.tokens += len(new)
            planner.observe(p, new)
        planner.timed(width, len(slots[0].tokens), seconds)
        out.seconds += clock.now - began
        planner.observe_overhead(clock.now - began - seconds)
    return out


def fixed_rate(drafter: FakeDrafter, relative: Sequence[float], nodes: int, tokens: int, prompt: int = 8) -> float:
    """Tokens per unit of time of one slot that always drafts `nodes` in a chain and verifies them all."""
    at, done, seconds = prompt, 0, 0.0
    while done < tokens:
        drafted, hits = 0, 0
        if nodes and (drafter.costly or drafter.at(at)[2]):
            drafted = min(nodes, drafter.chain)
            while hits < drafted and drafter.at(at + hits)[0]:
                hits += 1
        seconds += relative[drafted] + drafted * drafter.level_seconds / UNIT
        seconds += drafter.extra / UNIT if nodes else 0.0
        at, done = at + hits + 1, done + hits + 1
    return done / seconds


def best_fixed(drafters: Sequence[FakeDrafter], relative: Sequence[float], tokens: int) -> tuple[float, str, int]:
    """(rate, drafter, nodes) of the best fixed strategy; 1.0 is plain decoding."""
    found = [(fixed_rate(d, relative, n, tokens), d.name, n) for d in drafters for n in range(1, 16)]
    return max([(1.0, "plain", 0), *found])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Virtual time inside the planner."""
    virtual = Clock()
    for module in (auto_module, policy_module):
        monkeypatch.setattr(module, "time", virtual)
    return virtual
