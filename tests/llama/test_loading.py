"""Loading: progress, giving up, and asking for huge pages while the buffers are still empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcspec.errors import ModelLoadError
from lcspec.llama import Context, Model, hugepages
from tests.running import options

pytestmark = pytest.mark.model


def test_huge_pages_are_asked_for_before_the_weights_are_read(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(hugepages, "ask", lambda: order.append("ask") or 0)
    with Model.load(options(llama), lambda fraction: order.append("progress") or True):
        pass
    assert order[0] == "ask"
    assert 1 <= order.count("ask") <= 4 and order.count("progress") >= 1


def test_huge_pages_are_asked_for_a_context_s_buffers(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    with Model.load(options(llama)) as model:
        monkeypatch.setattr(hugepages, "ask", lambda: asked.append(1) or 0)
        Context(model, model.options).close()
    assert asked == [1]


def test_progress_can_stop_the_load(llama: Path) -> None:
    with pytest.raises(ModelLoadError, match="stopped"):
        Model.load(options(llama), lambda fraction: False)
