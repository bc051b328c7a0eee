"""What the chat does outside its screen: text from a pipe, the line that is left, ASCII terminals, shell completion."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from lcspec.tui.start import parting
from tests import forks

from .conftest import Start

pytestmark = pytest.mark.tui

HELLO = "Hi! I'd like to order a large iced latte, please."


def lcspec(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    done = forks.server.run(arguments, text.encode(), timeout=300)
    return subprocess.CompletedProcess(arguments, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_text_from_a_pipe_is_answered_as_generate_does(pair: tuple[Path, Path]) -> None:
    options = (str(pair[0]), "-n", "8", "--threads", "1", "--temperature", "0", "--speculate", "off")
    piped = lcspec("chat", *options, text=HELLO + "\n")
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout.strip() and piped.stdout == lcspec("generate", *options, "--chat", "-p", HELLO).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell: str) -> None:
    done = lcspec("completion", shell)
    assert done.returncode == 0 and f"_LCSPEC_COMPLETE={shell}_complete" in done.stdout


async def test_the_line_that_is_left_says_how_to_go_on(start: Start) -> None:
    async with start(max_tokens=4) as driver:
        await driver.ready()
        assert parting(driver.app) is None, "nothing was said, so nothing is to be gone on with"
        await driver.answer(HELLO)
        line = parting(driver.app)
        assert line is not None and "iced latte" in line and "lcspec chat --resume" in line
        await driver.press("ctrl+n")  # also from a new, empty conversation: --resume goes on with the one before
        await driver.until(lambda: not driver.chat.chat.branch)
        assert parting(driver.app) == line
        driver.app.begun = time.time() + 60
        assert parting(driver.app) is None, "nothing was said in this run"


async def test_where_there_is_only_ascii_nothing_else_is_drawn(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    async with start(max_tokens=30, drafters="ngram,model") as driver:
        await driver.ready()
        await driver.answer("Write a python function to find the maximum of a list of numbers.")
        await driver.press("f3")
        await driver.pilot.pause(0.3)
        drawn = driver.app.export_screenshot()
        text = drawn[drawn.index('<g class="') :].replace("&#160;", " ")
        assert "Inspector" in text and not {c for c in text if not c.isascii()}
