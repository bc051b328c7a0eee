"""Texts of real models that left the context and came back: they go on as if they had stayed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lcspec.kv_cache import prefix_cache
from lcspec.llama import Context
from lcspec.session import open_session
from tests import tiny_gguf as tiny
from tests.kv_cache.test_sliding_windows import check
from tests.running import answer, options, request, side_by_side
from tests.tiny_windows import write_gemma3, write_gpt_oss, write_qwen35

pytestmark = [pytest.mark.model, pytest.mark.slow]

FAMILIES: dict[str, Callable[..., Path]] = {
    "llama": tiny.write_llama,
    "qwen35": write_qwen35,
    "lfm2": tiny.write_hybrid,
    "mamba": tiny.write_recurrent,
    "gemma3": write_gemma3,
    "gpt-oss": write_gpt_oss,
}
TEXT = "the cat and the dog and the cat and the "
OTHER = "in a house of the rat "


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "PASSES_ON_GPU", prefix_cache.PASSES)


@pytest.mark.parametrize("strategy", ["off", "ngram:min_n=1:branch=2"])
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_goes_on_after_another_one(family: str, slots: int, strategy: str, tmp_path: Path) -> None:
    with open_session(options(FAMILIES[family](tmp_path / "m.gguf"), slots=slots)) as session:
        engine = session.engine
        first, other = session.prompt_ids(TEXT * 5), session.prompt_ids(OTHER * 6)
        with Context(session.model, engine.options) as alone:
            said = (*first, *answer(engine, request(first, strategy, 20)).ids)
            for turn in range(3):
                check(alone, other, answer(engine, request(other, strategy, 40)))
                assert engine.prefix_cache.host is not None and engine.prefix_cache.host.texts
                asked = (*said, 70 + turn, 71, 72)
                found = answer(engine, request(asked, strategy, 20))
                check(alone, asked, found)
                assert found.started.reused == len(said) - 1
                said = (*asked, *found.ids)


@pytest.mark.parametrize("beginning", ["", "he said that " * 12])
@pytest.mark.parametrize("family", FAMILIES)
def test_more_conversations_than_slots_at_once(family: str, beginning: str, tmp_path: Path) -> None:
    with open_session(options(FAMILIES[family](tmp_path / "m.gguf"), slots=2)) as session:
        engine = session.engine
        texts = [session.prompt_ids(beginning + TEXT[7 * i :] + OTHER * 4) for i in range(5)]
        with Context(session.model, engine.options) as alone:
            for turn in range(3):
                answers = side_by_side(engine, [request(text, "ngram:min_n=1", 20) for text in texts])
                for i, found in enumerate(answers):
                    check(alone, texts[i], found)
                    assert turn == 0 or found.started.reused == len(texts[i]) - 4
                    texts[i] = (*texts[i], *found.ids, 70, 71, 72)
