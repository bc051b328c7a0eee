"""An engine's process that hangs is killed and started again; one that is slow, or sleeps with the machine, is not."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lcspec import pulse
from lcspec.engine.events import Finished
from lcspec.engine_process import heartbeat
from lcspec.engine_process.heartbeat import Heart
from lcspec.engine_process.parent import EngineProcess
from lcspec.pulse import Pace, Pulse
from tests import engine_faults
from tests.engine_process.test_engine_process import WAIT, Sink, options, request

# Seconds without a sign of life; the looks are a second apart.
LIMIT = 3.0


@pytest.fixture()
def hanging(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProcess]:
    """An engine that hangs once, at a step of its first answer."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("HANG_ONCE", str(tmp_path / "has-hung"))
    found = EngineProcess(options(path), prelude=engine_faults.hang_once, limit=LIMIT)
    try:
        found.loaded()
        yield found
    finally:
        assert found.close(timeout=WAIT)


@pytest.mark.model
@pytest.mark.slow
def test_an_engine_that_hangs_is_started_again_and_the_text_goes_on(hanging: EngineProcess, tmp_path: Path) -> None:
    first, again = Sink(), Sink()
    hanging.submit(request(120), first).result(WAIT)
    assert isinstance(first.last(), Finished) and len(first.ids) == 120
    assert (tmp_path / "has-hung").exists()
    life = hanging.life
    assert life.restarts == 1 and life.resumed == 1 and life.refused == 0
    assert life.last is not None and "no sign of life" in life.last and life.away is None
    hanging.submit(request(120), again).result(WAIT)  # nothing hangs in this one
    again.last()
    assert again.ids == first.ids and hanging.life.restarts == 1


@pytest.mark.model
@pytest.mark.slow
def test_a_stopped_process_is_started_again_and_an_idle_one_is_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    engine = EngineProcess(options(path), prelude=engine_faults.unhurried, limit=LIMIT)
    try:
        engine.loaded()
        time.sleep(LIMIT + 2)
        assert engine.life.restarts == 0
        pid = engine.life.pid
        assert pid is not None
        whole, stopped = Sink(), Sink(20, lambda: os.kill(pid, signal.SIGSTOP))
        engine.submit(request(100), whole).result(WAIT)
        whole.last()
        engine.submit(request(100), stopped).result(WAIT)
        assert isinstance(stopped.last(), Finished) and stopped.ids == whole.ids
        assert engine.life.restarts == 1 and engine.life.pid != pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        assert engine.close(timeout=WAIT)


PROGRAM = """
import sys
from pathlib import Path
from lcspec.config import ModelOptions
from lcspec.engine_process.parent import EngineProcess
engine = EngineProcess(ModelOptions(Path(sys.argv[1]), ctx=128, threads=1), limit=2.0)
engine.loaded()
print(engine.life.pid, flush=True)
for line in sys.stdin:
    print(engine.life.pid, engine.life.restarts, flush=True)
"""


@pytest.mark.model
@pytest.mark.slow
def test_a_machine_that_sleeps_is_no_hang(path: Path) -> None:
    """Program and engine are stopped for longer than the limit, as a sleeping machine or a paused container does."""
    command = [sys.executable, "-c", PROGRAM, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None and program.stdin is not None
        pid = int(program.stdout.readline())
        time.sleep(2.5)  # the watch has begun
        for process in (pid, program.pid):
            os.kill(process, signal.SIGSTOP)
        time.sleep(6)
        for process in (pid, program.pid):
            os.kill(process, signal.SIGCONT)
        time.sleep(2.5)
        program.stdin.write("now\n")
        program.stdin.flush()
        assert program.stdout.readline().split() == [str(pid), "0"]
        program.stdin.close()


class Engine:
    """A pulse of which a test says what happens between two looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: float) -> None:
        self.pulse = Pulse()
        self.pages = 0
        monkeypatch.setattr(heartbeat, "_pages_read", lambda: self.pages)
        self.heart = Heart(limit, self.pulse)

    def looks(self, most: int) -> int | None:
        """How many looks it takes to find that it hangs; None: more than `most`."""
        return next((i for i in range(1, most + 1) if self.heart.look()), None)


def test_what_is_slow_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, limit=10)
    assert engine.looks(100) is None  # it waits, or loads
    engine.pulse.at_work = True
    engine.pulse.begin(math.inf)
    assert engine.looks(100_000) is None  # the first decode: nobody knows how long it may take
    engine.pulse.end()
    engine.pulse.begin(2.0)
    assert not engine.heart.look()
    assert engine.looks(100) == 51  # ten seconds, and twenty times as long as it should take
    engine.pulse.end()
    assert not engine.heart.look()
    assert engine.looks(100) == 11  # at work, and at no decode
    engine.pulse.begin(0.0)
    for _ in range(50):
        engine.pages += 1  # its pages come from the disk
        assert not engine.heart.look()


def test_a_decode_may_take_what_the_slowest_of_late_took(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Pulse()
    monkeypatch.setattr(pulse, "PULSE", watched)
    target, draft = Pace(), Pace()
    target.begin(512)
    assert watched.expected == math.inf
    target.end(512, 51.2)
    assert watched.expected == 0.0 and watched.turns == 1
    target.begin(100)
    assert watched.expected == pytest.approx(10.0)
    target.end(100, 1.0)
    draft.begin(1)
    assert watched.expected == math.inf  # another context
    draft.end(1, 0.001)
    for _ in range(1000):
        target.begin(1)
        target.end(1, 0.01)
    target.begin(1)
    assert watched.expected == pytest.approx(0.01)  # one slow decode is not remembered for ever
