"""The other screens, in the running application."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from textual.widgets import Button, DataTable, Input, OptionList, Static, TextArea

from lcspec.errors import LcspecError
from lcspec.tui.app import ChatApp, ChatOptions
from lcspec.tui.screens.ask_text import AskText
from lcspec.tui.screens.chat import ChatScreen
from lcspec.tui.screens.chats import ChatsScreen
from lcspec.tui.screens.drafters import DraftersScreen
from lcspec.tui.screens.help import HelpScreen
from lcspec.tui.screens.loading import LoadingScreen
from lcspec.tui.screens.picker import PickerScreen
from lcspec.tui.screens.settings import SettingsScreen
from lcspec.tui.settings import SettingsFile
from lcspec.tui.widgets.notice import Notice

from .conftest import PLAIN, Start

pytestmark = pytest.mark.tui

HELLO = "Hi! I'd like to order a large iced latte, please."


async def test_the_first_run_lists_the_bundled_pair_and_loads_it(start: Start) -> None:
    async with start(options=ChatOptions(overrides=PLAIN)) as driver:
        await driver.until(lambda: isinstance(driver.app.screen, PickerScreen))
        table = driver.app.screen.query_one(DataTable)
        await driver.until(lambda: table.row_count >= 2)
        about = driver.app.screen.query_one("#picker-about", Static)
        await driver.until(lambda: "draft model: " in str(about.render()))
        assert "lcspec pull smollm2" in str(about.render()), "how to get something better than a toy"
        await driver.press("enter")
        chat = await driver.ready()
        assert chat.loaded.path.name.startswith("demo-target") and chat.loaded.draft is not None
    async with start(options=ChatOptions(overrides=PLAIN)) as driver:  # the next time it is remembered
        chat = await driver.ready()
        assert chat.loaded.path.name.startswith("demo-target")


async def test_a_model_that_cannot_be_loaded_has_ways_on(start: Start, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model")
    async with start(options=ChatOptions(model=bad, overrides=PLAIN)) as driver:
        await driver.until(lambda: isinstance(driver.app.screen, LoadingScreen) and driver.app.screen.failed)
        error = driver.app.screen.query_one("#loading-error", Static)
        assert error.display and "bad.gguf" in str(error.render())
        button = driver.app.screen.query_one("#loading-ways Button", Button)
        await driver.until(lambda: button.has_focus)
        await driver.press("enter")
        await driver.until(lambda: isinstance(driver.app.screen, PickerScreen))
        await driver.until(lambda: driver.app.screen.query_one(DataTable).row_count >= 2)
        await driver.press("enter")
        await driver.ready()


async def test_a_draft_model_that_does_not_fit_can_be_left_out(
    start: Start, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    options = ChatOptions(model=pair[0], draft=tmp_path / "gone.gguf", overrides={**PLAIN, "drafters": "model"})
    async with start(options=options) as driver:
        await driver.until(lambda: isinstance(driver.app.screen, LoadingScreen) and driver.app.screen.failed)
        plain = next(b for b in driver.app.screen.query(Button) if b.name == "plain")
        plain.press()
        chat = await driver.ready()
        assert chat.loaded.draft is None and chat.choices.now.speculation.drafters == "off"


async def test_another_model_in_the_middle_of_a_conversation(start: Start, pair: tuple[Path, Path]) -> None:
    async with start() as driver:
        chat = await driver.ready()
        await driver.answer(HELLO)
        await driver.press("f5")
        await driver.until(lambda: isinstance(driver.app.screen, PickerScreen))
        await driver.press("escape")
        await driver.until(lambda: driver.app.screen is chat)
        await driver.press("f5")
        await driver.until(lambda: isinstance(driver.app.screen, PickerScreen))
        driver.app.screen.query_one("#picker-filter", Input).value = str(pair[1])
        await driver.press("enter")
        await driver.until(lambda: driver.app.screen is chat and chat.loaded.path == pair[1])
        message = await driver.answer("Thanks!")
        assert message.model == pair[1].stem and len(chat.chat.branch) == 4


async def test_a_model_that_was_tried_in_vain_leaves_the_conversation_its_own(start: Start, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model")
    async with start(max_tokens=6) as driver:
        chat = await driver.ready()
        name = chat.loaded.name
        await driver.press("f5")
        await driver.until(lambda: isinstance(driver.app.screen, PickerScreen))
        driver.app.screen.query_one("#picker-filter", Input).value = str(bad)
        await driver.press("enter")
        await driver.until(lambda: isinstance(driver.app.screen, LoadingScreen) and driver.app.screen.failed)
        await driver.press("escape")
        await driver.until(lambda: isinstance(driver.app.screen, PickerScreen))
        await driver.press("escape")
        await driver.until(lambda: driver.app.screen is chat and chat.source is driver.app.source)
        await driver.until(lambda: any(f"{name} is ready" in n.text for n in chat.transcript.query(Notice)))
        assert (await driver.answer(HELLO)).state == "done"


async def test_conversations_are_listed_searched_renamed_deleted_and_brought_back(start: Start) -> None:
    async with start(max_tokens=6) as driver:
        chat = await driver.ready()
        await driver.answer(HELLO)
        first = chat.chat.id
        await driver.press("ctrl+n")
        await driver.until(lambda: chat.chat.id != first)
        await driver.answer("Can you tell me where the station is?")
        second = chat.chat.id

        def listed() -> list[str]:
            assert isinstance(driver.app.screen, ChatsScreen)
            return [info.id for info, _ in driver.app.screen.rows]

        await driver.press("ctrl+o")
        await driver.until(lambda: isinstance(driver.app.screen, ChatsScreen) and listed() == [second, first])
        screen = driver.app.screen
        assert isinstance(screen, ChatsScreen)
        screen.query_one(Input).focus()
        screen.query_one(Input).value = "LATTE"
        await driver.until(lambda: set(listed()) == {first})
        screen.query_one(Input).value = ""
        await driver.until(lambda: listed() == [second, first])
        await driver.press("ctrl+r")
        await driver.until(lambda: isinstance(driver.app.screen, AskText))
        driver.app.screen.query_one(Input).value = "the way"
        await driver.press("enter")
        await driver.until(lambda: driver.app.screen is screen and screen.rows[0][0].title == "the way")
        await driver.press("ctrl+d")
        await driver.until(lambda: listed() == [first])
        await driver.press("ctrl+z")
        await driver.until(lambda: listed() == [second, first])
        await driver.press("down", "enter")
        await driver.until(lambda: driver.app.screen is chat and chat.chat.id == first)
        assert [m.text for m in chat.chat.branch][0] == HELLO
        await driver.until(lambda: len(chat.transcript.views) == 2)


async def test_deleting_the_open_conversation_leaves_an_empty_one(start: Start) -> None:
    async with start(max_tokens=6) as driver:
        chat = await driver.ready()
        await driver.answer(HELLO)
        gone = chat.chat.id
        await driver.press("ctrl+o")
        await driver.until(lambda: isinstance(driver.app.screen, ChatsScreen))
        await driver.press("ctrl+d", "escape")
        await driver.until(lambda: driver.app.screen is chat and chat.chat.id != gone)
        assert chat.chat.branch == []


async def test_exporting(start: Start, tmp_path: Path) -> None:
    async with start(max_tokens=6) as driver:
        await driver.ready()
        await driver.answer(HELLO)
        for name, inside in (("talk.md", HELLO), ("talk.json", '"assistant"')):
            await driver.press("f8")
            await driver.until(lambda: isinstance(driver.app.screen, AskText))
            driver.app.screen.query_one(Input).value = str(tmp_path / name)
            await driver.press("enter")
            await driver.until(lambda name=name: (tmp_path / name).exists())
            assert inside in (tmp_path / name).read_text(encoding="utf-8")


async def test_settings_are_checked_and_saved(start: Start, pair: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "chat.toml"
    async with start(options=ChatOptions(model=pair[0], overrides=PLAIN, settings=path)) as driver:
        chat = await driver.ready()
        await driver.press("ctrl+s")
        await driver.until(lambda: isinstance(driver.app.screen, SettingsScreen))
        screen = driver.app.screen
        screen.query_one("#temperature", Input).value = "-3"
        await driver.press("ctrl+s")
        error = screen.query_one("#settings-error", Static)
        await driver.until(lambda: error.display)
        assert "temperature" in str(error.render()).lower()
        screen.query_one("#temperature", Input).value = "0.3"
        await driver.press("ctrl+s")
        await driver.until(lambda: driver.app.screen is chat)
        assert chat.choices.now.sampling.temperature == 0.3
        saved = SettingsFile(path).settings
        assert (
            saved.sampling.temperature == 0.3 and saved.sampling.seed is None and saved.speculation.drafters == "auto"
        )


async def test_the_system_prompt_belongs_to_the_conversation(start: Start) -> None:
    async with start(max_tokens=6) as driver:
        chat = await driver.ready()
        before = chat.fill.used
        await driver.press("f9")
        await driver.until(lambda: isinstance(driver.app.screen, AskText))
        driver.app.screen.query_one(TextArea).text = "You sell coffee and nothing else."
        await driver.press("ctrl+s")
        await driver.until(lambda: driver.app.screen is chat and chat.chat.info.system)
        await driver.until(lambda: chat.fill.used > before)


async def test_drafters_are_chosen_from_a_list(start: Start) -> None:
    async with start() as driver:
        chat = await driver.ready()
        await driver.press("f4")
        await driver.until(lambda: isinstance(driver.app.screen, DraftersScreen))
        screen = driver.app.screen
        assert isinstance(screen, DraftersScreen)
        assert "model" in screen.choices and "prediction" not in screen.choices
        screen.query_one(OptionList).highlighted = screen.choices.index("ngram")
        await driver.press("enter")
        await driver.until(lambda: chat.choices.now.speculation.drafters == "ngram")


async def test_help_begins_with_where_the_user_is(start: Start) -> None:
    async with start(max_tokens=6) as driver:
        chat = await driver.ready()
        await driver.press("f1")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))
        assert str(driver.app.screen.query_one(Static).render()).startswith("In the input")
        await driver.press("escape")
        await driver.until(lambda: driver.app.screen is chat)
        await driver.answer(HELLO)
        await driver.press("shift+tab", "f1")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))
        assert str(driver.app.screen.query_one(Static).render()).startswith("On a message")
        await driver.press("escape")
        await driver.until(lambda: driver.app.screen is chat)


async def test_an_action_by_name(start: Start) -> None:
    async with start() as driver:
        chat = await driver.ready()
        await driver.press("ctrl+p")
        await driver.until(lambda: not isinstance(driver.app.screen, ChatScreen))
        for letter in "inspector":
            await driver.press(letter)
        await driver.until(lambda: driver.app.screen.query(OptionList).first().option_count > 0)
        await driver.press("down", "enter")
        await driver.until(lambda: driver.app.screen is chat and chat.query_one("#inspector").display)


async def test_no_colour(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with start(drafters="ngram,model", max_tokens=60) as driver:
        chat = await driver.ready()
        assert driver.app.no_color
        message = await driver.answer("Write a python function to find the maximum of a list of numbers.")
        await driver.press("f2")
        lens = next(v for v in chat.transcript.views if v.message.id == message.id)
        await driver.until(lambda: "```" in lens.shown)  # type: ignore[attr-defined]
        strips = [lens.render_line(y) for y in range(lens.size.height)]
        styles = [segment.style for strip in strips for segment in strip if segment.style is not None]
        assert any(style.underline or style.bold or style.reverse for style in styles)


def test_without_a_terminal_one_line_says_what_to_do() -> None:
    command = [sys.executable, "-c", "from lcspec.cli import main; main()", "chat"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("lcspec: the chat needs a terminal") and done.stderr.count("\n") == 1


def test_bad_options_are_refused_before_a_screen_is_opened(tmp_path: Path) -> None:
    with pytest.raises(LcspecError, match="top_p"):
        ChatApp(ChatOptions(overrides={"top_p": 3.0}, store=tmp_path / "chats.db"))
