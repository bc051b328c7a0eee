"""Products that are made row by row: the same bits at every width, for chains of drafts, cut prompts and any slots."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lcspec.engine.request import Request
from lcspec.kv_cache.prompt_reader import EVERY_PROMPT, LEAST_ROWS, LONG_PROMPT, converted
from lcspec.llama import Context, amx, can_go_row_by_row
from lcspec.profiles import independence, kernels
from lcspec.profiles.kernels import choose_kernels
from lcspec.profiles.price import Price
from lcspec.session import Session, open_session
from tests.running import CODE, GREEDY, SEEDED, Answer, answer, at_price, options, request, side_by_side
from tests.tiny_families import write_family

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not can_go_row_by_row(), reason="this library cannot multiply row by row"),
]

N = 24
STRATEGIES = ("off", "ngram:branch=3:nodes=9", "model:branch=3:nodes=12:p_min=0", "lookahead", "ngram,suffix", "auto")
Bits = list[tuple[int, "float | None"]]
Key = tuple[int, str]  # the number of a text, and how tokens are chosen


def by_rows(path: Path, **changes: Any) -> Any:
    return options(path, **{"attention": "rows", "exact": True, "ctx": 1024, **changes})


@pytest.fixture(scope="module", params=[None, LEAST_ROWS, LONG_PROMPT, EVERY_PROMPT])
def session(
    request: pytest.FixtureRequest, demo: tuple[Path, Path], demo_as: Callable[[str], Path]
) -> Iterator[Session]:
    """Prompts of more tokens than the parameter are read apart.

    F32 weights: nothing is rounded to 8 bits, which would hide that rows were summed in another order.
    """
    found = Price(1.0, 1.0, 1.0, request.param, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "prices", at_price(found))
        with open_session(by_rows(demo_as("F32")), demo[1]) as session:
            yield session


@pytest.fixture(scope="module")
def texts(session: Session) -> list[tuple[int, ...]]:
    return some_texts(session)


def some_texts(session: Session) -> list[tuple[int, ...]]:
    """Short and long prompts, some with the same beginning."""
    long = session.prompt_ids("\n\n".join(CODE * 5))
    assert len(long) > LONG_PROMPT + 100
    short = [session.prompt_ids(text) for text in CODE[:3]]
    return [*short, short[0] + short[1], long, long[: LONG_PROMPT + 40] + short[2]]


def wanted(texts: list[tuple[int, ...]], i: int, name: str, strategy: str) -> Request:
    return request(texts[i], strategy, N, sampling=GREEDY if name == "greedy" else SEEDED, logprobs=0)


KEYS: list[Key] = [(i, name) for i in range(6) for name in ("greedy", "seeded")]


def test_the_context_is_certified(session: Session) -> None:
    engine = session.engine
    assert engine.exact.independent and engine.exact.all_exact and engine.exact.chains_only
    assert engine.pool.parking is None and not engine.exact.needs_own_context


def test_no_bit_depends_on_drafts_or_on_what_was_asked_before(session: Session, texts: list[tuple[int, ...]]) -> None:
    """In a random order: texts go on from each other's beginnings, long prompts are read apart, drafts are refused."""
    assert len(texts) == len({i for i, _ in KEYS})
    cases = random.Random(7).sample(list(product(KEYS, STRATEGIES)), 16)
    expected, accepted, drafted = dict[Key, Bits](), 0, 0
    for key in sorted({key for key, _ in cases}):  # each in an engine of its own, without drafts
        with open_session(by_rows(session.model.options.path)) as fresh:
            expected[key] = answer(fresh.engine, wanted(texts, *key, "off")).bits
    for key, strategy in cases:
        found = answer(session.engine, wanted(texts, *key, strategy))
        assert found.bits == expected[key], f"{key}, {strategy}"
        accepted += found.finished.stats.accepted
        drafted += found.finished.stats.drafted
    assert 50 < accepted < drafted


