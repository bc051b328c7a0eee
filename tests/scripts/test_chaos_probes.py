"""What scripts/chaos_server.py looks at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scripts.chaos_probes import STOPPED_SECONDS, Stops, Stranger
from tests.engine_faults import children_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc")
WATCHED = """
import sys, time
sys.path[:0] = {path!r}
from scripts import chaos_probes
chaos_probes.STOPPED_SECONDS = 1.0
stops = chaos_probes.Stops()
stops.start()
start = time.perf_counter()
print("ready", flush=True)
sys.stdin.readline()
print(stops.within(start, time.perf_counter()))
"""


@linux
@pytest.mark.slow
def test_a_program_that_was_stopped_knows() -> None:
    command = [sys.executable, "-c", WATCHED.format(path=[str(Path(__file__).resolve().parents[2])])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        child.send_signal(signal.SIGCONT)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "True\n"


def test_only_pauses_of_the_server_count() -> None:
    stranger, stops = Stranger("http://unused", 1.0), Stops()
    stranger._stops, long = stops, STOPPED_SECONDS * 2
    stops._last = 1000.0
    stops._spans.append((100.0, 100.0 + long))
    stranger._note(99.0, 100.5 + long)  # the program was stopped
    stranger._note(200.0, 200.0 + long)  # the server was slow
    stranger._note(300.0, 300.1)
    stranger._note(1000.0, 1000.0 + long)  # stopped, and the thread that looks has not run since
    assert stranger.stopped == 2 and stranger.gaps == pytest.approx([long, 0.1])


@linux
def test_children_are_told_while_threads_end() -> None:
    """A thread may be gone when its file is read."""
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            threading.Thread(target=over.is_set).start()

    churning = [threading.Thread(target=churn) for _ in range(3)]
    with subprocess.Popen(["sleep", "60"]) as child:
        for thread in churning:
            thread.start()
        try:
            assert all(child.pid in children_of(os.getpid()) for _ in range(300))
        finally:
            over.set()
            child.kill()
            for thread in churning:
                thread.join()
