"""The chat on the bundled pair, in a terminal that is not there."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from lcspec.engine.events import Event
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.session import Session
from lcspec.tui.app import ChatApp, ChatOptions
from lcspec.tui.bridge import Bridge
from lcspec.tui.screens.chat import ChatScreen
from lcspec.tui.store import Message
from lcspec.tui.widgets.notice import Notice

WAIT = 120.0
SIZE = (100, 34)
# One thread, a fixed seed, no drafting unless a test is about it.
PLAIN = {"threads": 1, "seed": 7, "max_tokens": 40, "drafters": "off"}


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No models of the user's are listed."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCSPEC_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture(scope="session")
def pair() -> tuple[Path, Path]:
    """The bundled target and draft."""
    return demo_path(DEMO_TARGET), demo_path(DEMO_DRAFT)


class Brake:
    """Lets the engine take as many steps as it is allowed, so that a test can act in the middle of an answer."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self._open = False

    def install(self, session: Session) -> None:
        """On the engine thread."""
        step = session.engine.step

        def braked() -> list[Event]:
            while session.engine.busy and not self._open and not self._permits.acquire(timeout=0.05):
                return []  # orders are obeyed between two steps
            return step()

        session.engine.step = braked  # type: ignore[method-assign]

    def allow(self, steps: int) -> None:
        """Some more steps."""
        self._permits.release(steps)

    def release(self) -> None:
        """As many as it likes."""
        self._open = True


class Driver:
    """Drives an app; every wait is for a condition."""

    def __init__(self, app: ChatApp, pilot: Pilot[Any]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def chat(self) -> ChatScreen:
        assert isinstance(self.app.screen, ChatScreen)
        return self.app.screen

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait for a condition."""
        end = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < end, f"never happened: {what or condition}"
            await self.pilot.pause(0.01)

    async def press(self, *keys: str) -> None:
        """Press keys."""
        await self.pilot.press(*keys)

    async def ready(self) -> ChatScreen:
        """Wait for the conversation."""
        await self.until(lambda: isinstance(self.app.screen, ChatScreen), "the chat opens")
        await self.until(lambda: self.chat.is_mounted and self.chat.prompt.has_focus, "the input has the focus")
        return self.chat

    async def send(self, text: str) -> None:
        """Type and send; does not wait for the answer."""
        self.chat.prompt.give_back(text)
        await self.press("enter")
        chat = self.chat
        await self.until(
            lambda: chat.answering.busy or not chat.prompt.text or any(n.ways for n in chat.transcript.query(Notice)),
            "it is sent, or refused",
        )

    async def answer(self, text: str) -> Message:
        """Send, and wait for the answer."""
        before = len(self.chat.chat.branch)
        await self.send(text)
        return await self.finished(before + 2)

    async def finished(self, length: int = 0) -> Message:
        """Wait until nothing is being answered; the last message."""
        await self.until(
            lambda: not self.chat.answering.busy and len(self.chat.chat.branch) >= length, "the answer ends"
        )
        await self.pilot.pause()
        return self.chat.chat.branch[-1]

    async def brake(self) -> Brake:
        """Hold the engine."""
        brake = Brake()
        assert isinstance(self.chat.source, Bridge)
        await asyncio.wrap_future(self.chat.source.worker.call(brake.install))
        return brake

    async def again(self, *keys: str) -> Message:
        """Press keys that begin another answer, and wait for it."""
        before = self.chat.chat.branch[-1].id
        await self.press(*keys)
        await self.until(lambda: self.chat.chat.branch[-1].id != before, "another answer begins")
        return await self.finished()

    async def some_text(self, n: int = 1) -> None:
        """Wait until `n` tokens of an answer have come."""
        await self.until(
            lambda: self.chat.answering.turn is not None and self.chat.answering.turn.tokens >= n, "text comes"
        )


Start = Callable[..., contextlib.AbstractAsyncContextManager[Driver]]


@pytest.fixture()
def start(pair: tuple[Path, Path]) -> Start:
    """`async with start(...) as driver:` runs the app; keywords are settings, or ChatOptions with `options`."""

    @contextlib.asynccontextmanager
    async def run(
        size: tuple[int, int] = SIZE, options: ChatOptions | None = None, **overrides: Any
    ) -> AsyncIterator[Driver]:
        chosen = options or ChatOptions(model=pair[0], overrides={**PLAIN, **overrides})
        app = ChatApp(chosen)
        try:
            async with app.run_test(size=size) as pilot:
                yield Driver(app, pilot)
        finally:
            assert app.shut_down()

    return run
