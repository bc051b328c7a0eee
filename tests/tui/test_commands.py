"""Commands, completion, continuing and editing answers, Ctrl+C: in the running application."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from textual import events
from textual.widgets import DataTable, Input, OptionList, Static

from lcspec.answers.text import Piece
from lcspec.tui.app import ChatOptions
from lcspec.tui.screens.chats import ChatsScreen
from lcspec.tui.screens.drafters import DraftersScreen
from lcspec.tui.screens.help import HelpScreen
from lcspec.tui.screens.picker import PickerScreen
from lcspec.tui.screens.settings import SettingsScreen
from lcspec.tui.widgets.answer import AnswerView
from lcspec.tui.widgets.completion import CompletionList

from .conftest import PLAIN, Driver, Start

pytestmark = pytest.mark.tui

HELLO = "Hi! I'd like to order a large iced latte, please."
CODE = "Write a python function to find the maximum of a list of numbers."


def told(driver: Driver) -> list[str]:
    return [f"{n.title} {n.message}" for n in driver.app._notifications]


async def typed(driver: Driver, text: str) -> None:
    """Type a line and press Enter."""
    driver.chat.prompt.give_back(text)
    await driver.press("enter")


async def test_unknown_commands_never_reach_the_model(start: Start) -> None:
    async with start() as driver:
        chat = await driver.ready()
        await typed(driver, "/frobnicate now")
        await driver.until(lambda: any("no command /frobnicate" in t for t in told(driver)))
        assert not chat.chat.branch and chat.prompt.text == "/frobnicate now"


async def test_commands(start: Start, tmp_path: Path) -> None:
    async with start(max_tokens=6) as driver:
        chat = await driver.ready()
        await typed(driver, "/system You sell coffee.")
        await driver.until(lambda: chat.chat.info.system == "You sell coffee.")
        await typed(driver, "/set temperature 0.3")
        await driver.until(lambda: chat.choices.now.sampling.temperature == 0.3)
        await typed(driver, "/set temperature 7")
        await driver.until(lambda: any("from 0 to 2" in t for t in told(driver)))
        chat.prompt.text = ""
        await driver.answer("//help me")
        assert chat.chat.branch[0].text == "/help me"
        await typed(driver, f"/save {tmp_path / 'talk.md'}")
        await driver.until(lambda: (tmp_path / "talk.md").exists())
        await typed(driver, "/help")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))
        assert "/system" in str(driver.app.screen.query_one(Static).render())
        await driver.press("escape")
        await driver.until(lambda: driver.app.screen is chat)
        before = chat.chat.id
        await typed(driver, "/clear")
        await driver.until(lambda: chat.chat.id != before and not chat.chat.branch)
        (tmp_path / "talk.gguf").write_text("not a model")
        await typed(driver, f"/model {tmp_path / 'talk.gguf'}")
        await driver.until(lambda: any("is not a GGUF file" in t for t in told(driver)))
        assert driver.app.screen is chat and chat.source.alive, "the model that is loaded stays"
        await typed(driver, "/model")
        await driver.until(lambda: isinstance(driver.app.screen, PickerScreen))
        await driver.press("f1")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))
        assert "draft model" in str(driver.app.screen.query_one(Static).render())


async def test_commands_and_files_are_completed_and_attached(start: Start, tmp_path: Path) -> None:
    (tmp_path / "shopping list.txt").write_text("milk")
    async with start(max_tokens=6) as driver:
        chat = await driver.ready()
        listed = chat.query_one(CompletionList)
        await driver.press("slash", "s")
        await driver.until(
            lambda: listed.display and [c.label for c in listed.completion.candidates][0] == "/system [TEXT]"
        )
        await driver.press("down", "tab")
        assert chat.prompt.text == "/set "
        await driver.until(lambda: listed.completion.kind == "setting")
        await driver.press("escape")
        assert not listed.display and chat.prompt.text == "/set "
        chat.prompt.give_back(f"What is in @{tmp_path}/shop")
        await driver.until(lambda: listed.display)
        await driver.press("tab")
        assert chat.prompt.text.endswith(r"shopping\ list.txt")
        await driver.press("enter")
        await driver.finished(2)
        assert [a.text for a in chat.chat.branch[0].attachments] == ["milk"]


async def test_keys_that_come_faster_than_the_list_are_not_lost(start: Start) -> None:
    async with start(max_tokens=6) as driver:
        chat = await driver.ready()
        listed = chat.query_one(CompletionList)
        await driver.press("slash")
        await driver.until(lambda: listed.open)
        for character in "set temperature 0.3":  # all of it waits in the queue before the list is asked
            chat.prompt.post_message(events.Key("space" if character == " " else character, character))
        chat.prompt.post_message(events.Key("enter", None))
        await driver.until(lambda: chat.choices.now.sampling.temperature == 0.3)
        assert driver.app.screen is chat and chat.prompt.text == "", "/help, which was listed, did not take its place"


async def test_a_cut_answer_goes_on_where_it_ended(start: Start) -> None:
    async with start(max_tokens=60, temperature=0.0, exact=True) as driver:
        chat = await driver.ready()
        whole = await driver.answer(CODE)
        await typed(driver, "/clear")
        await driver.until(lambda: not chat.chat.branch)
        chat.choices.hold(max_tokens=20)
        half = await driver.answer(CODE)
        assert half.stop_reason == "length" and whole.text.startswith(half.text)
        chat.choices.hold(max_tokens=40)
        await typed(driver, "/continue")
        await driver.until(lambda: chat.answering.busy or len(chat.chat.branch[-1].text) > len(half.text))
        message = await driver.finished(2)
        assert message.id == half.id and message.text == whole.text and message.tokens == whole.tokens
        view = chat.transcript.view_of(message.id)
        assert isinstance(view, AnswerView) and view.text == message.text and not view.streaming
        await driver.until(lambda: chat.fill.used > (whole.tokens or 0))


async def test_the_model_s_answer_can_be_edited_and_continued(start: Start) -> None:
    async with start(max_tokens=8) as driver:
        chat = await driver.ready()
        first = await driver.answer(HELLO)
        await driver.press("shift+tab", "e")
        await driver.until(lambda: chat.editing is not None and chat.prompt.text == first.text)
        chat.prompt.give_back("Sure, a latte")
        await driver.press("enter")
        await driver.until(lambda: chat.chat.branch[-1].text == "Sure, a latte")
        edited = chat.chat.branch[-1]
        assert edited.stop_reason == "edited" and chat.chat.tree.place(edited.id) == (2, 2) and not chat.answering.busy
        await driver.press("shift+tab", "g")
        await driver.until(lambda: len(chat.chat.branch[-1].text) > len(edited.text))
        message = await driver.finished(2)
        assert message.id == edited.id and message.text.startswith("Sure, a latte")


async def test_ctrl_c_stops_an_answer_and_then_offers_to_quit(start: Start) -> None:
    async with start(max_tokens=400) as driver:
        chat = await driver.ready()
        brake = await driver.brake()
        await driver.send(CODE)
        brake.allow(6)
        await driver.some_text(3)
        await driver.press("ctrl+c")
        brake.release()
        message = await driver.finished(2)
        assert message.stop_reason == "cancelled" and driver.app.is_running
        await driver.press("ctrl+c")
        await driver.until(lambda: any("again quits; everything is saved" in t for t in told(driver)))
        assert driver.app.is_running and chat.is_mounted
        chat._interrupted = 0.0
        chat.prompt.give_back("not sent yet")
        await driver.press("ctrl+c")
        await driver.until(lambda: any("what is in the input is not" in t for t in told(driver)))
        await driver.press("ctrl+c")
        await driver.until(lambda: driver.app._exit)
        assert driver.app.return_value == 0


async def test_regenerating_draws_a_new_seed_and_repeating_keeps_it(start: Start) -> None:
    async with start(temperature=1.0, max_tokens=12) as driver:
        await driver.ready()
        first = await driver.answer(HELLO)
        other = await driver.again("ctrl+r")
        assert other.seed != first.seed
        same = await driver.again("ctrl+t")
        assert same.seed == other.seed and same.text == other.text


async def test_a_search_hit_opens_at_the_message_on_its_branch(start: Start) -> None:
    async with start(max_tokens=6) as driver:
        chat = await driver.ready()
        await driver.answer("Where is the old lighthouse?")
        hit = chat.chat.branch[0]
        chat.set_editing(hit)
        chat.prompt.give_back("Something else.")
        await driver.again("enter")  # another branch, which is the newest
        for i in range(20):
            chat.chat.add_user(f"Question {i}")
            chat.chat.begin_answer().finish("done", stop_reason="stop")
        await chat.open(chat.chat)
        await driver.press("ctrl+o")
        await driver.until(lambda: isinstance(driver.app.screen, ChatsScreen))
        for letter in "lighthouse":  # what is typed is searched for, without a key before
            await driver.press(letter)
        screen = driver.app.screen
        assert isinstance(screen, ChatsScreen) and screen.query_one(Input).value == "lighthouse"
        await driver.until(
            lambda: [m for _, m in screen.rows] and all(m == hit.id or m is None for _, m in screen.rows)
        )
        at = [m for _, m in screen.rows].index(hit.id)
        screen.query_one(OptionList).highlighted = at
        await driver.press("enter")
        await driver.until(lambda: driver.app.screen is chat and hit.id in [m.id for m in chat.chat.branch])
        await driver.until(lambda: (v := chat.transcript.view_of(hit.id)) is not None and v.has_focus)


async def test_pinned_conversations_stand_first_and_are_not_what_is_resumed(start: Start) -> None:
    async with start(max_tokens=4) as driver:
        chat = await driver.ready()
        await driver.answer(HELLO)
        first = chat.chat.id
        await driver.press("ctrl+n")
        await driver.until(lambda: chat.chat.id != first)
        await driver.answer("Can you tell me where the station is?")
        await driver.press("ctrl+o")
        await driver.until(lambda: isinstance(driver.app.screen, ChatsScreen) and len(driver.app.screen.rows) == 2)
        screen = driver.app.screen
        assert isinstance(screen, ChatsScreen)
        await driver.press("down", "ctrl+k")
        await driver.until(lambda: [info.id for info, _ in screen.rows] == [first, chat.chat.id])
        assert screen.rows[0][0].pinned
        latest = driver.app.store.latest()
        assert latest is not None and latest.id == chat.chat.id


async def test_only_drafters_that_can_work_are_offered(start: Start) -> None:
    async with start() as driver:
        await driver.ready()
        await driver.press("f4")
        await driver.until(lambda: isinstance(driver.app.screen, DraftersScreen))
        assert isinstance(driver.app.screen, DraftersScreen)
        assert not {"model2", "model3", "model4"} & set(driver.app.screen.choices)


async def test_settings_show_their_focus_refuse_noise_and_say_what_was_saved(start: Start) -> None:
    async with start() as driver:
        chat = await driver.ready()
        await driver.press("ctrl+s")
        await driver.until(lambda: isinstance(driver.app.screen, SettingsScreen))
        screen = driver.app.screen
        await driver.until(lambda: screen.focused is not None)
        screen.query_one("#temperature", Input).focus()
        await driver.pilot.pause()
        focused, other = screen.query_one("#temperature", Input), screen.query_one("#top_k", Input)
        assert focused.styles.background != other.styles.background
        focused.value = "7"
        await driver.press("ctrl+s")
        error = screen.query_one("#settings-error", Static)
        await driver.until(lambda: error.display and "0 to 2" in str(error.render()))
        focused.value = "0.4"
        await driver.press("ctrl+s")
        await driver.until(lambda: driver.app.screen is chat)
        await driver.until(lambda: any("Saved: temperature 0.4" in t for t in told(driver)))


async def test_the_picker_filters_what_it_shows_and_completes_paths(
    start: Start, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "other.gguf").symlink_to(pair[0])
    async with start() as driver:
        await driver.ready()
        await driver.press("f5")
        await driver.until(lambda: isinstance(driver.app.screen, PickerScreen) and driver.app.screen._searched)
        screen = driver.app.screen
        assert isinstance(screen, PickerScreen)
        for letter in "draft":
            await driver.press(letter)
        await driver.until(lambda: screen.current is not None and screen.current.path.name == pair[1].name)
        await driver.press("escape")
        await driver.until(lambda: screen.filter.value == "")
        screen.filter.value = f"{tmp_path}/oth"
        await driver.pilot.pause()
        await driver.press("tab")
        assert screen.filter.value == f"{tmp_path}/other.gguf"
        await driver.press("enter")
        await driver.until(
            lambda: driver.app.chat_screen is not None and driver.app.chat_screen.loaded.path.name == "other.gguf"
        )


async def test_the_picker_begins_with_what_is_used_and_ends_with_the_toys(
    start: Start, pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, name in (("elsewhere", "mine.gguf"), ("here", "a.gguf")):
        (tmp_path / folder).mkdir()
        shutil.copy(pair[1], tmp_path / folder / name)
    monkeypatch.chdir(tmp_path / "here")
    options = ChatOptions(model=tmp_path / "elsewhere" / "mine.gguf", overrides=PLAIN)
    async with start(options=options) as driver:
        await driver.ready()
        await driver.press("f5")
        await driver.until(lambda: isinstance(driver.app.screen, PickerScreen) and driver.app.screen._searched)
        screen = driver.app.screen
        assert isinstance(screen, PickerScreen)
        assert [m.path.name for m in screen.models.values()] == ["mine.gguf", "a.gguf", pair[0].name, pair[1].name]
        assert screen.current is not None and screen.current.path.name == "mine.gguf"
        assert "used last" in str(screen.query_one(DataTable).get_row_at(0)[0])


async def test_a_code_block_is_copied_by_a_click_on_its_heading(start: Start) -> None:
    async with start() as driver:
        chat = await driver.ready()
        chat.chat.add_user("Well?")
        stored = chat.chat.begin_answer()
        stored.append([Piece("Here:\n\n```python\nhello_world()\n```\n", None)])
        stored.finish("done", stop_reason="stop")
        await chat.open(chat.chat)
        view = chat.transcript.view_of(stored.id)
        assert isinstance(view, AnswerView)
        await driver.until(lambda: view.content_size.width and view.region.height)
        lines = view.lines(view.content_size.width)
        y = next(i for i, line in enumerate(lines) if line.plain.rstrip().endswith("copy"))
        x = lines[y].plain.rindex("copy") + 1
        assert not any("underline" in str(span.style) for line in lines for span in line.spans)
        links = [span.end for span in lines[y].spans if getattr(span.style, "meta", None)]
        assert links == [len(lines[y].plain.rstrip())], "blanks behind it are no part of the link, which is underlined"
        offset = view.content_region.offset - view.region.offset
        await driver.pilot.click(view, offset=(x + offset.x, y + offset.y))
        await driver.until(lambda: driver.app.clipboard == "hello_world()\n")
