"""What goes wrong in real life: disks, files, pastes, terminals and replies that are not as they should be."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual import events
from textual.widgets import Static

from lcspec.answers.text import Piece
from lcspec.tui.app import ChatOptions
from lcspec.tui.screens.chat import ChatScreen
from lcspec.tui.screens.help import HelpScreen
from lcspec.tui.screens.settings import SettingsScreen
from lcspec.tui.store import Store
from lcspec.tui.widgets.answer import AnswerView
from lcspec.tui.widgets.status import StatusLine

from .conftest import PLAIN, Driver, Start

pytestmark = pytest.mark.tui

HELLO = "Hi! I'd like to order a large iced latte, please."


async def shown(driver: Driver, text: str) -> AnswerView:
    """A view of an answer with this text."""
    chat = driver.chat
    user = chat.chat.add_user("Well?")
    stored = chat.chat.begin_answer(parent=user.id)
    stored.append([Piece(text, None)])
    stored.finish("done", stop_reason="stop")
    await chat.open(chat.chat)
    view = chat.transcript.view_of(stored.id)
    assert isinstance(view, AnswerView)
    await driver.until(lambda: view.content_size.width)
    return view


def notices(driver: Driver) -> list[str]:
    return [f"{n.title} {n.message}" for n in driver.app._notifications]


@pytest.fixture()
def full_disk() -> Iterator[list[int]]:
    """Call `.append(bytes)` to let no file grow beyond that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Limit(list[int]):
        def append(self, n: int) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (n, before[1]))

        def clear(self) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    limit = Limit()
    yield limit
    limit.clear()


async def test_a_full_disk_loses_nothing_that_is_on_the_screen(start: Start, full_disk: list[int]) -> None:
    async with start(max_tokens=6) as driver:
        chat = await driver.ready()
        await driver.answer(HELLO)
        assert driver.app.store.flush()
        full_disk.append(1024)
        message = await driver.answer("And a bagel.")
        await driver.until(lambda: any("Not saved" in n for n in notices(driver)))
        view = chat.transcript.view_of(message.id)
        assert view is not None and message.text.strip() and message.text.strip() in view.shown
        full_disk.clear()
        await driver.until(lambda: any("saved again" in n for n in notices(driver)))
        path = driver.app.store.path
    with Store(path) as store:
        latest = store.latest()
        assert latest is not None and store.load(latest.id).branch[-1].text == message.text


async def test_a_model_file_that_is_deleted_meanwhile(start: Start, pair: tuple[Path, Path], tmp_path: Path) -> None:
    model = tmp_path / "mine.gguf"
    shutil.copy(pair[0], model)
    async with start(options=ChatOptions(model=model, overrides={**PLAIN, "max_tokens": 6})) as driver:
        await driver.ready()
        first = await driver.answer(HELLO)
        model.unlink()
        again = await driver.again("ctrl+t")
        assert again.text == first.text
        await driver.chat.switch("ngram")
        assert (await driver.answer("Thanks!")).state == "done"


async def test_a_megabyte_that_is_pasted_becomes_an_attachment(start: Start) -> None:
    async with start(max_tokens=4) as driver:
        chat = await driver.ready()
        driver.app.post_message(events.Paste("all work and no play\r\n" * 45_000))
        await driver.until(lambda: len(chat.attachments.pending) == 1)
        pending = chat.attachments.pending[0]
        assert pending.attachment.name == "pasted.txt" and pending.attachment.text.count("\n") == 45_000
        assert pending.tokens > 100_000 and chat.prompt.text == ""
        driver.app.post_message(events.Paste("x" * 2_000_000))
        await driver.until(lambda: any("too large" in n for n in notices(driver)))
        assert len(chat.attachments.pending) == 1
        await driver.send("What is this?")  # far more than the context: refused, and said why
        await driver.until(lambda: any("context" in str(n.render()) for n in chat.transcript.query(".notice-text")))
        assert not chat.answering.busy and not chat.chat.branch
        await driver.until(lambda: chat.prompt.text == "What is this?" and len(chat.attachments.pending) == 1)
        chat.prompt.text = ""
        driver.app.post_message(events.Paste("short\n"))
        await driver.until(lambda: chat.prompt.text == "short\n")


async def test_files_that_cannot_be_attached(start: Start, tmp_path: Path) -> None:
    binary = tmp_path / "picture.png"
    binary.write_bytes(bytes(range(256)) * 20)
    async with start() as driver:
        chat = await driver.ready()
        for path, why in (
            (binary, "is not text"),
            (tmp_path, "is a directory"),
            (tmp_path / "gone.txt", "there is no file"),
        ):
            assert not await chat.attach([path])
            await driver.until(lambda why=why: any(why in n.lower() for n in notices(driver)))
        assert not chat.attachments.pending
        driver.app.post_message(events.Paste(str(tmp_path)))  # a path that was meant as text
        await driver.until(lambda: chat.prompt.text == str(tmp_path))


