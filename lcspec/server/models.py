"""The models behind the endpoints: which there are, which are loaded, and who may use them now.

A model is loaded when a request names it. One load at a time: it first makes room, by unloading the model that was idle
longest, or by waiting for it to become idle. Requests that wait for a load hold it once it is there, so nothing is
unloaded under them. A load that fails, or an engine that dies, ends the requests for that model and nobody else's.

Everything here is for the event loop's thread; loading and unloading run on other threads.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from lcspec.errors import LcspecError
from lcspec.server.errors import ApiError, from_engine
from lcspec.server.metrics import HttpMetrics
from lcspec.server.model_entry import Entry, Loader
from lcspec.server.service import Service, engine_stopped
from lcspec.server.settings import ServerSettings

log = logging.getLogger("lcspec.server")
# How often it is looked whether an engine has died or a model was idle for long, and whether one is idle that is to go.
WATCH, POLL = 1.0, 0.02
LEASES = "lcspec.leases"


class Models:
    """What the server can serve."""

    def __init__(
        self,
        entries: Iterable[Entry],
        settings: ServerSettings,
        loader: Loader | None = None,
        default: str | None = None,
        answers_all: bool = False,
    ) -> None:
        """Of `entries`.

        Args:
            entries: the models; without a `loader` all of them are loaded.
            settings: see there; what differs between models is in each one's service.
            loader: loads further ones.
            default: the name of the model for requests that name none.
            answers_all: it also answers requests that name a model which is not here.
        """
        self.entries = list(entries)
        self.settings = settings
        self.loader = loader
        self.default = default
        self.answers_all = answers_all
        self.http = HttpMetrics()
        self._draining = False
        self._turn = asyncio.Lock()
        self._scanned = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def one(cls, service: Service) -> Models:
        """A single model, which is loaded already."""
        path = service.facts.options.path
        entry = Entry(service.settings.models, path, pinned=True, state="loaded", service=service)
        return cls([entry], service.settings, default=entry.name, answers_all=True)

    # ------------------------------------------------------------ what there is

    @property
    def loaded(self) -> list[Entry]:
        """Those that can answer now."""
        return [entry for entry in self.entries if entry.service is not None]

    @property
    def only(self) -> Service:
        """The service of a server with a single model."""
        service = self.entries[0].service
        assert service is not None
        return service

    @property
    def at_hand(self) -> int:
        """Requests that run or wait."""
        return sum(len(e.waiters) + (e.service.capacity.at_hand if e.service else 0) for e in self.entries)

    @property
    def draining(self) -> bool:
        """Whether the server shuts down."""
        return self._draining

    @draining.setter
    def draining(self, value: bool) -> None:
        self._draining = value
        for entry in self.loaded:
            assert entry.service is not None
            entry.service.draining = value

    @property
    def alive(self) -> bool:
        """Whether anything can be answered: a server that loads models can load others."""
        return self.loader is not None or all(s.worker.alive for s in (e.service for e in self.loaded) if s)

    def find(self, name: str) -> Entry | None:
        """The model of that name; None if there is none.

        Raises:
            ApiError: 404, several models may be meant.
        """
        for entry in self.entries:
            if name in entry.names[:1]:
                return entry
        wanted = name.lower()
        found = [e for e in self.entries if any(wanted == known.lower() for known in e.names)]
        if len(found) > 1:
            listed = ", ".join(entry.name for entry in found[:8])
            message = f"the model {name[:200]!r} may be one of {listed}: give its whole name"
            raise ApiError(404, message, param="model", code="model_not_found")
        if not found and name.endswith(":latest"):  # Ollama's clients add it
            return self.find(name[: -len(":latest")])
        return found[0] if found else None

    def usual(self) -> Entry | None:
        """The model for a request that names none: the default, else the first pinned one, else the one used last."""
        if self.default is not None and (entry := self.find(self.default)) is not None:
            return entry
        if (pinned := next((entry for entry in self.entries if entry.pinned), None)) is not None:
            return pinned
        return max(self.loaded, key=lambda entry: entry.used, default=None)

    async def rescan(self, seconds: float) -> None:
        """Look for models again if that was more than `seconds` ago."""
        if self.loader is None or time.monotonic() - self._scanned < seconds:
            return
        self._scanned = time.monotonic()
        found = await asyncio.to_thread(self.loader.entries)
        known = {entry.path: entry for entry in self.entries}
        kept = [entry for entry in self.entries if entry.service is not None or entry.waiters or entry.pinned]
        new = [known.get(entry.path, entry) for entry in found]
        self.entries = [*new, *(entry for entry in kept if entry not in new)]

    # ------------------------------------------------------------ using them

    def check_open(self) -> None:
        """Refuse new work while the server shuts down.

        Raises:
            ApiError: 503.
        """
        if self.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "5"})

    async def use(self, entry: Entry, http: Request) -> Service:
        """The model, loaded first if it has to be; it stays until the request is over.

        Raises:
            ApiError: it cannot be loaded, or too many wait for that.
        """
        service = await self._ready(entry)
        http.scope.setdefault(LEASES, []).append(entry)
        return service

    async def _ready(self, entry: Entry) -> Service:
        service = entry.service
        if service is not None and entry.state == "loaded":
            if service.worker.alive or self.loader is None:
                self._hold(entry)
                return service
            self._died(entry)
        self.check_open()
        if self.loader is None:
            raise engine_stopped(service.worker.error if service is not None else None)
        if sum(len(e.waiters) for e in self.entries) > self.settings.queue:
            message = "too many requests wait for models to be loaded: try again later"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "5"})
        waiter: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
        entry.waiters.append(waiter)
        if entry.loading is None or entry.loading.done():
            entry.loading = asyncio.ensure_future(self._bring(entry))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(entry)  # it was handed over at the very moment
            elif waiter in entry.waiters:
                entry.waiters.remove(waiter)
            raise

    def _hold(self, entry: Entry) -> None:
        entry.users += 1
        entry.used = time.monotonic()

    def release(self, entry: Entry) -> None:
        """A request does not need it any more."""
        entry.users -= 1
        entry.used = time.monotonic()

    # ------------------------------------------------------------ loading

    async def _bring(self, entry: Entry) -> None:
        """Load it, and hand it to those who wait."""
        try:
            async with self._turn:
                if entry.service is None and entry.waiters:
                    await self._make_room(entry)
                    await self._load(entry)
                self._hand_over(entry)
        except ApiError as error:
            self._refuse(entry, error)
        except Exception as error:
            log.exception("loading %s failed", entry.name)
            self._refuse(entry, ApiError(500, f"loading {entry.name} failed: the server's log says more"))
            entry.error = repr(error)

    async def _load(self, entry: Entry) -> None:
        assert self.loader is not None
        loop = asyncio.get_running_loop()
        entry.state, entry.progress, entry.error = "loading", 0.0, None

        def progress(_: str, fraction: float) -> None:
            loop.call_soon_threadsafe(setattr, entry, "progress", fraction)

        others = [other for other in self.loaded if other is not entry]
        start = time.perf_counter()
        try:
            entry.service = await asyncio.to_thread(self.loader.load, entry, others, progress)
        except LcspecError as error:
            entry.state, entry.error = "failed", str(error)
            self.http.loaded(entry.name, "failed")
            log.warning("loading %s failed: %s", entry.name, error)
            found = from_engine(error)
            raise ApiError(503, found.message, param="model", code="model_load_failed") from error
        except BaseException:
            entry.state = "failed"
            raise
        entry.service.draining = self.draining
        entry.state = "loaded"
        self.http.loaded(entry.name, "loaded")
        log.info("loaded %s in %.1f s", entry.name, time.perf_counter() - start)

    def _hand_over(self, entry: Entry) -> None:
        waiters, entry.waiters = entry.waiters, []
        for waiter in waiters:
            if not waiter.done() and entry.service is not None:
                self._hold(entry)
                waiter.set_result(entry.service)
        entry.used = time.monotonic()

    def _refuse(self, entry: Entry, error: ApiError) -> None:
        entry.state = "failed"
        entry.error = entry.error or error.message
        waiters, entry.waiters = entry.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    async def _make_room(self, entry: Entry) -> None:
        """Unload until there is a place, and memory if that can be had.

        Raises:
            ApiError: every place is taken by a model that stays.
        """
        assert self.loader is not None
        while True:
            others = self.loaded
            full = len(others) >= self.settings.max_loaded
            if not full and await asyncio.to_thread(self.loader.fits, entry, others):
                return
            free = [other for other in others if not other.pinned]
            if not free:
                if not full:
                    return  # the loader says what is missing
                message = f"{len(others)} models are loaded and pinned, so there is no place for {entry.name}"
                raise ApiError(503, f"{message}: raise --max-loaded or pin fewer", code="no_place")
            await self.unload(min(free, key=lambda other: (not other.idle, other.used)))

    async def unload(self, entry: Entry) -> None:
        """Unload it once nobody uses it; those who ask meanwhile wait until it is loaded again."""
        service = entry.service
        if service is None or entry.state == "unloading":
            return
        entry.state = "unloading"
        while not entry.idle and service.worker.alive:
            await asyncio.sleep(POLL)
        entry.service = None
        await asyncio.to_thread(_close, service)
        entry.state = "unloaded"
        self.http.loaded(entry.name, "unloaded")
        log.info("unloaded %s", entry.name)

    async def drop(self, entry: Entry) -> None:
        """Unload it, after what it was given is finished."""
        async with self._turn:
            await self.unload(entry)

    async def unload_idle(self, entry: Entry) -> None:
        """Unload it if it can go now."""
        async with self._turn:
            if entry.idle and not entry.pinned and self.loader is not None:
                await self.unload(entry)

    def _died(self, entry: Entry) -> None:
        service, entry.service = entry.service, None
        if service is not None:
            entry.state, entry.error = "failed", str(service.worker.error or "its engine has stopped")
            service.close()
            log.error("the engine of %s has stopped: %s", entry.name, entry.error)

    # ------------------------------------------------------------ the whole of it

    async def watch(self) -> None:
        """Runs for as long as the server: unloads what nobody has used for long, and notices engines that died."""
        while self.loader is not None:
            await asyncio.sleep(WATCH)
            for entry in self.loaded:
                assert entry.service is not None
                if entry.state == "loaded" and not entry.service.worker.alive:
                    self._died(entry)
                limit = self.settings.idle_unload
                if limit and not entry.pinned and entry.idle and time.monotonic() - entry.used > limit:
                    await self.unload_idle(entry)

    def close(self) -> None:
        """Let go of the threads of all services."""
        for entry in self.loaded:
            assert entry.service is not None
            entry.service.close()

    def close_engines(self, timeout: float | None = None) -> None:
        """End every engine once its requests are done; not on the event loop."""
        for entry in self.loaded:
            assert entry.service is not None
            entry.service.worker.close(drain=True, timeout=timeout)


def _close(service: Service) -> None:
    service.close()
    service.worker.close(drain=True)
    # What a session loads is kept out of the collector's way (see open_session), and would never go.
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Leases:
    """Middleware: when a request is over, however it ended, the models it used are free again."""

    def __init__(self, app: ASGIApp, models: Models) -> None:
        self.app = app
        self.models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, then release."""
        try:
            await self.app(scope, receive, send)
        finally:
            for entry in scope.pop(LEASES, ()):
                self.models.release(entry)
