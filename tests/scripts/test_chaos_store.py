"""The short form of scripts/chaos_store.py, and that it would notice a loss."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from scripts.chaos_store import Ledger, missing, round_of, run

pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path) -> None:
    assert run(tmp_path / "chats.db", kills=5, seed=2, longest=1.0) == []


@pytest.mark.slow
def test_a_loss_is_noticed(tmp_path: Path) -> None:
    path, ledger = tmp_path / "chats.db", Ledger()
    while not ledger.kept:
        killed = round_of(path, ledger, 0.5)
    assert missing(path, ledger, killed) == []
    chat_id = next(iter(ledger.kept))
    ledger.kept[chat_id].append(999)
    assert missing(path, ledger, killed) == ["question 999 is gone", "answer 999 is gone or not whole"]
    ledger.kept[chat_id].remove(999)
    ledger.said.append(("999.1", time.time() - 60))
    assert missing(path, ledger, killed) == ["999.1 was streamed and is gone"]