def test_cells_of_a_text_lie_in_its_order(
    session: Session, texts: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums run over cells, so a text's tokens must lie in order, whatever was drafted."""
    engine, widest, looked = session.engine, 0, 0

    def positions(data: bytearray, n: int) -> list[int]:
        return [int.from_bytes(data[16 + 12 * i : 20 + 12 * i], "little") for i in range(n)]

    decode = Context.decode

    def watched(context: Context, *given: Any, **named: Any) -> float:
        nonlocal widest, looked
        seconds = decode(context, *given, **named)
        if context is engine.context:
            widest = max(widest, context.batch.n)
            for sequence in engine.running:
                n = sequence.cache.length
                looked += 1
                assert positions(context.memory.state(sequence.cache.main), n) == list(range(n))
        return seconds

    monkeypatch.setattr(Context, "decode", watched)
    answer(engine, wanted(texts, 0, "seeded", "model:branch=3:nodes=12:p_min=0"))
    assert looked > N // 13 and widest > 4


def test_a_long_prompt_is_read_in_place_and_its_cells_are_reused(
    session: Session, texts: list[tuple[int, ...]]
) -> None:
    engine = session.engine
    apart = engine.prompts.wants(texts[4])
    engine.prefix_cache.clear()
    first = answer(engine, wanted(texts, 4, "greedy", "off"))
    assert first.started.reused == 0
    again = answer(engine, wanted(texts, 4, "greedy", "ngram"))
    assert again.started.reused == len(texts[4]) - 1 and again.bits == first.bits
    # The answer was decoded; as the beginning of the next turn it is read as a prompt, now or while nobody asks. A
    # model that is too slow for that keeps it.
    turn, kept = (*texts[4], *(token for token, _ in first.bits), *texts[1]), engine.prompts.keeps_answers
    now = answer(engine, request(turn, "ngram", N, logprobs=0))
    assert (len(texts[4]) - 1 <= now.started.reused < len(texts[4]) + N - 1) is (apart and not kept)
    answer(engine, wanted(texts, 4, "greedy", "off"))
    while engine.read_ahead():
        pass
    later = answer(engine, request(turn, "auto", N, logprobs=0))
    assert later.started.reused >= len(texts[4]) + N - 1
    with open_session(by_rows(session.model.options.path)) as fresh:
        if kept:
            answer(fresh.engine, wanted(texts, 4, "greedy", "off"))
        alone: Answer = answer(fresh.engine, request(turn, "off", N, logprobs=0))
    assert now.bits == alone.bits == later.bits


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("family", ["", "lfm2", "qwen35", "gemma3", "gpt-oss"])
def test_conversations_of_a_slow_model(
    family: str, slots: int, demo: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their prompts are read with other kernels, in pieces of any size or whole blocks, and no answer is read again."""
    path, draft = (write_family(family, tmp_path / "m.gguf"), None) if family else demo
    way = {"attention": "fused_rows" if family else "rows", "repack": True}
    monkeypatch.setattr(kernels, "prices", at_price(Price(1.0, 1.0, 1.0, EVERY_PROMPT, 0.0)))
    monkeypatch.setattr(independence, "SMALL", 0)
    told = list[list[Bits]]()
    strategies = ("off", "ngram:branch=3:nodes=9", "lookahead", "ngram,suffix") if family else STRATEGIES
    for strategy in strategies if slots == 1 else strategies[::3]:
        with open_session(by_rows(path, **way, slots=slots), draft) as session:
            engine, found, said = session.engine, list[Bits](), list[tuple[int, ...]]()
            if not engine.exact.independent and amx.cpu_has_amx():
                pytest.skip("AMX code for few rows is another than for many")
            assert engine.exact.independent and engine.prompts.keeps_answers
            for turn in range(3):
                asked = [session.prompt_ids(text)[: 5 + 70 * turn] for text in CODE[:slots]]
                said = [before + new for before, new in zip(said or [()] * slots, asked)]
                given = [request(text, strategy, N, sampling=SEEDED, logprobs=0) for text in said]
                answers = side_by_side(engine, given)
                for i, one in enumerate(answers):
                    assert turn == 0 or one.started.reused >= len(said[i]) - len(asked[i]) - 1
                    said[i] += tuple(one.ids)
                    found.append(one.bits)
            told.append(found)
    assert all(found == told[0] for found in told)
    if slots > 1:  # as each of them alone
        with open_session(by_rows(path, **way)) as session:
            prompt = session.prompt_ids(CODE[0])[:5]
            assert answer(session.engine, request(prompt, "off", N, sampling=SEEDED, logprobs=0)).bits == told[0][0]


@pytest.mark.parametrize("slots", [1, 2])
def test_several_slots_have_a_cache_each(session: Session, slots: int) -> None:
    """Sums over everybody's cells would depend on who else is there."""
    made = choose_kernels(session.model, by_rows(session.model.options.path, slots=slots)).options
    assert made.attention == "rows" and made.streams is (slots > 1) and made.texts_in_order


@pytest.fixture(scope="module")
def told_alone() -> dict[str, tuple[list[tuple[int, ...]], dict[Key, Bits]]]:
    """For each kind of attention the texts, and what one slot says to them without drafts."""
    return {}


@pytest.mark.parametrize(("attention", "slots"), [("fused_rows", 1), ("fused_rows", 3), ("rows", 3)])
def test_one_slot_and_several_have_the_same_bits(
    attention: str,
    slots: int,
    demo: tuple[Path, Path],
    demo_as: Callable[[str], Path],
    told_alone: dict[str, tuple[list[tuple[int, ...]], dict[Key, Bits]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever drafts and runs beside a request, with trees where several slots share a cache."""
    free, path = Price(1.0, 1.0, 1.0, LEAST_ROWS, 0.0), demo_as("F32")
    monkeypatch.setattr(kernels, "prices", at_price(free))
    cases = random.Random(5).sample(list(product(KEYS, STRATEGIES)), 14)
    if attention not in told_alone:
        with open_session(by_rows(path, attention=attention)) as alone:
            texts, engine = some_texts(alone), alone.engine
            keys = sorted({key for key, _ in cases})
            told_alone[attention] = texts, {key: answer(engine, wanted(texts, *key, "off")).bits for key in keys}
    texts, expected = told_alone[attention]
    with open_session(by_rows(path, attention=attention, slots=slots), demo[1]) as among:
        engine = among.engine
        assert engine.exact.independent
        assert engine.exact.chains_only is (slots == 1 or attention == "rows")
        found = side_by_side(engine, [wanted(texts, *key, strategy) for key, strategy in cases])
    for (key, strategy), one in zip(cases, found):
        assert one.bits == expected[key], f"{key}, {strategy}, {slots} slots"
    assert sum(one.finished.stats.accepted for one in found) > 35  # about 75


@pytest.mark.parametrize("exact", [None, True])
def test_values_that_are_part_of_the_keys_are_handed_over(exact: bool | None, tmp_path: Path) -> None:
    """DeepSeek's states have no values, which ended the process of a model with several slots as it started."""
    path = write_family("deepseek2", tmp_path / "m.gguf")
    given = {"ctx": 1024, "exact": exact, "kv_type": "f16", "attention": "measured"}
    with open_session(options(path, **given)) as alone, open_session(options(path, **given, slots=2)) as among:
        prompt = alone.prompt_ids("the cat and the dog in the hat " * 40)[: LONG_PROMPT + 90]
        asked = [request(text, "off", N, logprobs=0) for text in (prompt, prompt[:50])]
        found = [one.bits for one in side_by_side(among.engine, asked)]
        if exact and among.engine.exact.independent and alone.engine.exact.independent:
            assert found == [answer(alone.engine, one).bits for one in asked]
        assert all(len(bits) == N for bits in found)


@pytest.mark.parametrize("family", ["llama", "deepseek2"])
def test_a_state_in_another_format_is_refused(family: str, tmp_path: Path) -> None:
    """So that a library that writes more, or less, only loses this way of reading prompts."""
    with open_session(options(write_family(family, tmp_path / "m.gguf"), kv_type="f16")) as session:
        answer(session.engine, request(session.prompt_ids("the cat and the dog"), "off", 4))
        cache, _ = session.engine.prefix_cache.latest
        state = session.engine.context.memory.state(cache.main)
    assert converted(state, 0, 0, "bf16")
    for cut in (0, 3, 13, 40, len(state) // 2, len(state) - 1):
        with pytest.raises(ValueError):
            converted(state[:cut], 0, 0, "bf16")
    with pytest.raises(ValueError):
        converted(state + b"more", 0, 0, "bf16")
