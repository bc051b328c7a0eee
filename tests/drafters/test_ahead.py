"""Drafting while the target decodes: the same texts, one thread at a time in a context, and what is ready then."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lcspec.config import DraftFiles
from lcspec.drafters.ahead import Ahead
from lcspec.drafters.draft_model import OUTCOMES, ModelDrafter
from lcspec.drafters.draft_state import DraftState
from lcspec.drafters.growth import MAX_LEVEL
from lcspec.errors import DecodeError
from lcspec.llama import Context
from lcspec.llama.memory import Memory
from lcspec.placement import Placement
from lcspec.planner.overlap import Overlap
from lcspec.session import Session, open_session
from lcspec.spec.token_tree import TokenTree
from tests.running import ROUNDS_ALIKE, SAMPLINGS, Answer, answer, options, request, side_by_side, speculation

pytestmark = pytest.mark.model

TEXTS = ("the cat and the ", "a dog or a cat or a ", "one, two, three, ", "def f(x): return x")
STRATEGIES = ("model:p_min=0", "model:branch=3:nodes=9:p_min=0", "ngram,model", "auto")
APART = Placement(draft_threads=1)
LEVELS = 8  # that the draft model goes ahead in every step, however long that takes
BEGINS = 1.0  # seconds to wait for its thread, which may have nothing to draft


class Counted:
    """Has draft models go ahead by so many decodes in every step, and checks who uses their contexts."""

    def __init__(self, levels: int) -> None:
        self.levels, self.left = levels, 0
        self.decodes = 0
        self.ready: list[int] = []
        self.begun = threading.Event()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        def start(ahead: Ahead, work: Any, seconds: float, real: Any = Ahead.start) -> None:
            self.left = self.levels
            self.begun.clear()
            real(ahead, work, 0.0)
            self.begun.wait(BEGINS)  # on a busy machine the target might have decoded before the thread runs

        def goes_on(ahead: Ahead, seconds: float) -> bool:
            self.begun.set()
            self.left -= 1
            self.decodes += 1
            return self.left >= 0

        def ready(drafter: ModelDrafter, sequence: Any, real: Any = ModelDrafter.levels_ready) -> int:
            self.ready.append(real(drafter, sequence))
            return self.ready[-1]

        def ahead(overlap: Overlap) -> bool:
            overlap.running = True
            return True

        busy: dict[int, threading.Lock] = {}

        def alone(owner: type, name: str) -> Any:
            real = getattr(owner, name)

            def call(context: Context | Memory, *args: Any, **named: Any) -> Any:
                memory = context.memory if isinstance(context, Context) else context
                lock = busy.setdefault(id(memory), threading.Lock())
                assert lock.acquire(blocking=False), "two threads use a context"
                try:
                    return real(context, *args, **named)
                finally:
                    lock.release()

            return call

        patch.setattr(Ahead, "start", start)
        patch.setattr(Ahead, "goes_on", goes_on)
        patch.setattr(ModelDrafter, "levels_ready", ready)
        patch.setattr(Overlap, "start", ahead)
        for owner, name in ((Context, "decode"), (Context, "logits"), (Memory, "copy"), (Memory, "remove")):
            patch.setattr(owner, name, alone(owner, name))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    out = Counted(LEVELS)
    out.install(monkeypatch)
    return out


def pair(llama: Path, draft: Path, **changes: Any) -> Any:
    """Exact, even where that was found too dear, as on a busy machine: else slots change each other's bits."""
    exact = {"ctx": 1024, "placement": APART, "attention": "fused_rows", "exact": True, **changes}
    return open_session(options(llama, **exact), DraftFiles((draft,)))


@pytest.fixture(scope="module")
def synchronous(llama: Path, llama_draft: Path) -> Iterator[Session]:
    with pair(llama, llama_draft, placement=Placement(), slots=4) as session:
        yield session


@pytest.fixture(scope="module")
def apart(llama: Path, llama_draft: Path) -> Iterator[Session]:
    with pair(llama, llama_draft, slots=4) as session:
        yield session


