"""Commands typed into the chat's input, what completes them, and files named in messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcspec.errors import LcspecError
from lcspec.tui.completing import complete, mentions, missing, path_candidates
from lcspec.tui.slash import COMMANDS, Typed, command_of, plain, read_setting


def test_commands_are_told_from_messages() -> None:
    assert command_of("/set temperature 0.5") == Typed("set", "temperature 0.5")
    assert command_of("/HELP") == Typed("help", "")
    assert command_of("/system You are\nbrief.") == Typed("system", "You are\nbrief.")
    for text in ("hello", "/usr/bin is a folder", "//help", "/", "1 /help", "/ 5"):
        assert command_of(text) is None, text
    assert plain("//help") == "/help" and plain("/usr/bin") == "/usr/bin" and plain("///x") == "///x"


def test_an_unknown_command_is_refused_and_a_near_one_named() -> None:
    with pytest.raises(LcspecError, match=r"did you mean /clear\?.*//claer"):
        command_of("/claer")
    with pytest.raises(LcspecError, match="/help lists"):
        command_of("/xyzzy now")


def test_settings_are_read_and_checked() -> None:
    assert read_setting("temperature 0.5") == ("temperature", 0.5)
    assert read_setting("Top-K=12") == ("top_k", 12)
    assert read_setting("seed none") == ("seed", None) and read_setting("seed") == ("seed", None)
    assert read_setting("exact on") == ("exact", True) and read_setting("drafters off") == ("drafters", "off")
    for text, why in (
        ("temperature 7", "0 to 2"),
        ("temperature warm", "must be a number"),
        ("temperatur 1", "did you mean temperature"),
        ("temperature", "needs a value"),
        ("top_p 3", "top_p"),
    ):
        with pytest.raises(LcspecError, match=why):
            read_setting(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "deep.txt").write_text("x")
    (tmp_path / "my file.txt").write_text("x")
    (tmp_path / "model.gguf").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    return tmp_path


def test_commands_and_settings_are_completed() -> None:
    assert [c.label for c in complete("/").candidates] == [f"/{c.name} {c.takes}".strip() for c in COMMANDS]
    assert [c.text for c in complete("/se").candidates] == ["/set "]
    assert complete("/qu").candidates[0].whole
    found = complete("/set temp")
    assert found.start == len("/set ") and [c.text for c in found.candidates] == ["temperature "]
    for text in ("//", "hello /he", "/help\n/", "/set temperature 0."):
        assert not complete(text).candidates, text


def test_paths_are_completed_with_blanks_escaped(folder: Path) -> None:
    found = complete("read @n", folder)
    assert (found.start, [c.text for c in found.candidates]) == (6, ["notes/"])
    assert [c.text for c in complete("read @notes/", folder).candidates] == ["notes/deep.txt"]
    assert [c.text for c in complete("/file my", folder).candidates] == [r"my\ file.txt"]
    assert [c.text for c in complete(r"/file my\ f", folder).candidates] == [r"my\ file.txt"]
    assert not complete("me@n", folder).candidates, "an address is no mention"
    assert path_candidates("", folder) == ["notes/", "model.gguf", "my file.txt"]
    assert path_candidates(".h", folder) == [".hidden"]
    assert path_candidates("", folder, (".gguf",)) == ["notes/", "model.gguf"]
    assert path_candidates("gone/", folder) == []


def test_files_named_in_a_message_are_found(folder: Path) -> None:
    assert mentions(r"compare @notes/deep.txt with @my\ file.txt.", folder) == [
        folder / "notes/deep.txt",
        folder / "my file.txt",
    ]
    assert mentions("ask @john, or mail me@notes/deep.txt", folder) == []
    assert missing("what is in @notes/gone.txt, @gone.md and @model.gguf? ask @john", folder) == [
        "notes/gone.txt",
        "gone.md",
    ]
