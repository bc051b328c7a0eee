"""The chat as it is for users: with its engine in a process of its own, which may die."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from textual.widgets import Static

from lcspec.config import DraftFiles, ModelOptions
from lcspec.engine_process.parent import EngineProcess
from lcspec.tui.app import ChatApp, ChatOptions
from lcspec.tui.bridge import Bridge
from lcspec.tui.screens.chat import ChatScreen
from lcspec.tui.widgets.notice import Notice
from tests.engine_faults import unhurried
from tests.tiny_gguf import write_gpt2

from .conftest import PLAIN, Start

pytestmark = [pytest.mark.tui, pytest.mark.slow]

LONG = "Write a python function to find the maximum of a list of numbers."


def engine_of(chat: ChatScreen) -> EngineProcess:
    assert isinstance(chat.source, Bridge) and isinstance(chat.source.worker, EngineProcess)
    return chat.source.worker


def end(engine: EngineProcess, how: signal.Signals) -> None:
    pid = engine.life.pid
    assert pid is not None and pid != os.getpid()
    os.kill(pid, how)


async def test_an_engine_that_dies_takes_nothing_with_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    async with start(apart=True, max_tokens=250, drafters="ngram,model") as driver:
        chat = await driver.ready()
        whole = await driver.answer(LONG)
        assert whole.state == "done" and whole.spans and not chat.transcript.query(Notice)
        await driver.press("f3")
        totals = chat.query_one("#inspector-totals", Static)
        await driver.until(lambda: "Accepted by depth" in str(totals.render()), "the inspector has steps")
        before = chat.chat.branch[-1].id
        await asyncio.wrap_future(engine_of(chat).call(partial(unhurried, seconds=0.03)))
        await driver.press("ctrl+t")  # the same again
        await driver.until(lambda: chat.chat.branch[-1].id != before and chat.answering.busy)
        await driver.some_text(5)
        end(engine_of(chat), signal.SIGABRT)
        await chat.switch("ngram")  # waits for the next process
        again = await driver.finished(2)
        assert again.id != whole.id and (again.text, again.tokens) == (whole.text, whole.tokens)
        await driver.until(lambda: any("started again" in n.text for n in chat.transcript.query(Notice)))
        assert engine_of(chat).life.restarts == 1


async def test_one_that_dies_while_nobody_asks_is_not_mentioned(start: Start) -> None:
    async with start(apart=True) as driver:
        chat = await driver.ready()
        first = await driver.answer(LONG)
        end(engine_of(chat), signal.SIGKILL)
        await driver.until(lambda: engine_of(chat).life.restarts == 1)
        again = await driver.again("ctrl+t")
        assert again.text == first.text and not chat.transcript.query(Notice)


async def test_what_did_not_go_as_asked_for_is_said(start: Start, tmp_path: Path) -> None:
    write_gpt2(tmp_path / "old.gguf", n_ctx=128)
    chosen = ChatOptions(model=tmp_path / "old.gguf", overrides={**PLAIN, "ctx": 1024})
    async with start(apart=True, options=chosen) as driver:
        chat = await driver.ready()
        await driver.until(lambda: any("holds 128 tokens" in n.text for n in chat.transcript.query(Notice)))


def test_who_leaves_while_it_loads_does_not_wait(pair: tuple[Path, Path]) -> None:
    bridge = Bridge(ModelOptions(pair[0], threads=1), DraftFiles())
    while (pid := bridge.worker.life.pid) is None:
        time.sleep(0.01)
    os.kill(pid, signal.SIGSTOP)  # so it never ends

    async def leave() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(bridge.ready(), 0.2)

    left = threading.Thread(target=lambda: asyncio.run(leave()), daemon=True)
    left.start()
    left.join(100)
    assert not left.is_alive() and bridge.close(timeout=0)


async def test_loading_can_be_given_up(start: Start, pair: tuple[Path, Path]) -> None:
    async with start(apart=True, options=ChatOptions(model=pair[0], overrides=PLAIN)) as driver:
        assert isinstance(driver.app, ChatApp)
        await driver.press("escape")
        await driver.until(lambda: type(driver.app.screen).__name__ in ("PickerScreen", "Picker"), "the picker opens")
