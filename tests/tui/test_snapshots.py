"""Pictures of every screen. What differs between machines (times, paths, speeds) is kept out of them.

After a wanted change: `pytest tests/tui/test_snapshots.py --snapshot-update`, and look at the pictures.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, TextArea

from lcspec.answers.text import Piece
from lcspec.engine.events import Step, StepStats
from lcspec.planner.base import Plan
from lcspec.spec.token_tree import TokenTree
from lcspec.tui.app import ChatApp, ChatOptions
from lcspec.tui.screens.chat import DARK, LIGHT, ChatScreen
from lcspec.tui.screens.loading import LoadingScreen
from lcspec.tui.screens.picker import PickerScreen
from lcspec.tui.speculation import SpeculationLog
from lcspec.tui.widgets.answer import AnswerView
from lcspec.tui.widgets.notice import Notice

from .conftest import PLAIN, Driver

pytestmark = pytest.mark.tui

Scene = Callable[[Driver], Awaitable[None]]
Compare = Callable[..., bool]
SMALL, LARGE = (80, 24), (120, 40)
CODE = """Here is one:

```python
def largest(numbers):
    return max(numbers)
```

- it needs **one** number at least
- `max` raises *ValueError* otherwise

| numbers | largest |
|---|---|
| 1, 2, 3 | 3 |
"""


@pytest.fixture()
def compare(
    snap_compare: Compare, pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., bool]]:
    """`compare(scene, size, theme)`: run the scene in a fresh application, and compare the picture."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lcspec.tui.screens.chats.when", lambda seconds, now: "12:00")
    # Cursors do not blink. (Setting `cursor_blink` when a scene is ready comes too late: Textual keeps drawn lines.)
    monkeypatch.setattr(TextArea, "_toggle_cursor_blink_visible", lambda area: None)
    monkeypatch.setattr(Input, "_toggle_cursor", lambda line: None)
    apps: list[ChatApp] = []

    def run(scene: Scene, size: tuple[int, int] = SMALL, theme: str = DARK, **options: Any) -> bool:
        chosen = {"model": pair[0], "overrides": {**PLAIN, "theme": theme}, "settings": Path("chat.toml"), **options}
        app = ChatApp(ChatOptions(**chosen, apart=False))
        apps.append(app)

        async def before(pilot: Pilot[Any]) -> None:
            driver = Driver(app, pilot)
            await scene(driver)
            app.clear_notifications()
            await pilot.pause()

        return snap_compare(app, terminal_size=size, run_before=before)

    yield run
    for app in apps:
        assert app.shut_down()


async def talk(driver: Driver) -> ChatScreen:
    """A conversation that was not generated, so that its text is the same everywhere."""
    chat = await driver.ready()
    chat.loaded = replace(chat.loaded, exact=True)  # else this machine decides
    for question, answer, state in (
        ("How do I find the largest number in a list?", CODE, "stop"),
        ("And <b>why</b>?", "<think>\nThey ask why.\n</think>\n\nBecause `max` [compares] them.", "cancelled"),
    ):
        user = chat.chat.add_user(question)
        stored = chat.chat.begin_answer(parent=user.id, model="demo-target-q8_0.gguf", seed=7)
        stored.append([Piece(answer[:8], None), Piece(answer[8:30], "ngram"), Piece(answer[30:], "model")], 20)
        stored.finish("stopped" if state == "cancelled" else "done", stop_reason=state, tokens=20)
    second = chat.chat.begin_answer(parent=user.id, model="demo-target-q8_0.gguf", seed=8)
    second.append([Piece("It compares them, two at a time.", None)], 9)
    second.finish("done", stop_reason="length", tokens=9)
    await chat.open(chat.chat)
    await driver.until(lambda: chat.fill.used > 0)
    await driver.until(lambda: len(chat.transcript.views) == 4)
    return chat


def step() -> Step:
    """A step with a known tree and known times."""
    tree = TokenTree.root(300)
    a = tree.add(0, 301, 0.9, source=0b11)
    b = tree.add(a, 302, 0.7, source=0b10)
    tree.add(b, 303, 0.4, source=0b10)
    tree.add(0, 304, 0.2, source=0b01)
    stats = StepStats(1, 5, tree, 2, (301, 302, 305), 0.0123, 0.0021, 0.0004, Plan(width=8, tokens=2.4, seconds=0.012))
    return Step(stats, ("ngram", "model"), 0.009, 0.012)


async def conversation(driver: Driver) -> None:
    await talk(driver)


