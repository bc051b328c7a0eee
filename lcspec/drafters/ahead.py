"""A thread on which a draft model goes on while the target decodes.

Saguaro ("speculative speculative decoding", arXiv:2603.03251) drafts for the likeliest outcomes of a step while the
step is being verified, so that a draft whose guess of the outcome was right takes no time. Here a draft model's tree
goes on growing meanwhile, always where it is reached most likely. Whatever the step emits then is a path in that tree,
or is not: what lies below the end of the path is the next draft (see ModelDrafter.observe).

Only one thread may use a llama context at a time. The other thread runs between `start` and `stop` alone, and the
engine calls nothing else of the drafter in between.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable


class Ahead:
    """The thread, and for how long it may go on."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "draft-ahead")
        self._work: Future[object] | None = None
        self._halted = False
        self._deadline = math.inf
        self._began = self._took = 0.0  # when the target began to decode, and for how long it did, the last time

    def start(self, work: Callable[[], object], seconds: float) -> None:
        """Run `work`, which asks `goes_on` before everything that takes time. After `seconds` (see Drafter.draft_ahead)
        the target should be done, so that nothing is begun that would end later."""
        self._halted = False
        self._began = time.perf_counter()
        self._deadline = self._began + (seconds or self._took or math.inf)
        self._work = self._pool.submit(work)

    def goes_on(self, seconds: float) -> bool:
        """Whether there is time for something that takes `seconds`."""
        return not self._halted and time.perf_counter() + seconds < self._deadline

    def stop(self) -> BaseException | None:
        """Wait until the work has ended; returns what it raised."""
        self._halted = True
        self._took = time.perf_counter() - self._began
        work, self._work = self._work, None
        return work.exception() if work is not None else None

    def close(self) -> None:
        """End the thread."""
        self.stop()
        self._pool.shutdown()