async def test_a_terminal_that_shrinks(start: Start) -> None:
    async with start(max_tokens=6, size=(120, 40)) as driver:
        chat = await driver.ready()
        await driver.answer(HELLO)
        await driver.press("f3")
        await driver.until(lambda: chat.query_one("#inspector").display)
        for size in ((40, 10), (20, 6), (200, 60), (40, 10)):
            await driver.pilot.resize_terminal(*size)
            await driver.until(lambda size=size: driver.app.size == size)
            await driver.pilot.pause()
        prompt, status = chat.prompt.region, chat.query_one("#status", Static).region
        assert prompt.bottom <= 10 and status.height == 1 and prompt.height >= 2
        await driver.press("f3", "o", "k")
        assert chat.prompt.text == "ok"
        await driver.until(lambda: chat.transcript.size.height >= 2)
        assert (await driver.again("enter")).state == "done"


async def test_what_opens_in_a_small_terminal_can_be_used(start: Start) -> None:
    """40 x 12: the input stays below the list of commands, and fields and explanations have room."""
    async with start(size=(40, 12)) as driver:
        chat = await driver.ready()
        await driver.press("slash")
        await driver.until(lambda: chat.query_one("#completion").display)
        await driver.settled()
        assert chat.query_one("#completion").region.bottom <= chat.prompt.region.y
        assert chat.prompt.region.bottom <= 12 and chat.prompt.region.height == 3
        await driver.press("escape", "backspace", "ctrl+s")
        await driver.until(lambda: isinstance(driver.app.screen, SettingsScreen))
        await driver.until(lambda: driver.app.screen.query_one("#temperature").region.width >= 20)
        await driver.press("escape", "f1")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))
        help_text = driver.app.screen.query_one("VerticalScroll Static", Static)
        await driver.until(lambda: help_text.size.width)
        explained = [line for line in str(help_text.render()).split("\n") if line.startswith("   ")]
        assert max(map(len, explained)) <= help_text.size.width, "no line is broken twice"


async def test_the_status_line_shows_whole_figures_or_none(start: Start) -> None:
    async with start(max_tokens=30, drafters="auto", size=(70, 30)) as driver:
        chat = await driver.ready()
        await driver.answer(HELLO)
        await driver.press("f2")
        status = chat.query_one(StatusLine)
        for width in (120, 90, 64, 40):
            await driver.pilot.resize_terminal(width, 30)
            await driver.until(lambda width=width: status.content_size.width == width - 2)
            await driver.settled()
            line = str(status.render())
            assert len(line) <= width - 2 and line.startswith("context"), line
            assert ("coloured words" in line) == (width > 80)


UNICODE = (
    "日本語のテキストは二倍の幅です。" * 9
    + "\n\n👩‍💻 🎉 é שלום עולם مرحبا\n\n| 名前 | b |\n|---|---|\n| 日本 | 1 |\n| a | 22 |\n"
)


async def test_wide_letters_stay_within_the_lines(start: Start) -> None:
    async with start(size=(60, 24)) as driver:
        await driver.ready()
        view = await shown(driver, UNICODE)
        width = view.content_size.width
        lines = view.lines(width)
        assert all(cell_len(line.plain) <= width for line in lines)
        joined = "".join(line.plain.strip() for line in lines)
        assert "日本語のテキストは二倍の幅です。" * 9 in joined and "שלום" in joined
        rows = [line.plain for line in lines if "│" in line.plain]
        assert len({cell_len(row[: row.index("│")]) for row in rows}) == 1 and len(rows) == 3


async def test_a_reply_that_is_one_long_line(start: Start) -> None:
    async with start(size=(60, 24)) as driver:
        await driver.ready()
        for text in ("x" * 5000, "`" + "y" * 5000 + "`", "```\n" + "z" * 5000 + "\n```"):
            view = await shown(driver, text)
            width = view.content_size.width
            lines = [line.plain for line in view.lines(width)]
            assert all(cell_len(line) <= width for line in lines)
            letter = text.strip("`\n")[0]
            assert sum(line.count(letter) for line in lines if set(line.strip()) == {letter}) == 5000
            assert view.size.height == len(lines)


async def test_thinking_that_never_ends_is_shown(start: Start) -> None:
    async with start() as driver:
        chat = await driver.ready()
        view = await shown(driver, "<think>\nround and round")
        assert "It ended while it was thinking: 3 words" in view.shown and "round and round" in view.shown
        view.focus()
        await driver.press("t")
        await driver.until(lambda: "round and round" not in view.shown)
        await driver.press("y")
        await driver.until(lambda: "round and round" in driver.app.clipboard)
        assert isinstance(chat, ChatScreen)