def test_without_threads_or_a_device_of_its_own_nothing_is_drafted_ahead(
    synchronous: Session, counted: Counted
) -> None:
    answer(synchronous.engine, request(synchronous.prompt_ids(TEXTS[0]), "model"))
    assert not synchronous.engine.drafting.drafters["model"].goes_ahead and counted.decodes == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_text_is_the_same(
    synchronous: Session, apart: Session, counted: Counted, strategy: str, sampling: Any
) -> None:
    for text in TEXTS:
        wanted = request(apart.prompt_ids(text), strategy, 48, sampling=sampling, exact=True, logprobs=0)
        plain = request(apart.prompt_ids(text), "off", 48, sampling=sampling, exact=True, logprobs=0)
        assert answer(apart.engine, wanted).bits == answer(synchronous.engine, plain).bits
    if strategy != "auto":  # it asks whom it likes
        assert counted.decodes > 0 and max(counted.ready, default=1) > 0


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_several_slots_are_drafted_for_together(
    synchronous: Session, apart: Session, counted: Counted, sampling: Any
) -> None:
    def asked(strategy: str) -> list[Any]:
        return [request(apart.prompt_ids(t), strategy, 24 + 9 * i, sampling=sampling) for i, t in enumerate(TEXTS)]

    found = side_by_side(apart.engine, asked("model:branch=2:nodes=6:p_min=0"))
    alone = [answer(synchronous.engine, wanted) for wanted in asked("off")]
    assert [one.ids for one in found] == [one.ids for one in alone]
    assert counted.decodes > 0


def test_a_draft_model_that_is_the_target_is_ready_nearly_always(llama: Path, counted: Counted) -> None:
    with pair(llama, llama) as session:
        found = answer(session.engine, request(session.prompt_ids(TEXTS[0]), "model:p_min=0", 96))
    stats = found.finished.stats
    ready = [levels for levels in counted.ready if levels]
    assert len(ready) >= 0.8 * len(counted.ready) > 0
    assert stats.accepted > 0


