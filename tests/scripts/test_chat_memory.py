"""The chat with a conversation of 1 000 messages: memory beside the model, which does not depend on a busy machine."""

from __future__ import annotations

import pytest

from scripts.chat_memory import measure

pytestmark = [pytest.mark.model, pytest.mark.tui, pytest.mark.slow]


def test_a_thousand_messages_take_little() -> None:
    found = measure(1000)
    assert 0 < found["engine_mb"] < found["chat_mb"]
    assert found["beside_the_model_mb"] <= 250
