"""What all endpoints share: the engine, the vocabulary, the template, capacity, metrics."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Callable, Generator, Sequence, TypeVar

from lcspec import __version__
from lcspec.engine.events import Event
from lcspec.engine_host import EngineHost, TextVocab, start_of_text, totals, warm_up
from lcspec.errors import ContextOverflow, GrammarError, LcspecError
from lcspec.sampling.compiling import compiled, compiling_at
from lcspec.server.errors import ApiError
from lcspec.server.limits import Capacity
from lcspec.server.metrics import Metrics
from lcspec.server.settings import ServerSettings

if TYPE_CHECKING:
    from lcspec.engine.metrics import Totals
    from lcspec.llama.template import ChatTemplate
    from lcspec.sampling.grammar import CompiledGrammar
    from lcspec.server.job import Job
    from lcspec.session import Session

log = logging.getLogger("lcspec.server")
T = TypeVar("T")
# Requests that are tokenized and rendered at once; more would take time from the decodes.
THREADS = 2
# How long a request waits for its grammar.
COMPILE_SECONDS = 30.0
LOOK_SECONDS = 2.0
# How long the metrics wait for an engine that is in a long step, or away: then the last totals stand.
TOTALS_SECONDS = 2.0


class Service:
    """One loaded model behind the endpoints. Its methods are for the event loop's thread."""

    def __init__(self, worker: EngineHost, settings: ServerSettings) -> None:
        """Serve what a worker has loaded, or will have in a moment.

        Raises:
            LcspecError: the model could not be loaded, or its chat template cannot be used.
        """
        from lcspec.llama.template import ChatTemplate

        self.worker = worker
        self.settings = settings
        model = worker.loaded()
        self.facts, self.header = model.facts, model.header
        self.vocab: TextVocab = model.vocab
        self.template: ChatTemplate = ChatTemplate(model, settings.chat_template)
        # What it says about tools; the fallbacks have no place for them.
        own = self.template.source in ("model", "given")
        self.template_text: str = self.template.text + self.template.tool_text if own else ""
        self.n_ctx: int = self.facts.n_ctx
        self.slots: int = self.facts.slots
        self.draft = self.facts.draft
        self.capacity = Capacity(self.slots, settings.queue)
        self.metrics = Metrics(self.capacity, lambda: worker.life)
        self.fingerprint = f"lcspec-{__version__}"
        self.created = int(time.time())
        self.embedding = asyncio.Lock()
        self.draining = False
        self.speedup: float | None = None  # recent rate over that of plain decoding, as `look_at_speed` found it
        self._looked = 0.0
        # Grammars have one thread, and whoever waits for it lets another request have its turn.
        waiting = self.slots + settings.queue
        self._pool = ThreadPoolExecutor(THREADS + waiting, thread_name_prefix="lcspec-text")
        self._turns = threading.BoundedSemaphore(THREADS)
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="lcspec-grammar")
        self._places = threading.BoundedSemaphore(waiting)
        self._outbox: Outbox | None = None

    async def in_thread(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run `function` beside the event loop: tokenizing, rendering; what it compiles holds up nobody else."""

        def run() -> T:
            with self._turns, compiling_at(self._compile_apart):
                return function(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._pool, run)

    async def renew_totals(self) -> None:
        """Bring the metrics up to date, if the engine is there to say something."""
        with contextlib.suppress(LcspecError, asyncio.TimeoutError):
            asked = asyncio.wrap_future(self.worker.call(totals))
            self.metrics.totals = await asyncio.wait_for(asked, TOTALS_SECONDS)

    async def in_pieces(self, start: Callable[[Session], Generator[T | None, None, None]]) -> T:
        """What the generator `start(session)` yields at last; it runs on the engine thread, and between its pieces
        running streams get their steps. `start`: see lcspec.engine_host."""
        return await asyncio.wrap_future(self.worker.in_pieces(start))

    def outbox(self) -> Outbox:
        """The way from the engine thread to this event loop."""
        loop = asyncio.get_running_loop()
        if self._outbox is None or self._outbox.loop is not loop:
            self._outbox = Outbox(loop)
        return self._outbox

    def look_at_speed(self) -> None:
        """Renew `speedup`, every few seconds at most; it is there a step later."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()

        def found(answer: Future[Totals]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                self.speedup = answer.result().speedup

        self.worker.call(totals).add_done_callback(found)

    def check_open(self) -> None:
        """Refuse new work while the server shuts down.

        Raises:
            ApiError: 503.
        """
        if self.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "5"})
        if not self.worker.alive:
            raise engine_stopped(self.worker.error)

    def warm_up(self) -> None:
        """Make what the first request would have to wait for: drafters, the cost curve, the certificate, memory.

        To be called before the event loop runs.

        Raises:
            LcspecError: the defaults for requests ask for something that cannot be had.
        """
        from lcspec.server.parameters import speculation_params

        params = speculation_params(None, self.settings, self.draft, has_grammar=True, has_prediction=True)
        _ = self.longest_piece
        self.worker.call(partial(warm_up, params)).result()

    def close(self) -> None:
        """Let go of the threads that this made (not of the engine's)."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._compiler.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------ text, from any thread

    @cached_property
    def longest_piece(self) -> int:
        """Bytes of the longest token."""
        return max(len(self.vocab.piece(t, special=True)) for t in range(self.vocab.n_tokens))

    def check_length(self, text: str) -> None:
        """Refuse at once what cannot fit however well it tokenizes: tokenizing megabytes takes seconds.

        Raises:
            ContextOverflow: it cannot.
        """
        least = len(text.encode()) // max(1, self.longest_piece)
        if least >= self.n_ctx:
            raise ContextOverflow.of_prompt(least, self.n_ctx)

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Ids of a raw prompt."""
        self.check_length(text)
        ids = tuple(self.vocab.tokenize(text))
        return ids or start_of_text(self.vocab)

    def compile(self, grammar: str) -> str | CompiledGrammar:
        """A grammar for a request (see lcspec.engine_host.EngineHost.compile)."""
        return compiled(partial(self.worker.compile, grammar))

    def _compile_apart(self, make: Callable[[], Any]) -> Any:
        """What `make` makes, on the thread for grammars; for a thread that has a turn, which others have meanwhile.

        Raises:
            ApiError: too many wait for their grammars.
            GrammarError: it takes too long.
        """
        if not self._places.acquire(blocking=False):
            raise _too_many_grammars()
        making = self._compiler.submit(make)
        self._turns.release()
        try:
            return making.result(COMPILE_SECONDS)
        except NotYet:
            if making.cancel():
                raise _too_many_grammars() from None
            raise GrammarError(
                f"it takes more than {COMPILE_SECONDS:g} seconds to compile, which is the limit: make it smaller"
            ) from None
        finally:
            self._turns.acquire()
            self._places.release()

    def mixed_ids(
        self, parts: Sequence[str | int], *, special: bool = True, parse_special: bool = True
    ) -> tuple[int, ...]:
        """Ids of texts and token ids that follow each other. `special` (for the first) and `parse_special` as for
        Vocab.tokenize.

        Raises:
            ApiError: an id is not in the vocabulary.
            TokenizeError: the vocabulary has no tokens for some of a text.
        """
        ids: list[int] = []
        for i, part in enumerate(parts):
            if isinstance(part, str):
                ids += self.vocab.tokenize(part, special=special and i == 0, parse_special=parse_special)
            else:
                ids.append(part)
        return self.check_ids(ids)

    def check_ids(self, ids: Sequence[int]) -> tuple[int, ...]:
        """A prompt given as ids.

        Raises:
            ApiError: one is not in the vocabulary.
        """
        if ids and max(ids) >= self.vocab.n_tokens:
            raise ApiError(
                400,
                f"the vocabulary has {self.vocab.n_tokens} tokens, so {max(ids)} is not one of them",
                code="invalid_value",
            )
        return tuple(ids)


