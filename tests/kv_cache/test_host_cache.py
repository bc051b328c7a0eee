"""Texts of real models that left the context and came back: they go on as if they had stayed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lcspec.config import ModelOptions
from lcspec.kv_cache import prefix_cache
from lcspec.kv_cache.prompt_reader import LEAST_ROWS
from lcspec.llama import Context, can_fuse_row_by_row
from lcspec.profiles import kernels
from lcspec.profiles.price import Price
from lcspec.session import open_session
from tests import tiny_gguf as tiny
from tests.kv_cache.test_sliding_windows import check
from tests.running import ROUNDS_ALIKE, answer, at_price, options, request, side_by_side
from tests.tiny_families import write_family
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


def read_apart(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelOptions:
    """Options of an exact session that reads its prompts apart from steps."""
    free = Price(1.0, 1.0, 1.0, LEAST_ROWS, 0.0)
    monkeypatch.setattr(kernels, "prices", at_price(free))
    return options(path, exact=True, attention="measured", kv_type="f16")


@pytest.mark.skipif(not (can_fuse_row_by_row() and ROUNDS_ALIKE), reason="nothing is exact here")
@pytest.mark.parametrize("family", ["gemma3", "deepseek4", "qwen35"])
def test_cells_that_come_back_elsewhere_change_no_bits(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells of windows do, from main memory and with a state; what reads many rows at a time sees where they lie."""
    made = read_apart(write_family(family, tmp_path / "m.gguf"), monkeypatch)
    with open_session(made) as session:
        engine = session.engine
        assert engine.exact.independent and engine.prompts.beyond == LEAST_ROWS
        first, other = session.prompt_ids(TEXT * 4), session.prompt_ids(OTHER * 12)
        said = (*first, *answer(engine, request(first, "off", 40)).ids)
        while engine.read_ahead():
            pass
        answer(engine, request(other, "off", 10))
        longer, parted = (*said, *other[:90]), (*first[:150], *other[:90])
        found = [answer(engine, request(text, "off", 20, logprobs=0)).bits for text in (longer, parted)]
    for text, bits in zip((longer, parted), found):
        with open_session(made) as fresh:
            assert answer(fresh.engine, request(text, "off", 20, logprobs=0)).bits == bits


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
