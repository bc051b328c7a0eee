"""States of texts that no cache can be rolled back to: kept, found again, and right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from lcspec.errors import DecodeError
from lcspec.kv_cache.checkpoints import INTERVAL, Checkpoints, pauses
from lcspec.llama import Context
from lcspec.session import Session, open_session
from tests import tiny_gguf as tiny
from tests.agent_session import RECORD, AgentSession, Ids
from tests.kv_cache.test_sliding_windows import check
from tests.running import answer, options, request, side_by_side
from tests.tiny_windows import write_gemma3, write_gpt_oss, write_qwen35

pytestmark = [pytest.mark.model, pytest.mark.slow]

# Texts are long here: of a head of 32 numbers the library's attention takes a fifth of the time of two of 16.
WIDE_HEADS = {"n_head": 2, "n_head_kv": 1}
STATEFUL: dict[str, Callable[..., Path]] = {
    "qwen35": write_qwen35,
    "lfm2": partial(tiny.write_hybrid, **WIDE_HEADS),
    "mamba": tiny.write_recurrent,
}
FAMILIES: dict[str, Callable[..., Path]] = {
    **STATEFUL,
    "gemma3": write_gemma3,
    "gpt-oss": write_gpt_oss,
    "llama": partial(tiny.write_llama, **WIDE_HEADS),
}
ANSWER = 30
TEXT = "the cat and the dog and the cat and the "


def agent(session: Session) -> tuple[AgentSession, list[int]]:
    """The recorded session on an engine, and what its decodes evaluated, a number each."""
    vocab, evaluated = session.model.vocab, list[int]()
    context, decode = session.engine.context, session.engine.context.decode

    def counted(**named: Any) -> float:
        evaluated.append(context.batch.n)
        return decode(**named)

    context.decode = counted  # type: ignore[method-assign]

    def ask(prompt: Ids) -> Ids:
        return tuple(answer(session.engine, request(prompt, "off", ANSWER)).ids)

    begin, end = (vocab.tokenize(t, special=False)[0] for t in ("<|im_start|>", "<|im_end|>"))
    return AgentSession(lambda text: vocab.tokenize(text, special=False), begin, end, ask), evaluated


def common(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    n = min(len(a), len(b))
    return int(np.append(a[:n] == b[:n], False).argmin())


# With two slots one family of each memory that needs checkpoints.
@pytest.mark.parametrize(("family", "slots"), [*((family, 1) for family in FAMILIES), ("qwen35", 2), ("gemma3", 2)])
def test_an_agent_s_session_reads_what_is_new(family: str, slots: int, tmp_path: Path) -> None:
    """New is what no earlier request had at its beginning, which a cache that forgets nothing would evaluate."""
    assert len(RECORD) >= 50
    path = FAMILIES[family](tmp_path / "m.gguf", n_ctx=8192)
    with open_session(options(path, slots=slots, ctx=8192)) as session:
        session_, evaluated = agent(session)
        new, texts = 0, list[NDArray[np.int32]]()
        for prompt, found in session_.play():
            text = np.array([*prompt, *found[:-1]], dtype=np.int32)
            new += len(prompt) - min(len(prompt) - 1, max((common(text, t) for t in texts), default=0))
            new += len(found) - 1  # the last token of an answer is never evaluated
            texts.append(text)
        print(f"{family}, {slots} slots: {sum(evaluated)} tokens evaluated, {new} new: {sum(evaluated) / new:.3f}")
        assert sum(evaluated) <= 1.1 * new


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("family", [*STATEFUL, "gemma3"])
def test_texts_that_part_are_right_and_reuse(family: str, slots: int, tmp_path: Path) -> None:
    path = FAMILIES[family](tmp_path / "m.gguf")
    with open_session(options(path, slots=slots)) as session:
        engine = session.engine
        base = session.prompt_ids(TEXT * 5)
        with Context(session.model, engine.options) as alone:
            first = answer(engine, request(base, "off", 20))
            again = answer(engine, request(base, "off", 20))
            assert again.ids == first.ids and again.started.reused == len(base) - 1
            edited = [*base, *first.ids[:9], 70, 71, 72]
            found = answer(engine, request(edited, "off", 20))
            assert found.started.reused >= len(base) - 1
            check(alone, edited, found)
            asked = [[*base[:60], *range(70, 110)], [*base[:60], *range(80, 120)], [*base, *first.ids, 75]]
            for round_ in range(2):
                for prompt, one in zip(asked, side_by_side(engine, [request(p, "off", 20) for p in asked])):
                    check(alone, prompt, one)
                    assert one.started.reused >= 60 or round_ == 0


@pytest.mark.parametrize("family", STATEFUL)
def test_the_choices_of_one_prompt_read_it_once(family: str, tmp_path: Path) -> None:
    with open_session(options(STATEFUL[family](tmp_path / "m.gguf"), slots=3)) as session:
        prompt = session.prompt_ids(TEXT * 5)
        found = side_by_side(session.engine, [request(prompt, "off", 20)] * 3)
        assert [one.started.reused for one in found] == [0, len(prompt) - 1, len(prompt) - 1]
        assert found[0].ids == found[1].ids == found[2].ids


@pytest.mark.parametrize("family", ["qwen35", "lfm2"])
def test_drafts_between_checkpoints(family: str, tmp_path: Path) -> None:
    with open_session(options(STATEFUL[family](tmp_path / "m.gguf"))) as session:
        base = session.prompt_ids(TEXT * 5)
        with Context(session.model, session.engine.options) as alone:
            for cut in (0, 3, 11):
                for how in ("ngram:min_n=1:nodes=8", "off"):
                    prompt = [*base, *answer(session.engine, request(base, how, 30)).ids[:cut]]
                    check(alone, prompt, answer(session.engine, request(prompt, how, 30)))


def test_without_memory_nothing_is_kept_and_everything_works(tmp_path: Path) -> None:
    with (
        patch("lcspec.kv_cache.checkpoints.copy_budget", lambda: 0),
        open_session(options(write_qwen35(tmp_path / "m.gguf"))) as session,
    ):
        prompt = session.prompt_ids(TEXT * 5)
        first = answer(session.engine, request(prompt, "off", 20))
        again = answer(session.engine, request(prompt, "off", 20))
        assert again.ids == first.ids and again.started.reused == 0
        assert len(session.engine.prefix_cache.checkpoints or ()) == 0


def test_what_saves_least_gives_way() -> None:
    kept = Checkpoints(budget=4300)
    text = np.arange(200, dtype=np.int32)
    for n in (100, 104, 150):
        kept.add(text[:n], np.zeros(800, dtype=np.uint8))
    assert len(kept) == 3
    kept.add(text, np.zeros(800, dtype=np.uint8))
    assert kept.size <= kept.budget and len(kept) == 3
    found = [one.length for n in (100, 104, 150, 200) if (one := kept.longest(text, n)) is not None]
    assert found == [100, 100, 150, 200]  # four tokens are soon read again
    kept.add(text[:40], np.zeros(9000, dtype=np.uint8))
    assert len(kept) == 1 and not kept.fits(9000)  # the newest stays until another one comes


def test_where_reading_stops() -> None:
    begin, n = 1, 2 * INTERVAL + 200
    text = [begin] + [9] * (n - 1)
    text[n - 5] = text[100] = begin
    stops = pauses(text, frozenset([begin]), 0, 0)
    assert stops[0] == 100 and stops[-1] == n - 5
    assert max(b - a for a, b in zip([0, *stops], stops)) <= INTERVAL + 32
    assert pauses(text, frozenset([begin]), n - 5, 0) == []
    assert 300 in pauses(text, frozenset([begin]), 0, 300)
    assert pauses([9] * 50, frozenset(), 0, 0) == [49]
    assert pauses([9], frozenset(), 0, 0) == []


def test_without_memory_for_another_copy_the_others_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The library's state is copied into memory that Python asks for, and may not get."""
    with open_session(options(tiny.write_recurrent(tmp_path / "m.gguf"))) as session:
        engine, prompt = session.engine, session.prompt_ids(TEXT * 4)
        first = answer(engine, request(prompt, "off", 40))
        kept = engine.prefix_cache.checkpoints
        assert kept is not None and len(kept) > 0
        before = len(kept)
        with patch("lcspec.llama.context.np.empty", side_effect=MemoryError):
            other = answer(engine, request([*prompt[:40], 70, 71, *prompt[40:]], "off", 40))
        assert other.reason == "length" and len(kept) == before
        assert caplog.text.count(f"no memory for more than {before} states of earlier texts") == 1
        again = answer(engine, request(prompt, "off", 40))
        assert again.started.reused > 0 and again.ids == first.ids


def test_without_memory_for_a_state_to_go_back_to_the_request_says_so(tmp_path: Path) -> None:
    with open_session(options(tiny.write_recurrent(tmp_path / "m.gguf"))) as session:
        engine, prompt = session.engine, session.prompt_ids(TEXT)
        with (
            patch("lcspec.llama.context.np.empty", side_effect=MemoryError),
            pytest.raises(DecodeError, match="no memory to copy a state .*--speculate off"),
        ):
            answer(engine, request(prompt, "ngram:min_n=1", 20))
        assert len(answer(engine, request(prompt, "off", 20)).ids) == 20
