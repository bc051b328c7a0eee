"""Messages, attachments and answers that are too long for the context."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Button

from lcspec.tui.widgets.message import MessageView
from lcspec.tui.widgets.notice import Notice

from .conftest import Driver, Start

pytestmark = pytest.mark.tui

HELLO = "Hi! I'd like to order a large iced latte, please."
LONG = "all work and no play makes a dull chat. " * 60


def told(driver: Driver) -> list[str]:
    return [f"{n.title} {n.message}" for n in driver.app._notifications]


async def too_long(driver: Driver) -> Notice:
    """The notice that says so."""
    await driver.until(lambda: any(n.ways for n in driver.chat.transcript.query(Notice)), "a refusal with ways on")
    return next(n for n in driver.chat.transcript.query(Notice) if n.ways)


async def test_a_message_that_is_too_long_does_not_stay_in_the_conversation(start: Start) -> None:
    async with start(ctx=160, max_tokens=12) as driver:
        chat = await driver.ready()
        await driver.answer(HELLO)
        await driver.send(LONG)
        notice = await too_long(driver)
        assert "This message has" in notice.text and "drop" not in dict(notice.ways)
        assert len(chat.chat.branch) == 2 and chat.prompt.text == LONG, "it is back in the input"
        chat.prompt.text = ""
        message = await driver.answer("Thank you!")  # is not joined to it
        assert message.state == "done" and [m.text for m in chat.chat.branch][2] == "Thank you!"


async def test_the_model_is_loaded_again_with_a_context_that_fits(start: Start) -> None:
    async with start(ctx=160, max_tokens=12) as driver:
        chat = await driver.ready()
        await driver.send(LONG)
        notice = await too_long(driver)
        assert chat.chat.info.title == "", "nor does the title that it gave"
        way = next(name for name, _ in notice.ways if name.startswith("ctx:"))
        notice.post_message(Notice.Chosen(notice, way))
        await driver.until(lambda: chat.loaded.n_ctx > 160, "it is loaded again")
        await driver.until(lambda: driver.app.screen is chat and chat.prompt.has_focus)
        assert chat.prompt.text == LONG and chat.fill.limit == chat.loaded.n_ctx
        before = len(chat.chat.branch)
        await driver.press("enter")
        assert (await driver.finished(before + 2)).state == "done"


async def test_the_ways_on_are_reached_by_keys(start: Start) -> None:
    async with start(ctx=160, max_tokens=4) as driver:
        chat = await driver.ready()
        await driver.answer(HELLO)
        await driver.send(LONG)
        buttons = list((await too_long(driver)).query(Button))
        assert len(buttons) > 1
        await driver.press("shift+tab")
        await driver.until(lambda: buttons[0].has_focus)
        await driver.press("right", "left", "left")
        await driver.until(lambda: buttons[-1].has_focus)
        assert str(buttons[-1].label) == "New conversation"
        await driver.press("shift+tab")  # and on to the messages
        await driver.until(lambda: isinstance(driver.app.focused, MessageView))
        await driver.press("escape", "shift+tab")
        await driver.until(lambda: buttons[0].has_focus)
        await driver.press("left", "enter")
        await driver.until(lambda: not chat.chat.branch)


async def test_an_attachment_larger_than_the_context_is_announced(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(LONG)
    async with start(ctx=160) as driver:
        chat = await driver.ready()
        assert await chat.attach([path]) == 1
        await driver.until(lambda: any("Too large" in t and "the context holds 160" in t for t in told(driver)))
        await driver.until(lambda: "larger than the context" in str(chat.attachments.query(".chip").first().render()))


async def test_a_message_left_without_an_answer_is_dropped_like_any_other_turn(start: Start) -> None:
    async with start(ctx=160, max_tokens=12, on_full="drop") as driver:
        chat = await driver.ready()
        chat.chat.add_user(LONG)  # as earlier versions left them
        await chat.open(chat.chat)
        message = await driver.answer(HELLO)
        assert message.state == "done"
        await driver.until(lambda: any("left out" in n.text for n in chat.transcript.query(Notice)))
