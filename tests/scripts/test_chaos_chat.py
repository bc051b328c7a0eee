"""The short form of scripts/chaos_chat.py, and that it would notice a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcspec.tui.store import Store
from scripts.chaos_chat import ANSWER, QUESTION, Ledger, run, wrong_after

pytestmark = [pytest.mark.tui, pytest.mark.slow]


def test_what_was_shown_is_there_after_kill_9(tmp_path: Path) -> None:
    assert run(tmp_path, kills=3, seed=3, longest=1.5) == []


def test_a_loss_is_noticed(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        chat = store.create()
        chat.add_user(QUESTION)
        assert store.flush(60)
    assert wrong_after(tmp_path, Ledger(), 0.0, []) == []
    (late,) = wrong_after(tmp_path, Ledger(), 60.0, [])
    assert "after 60.0 s there is" in late
    (gone,) = wrong_after(tmp_path, Ledger(texts={"x": [QUESTION, ANSWER]}), 0.0, [])
    assert gone.startswith("an earlier conversation was") and gone.endswith("None")
    ledger = Ledger(texts={chat.id: [QUESTION]})
    assert wrong_after(tmp_path, ledger, 0.0, []) == [] and ledger.cut == 0
