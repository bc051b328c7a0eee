"""What scripts/chaos_server.py looks at: health, slots, memory, texts, and the pauses in a stranger's stream."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.engine_faults import children_of
from tests.server.running import CODE

GAP_STEPS, GAP_SECONDS = 3.0, 0.2
# This program looks at the clock so often; when a look is later than that, somebody has stopped the program.
LOOK_SECONDS, STOPPED_SECONDS = 0.1, 2.0


def reference(url: str, patience: float) -> str:
    """A text that must stay the same."""
    body = {"prompt": CODE, "max_tokens": 32, "seed": 7, "temperature": 0.8, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=patience)
    return str(answer.json()["choices"][0]["text"])


def idle(url: str, patience: float) -> str | None:
    """Wait until nobody is at hand; what the server says if that takes too long."""
    end = time.monotonic() + patience
    while True:
        told = httpx.get(f"{url}/health", timeout=patience).json()
        if told["status"] == "ok" and told["running"] == told["waiting"] == 0:
            return None
        if time.monotonic() > end:
            return f"somebody is still at hand: {told}"
        time.sleep(0.05)


def all_slots(url: str, patience: float) -> str | None:
    """Whether all slots still work: as many streams as there are run at once. What is wrong, if anything."""
    body = {"prompt": "abc", "max_tokens": 200, "ignore_eos": True, "stream": True}
    n = httpx.get(f"{url}/health", timeout=patience).json()["slots"]
    most = 0
    for _ in range(20):  # short streams may be over before the last one begins

        def read() -> None:
            httpx.post(f"{url}/v1/completions", json=body, timeout=patience)

        readers = [threading.Thread(target=read, daemon=True) for _ in range(n)]
        for reader in readers:
            reader.start()
        while any(reader.is_alive() for reader in readers):
            most = max(most, httpx.get(f"{url}/health", timeout=patience).json()["running"])
        if most >= n:
            return None
    return f"only {most} of {n} slots run at once"


def resident(pid: int) -> int:
    """Bytes that the server and its engines hold; 0 where nobody says."""
    try:
        pages = [int(Path(f"/proc/{p}/statm").read_text().split()[1]) for p in (pid, *children_of(pid))]
    except OSError:
        return 0
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def failures(url: str, patience: float) -> list[str]:
    """Answers with 500 that the server itself has counted."""
    page = httpx.get(f"{url}/metrics", timeout=patience).text
    lines = [line for line in page.splitlines() if line.startswith("lcspec_http_requests_total")]
    return [line for line in lines if 'status="500"' in line and not line.endswith(" 0.0")]


class Stops(threading.Thread):
    """Notes when this program was stopped from outside (SIGSTOP, a laptop that slept)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._spans: list[tuple[float, float]] = []
        self._last = time.perf_counter()

    def run(self) -> None:
        """For ever."""
        while True:
            time.sleep(LOOK_SECONDS)
            now = time.perf_counter()
            if now - self._last > STOPPED_SECONDS:
                self._spans.append((self._last, now))
            self._last = now

    def within(self, start: float, end: float) -> bool:
        """Whether it was stopped between these times; also when nobody has looked since."""
        spans = [*self._spans, (self._last, end)]
        return any(a < end and b > start and b - a > STOPPED_SECONDS for a, b in spans)


class Stranger(threading.Thread):
    """Reads one long stream after another and notes the seconds between their pieces."""

    def __init__(self, url: str, patience: float) -> None:
        super().__init__(daemon=True)
        self.gaps: list[float] = []
        self.streams = 0
        self.stopped = 0
        self.wrong: list[str] = []
        self._url, self._patience, self._over = url, patience, threading.Event()
        self._stops = Stops()

    def run(self) -> None:
        """Until `end`."""
        self._stops.start()
        body = {"prompt": CODE, "max_tokens": 160, "ignore_eos": True, "stream": True, "temperature": 1}
        while not self._over.is_set():
            last = None
            try:
                with httpx.stream("POST", f"{self._url}/v1/completions", json=body, timeout=self._patience) as answer:
                    for _ in answer.iter_bytes():
                        now = time.perf_counter()
                        if last is not None:
                            self._note(last, now)
                        last = now
                if answer.status_code != 200:
                    self.wrong.append(f"stranger: {answer.status_code}")
            except httpx.HTTPError as error:
                self.wrong.append(f"stranger: {type(error).__name__} {error}")
            self.streams += 1

    def _note(self, last: float, now: float) -> None:
        """A pause in which this program was stopped itself says nothing about the server."""
        if now - last > STOPPED_SECONDS and self._stops.within(last, now):
            self.stopped += 1
        else:
            self.gaps.append(now - last)

    def end(self) -> str:
        """What it saw, in words."""
        self._over.set()
        self.join(self._patience)
        median, worst = self.median * 1e3, max(self.gaps, default=0.0) * 1e3
        told = f"a stranger's {self.streams} streams: median step {median:.1f} ms, longest pause {worst:.0f} ms"
        late = sum(gap > self._allowed for gap in self.gaps)
        told += f", {late} of {len(self.gaps)} longer than {self._allowed * 1e3:.0f} ms"
        return told + (f" ({self.stopped} left out: this program was stopped)" if self.stopped else "")

    @property
    def median(self) -> float:
        """Seconds between two pieces, usually."""
        return statistics.median(self.gaps) if self.gaps else 0.0

    @property
    def late(self) -> bool:
        """Whether a pause was too long."""
        return max(self.gaps, default=0.0) > self._allowed

    @property
    def _allowed(self) -> float:
        return GAP_STEPS * self.median + GAP_SECONDS