def test_a_wrong_draft_costs_a_level_and_the_text_goes_on(
    llama: Path, synchronous: Session, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(drafter: ModelDrafter, sequence: Any, growth: Any, level: list[int], *rest: Any) -> list[int]:
        return [growth.tree.add(node, 0, 0.9, growth.budget.source) for node in level if not growth.reach.append(0.1)]

    with pair(llama, llama) as session, monkeypatch.context() as patch:
        patch.setattr(ModelDrafter, "_expand", wrong)
        wanted = request(session.prompt_ids(TEXTS[1]), "model:p_min=0", 24)
        found = answer(session.engine, wanted)
    plain = answer(synchronous.engine, request(synchronous.prompt_ids(TEXTS[1]), "off", 24))
    assert found.ids == plain.ids and counted.decodes > 0
    assert sum(levels > 0 for levels in counted.ready) <= sum(token == 0 for token in found.ids)


def test_the_drafters_can_change_in_the_middle_of_an_answer(
    synchronous: Session, apart: Session, counted: Counted
) -> None:
    prompt, engine, found = apart.prompt_ids(TEXTS[2]), apart.engine, Answer()
    number = engine.submit(request(prompt, "model:p_min=0", 60))
    turns = {4: "ngram", 8: "model:branch=3:nodes=8", 12: "off", 16: "auto", 20: "model"}
    step = 0
    while engine.busy:
        found.events += engine.step()
        step += 1
        if step in turns and engine.running:
            engine.switch(number, speculation(turns[step]))
    assert found.ids == answer(synchronous.engine, request(prompt, "off", 60)).ids


def test_a_cancelled_request_leaves_nothing_behind(apart: Session, synchronous: Session, counted: Counted) -> None:
    prompt, engine = apart.prompt_ids(TEXTS[3]), apart.engine
    drafter = engine.drafting.drafters["model"]
    assert isinstance(drafter, ModelDrafter)
    for steps in (2, 3, 5):
        number = engine.submit(request(prompt, "model:branch=3:nodes=8:p_min=0", 60))
        for _ in range(steps):
            engine.step()
        engine.cancel(number)
        while engine.busy:
            engine.step()
        for cache in drafter.prefix_cache.caches:  # every cell belongs to a text
            assert drafter.context.memory.end(cache.main) == cache.length
        assert drafter.pool.free == drafter.pool.n - len(drafter.prefix_cache.caches)
    assert (
        answer(engine, request(prompt, "model", 40)).ids == answer(synchronous.engine, request(prompt, "off", 40)).ids
    )


def test_an_error_is_told_once_and_the_text_goes_on(
    llama: Path,
    llama_draft: Path,
    synchronous: Session,
    counted: Counted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    main, real = threading.get_ident(), Context.decode

    def failing(context: Context, *args: Any, **named: Any) -> float:
        if threading.get_ident() != main:
            raise DecodeError("decoding failed: no more of this")
        return real(context, *args, **named)

    with pair(llama, llama_draft) as session:
        with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
            patch.setattr(Context, "decode", failing)
            prompt = session.prompt_ids(TEXTS[0])
            found = [answer(session.engine, request(prompt, "model", 40)) for _ in range(2)]
        assert [record.getMessage().endswith("no more of this") for record in caplog.records] == [True]
        assert not session.engine.drafting.drafters["model"].goes_ahead
        assert found[0].finished.stats.drafted > 0
    plain = answer(synchronous.engine, request(synchronous.prompt_ids(TEXTS[0]), "off", 40))
    assert found[0].ids == found[1].ids == plain.ids


def test_a_bug_on_the_other_thread_is_not_swallowed(llama: Path, llama_draft: Path) -> None:
    with pair(llama, llama_draft) as session:

        def broken(*_: Any) -> Iterator[Any]:
            raise ZeroDivisionError
            yield

        session.engine.prepare(speculation("model"))
        drafter: Any = session.engine.drafting.drafters["model"]
        drafter._grow_ahead = broken
        with pytest.raises(ZeroDivisionError):
            answer(session.engine, request(session.prompt_ids(TEXTS[0]), "model", 40))


@pytest.mark.parametrize("verifier", ["rejection", "typical"])
def test_where_the_text_depends_on_the_drafts_they_do_not_depend_on_time(
    apart: Session, counted: Counted, verifier: str
) -> None:
    sampling = SAMPLINGS["seeded"]
    answer(apart.engine, request(apart.prompt_ids(TEXTS[0]), "model", 24, sampling=sampling, verifier=verifier))
    assert counted.decodes == 0


@pytest.mark.parametrize("times, in_own_context", [(2, False), (16, True)])
def test_a_prompt_is_read_while_the_target_reads_it(
    synchronous: Session,
    apart: Session,
    counted: Counted,
    times: int,
    in_own_context: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a busy machine measured decides on other lengths.
    monkeypatch.setattr(apart.engine.prompts, "beyond", 512 if in_own_context and ROUNDS_ALIKE else None)
    prompt, engine = apart.prompt_ids("a prompt that no other test has, in some pieces, " * times), apart.engine
    counted.levels = 64
    assert len(prompt) > 2 * MAX_LEVEL and engine.prompts.wants(prompt) is (in_own_context and ROUNDS_ALIKE)
    number, found = engine.submit(request(prompt, "model:p_min=0", 24)), Answer()
    while not found.ids:
        found.events += engine.step()
    drafter = engine.drafting.drafters["model"]
    assert isinstance(drafter, ModelDrafter)
    assert drafter._slots[number].cache.length == len(prompt) - 1, "all but the token at which a draft begins"
    while engine.busy:
        found.events += engine.step()
    assert found.ids == answer(synchronous.engine, request(prompt, "off", 24)).ids


@pytest.mark.skipif(not ROUNDS_ALIKE, reason="no prompt is read apart here")
def test_a_request_whose_prompt_cannot_be_read_ends_when_the_thread_has_stopped(
    apart: Session, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[bool]()

    def end(drafter: ModelDrafter, sequence: Any, real: Any = ModelDrafter.end) -> None:
        ended.append(drafter._ahead is not None and drafter._ahead._work is None)
        real(drafter, sequence)

    def read(*_: Any) -> Any:
        raise DecodeError("decoding failed: no more of this")

    monkeypatch.setattr(ModelDrafter, "end", end)
    monkeypatch.setattr(apart.engine.prompts, "read", read)
    monkeypatch.setattr(apart.engine.prompts, "beyond", 512)
    prompt = apart.prompt_ids("another prompt that no test has, " * 24)
    with pytest.raises(DecodeError):
        answer(apart.engine, request(prompt, "model:p_min=0", 24))
    assert ended == [True]


def test_what_the_target_may_say_instead_of_a_chain_is_known(
    apart: Session, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[tuple[list[int], list[int]]]()

    def grow(drafter: ModelDrafter, state: DraftState, *rest: Any, real: Any = ModelDrafter._grow_ahead) -> Any:
        if state.tree is not None and state.offered is not None:
            offered, node, known = state.offered, 0, list[int]()
            for token in offered.tokens[1:]:
                known.append(len(state.tree.children(node)))
                node = state.tree.child(node, token) or 0
            seen.append(([len(offered.children(v)) for v in range(offered.n_drafted)], known))
        return real(drafter, state, *rest)

    monkeypatch.setattr(ModelDrafter, "_grow_ahead", grow)
    answer(apart.engine, request(apart.prompt_ids(TEXTS[3]), "model:nodes=3:p_min=0", 24))
    assert seen and all(chain == [1, 1, 1] and min(known) == OUTCOMES for chain, known in seen)


def test_nothing_is_drafted_deeper_than_the_next_draft_may_need() -> None:
    offered = TokenTree.root(5)
    offered.add(offered.add(0, 6, 0.9, 1), 7, 0.9, 1)
    tree = offered.below(0)[0]
    state = DraftState(None, 0.0, offered=offered)  # type: ignore[arg-type]
    useful, end, instead = state.useful(tree), tree.child(1, 7), tree.add(1, 8, 0.1, 1)
    assert end is not None and all(map(useful, (1, end, instead)))
    for start in (end, instead):
        path = [start]
        for token in (1, 2, 3):
            path.append(tree.add(path[-1], token, 0.9, 1))
        # The next draft begins at the token that is not in the latest one, which is `instead` or below the end.
        assert [useful(node) for node in path[1:]] == [True, start == end, False]


def test_how_long_a_decode_takes_is_taken_from_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, now = Ahead(), 100.0
    monkeypatch.setattr("lcspec.drafters.ahead.time.perf_counter", lambda: now)
    ahead.start(lambda: None, 0.0)
    assert ahead.goes_on(1000.0)
    now += 3.0
    ahead.stop()
    ahead.start(lambda: None, 0.0)
    assert ahead.goes_on(2.9) and not ahead.goes_on(3.1)
    now += 1.0
    assert ahead.goes_on(1.9) and not ahead.goes_on(2.1)
    ahead.stop()
    ahead.start(lambda: None, math.inf)  # nobody knows how long a prompt takes
    assert ahead.goes_on(1000.0)
    ahead.close()


def test_the_thread_stops_in_time() -> None:
    ahead, turns = Ahead(), list[int]()
    begun = threading.Event()

    def work() -> TokenTree:
        while ahead.goes_on(0.0):
            turns.append(1)
            begun.set()
        return TokenTree.root(0)

    ahead.start(work, 0.0)
    begun.wait()
    assert ahead.stop() is None and turns
    ahead.start(work, 1e-9)  # the target is done at once
    del turns[:]
    assert ahead.stop() is None and not turns
    ahead.start(lambda: 1 // 0, 0.0)
    assert isinstance(ahead.stop(), ZeroDivisionError) and ahead.stop() is None
    ahead.close()
