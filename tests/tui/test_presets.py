"""Presets made, chosen, renamed and deleted in the application, and the file they are kept in."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input, OptionList, Static

from lcspec.errors import LcspecError
from lcspec.tui.app import ChatOptions
from lcspec.tui.choices import Choices
from lcspec.tui.screens.ask_text import AskText
from lcspec.tui.screens.presets import PresetsScreen
from lcspec.tui.settings import SettingsFile

from .conftest import PLAIN, Start

pytestmark = pytest.mark.tui

FILE = """# mine
lens = false

[presets.coding] # short answers
# cold
temperature = 0.2
system = \"\"\"
[not a header]
Answer with code.\"\"\"

# what follows is about the engine
[model]
ctx = 512 # enough
"""


def choices(path: Path, text: str = FILE) -> Choices:
    path.write_text(text, encoding="utf-8")
    return Choices(SettingsFile(path))


def test_renaming_and_deleting_leave_every_comment_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "chat.toml"
    held = choices(path, FILE.replace("lens = false", 'lens = false\npreset = "coding"'))
    held.rename_preset("coding", "my code")
    text = path.read_text(encoding="utf-8")
    assert '[presets."my code"] # short answers\n# cold\ntemperature = 0.2' in text
    assert SettingsFile(path).settings.preset == "my code" and held.now.sampling.temperature == 0.2
    held.file.delete_preset("my code")
    text = path.read_text(encoding="utf-8")
    assert "# what follows is about the engine\n[model]\nctx = 512 # enough" in text and "# mine" in text
    assert "my code" not in text
    read = SettingsFile(path)
    assert not read.settings.presets and read.settings.preset is None and not read.problems


@pytest.mark.parametrize(
    "text",
    [
        "presets.coding.temperature = 0.2 # dotted\npresets.other.temperature = 1.0\n",
        "[presets]\ncoding = { temperature = 0.2 }\nother = { temperature = 1.0 }\n",
        "[presets.'coding']\ntemperature = 0.2\n[presets.other]\ntemperature = 1.0\n",
    ],
)
def test_presets_are_found_however_they_are_written(tmp_path: Path, text: str) -> None:
    path = tmp_path / "chat.toml"
    held = choices(path, text)
    held.rename_preset("coding", "code")
    assert {n: p.sampling["temperature"] for n, p in SettingsFile(path).settings.presets.items()} == {
        "code": 0.2,
        "other": 1.0,
    }
    held.file.delete_preset("code")
    assert list(SettingsFile(path).settings.presets) == ["other"]


def test_names_that_will_not_do(tmp_path: Path) -> None:
    held = choices(tmp_path / "chat.toml", "[presets.a]\ntop_k = 3\n[presets.b]\ntop_k = 4\n")
    for name in ("", "  ", "two\nlines", "x" * 41):
        with pytest.raises(LcspecError, match="needs a name"):
            held.save_preset(name, "")
    with pytest.raises(LcspecError, match="already"):
        held.rename_preset("a", "b")
    assert list(held.now.presets) == ["a", "b"]


def test_a_preset_says_all_that_is_in_force_and_survives_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "chat.toml"
    held = choices(path)
    held.hold(temperature=1.5, drafters="ngram", typical_p=0.9)
    held.save_preset("wild", "Be brief.")
    held.save({"preset": None})
    assert held.now.sampling.temperature == 0.8 and held.now.speculation.drafters == "auto"
    held.save({"top_k": 3})
    held.save({"preset": "wild"})
    again = Choices(SettingsFile(path)).now
    assert (again.sampling.temperature, again.sampling.typical_p, again.sampling.top_k) == (1.5, 0.9, 40)
    assert again.speculation.drafters == "ngram" and again.system == "Be brief."


async def test_a_preset_is_saved_used_renamed_deleted_and_brought_back(
    start: Start, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "chat.toml"
    path.write_text(FILE, encoding="utf-8")
    async with start(options=ChatOptions(model=pair[0], overrides=PLAIN, settings=path)) as driver:
        chat = await driver.ready()
        chat.chat.set(system="You sell coffee.")
        chat.choices.hold(temperature=1.25, drafters="ngram")

        async def opened() -> PresetsScreen:
            await driver.press("f10")
            await driver.until(lambda: isinstance(driver.app.screen, PresetsScreen))
            screen = driver.app.screen
            assert isinstance(screen, PresetsScreen)
            await driver.until(lambda: screen.query_one(OptionList).option_count == len(screen.names) + 1)
            return screen

        async def named(screen: PresetsScreen, key: str, name: str) -> None:
            await driver.press(key)
            await driver.until(lambda: isinstance(driver.app.screen, AskText))
            driver.app.screen.query_one(Input).value = name
            await driver.press("enter")
            await driver.until(lambda: driver.app.screen is screen)

        screen = await opened()
        assert screen.names == ["coding"]
        await named(screen, "ctrl+s", "shop")
        await driver.until(lambda: screen.names == ["coding", "shop"])
        saved = SettingsFile(path).settings
        assert saved.preset == "shop" and saved.presets["shop"].system == "You sell coffee."
        assert saved.presets["shop"].sampling["temperature"] == 1.25 and saved.presets["shop"].drafters == "ngram"
        await named(screen, "ctrl+r", "coding")
        error = screen.query_one("#presets-error", Static)
        await driver.until(lambda: error.display and "already" in str(error.render()))
        await named(screen, "ctrl+r", "café")
        await driver.until(lambda: screen.names == ["coding", "café"])
        await driver.press("ctrl+d")
        await driver.until(lambda: screen.names == ["coding"])
        assert SettingsFile(path).settings.preset is None
        await driver.press("ctrl+z")
        await driver.until(lambda: screen.names == ["coding", "café"])
        assert SettingsFile(path).settings.preset == "café"
        screen.query_one(OptionList).highlighted = 1
        await driver.press("enter")
        await driver.until(lambda: driver.app.screen is chat)
        assert chat.choices.now.preset == "coding" and chat.choices.now.sampling.temperature == 0.2
        await driver.until(lambda: "Answer with code." in chat.chat.info.system)  # it had not begun
        await opened()
        await driver.press("escape")
        await driver.until(lambda: driver.app.screen is chat)
    assert "# mine" in path.read_text(encoding="utf-8")
    assert "ctx = 512 # enough" in path.read_text(encoding="utf-8")