async def lens(driver: Driver) -> None:
    chat = await talk(driver)
    await driver.press("f2")
    chat.query_one("#status").display = True
    await driver.until(lambda: all(v.lens for v in chat.transcript.query(AnswerView)))


async def inspector(driver: Driver) -> None:
    chat = await talk(driver)
    chat.figures = SpeculationLog()
    for _ in range(3):
        chat.figures.add(step())
    await driver.press("f3")
    await driver.until(lambda: "Last steps" in str(chat.query_one("#inspector-steps").render()))  # type: ignore[arg-type]


async def message(driver: Driver) -> None:
    chat = await talk(driver)
    await driver.press("shift+tab")
    await driver.until(lambda: chat.transcript.views[-1].has_focus)


async def thinking(driver: Driver) -> None:
    await talk(driver)
    await driver.press("shift+tab", "left", "t")
    await driver.pilot.pause()


async def editing(driver: Driver) -> None:
    chat = await talk(driver)
    (Path("notes.txt")).write_text("one\ntwo\n", encoding="utf-8")
    await chat.attach([Path("notes.txt").resolve()])
    await driver.press("shift+tab", "e")
    await driver.until(lambda: chat.editing is not None and chat.prompt.has_focus)
    await driver.pilot.pause()
    await chat.attach([Path("notes.txt").resolve()])
    await driver.until(lambda: chat.transcript.is_vertical_scroll_end)  # the attachment takes a line


async def trouble(driver: Driver) -> None:
    chat = await talk(driver)
    await chat.transcript.say(Notice("The context is full, so the answer ended here.", "warning", (("new", "New"),)))
    await chat.transcript.say(Notice("the engine stopped: out of memory", "error", (("again", "Try again"),)))


async def empty(driver: Driver) -> None:
    await driver.ready()


def pressing(*keys: str) -> Scene:
    """The conversation, then keys that open something."""

    async def scene(driver: Driver) -> None:
        chat = await talk(driver)
        await driver.press(*keys)
        await driver.until(lambda: driver.app.screen is not chat)
        await driver.pilot.pause()

    return scene


SCENES: dict[str, tuple[Scene, tuple[int, int], str]] = {
    "empty": (empty, SMALL, DARK),
    "conversation": (conversation, LARGE, DARK),
    "conversation-light": (conversation, LARGE, LIGHT),
    "conversation-small": (conversation, SMALL, DARK),
    "lens": (lens, LARGE, DARK),
    "lens-light": (lens, LARGE, LIGHT),
    "inspector": (inspector, LARGE, DARK),
    "inspector-small": (inspector, SMALL, LIGHT),
    "message": (message, SMALL, DARK),
    "thinking": (thinking, SMALL, DARK),
    "editing": (editing, SMALL, LIGHT),
    "trouble": (trouble, LARGE, DARK),
    "help": (pressing("f1"), LARGE, DARK),
    "help-small": (pressing("f1"), SMALL, LIGHT),
    "drafters": (pressing("f4"), SMALL, DARK),
    "settings": (pressing("ctrl+s"), SMALL, DARK),
    "settings-light": (pressing("ctrl+s"), LARGE, LIGHT),
    "system": (pressing("f9"), SMALL, DARK),
    "chats": (pressing("ctrl+o"), SMALL, LIGHT),
}


@pytest.mark.parametrize("name", SCENES)
def test_screen(compare: Callable[..., bool], name: str) -> None:
    scene, size, theme = SCENES[name]
    assert compare(scene, size, theme)


def test_conversation_without_colour(compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert compare(lens, LARGE)


def test_picker(compare: Callable[..., bool]) -> None:
    async def scene(driver: Driver) -> None:
        await driver.until(lambda: isinstance(driver.app.screen, PickerScreen))
        screen = driver.app.screen
        await driver.until(lambda: screen.query_one(DataTable).row_count >= 2)
        await driver.until(lambda: "draft model: " in str(screen.query_one("#picker-about").render()))  # type: ignore[arg-type]

    assert compare(scene, SMALL, model=None)


def test_loading_that_fails(compare: Callable[..., bool]) -> None:
    async def scene(driver: Driver) -> None:
        await driver.until(lambda: isinstance(driver.app.screen, LoadingScreen) and driver.app.screen.failed)
        await driver.pilot.pause()

    Path("bad.gguf").write_bytes(b"not a model")
    assert os.path.exists("bad.gguf")
    assert compare(scene, SMALL, model=Path("bad.gguf"))
