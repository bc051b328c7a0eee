"""The chat on the bundled pair, in a terminal that is not there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.tui.app import ChatApp, ChatOptions
from lcspec.tui.bridge import Bridge
from lcspec.tui.screens.chat import ChatScreen
from lcspec.tui.store import Message
from lcspec.tui.widgets.notice import Notice
from tests.running import Brake

WAIT = 300.0
SIZE = (100, 34)
HOPS = 4  # of messages from widget to widget that one key sets off
# One thread, a fixed seed, no drafting unless a test is about it.
PLAIN = {"threads": 1, "seed": 7, "max_tokens": 40, "drafters": "off"}


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No models of the user's are listed."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(autouse=True)
def _no_idle_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a key the pilot waits until the process takes no time, for a second or two while an answer is written, and
    not long enough where the machine is busy. `Driver.press` waits for messages instead.
    """

    async def one_turn(*_: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr("textual.app.wait_for_idle", one_turn)


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCSPEC_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture(scope="session")
def pair() -> tuple[Path, Path]:
    """The bundled target and draft."""
    return demo_path(DEMO_TARGET), demo_path(DEMO_DRAFT)


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
        """Press keys, each after what the one before it set off."""
        for key in keys:
            await self.pilot.press(key)
            await self.settled()

    async def settled(self) -> None:
        """Wait until every widget has read what was sent to it, and what that made others send, a few times over."""
        for _ in range(HOPS):
            await self.pilot.pause(0)

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
        last = lambda: self.chat.chat.branch[-1]  # noqa: E731
        await self.until(lambda: last().id != before and last().role == "assistant", "another answer begins")
        return await self.finished()

    async def some_text(self, n: int = 1) -> None:
        """Wait until `n` tokens of an answer have come."""
        await self.until(
            lambda: self.chat.answering.turn is not None and self.chat.answering.turn.tokens >= n, "text comes"
        )


Start = Callable[..., contextlib.AbstractAsyncContextManager[Driver]]


@pytest.fixture()
def start(pair: tuple[Path, Path]) -> Start:
    """`async with start(...) as driver:` runs the app; keywords are settings, or ChatOptions with `options`.

    The engine is on a thread, which starts sooner; tests/tui/test_engine_apart.py has it in its own process.
    """

    @contextlib.asynccontextmanager
    async def run(
        size: tuple[int, int] = SIZE, options: ChatOptions | None = None, apart: bool = False, **overrides: Any
    ) -> AsyncIterator[Driver]:
        chosen = options or ChatOptions(model=pair[0], overrides={**PLAIN, **overrides})
        app = ChatApp(replace(chosen, apart=apart))
        try:
            async with app.run_test(size=size) as pilot:
                yield Driver(app, pilot)
        finally:
            assert app.shut_down()

    return run
