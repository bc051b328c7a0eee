"""`lcspec chat MODEL` pairs a draft model by itself and says so; `--no-draft` leaves it out."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lcspec.tui.start import chat_options

from .conftest import PLAIN, Start

pytestmark = pytest.mark.tui


def test_what_the_options_mean(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = (Path(shutil.copy(path, tmp_path)) for path in pair)
    found = chat_options({"model": target})
    assert found.model == target and not found.no_draft
    assert found.draft is not None and found.draft.name == draft.name  # this one, or the bundled one it is a copy of
    assert found.notice == f"paired with {draft.name} (--no-draft leaves it out)"
    without = chat_options({"model": target, "no_draft": True})
    assert (without.draft, without.notice, without.no_draft) == (None, "", True)
    named = chat_options({"model": target, "draft": pair[1:]})
    assert (named.draft, named.notice) == (pair[1], "")
    assert chat_options({}).draft is None  # the picker asks


async def test_it_is_said_once_and_can_be_left_out(start: Start, pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = (Path(shutil.copy(path, tmp_path)) for path in pair)
    options = replace(chat_options({"model": target}), overrides=PLAIN)
    async with start(options=options) as driver:
        chat = await driver.ready()
        assert chat.loaded.draft is not None and chat.loaded.draft.name == draft.name
        await driver.until(lambda: any("paired with" in n.message for n in driver.app._notifications))
    options = replace(chat_options({"model": pair[0], "no_draft": True}), overrides=PLAIN)
    async with start(options=options) as driver:
        chat = await driver.ready()
        assert chat.loaded.draft is None and not list(driver.app._notifications)
    async with start(options=replace(options, model=None)) as driver:  # the one used last, without its draft
        chat = await driver.ready()
        assert chat.loaded.draft is None
