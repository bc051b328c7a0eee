"""The chat with a long conversation: memory beside the model, which does not depend on a busy machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.chat_memory import measure

pytestmark = [pytest.mark.model, pytest.mark.tui, pytest.mark.slow]


def test_many_messages_take_little() -> None:
    """`python scripts/chat_memory.py` measures what 1 000 take."""
    found = measure(60, Path(os.environ["LCSPEC_CACHE_DIR"]))
    assert 0 < found["engine_mb"] < found["chat_mb"]
    assert found["beside_the_model_mb"] <= 250 / 2
