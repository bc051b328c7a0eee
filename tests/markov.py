"""A target made of numbers that answers at any node of a tree, to test windows of guesses without a model.

Its next token depends on the last two tokens; at a share of the positions of its text, also on the position, which no
guess made earlier can know.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lcspec.drafters.base import Window, probing
from lcspec.engine.fitting import Probes, feed
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.planner.auto import AutoPlanner
from lcspec.planner.base import Limits, Planner
from lcspec.sampling.parameters import SamplingParams
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import Verdict
from tests.simulate import UNIT, Clock, Outcome


class Target:
    """Deterministic: the token after a text is a function of it. `surprise` 0: of its last two tokens alone."""

    def __init__(self, vocab: int = 12, surprise: float = 0.0, seed: int = 0) -> None:
        self.vocab, self.surprise, self.seed = vocab, surprise, seed
        self._known: dict[tuple[Any, ...], int] = {}

    def _random(self, *key: Any) -> random.Random:
        return random.Random(f"{self.seed}:{key}")

    def __call__(self, text: Sequence[int]) -> int:
        """The token after `text`."""
        key: tuple[Any, ...] = ("after", *text[-2:])
        if self._surprising(len(text)):
            key = ("at", len(text), *text[-2:])
        if key not in self._known:
            self._known[key] = self._random(*key).randrange(self.vocab)
        return self._known[key]

    def _surprising(self, position: int) -> bool:
        return self.surprise > 0 and self._random("surprise", position).random() < self.surprise


@dataclass
class View:
    """A slot as drafters and planners see it."""

    tokens: list[int]
    drafters: list[Any]
    number: int = 1
    max_draft: int | None = None
    options: list[Any] = field(default_factory=list)
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    draws: int = 0
    prediction: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.n_prompt = len(self.tokens)
        self.cache = SimpleNamespace(max_leaves=64)
        self.end_tokens: frozenset[int] = frozenset()
        self.request = SimpleNamespace(
            speculation=SimpleNamespace(max_draft=self.max_draft, drafters=self.options, verifier="coupled")
        )
        self.bits = {d.name: 1 << i for i, d in enumerate(self.drafters)}

    @property
    def id(self) -> int:
        return self.number

    def bit_of(self, drafter: Any) -> int:
        return self.bits[drafter.name]

    def forced_text(self, limit: int) -> str:
        return ""


def answers(target: Target, text: Sequence[int], tree: TokenTree, nodes: Sequence[int]) -> NDArray[np.int32]:
    """The target's token after each of `nodes`, node 0 being the last token of `text`."""
    spelled = [[*text[:-1], *(tree.tokens[v] for v in tree.path_to(node))] for node in nodes]
    return np.array([target(one) for one in spelled], dtype=np.int32)


def verify(target: Target, text: Sequence[int], tree: TokenTree) -> Verdict:
    """Greedy verification."""
    node, path, tokens = 0, list[int](), list[int]()
    while True:
        tokens.append(int(answers(target, text, tree, [node])[0]))
        child = tree.child(node, tokens[-1])
        if child is None:
            return Verdict(path, tokens, bonus=False)
        path.append(child)
        node = child


def step(
    target: Target, view: Any, planner: Planner, limits: Limits, pool: SequencePool
) -> tuple[Probes, Verdict, int]:
    """One step of one slot as the engine does it; returns what was evaluated, the verdict, and the batch's width."""
    [p] = planner.propose([view], [limits], 0)
    plan = planner.select([p], 1, len(view.tokens))
    assert p.kept is not None
    [probes] = feed([p], limits.nodes - p.kept.n_drafted, pool)
    evaluated = probes.evaluated
    verdict = verify(target, view.tokens, p.kept)
    for window, nodes in probes.asked():
        window.drafter.harvest(view, answers(target, view.tokens, evaluated, nodes))
    view.tokens += verdict.tokens
    for drafter in view.drafters:
        drafter.observe(view, p.kept, verdict)
    planner.observe(p, verdict.tokens)
    return probes, verdict, max(len(evaluated), plan.width)


def decode(
    target: Target,
    view: Any,
    planner: Planner,
    relative: Sequence[float],
    tokens: int,
    clock: Clock,
    limits: Limits | None = None,
    column_seconds: float = 0.0,
    noise: float = 0.01,
) -> Outcome:
    """Decode `tokens` more; time is virtual, a width n taking `relative[n - 1]` units.

    The noise is small, so that differences of one per cent between machines' widths, and between planners, show.
    """
    out, pool, end = Outcome(), SequencePool(64), len(view.tokens) + tokens
    rng = random.Random(len(view.tokens))
    while len(view.tokens) < end:
        began = clock.now
        probes, verdict, width = step(target, view, planner, limits or Limits(len(relative) - 1, 64, 64), pool)
        seconds = UNIT * relative[width - 1] * rng.lognormvariate(0.0, noise)
        columns = sum(len(w.tree.leaves()) for w in probes.windows if w.tree.n_drafted)
        clock.now += seconds + columns * column_seconds
        planner.timed(width, len(view.tokens), seconds)
        out.tokens += len(verdict.tokens)
        out.steps += 1
        out.widths[width] = out.widths.get(width, 0) + 1
        out.seconds += clock.now - began
    return out


__all__ = ["AutoPlanner", "Target", "View", "Window", "answers", "decode", "probing", "step", "verify"]
