"""`--exact` with several slots: to the bit what the request gives when it is alone in an engine with one slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lcspec.engine.events import Finished, Started, Tokens
from lcspec.engine.request import Request
from lcspec.session import Session, open_session
from tests.running import GREEDY, SEEDED, Answer, answer, options, prompts, request, side_by_side, speculation

pytestmark = pytest.mark.model

N = 40


@pytest.fixture(scope="module")
def three(demo: tuple[Path, Path]) -> Iterator[Session]:
    with open_session(options(demo[0], slots=3), demo[1]) as session:
        yield session


@pytest.fixture(scope="module")
def wanted(three: Session) -> list[Request]:
    strategies = ("off", "ngram:branch=3:nodes=7", "model:branch=3:nodes=12:p_min=0", "auto", "model:p_min=0")
    texts = prompts(three, 2, 3)
    samplings = (GREEDY, SEEDED)
    return [
        request(text, strategy, N, sampling=samplings[i % 2], exact=True, logprobs=0)
        for i, (text, strategy) in enumerate(zip(texts, strategies))
    ]


@pytest.fixture(scope="module")
def expected(demo: tuple[Path, Path], wanted: list[Request]) -> list[list[tuple[int, float | None]]]:
    """Each alone, without speculation."""
    out = []
    for one in wanted:
        with open_session(options(demo[0], attention="rows", exact=True), demo[1]) as session:
            plain = request(one.prompt, "off", N, sampling=one.sampling, exact=True, logprobs=0)
            out.append(answer(session.engine, plain).bits)
    return out


def test_side_by_side_they_have_the_bits_they_have_alone(
    three: Session, wanted: list[Request], expected: list[list[tuple[int, float | None]]]
) -> None:
    for _ in range(2):  # the second time in caches that others have used
        others = [request(one.prompt, "ngram:branch=2", N, sampling=SEEDED) for one in wanted[:2]]
        found = side_by_side(three.engine, [others[0], *wanted[:3], others[1], *wanted[3:]])
        exact = [found[i] for i in (1, 2, 3, 5, 6)]
        assert [f.error for f in found] == [None] * 7
        for ours, theirs in zip(exact, expected):
            assert ours.bits == theirs
    assert any(f.finished.stats.accepted for f in exact)


def test_a_beginning_is_reused_where_its_bits_are_right(
    three: Session, wanted: list[Request], expected: list[list[tuple[int, float | None]]]
) -> None:
    first = answer(three.engine, wanted[4])
    again = answer(three.engine, wanted[4])
    assert first.bits == again.bits == expected[4]
    assert again.started.reused > 0


def test_slots_are_counted_together_and_given_in_order(three: Session, wanted: list[Request]) -> None:
    engine = three.engine
    plain = request(wanted[0].prompt, "off", N)
    numbers = [engine.submit(r) for r in (wanted[0], plain, wanted[1], plain, wanted[2])]
    started: list[int] = []
    while engine.busy:
        started += [e.request for e in engine.step() if isinstance(e, Started)]
        assert len(engine.running) + len(engine.solo.running) <= 3
        assert engine.totals().running == len(engine.running) + len(engine.solo.running)
    assert sorted(started) == numbers
    assert set(started[:3]) == set(numbers[:3])


def test_cancelling_switching_and_closing(
    three: Session, wanted: list[Request], expected: list[list[tuple[int, float | None]]]
) -> None:
    engine = three.engine
    number, other = engine.submit(wanted[0]), engine.submit(wanted[1])
    found, cancelled = Answer(), None
    while engine.busy:
        for event in engine.step():
            if event.request == other:
                found.events.append(event)
            elif isinstance(event, Finished):
                cancelled = event
            if isinstance(event, Tokens) and event.request == number:
                engine.cancel(number)
        if len(found.ids) == N // 2:
            engine.switch(other, speculation("model:p_min=0"))
    assert cancelled is not None and cancelled.reason == "cancelled"
    assert found.bits == expected[1]
    events = engine.run(wanted[2])
    for _ in range(5):
        next(events)
    events.close()
    assert not engine.busy
    assert answer(engine, wanted[2]).bits == expected[2]


def test_an_interrupt_in_a_lane(three: Session, wanted: list[Request], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = three.engine
    before = answer(engine, wanted[1]).bits
    solo = engine.solo.made[0]
    decode, calls = solo.context.decode, 0

    def interrupted(*args: Any, **named: Any) -> float:
        nonlocal calls
        calls += 1
        seconds = decode(*args, **named)
        if calls == 9:
            raise KeyboardInterrupt
        return seconds

    with monkeypatch.context() as patch:
        for each in engine.solo.made:
            patch.setattr(each.context, "decode", interrupted if each is solo else each.context.decode)
        engine.solo.made[1:], rest = [], engine.solo.made[1:]
        with pytest.raises(KeyboardInterrupt):
            answer(engine, wanted[1])
        engine.solo.made += rest
    assert not engine.busy
    assert answer(engine, wanted[1]).bits == before
