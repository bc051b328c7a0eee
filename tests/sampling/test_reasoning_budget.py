"""When reasoning is closed: counted along the emitted text, from the opening tag on."""

from __future__ import annotations

import pytest

from lcspec.errors import SamplingError
from lcspec.sampling.parameters import SamplingParams
from lcspec.sampling.reasoning_budget import BudgetedReasoning, ReasoningBudget, ReasoningTags

# Token ids are bytes here, but for two.
OPEN, CLOSE = 256, 257
PIECES = [bytes([i]) for i in range(256)] + [b"<think>", b"</think>"]
TAGS = ReasoningTags(b"<think>", b"</think>", (10, CLOSE))


def begun(limit: int, opened: bool = False) -> BudgetedReasoning:
    return ReasoningBudget(limit, (TAGS,), PIECES.__getitem__, len(PIECES), TAGS if opened else None).start()


def feed(state: BudgetedReasoning, text: bytes) -> None:
    for token in text:
        assert state.allows(token)
        state.accept(token)


def due(state: BudgetedReasoning) -> list[int]:
    """The tokens that are forced now, one after the other."""
    found = []
    while not state.free:
        (token,) = state.mask().nonzero()[0].tolist()
        assert state.allows(token) and not state.allows(token + 1)
        found.append(token)
        state.accept(token)
    return found


def test_reasoning_that_the_prompt_opened_is_closed_after_its_budget() -> None:
    state = begun(3, opened=True)
    feed(state, b"ab")
    assert state.free and state.mask().all()
    feed(state, b"c")
    assert due(state) == [10, CLOSE]
    feed(state, b"an answer as long as it likes")
    assert state.free


def test_it_is_counted_from_the_opening_tag_however_that_is_spelled() -> None:
    state = begun(2)
    feed(state, b"some text <thi")
    feed(state, b"nk>")
    feed(state, b"x")
    assert state.free
    feed(state, b"y")
    assert due(state) == [10, CLOSE]
    state.accept(OPEN)  # a second stretch has a budget of its own
    feed(state, b"x")
    assert state.free
    feed(state, b"y")
    assert due(state) == [10, CLOSE]


def test_reasoning_that_ends_by_itself_is_left_alone() -> None:
    state = begun(4, opened=True)
    feed(state, b"ab")
    state.accept(CLOSE)
    feed(state, b"abcdefghijkl")
    assert state.free


def test_a_character_is_finished_first() -> None:
    state = begun(2, opened=True)
    feed(state, "a€"[:2].encode()[:2])
    assert state.free  # one byte of three
    feed(state, "€".encode()[1:2])
    assert state.free
    feed(state, "€".encode()[2:])
    assert due(state) == [10, CLOSE]


def test_a_fork_goes_its_own_way() -> None:
    state = begun(1, opened=True)
    other = state.fork()
    feed(other, b"a")
    assert not other.free and state.free


def test_it_goes_with_no_grammar() -> None:
    budget = ReasoningBudget(1, (TAGS,), PIECES.__getitem__, len(PIECES))
    with pytest.raises(SamplingError, match="grammar"):
        SamplingParams(grammar="root ::= [a-z]*", reasoning_budget=budget)
    assert not SamplingParams(temperature=0, reasoning_budget=budget).plain_greedy
