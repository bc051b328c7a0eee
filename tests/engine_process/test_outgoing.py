"""Events on their way out of the engine's process: what waits, what is joined, and what never waits."""

from __future__ import annotations

import pytest

from lcspec.answers.text import Piece
from lcspec.engine.events import Event, Failed, Finished, RequestStats, Started, TokenInfo, Tokens
from lcspec.engine_process import outgoing
from lcspec.engine_process.outgoing import INTERVAL, Outgoing
from lcspec.errors import LcspecError

SHORT = INTERVAL / 4
ENDS = (Finished(1, "stop", None, 3, 2, 7, RequestStats()), Failed(1, LcspecError("no")))


class Line:
    """An Outgoing, the clock that it reads, and what it sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.sent: list[dict[int, list[Event]]] = []
        monkeypatch.setattr(outgoing.time, "monotonic", lambda: self.now)
        self.out = Outgoing(lambda events: self.sent.append(dict(events)))

    def step(self, seconds: float, *events: Event) -> list[dict[int, list[Event]]]:
        """One step of the engine, `seconds` after the one before; what it sent."""
        self.now += seconds
        before = len(self.sent)
        for event in events:
            self.out.put(event.request, [event])
        self.out.flush()
        return self.sent[before:]


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    """An engine whose first request has begun its text."""
    line = Line(monkeypatch)
    started = Started(1, 3, 0, 7)
    assert line.step(SHORT, started) == [{1: [started]}]
    assert line.step(SHORT, text(1, 4)) == [{1: [text(1, 4)]}]
    return line


def text(request: int, *ids: int) -> Tokens:
    return Tokens(request, tuple(map(TokenInfo, ids)), tuple(Piece(str(i), None) for i in ids))


def test_text_behind_other_text_waits_and_comes_as_one_event(line: Line) -> None:
    assert line.step(SHORT, text(1, 5)) == []
    assert line.step(SHORT, text(1, 6, 7)) == []
    assert line.step(INTERVAL, text(1, 8)) == [{1: [text(1, 5, 6, 7, 8)]}]
    assert line.step(INTERVAL) == []


def test_slow_steps_are_sent_one_by_one(line: Line) -> None:
    for i in range(3):
        assert line.step(INTERVAL, text(1, i)) == [{1: [text(1, i)]}]


def test_another_request_s_first_text_takes_along_what_waits(line: Line) -> None:
    assert line.step(SHORT, text(1, 5)) == []
    assert line.step(SHORT, text(2, 9), text(1, 6)) == [{1: [text(1, 5, 6)], 2: [text(2, 9)]}]
    assert line.step(SHORT, text(2, 10)) == []


@pytest.mark.parametrize("end", ENDS)
def test_an_end_never_waits(line: Line, end: Event) -> None:
    assert line.step(SHORT, text(1, 5)) == []
    assert line.step(SHORT, text(1, 6), end) == [{1: [text(1, 5, 6), end]}]
    assert line.step(SHORT, text(1, 4)) == [{1: [text(1, 4)]}]  # another request of that number
