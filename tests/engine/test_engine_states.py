"""Requests that come, go, change drafters and are read ahead in any order: every text has the bits it has alone.

Hypothesis chooses what happens next (a state machine), and shrinks what fails to the fewest steps.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from lcspec.config import DraftFiles
from lcspec.engine.events import Failed, Finished, Tokens
from lcspec.kv_cache.prompt_reader import LEAST_ROWS
from lcspec.llama import can_fuse_row_by_row
from lcspec.profiles import kernels
from lcspec.profiles.price import Price
from lcspec.session import Session
from tests.family_matrix import Bench, by_rows_texts, head_files, pieces
from tests.running import GREEDY, ROUNDS_ALIKE, SEEDED, answer, at_price, speculation
from tests.running import request as asked
from tests.tiny_families import write_family

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.skipif(not (can_fuse_row_by_row() and ROUNDS_ALIKE), reason="rows depend on their number here"),
]

STRATEGIES = ("off", "auto", "ngram:min_n=1:nodes=8", "suffix:nodes=12", "ngram:min_n=1:branch=3,suffix")
SAMPLINGS = (GREEDY, SEEDED)
WHICH = st.integers(0, 11)  # of those there are
N, SLOTS = 16, 3
EXAMPLES = 100 if os.environ.get("LCSPEC_EXPLORE") else 6
Bits = list[tuple[int, float | None]]


@dataclass
class Text:
    """A request that runs, and what came of it."""

    whole: Bits
    strategy: str
    limit: int
    bits: Bits = field(default_factory=list)
    cancelled: bool = False


class Requests(RuleBasedStateMachine):
    """An engine with three slots; `session` and what every text is alone belong to a family."""

    session: Session
    files: DraftFiles
    texts: list[tuple[int, ...]]
    alone: dict[tuple[int, int], Bits]
    strategies: tuple[str, ...]

    @initialize(seed=st.integers(0, 7))
    def start(self, seed: int) -> None:
        self.engine = self.session.engine
        self.open: dict[int, Text] = {}
        self.free = len(self.engine.pool._free) + len(self.engine.prefix_cache.caches)  # ids, of which none is lost
        self.pieces = pieces(random.Random(seed))  # prompts are read in pieces of any size
        self.pieces.__enter__()

    # What is drawn must not depend on how far the engine is, which is another time every time: so no preconditions.

    @rule(text=st.integers(0, 4), strategy=WHICH, sampling=st.integers(0, 1), limit=st.sampled_from((N, N, 1, 0)))
    def ask(self, text: int, strategy: int, sampling: int, limit: int) -> None:
        if len(self.open) < 2 * SLOTS:
            one = {"sampling": SAMPLINGS[sampling], "logprobs": 0, "draft": self.files}
            named = self.strategy(strategy)
            number = self.engine.submit(asked(self.texts[text], named, limit, **one))
            self.open[number] = Text(self.alone[text, sampling], named, limit)

    def strategy(self, number: int) -> str:
        return self.strategies[number % len(self.strategies)]

    @rule(n=st.integers(1, 6))
    def steps(self, n: int) -> None:
        for _ in range(n):
            for event in self.engine.step():
                assert not isinstance(event, Failed), event
                if isinstance(event, Tokens):
                    self.open[event.request].bits += [(info.id, info.logprob) for info in event.tokens]
                if isinstance(event, Finished):
                    self.ended(self.open.pop(event.request), event.reason)

    def ended(self, text: Text, reason: str) -> None:
        if not text.cancelled:
            assert reason == "length" and text.bits == text.whole[: text.limit], text

    @rule(number=WHICH)
    def cancel(self, number: int) -> None:
        if self.open:
            chosen = sorted(self.open)[number % len(self.open)]
            self.open[chosen].cancelled = True
            self.engine.cancel(chosen)

    @rule(number=WHICH, strategy=WHICH)
    def switch(self, number: int, strategy: int) -> None:
        if running := self.engine.running:
            chosen = running[number % len(running)].id
            self.engine.switch(chosen, speculation(self.strategy(strategy), draft=self.files))

    @rule()
    def read_ahead(self) -> None:
        self.engine.read_ahead()

    @rule()
    def forget_texts(self) -> None:
        if not self.engine.busy:
            self.engine.forget_texts()

    @invariant()
    def texts_are_those_of_one_alone(self) -> None:
        for text in getattr(self, "open", {}).values():
            assert text.bits == text.whole[: len(text.bits)], text

    @invariant()
    def the_gauges_are_right(self) -> None:
        if hasattr(self, "open"):
            totals, left = self.engine.totals(), sum(not text.cancelled for text in self.open.values())
            assert left <= totals.running + totals.waiting <= len(self.open) and totals.running <= SLOTS

    def teardown(self) -> None:
        if not hasattr(self, "open"):
            return
        try:
            while self.engine.busy:
                self.steps(1)
            assert not self.open and not self.engine.running
            assert len(self.engine.pool._free) + len(self.engine.prefix_cache.caches) == self.free
        finally:
            self.engine.cancel(None)
            while self.engine.busy:
                self.engine.step()
            self.pieces.__exit__(None, None, None)


@pytest.fixture(params=["llama", "gemma3", "qwen35", "mamba"])
def machine(request: pytest.FixtureRequest, folder: Path) -> Iterator[type[Requests]]:
    """The machine for a family: plain attention, sliding windows, a state that is rolled back, one that is not."""
    path = write_family(request.param, folder / f"{request.param}.gguf")
    bench, files, free = Bench(path), head_files(path), Price(1, 1, 1, LEAST_ROWS, 0)
    wanted = {"exact": True, "kv_type": "f16", "attention": "measured", "ctx": 512, "rollback": 16}
    prices = mock.patch.object(kernels, "prices", at_price(free))
    with prices, bench.open(files, **wanted, slots=SLOTS) as session:
        texts, alone = by_rows_texts(session), dict[tuple[int, int], Bits]()
        assert session.engine.exact.independent
        for i, sampling in ((i, s) for i in range(len(texts)) for s in range(len(SAMPLINGS))):
            with bench.open(**wanted) as fresh:
                plain = asked(texts[i], "off", N, sampling=SAMPLINGS[sampling], logprobs=0)
                alone[i, sampling] = answer(fresh.engine, plain).bits
        own = {
            "session": session,
            "files": files,
            "texts": texts,
            "alone": alone,
            "strategies": (*STRATEGIES, *files.drafters),
        }
        yield type("Requests", (Requests,), own)


def test_requests_in_any_order(machine: type[Requests]) -> None:
    few = settings(
        max_examples=EXAMPLES, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )  # the engine is the same in all examples: what one leaves may not matter to the next
    run_state_machine_as_test(machine, settings=few)
