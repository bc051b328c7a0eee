"""Exact contexts: a request has the bits that it has alone and without drafts, whoever drafts and runs beside it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lcspec.config import ModelOptions
from lcspec.engine.events import Finished
from lcspec.engine.prompt_reading import PATIENCE
from lcspec.engine.request import Request
from lcspec.errors import ModelLoadError
from lcspec.kv_cache.parking import Parking
from lcspec.kv_cache.prompt_reader import LEAST_ROWS, LONG_PROMPT, UNNOTICED, PromptReader
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama import Context, can_fuse_row_by_row, can_go_row_by_row
from lcspec.modelfiles.memory import Memory
from lcspec.profiles import kernels, price
from lcspec.profiles.attention import WIDTHS, Layer, Times
from lcspec.profiles.exactness import Certificate
from lcspec.profiles.kernels import choose_kernels, exact_ways
from lcspec.profiles.price import Price, prices
from lcspec.session import Session, make_engine, open_session
from tests.running import CODE, GREEDY, SEEDED, Answer, answer, options, request, side_by_side
from tests.tiny_windows import write_gemma3

pytestmark = [pytest.mark.model, pytest.mark.slow]

N = 24
STRATEGIES = ("off", "ngram:branch=3:nodes=9", "model:branch=3:nodes=12:p_min=0", "ngram,suffix", "auto")


def exact(path: Path, **changes: Any) -> Any:
    return options(path, **{"attention": "fused", "exact": True, "ctx": 1024, **changes})


@pytest.fixture(scope="module")
def alone(demo: tuple[Path, Path]) -> Iterator[Session]:
    with open_session(exact(demo[0]), demo[1]) as session:
        if not session.engine.exact.independent:
            pytest.skip("this machine's kernels give a row other bits at other widths")
        yield session


@pytest.fixture(scope="module")
def texts(alone: Session) -> list[tuple[int, ...]]:
    """Short and long prompts, some with the same beginning."""
    long = alone.prompt_ids("\n\n".join(CODE * 5))
    assert len(long) > LONG_PROMPT + 100
    short = [alone.prompt_ids(text) for text in CODE[:3]]
    return [*short, short[0] + short[1], long, long[: LONG_PROMPT + 20], long[: LONG_PROMPT + 40] + short[2]]


Bits = list[tuple[int, "float | None"]]


@pytest.fixture(scope="module")
def expected(alone: Session, texts: list[tuple[int, ...]]) -> dict[tuple[int, str], Bits]:
    """Each by itself in an engine of its own, without drafts."""
    out = {}
    for i, text in enumerate(texts):
        for name, sampling in (("greedy", GREEDY), ("seeded", SEEDED)):
            with open_session(exact(alone.model.options.path)) as session:
                found = answer(session.engine, request(text, "off", N, sampling=sampling, logprobs=0))
            out[i, name] = found.bits
    return out


def wanted(texts: list[tuple[int, ...]], i: int, name: str, strategy: str) -> Request:
    return request(texts[i], strategy, N, sampling=GREEDY if name == "greedy" else SEEDED, logprobs=0)


def test_drafts_change_no_bit(
    alone: Session, texts: list[tuple[int, ...]], expected: dict[tuple[int, str], Bits]
) -> None:
    accepted = 0
    for (i, name), bits in expected.items():
        for strategy in STRATEGIES:
            found = answer(alone.engine, wanted(texts, i, name, strategy))
            assert found.bits == bits, f"text {i}, {name}, {strategy}"
            accepted += found.finished.stats.accepted
    assert accepted > 100


@pytest.mark.parametrize("slots", [2, 4])
def test_others_change_no_bit(
    slots: int,
    demo: tuple[Path, Path],
    texts: list[tuple[int, ...]],
    expected: dict[tuple[int, str], Bits],
) -> None:
    """Requests come and go beside each other, drafting, sharing beginnings, some cancelled half-way."""
    chance = random.Random(slots)
    with open_session(exact(demo[0], slots=slots), demo[1]) as session:
        engine = session.engine
        assert engine.pool.parking is not None
        keys = [*expected, *chance.sample(list(expected), 6)]
        chance.shuffle(keys)
        asked = [wanted(texts, i, name, chance.choice(STRATEGIES)) for i, name in keys]
        gone = {engine.submit(asked[j]) for j in (1, 4)}
        found = {engine.submit(one): Answer() for one in asked}
        ended = set()
        while engine.busy:
            for event in engine.step():
                if event.request in gone:
                    engine.cancel(event.request)
                    ended |= {event.request} if isinstance(event, Finished) else set()
                else:
                    found[event.request].events.append(event)
        assert ended == gone
        for key, one in zip(keys, found.values()):
            assert one.bits == expected[key], f"{key} beside others"


def test_texts_that_come_back_have_the_same_bits(
    demo: tuple[Path, Path], texts: list[tuple[int, ...]], expected: dict[tuple[int, str], Bits]
) -> None:
    """Cells of a text lie in order again, whoever had them in between: else sums would round in another way."""
    with open_session(exact(demo[0], slots=2), demo[1]) as session:
        engine, back = session.engine, 0
        assert engine.pool.parking is not None
        running = engine.submit(request(texts[0][:40], "ngram:min_n=1:branch=2", 400))
        for _ in range(3):
            for i, name in expected:
                number, found = engine.submit(wanted(texts, i, name, "ngram:min_n=1:branch=2")), Answer()
                while not found.events or not isinstance(found.events[-1], Finished):
                    found.events += [event for event in engine.step() if event.request == number]
                back += found.started.reused == len(texts[i]) - 1
                assert found.bits == expected[i, name]
        engine.cancel(running)
        assert back >= len(expected)


def test_a_long_prompt_is_read_apart_and_its_cells_are_reused(
    alone: Session, texts: list[tuple[int, ...]], expected: dict[tuple[int, str], Bits]
) -> None:
    engine = alone.engine
    engine.prefix_cache.clear()
    first = answer(engine, wanted(texts, 4, "greedy", "off"))
    assert engine.prompts.reader is not None and first.started.reused == 0
    again = answer(engine, wanted(texts, 4, "greedy", "ngram"))
    assert again.started.reused == len(texts[4]) - 1
    # The next turn of a conversation: the answer was not read, so it is read now, as if it had come with the prompt.
    turn = (*texts[4], *(token for token, _ in first.bits), *texts[1])
    found = answer(engine, request(turn, "ngram", N, logprobs=0))
    assert len(texts[4]) - 1 <= found.started.reused < len(texts[4]) + N
    with open_session(exact(alone.model.options.path)) as session:
        assert answer(session.engine, request(turn, "off", N, logprobs=0)).bits == found.bits


def test_an_ended_conversation_is_read_ahead(alone: Session, texts: list[tuple[int, ...]]) -> None:
    engine = alone.engine
    first = answer(engine, wanted(texts, 4, "seeded", "off"))
    said = (*texts[4], *first.ids)
    pieces, patience = 0, list[float | None]()
    while engine.read_ahead():
        pieces += 1
        patience.append(engine.read_ahead_after())
    # Who comes back waits for one piece at most, so each is read when ten times as long has passed.
    assert patience[-1] is None and all(0.0 < seconds <= PATIENCE * UNNOTICED for seconds in patience[:-1] if seconds)
    assert pieces > 0 and engine.prefix_cache.latest is not None and engine.prefix_cache.latest[0].handed == len(said)
    turn = (*said, *texts[2])
    found = answer(engine, request(turn, "ngram", N, logprobs=0))
    assert found.started.reused == len(said)
    with open_session(exact(alone.model.options.path)) as session:
        assert answer(session.engine, request(turn, "off", N, logprobs=0)).bits == found.bits


def test_without_memory_nothing_is_read_ahead(
    alone: Session, texts: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer makes a conversation one that is read apart, and there is no room for the context that reads it."""

    def refused(*given: Any, **more: Any) -> Context:
        raise ModelLoadError("no context")

    with make_engine(alone.model, exact(alone.model.options.path)) as engine:
        short = texts[4][: LONG_PROMPT - N // 2]
        first = answer(engine, request(short, "off", N, logprobs=0))
        assert engine.prompts.reader is None and engine.prompts.wants((*short, *first.ids))
        monkeypatch.setattr("lcspec.kv_cache.prompt_reader.Context", refused)
        engine.read_ahead()
        assert not engine.read_ahead() and engine.read_ahead_after() is None
        assert answer(engine, request(short, "ngram", N, logprobs=0)).bits == first.bits


def test_pieces_do_not_show_in_what_is_read_apart(alone: Session, texts: list[tuple[int, ...]]) -> None:
    model, tokens = alone.model, list(texts[4][:300])
    reader = PromptReader(model, exact(model.options.path, slots=2, batch=512), 512)
    states = []
    try:
        for cuts in ((300,), (1, 30, 31, 200, 300), (LEAST_ROWS, 2 * LEAST_ROWS, 300)):
            place = reader.begin([])
            for start, stop in zip((0, *cuts), cuts):
                reader.read(place, tokens[start:stop])
            states.append(reader.copied(place)[12:])  # behind the ids
            reader.end(place)
    finally:
        reader.close()
    assert states[0] == states[1] == states[2]


def test_freed_cells_below_a_text_are_parked(alone: Session) -> None:
    """A text goes on above cells that another one left, and after all texts have been put together."""
    tokens = alone.prompt_ids("\n".join(CODE))

    def rows(beside: bool, compact: bool) -> list[bytes]:
        with Context(alone.model, alone.engine.options) as context:
            pool = SequencePool(context.n_seq)
            pool.parking = Parking(context, pool.take())
            other, own = SequenceCache(context.memory, pool), SequenceCache(context.memory, pool)
            for cache, text in ((other, tokens[50:90]), (own, tokens[:60])):
                if cache is own or beside:
                    context.batch.clear()
                    context.batch.add_run(text, 0, cache.main)
                    context.decode()
                    cache.length = len(text)
            out = []
            for i in range(60, 70):
                if i == 62:
                    other.release()
                    assert pool.parking.n == (40 if beside else 0)
                if i == 66 and compact:
                    pool.parking.compact([own])
                    assert pool.parking.n == 0
                context.batch.clear()
                context.batch.add(tokens[i], i, [own.main], logits=True)
                context.decode()
                own.length += 1
                out.append(context.logits().tobytes())
            return out

    plain = rows(False, False)
    assert rows(True, False) == plain
    assert rows(True, True) == plain


def test_a_shared_beginning_is_taken_whole(alone: Session) -> None:
    """Another's cells may lie below one's own, so none of one's own stay."""
    tokens = alone.prompt_ids("\n".join(CODE))
    with Context(alone.model, alone.engine.options) as context:
        pool = SequencePool(context.n_seq)
        pool.parking = Parking(context, pool.take())
        first, second = SequenceCache(context.memory, pool), SequenceCache(context.memory, pool)
        for cache, n in ((first, 40), (second, 10)):
            context.batch.clear()
            context.batch.add_run(tokens[:n], 0, cache.main)
            context.decode()
            cache.length = n
        second.share(first, 40)
        assert second.length == 40 and pool.parking.n == 10
        keys_and_values = 16 + 40 * 12  # behind the ids
        assert context.memory.state(second.main)[keys_and_values:] == context.memory.state(first.main)[keys_and_values:]


@pytest.mark.parametrize(
    ("alone_dearer", "crowd_dearer", "chosen"), [(1.0, 1.0, True), (1.5, 1.0, False), (1.0, 1.5, False)]
)
def test_exact_by_itself_where_it_costs_next_to_nothing(
    alone_dearer: float, crowd_dearer: float, chosen: bool, alone: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a single text nor all slots together may pay for it."""

    def layer(seconds: float, crowd: float) -> Layer:
        return Layer(seconds, (seconds,) * len(WIDTHS), crowd, 4)

    found_times = Times(layer(1.0, 1.0), layer(2.0, 2.0), layer(alone_dearer, crowd_dearer))
    monkeypatch.setattr(kernels, "can_fuse_row_by_row", lambda: False)
    monkeypatch.setattr(kernels, "can_go_row_by_row", lambda: False)
    monkeypatch.setattr(price, "times_for", lambda *_: found_times)
    monkeypatch.setattr(price, "_work", lambda *_: {"fused": dict.fromkeys((*WIDTHS, LEAST_ROWS), 0.1)})
    open_options = exact(alone.model.options.path, exact=None, attention="measured", slots=4)
    ((_, found),) = prices(alone.model, open_options, exact_ways(alone.model, open_options))
    assert (
        found is not None
        and found.is_small is chosen
        and found.decode == pytest.approx(max(alone_dearer, crowd_dearer), rel=0.05)
    )
    assert choose_kernels(alone.model, open_options).options.exact is chosen
    monkeypatch.setattr(kernels, "machine_memory", lambda: Memory(1, 1))
    assert choose_kernels(alone.model, open_options).options.exact is False, "there is no memory for it"


def test_what_was_asked_for_is_not_decided(alone: Session) -> None:
    path = alone.model.options.path
    for given in ({"attention": "library"}, {"kv_type": "q8_0"}, {"kv_type_v": "f32"}, {"exact": False}):
        made = choose_kernels(alone.model, exact(path, **{"exact": None, "attention": "measured", **given})).options
        assert made.exact is False and made.kv_type == given.get("kv_type", "f16")
    assert choose_kernels(alone.model, exact(path)).options.kv_type_v == "bf16"


@pytest.mark.skipif(not (can_fuse_row_by_row() and can_go_row_by_row()), reason="this library cannot go row by row")
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize(
    ("fused", "rows", "fused_rows", "first"),
    [(0.9, 1.0, 1.0, "fused"), (1.1, 1.08, 1.2, "fused"), (1.3, 1.0, 1.1, "rows"), (1.3, 1.2, 1.0, "fused_rows")],
)
def test_insisting_takes_the_cheapest_way_whatever_the_slots(
    slots: int, fused: float, rows: float, fused_rows: float, first: str, alone: Session, monkeypatch: Any
) -> None:
    """BF16 is dear on some processors, rows are on others. One slot and several have the same texts."""
    cost = {"fused": fused, "rows": rows, "fused_rows": fused_rows}

    def priced(_: object, given: ModelOptions, ways: Sequence[ModelOptions]) -> list[tuple[ModelOptions, Price]]:
        return [(way, Price(cost[way.attention], 2.0, 1.0, None, 0.0)) for way in ways]

    monkeypatch.setattr(kernels, "prices", priced)
    wanted = exact(alone.model.options.path, attention="measured", slots=slots)
    ways = [way for way, _ in kernels.priced_ways(alone.model, wanted)]
    assert ways[0].attention == first and {way.attention for way in ways} == set(cost)
    monkeypatch.setattr(kernels, "machine_memory", lambda: Memory(1, 1))
    fits, _ = kernels.priced_ways(alone.model, wanted)[0]
    assert not fits.streams, "there is no memory for a cache for every slot"


def test_without_independence_a_request_may_still_be_exact(alone: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "independence_of", lambda *_: Certificate(((1, 2), (4,)), 8, True, True))
    model = alone.model
    with make_engine(model, exact(model.options.path)) as engine:
        assert engine.options.attention == "library" and not engine.exact.independent and engine.exact.all_exact
        plain = answer(engine, request(alone.prompt_ids(CODE[0]), "off", N, exact=True, logprobs=0))
        found = side_by_side(engine, [request(alone.prompt_ids(CODE[0]), "ngram", N, exact=True, logprobs=0)])
        assert found[0].bits == plain.bits


def test_an_exact_prompt_needs_no_larger_batch_than_its_blocks(tmp_path: Path) -> None:
    """Blocks of 32 rows are padded to, in a context whose steps and prompt chunks are all narrower."""
    with open_session(options(write_gemma3(tmp_path / "m.gguf"), batch=24, max_width=16)) as session:
        prompt = session.prompt_ids("the cat and the dog and the cat and the ")
        found = [answer(session.engine, request(prompt, how, 12, exact=True, logprobs=0)) for how in STRATEGIES[:2]]
        assert found[0].bits == found[1].bits and len(found[0].bits) == 12