def _too_many_grammars() -> ApiError:
    """The answer to a request whose grammar has to wait for those of too many others."""
    message = "too many grammars and schemas are waiting to be compiled: try again later"
    return ApiError(429, message, code="queue_full", headers={"Retry-After": "5"})


def engine_stopped(error: Exception | None) -> ApiError:
    """The answer to a request for an engine that runs no more."""
    why = f" ({error})" if error is not None else ""
    message = f"the engine has stopped{why}: restart the server; its log says more"
    return ApiError(503, message, code="engine_stopped", headers={"Retry-After": "5"})


class Outbox:
    """Carries events from the engine thread to the event loop, waking it once for everything a step gave."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: collections.deque[tuple[Job, int, list[Event]]] = collections.deque()
        self._awake = False

    def sink(self, job: Job, index: int) -> Callable[[Sequence[Event]], None]:
        """The sink of a job's `index`-th request."""

        def put(events: Sequence[Event]) -> None:
            self._items.append((job, index, list(events)))
            if not self._awake:
                self._awake = True
                self.loop.call_soon_threadsafe(self._flush)

        return put

    def _flush(self) -> None:
        self._awake = False  # before emptying: what comes now wakes the loop again
        while self._items:
            job, index, events = self._items.popleft()
            job.deliver(index, events)
