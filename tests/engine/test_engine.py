"""The engine on real models: verifiers, cancelling, slots, endings, prefix reuse, statistics, logprobs, streaming."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcspec.config import SpeculationParams
from lcspec.drafters import Budget, SequenceView
from lcspec.drafters.suffix import NgramDrafter
from lcspec.engine.engine import Engine
from lcspec.engine.events import Finished, Prefill, Started, StepStats, Tokens
from lcspec.engine.request import Request
from lcspec.errors import ContextOverflow, UsageError
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session
from lcspec.spec.token_tree import TokenTree
from tests import tiny_gguf as tiny
from tests.running import (
    CODE,
    GREEDY,
    SAMPLINGS,
    SEEDED,
    Answer,
    answer,
    options,
    prompts,
    request,
    side_by_side,
)

pytestmark = pytest.mark.model

TEXT = "the cat and the dog and the cat and the "
ALL = ("ngram:min_n=1", "ngram:branch=3:min_n=1:nodes=12", "model", "model:branch=3:nodes=12", "ngram,model", "suffix")
SAMPLED = [f"{name}-{verifier}" for name in ("model", "tree", "ngram") for verifier in ("rejection", "multi_step")]


@pytest.fixture
def engine(tiny_session: Session) -> Iterator[Engine]:
    """An idle engine; afterwards all sequence ids must be accounted for."""
    yield tiny_session.engine
    assert_clean(tiny_session.engine)


def assert_clean(engine: Engine) -> None:
    """Nothing runs, and every sequence id is in the pool or holds the cache of an ended request."""
    assert not engine.running and not engine.waiting
    for pool, shelf, context, pad in [
        (engine.pool, engine.prefix_cache, engine.context, 1),
        *[(d.pool, d.prefix_cache, d.context, 0) for n, d in engine.drafting.drafters.items() if n == "model"],  # type: ignore[attr-defined]
    ]:
        kept = {cache.main for cache in shelf.caches}
        assert pool.free + len(kept) + pad == pool.n
        assert len(set(pool._free)) == pool.free
        assert all(context.memory.end(seq) == 0 for seq in range(pool.n) if seq not in kept)
        assert all(context.memory.end(cache.main) == cache.length for cache in shelf.caches)


@pytest.fixture(scope="module")
def prompt(tiny_session: Session) -> tuple[int, ...]:
    return tiny_session.prompt_ids(TEXT)


# --- verifiers --------------------------------------------------------------------------------------------------------


def strategy_of(name: str) -> str:
    return {"model": "model:p_min=0", "tree": "model:branch=3:nodes=9:p_min=0", "ngram": "ngram:min_n=1"}[name]


@pytest.mark.parametrize("case", SAMPLED)
def test_sampling_verifiers_run_and_count(engine: Engine, prompt: tuple[int, ...], case: str) -> None:
    name, verifier = case.split("-")
    found = answer(engine, request(prompt, strategy_of(name), 60, sampling=SEEDED, verifier=verifier))
    assert len(found.ids) == 60
    assert found.finished.lossless
    assert_adds_up(found)
    if name != "ngram":
        assert found.finished.stats.accepted > 10  # the draft model is a close relative
    again = answer(engine, request(prompt, strategy_of(name), 60, sampling=SEEDED, verifier=verifier))
    assert again.ids == found.ids  # the noise is a function of the seed


@pytest.mark.parametrize("verifier", ["rejection", "multi_step", "coupled"])
@pytest.mark.parametrize("strategy", ALL)
def test_at_temperature_0_every_lossless_verifier_is_greedy(
    engine: Engine, prompt: tuple[int, ...], verifier: str, strategy: str
) -> None:
    plain = answer(engine, request(prompt, "off", 40))
    assert answer(engine, request(prompt, strategy, 40, verifier=verifier)).ids == plain.ids


@pytest.mark.parametrize("verifier", ["typical", "lenient", "typical:epsilon=0.5", "lenient:lenience=0.9"])
def test_lossy_verifiers_say_so(engine: Engine, prompt: tuple[int, ...], verifier: str) -> None:
    found = answer(engine, request(prompt, "model:p_min=0", 40, sampling=SEEDED, verifier=verifier))
    assert not found.finished.lossless
    assert len(found.ids) == 40
    assert_adds_up(found)
    with pytest.raises(UsageError, match="exact"):
        engine.submit(request(prompt, "model", 4, verifier=verifier, exact=True))


def test_a_lossy_verifier_accepts_more(engine: Engine, prompt: tuple[int, ...]) -> None:
    strict = answer(engine, request(prompt, "ngram:min_n=1", 60, sampling=SEEDED)).finished.stats
    lossy = answer(engine, request(prompt, "ngram:min_n=1", 60, sampling=SEEDED, verifier="lenient:lenience=0.01"))
    assert lossy.finished.stats.mean_acceptance_length > strict.mean_acceptance_length


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("strategy", ["model:p_min=0", "model:p_min=0:nodes=12:branch=3", "model"])
def test_the_target_as_its_own_draft_accepts_everything(llama: Path, strategy: str, sampling: SamplingParams) -> None:
    with open_session(options(llama), llama) as session:
        prompt = session.prompt_ids(TEXT)
        plain = answer(session.engine, request(prompt, "off", 60, sampling=sampling))
        found = answer(session.engine, request(prompt, strategy, 60, sampling=sampling))
        assert found.ids == plain.ids
        stats = found.finished.stats
        assert stats.drafted > 0
        if "branch" not in strategy:
            assert stats.accepted == stats.drafted
        else:  # in a tree one node of each level, down to a leaf
            for step in found.steps:
                node = 0
                for token in step.emitted[: step.accepted]:
                    node = step.tree.child(node, token) or 0
                assert node in step.tree.leaves()


# --- cancelling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 5, 9])
@pytest.mark.parametrize("strategy", ["ngram:branch=3:min_n=1", "model:branch=3:nodes=12:p_min=0"])
def test_closing_the_iterator_returns_every_id(
    engine: Engine, prompt: tuple[int, ...], strategy: str, steps: int
) -> None:
    expected = answer(engine, request(prompt, "off", 30)).ids
    events = engine.run(request(prompt, strategy, 200, sampling=SEEDED))
    for _ in range(steps):
        next(events)
    events.close()
    assert_clean(engine)
    assert answer(engine, request(prompt, strategy, 30)).ids == expected


def test_cancel_between_steps(engine: Engine, prompt: tuple[int, ...]) -> None:
    expected = answer(engine, request(prompt, "off", 30)).ids
    found = Answer()
    for event in engine.run(request(prompt, "model:branch=3:nodes=12:p_min=0", 200)):
        found.events.append(event)
        if len(found.ids) > 7 and isinstance(event, Tokens):
            engine.cancel(event.request)
    assert found.reason == "cancelled"
    assert 7 < len(found.ids) < 200
    assert found.finished.completion_tokens == len(found.ids)
    assert found.ids[:30] == expected[: len(found.ids)]
    assert_clean(engine)
    assert answer(engine, request(prompt, "ngram", 30)).ids == expected


def test_a_place_that_is_free_at_once_is_taken_in_the_next_step(llama: Path) -> None:
    """A request for no tokens ends in the step in which it starts, while another one's answer goes on as before."""
    with open_session(options(llama, slots=2)) as session:
        engine, prompt = session.engine, session.prompt_ids("one two three")
        numbers = [engine.submit(request(prompt, "off", n)) for n in (16, 4, 0, 4)]
        events = [event for _ in range(40) for event in engine.step()]
        order = [(type(e).__name__, e.request) for e in events if isinstance(e, (Started, Finished))]
        long, short, none, last = numbers
        assert order.index(("Finished", none)) < order.index(("Started", last)) < order.index(("Finished", long))
        assert order.index(("Finished", last)) < order.index(("Finished", long)), "it did not wait for the other's end"


def test_cancelling_what_waits_or_is_unknown(engine: Engine, prompt: tuple[int, ...]) -> None:
    first, second = engine.submit(request(prompt, n=8)), engine.submit(request(prompt, n=8))
    engine.cancel(second)
    engine.cancel(12345)
    finished = [(e.request, e.reason) for _ in range(40) for e in engine.step() if isinstance(e, Finished)]
    assert finished == [(second, "cancelled"), (first, "length")]
    assert engine.step() == []


class _Interrupted(NgramDrafter):
    """Proposes a tree; after a few steps somebody presses Ctrl-C while it thinks."""

    name = "interrupted"

    def draft(self, sequence: SequenceView, budget: Budget) -> TokenTree:
        if len(sequence.tokens) - sequence.n_prompt > 5:
            raise KeyboardInterrupt
        return super().draft(sequence, budget)


def test_an_interrupt_in_a_drafter(engine: Engine, prompt: tuple[int, ...]) -> None:
    expected = answer(engine, request(prompt, "off", 30)).ids
    engine.drafting.drafters["interrupted"] = _Interrupted(engine.drafting.env)
    try:
        with pytest.raises(KeyboardInterrupt):
            answer(engine, request(prompt, "model:p_min=0,interrupted:min_n=1", 100))
        assert_clean(engine)
        assert answer(engine, request(prompt, "model", 30)).ids == expected
    finally:
        del engine.drafting.drafters["interrupted"]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_in_the_middle_of_a_decode(
    engine: Engine, prompt: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, when: str, exact: bool
) -> None:
    """The tree and the padding are in the cells (or not), and nobody has committed anything."""
    wanted = request(prompt, "ngram:branch=3:min_n=1", 30, exact=exact)
    expected = answer(engine, request(prompt, "off", 30, exact=exact)).ids
    decode, calls = engine.context.decode, 0

    def interrupted(*args: Any, **named: Any) -> float:
        nonlocal calls
        calls += 1
        if calls == 6 and when == "before":
            raise KeyboardInterrupt
        seconds = decode(*args, **named)
        if calls == 6:
            raise KeyboardInterrupt
        return seconds

    with monkeypatch.context() as patch:
        patch.setattr(engine.context, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            answer(engine, wanted)
    assert_clean(engine)
    assert answer(engine, wanted).ids == expected


# --- several slots ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategies", [("off", "off"), ("ngram:branch=3:min_n=1", "model:p_min=0"), ("auto", "auto")])
def test_two_slots_side_by_side(llama: Path, llama_draft: Path, strategies: tuple[str, str]) -> None:
    with open_session(options(llama, slots=2), llama_draft) as session:
        engine = session.engine
        texts = (TEXT, "once upon a time in a land far away " * 3)
        samplings = (GREEDY, SEEDED)
        requests = [
            request(session.prompt_ids(t), s, n, sampling=p)
            for t, s, p, n in zip(texts, strategies, samplings, (60, 25))
        ]
        requests.append(request(session.prompt_ids("a third one waits"), strategies[0], 30))
        together = side_by_side(engine, requests)
        assert_clean(engine)
        alone = [answer(engine, wanted) for wanted in requests]
        for ours, theirs in zip(together, alone):
            assert_same_or_near_tie(ours, theirs)
            assert_adds_up(ours)
        assert any(step.width > len(step.tree) for found in together for step in found.steps)  # they did share steps


def assert_same_or_near_tie(ours: Answer, theirs: Answer) -> None:
    """These models' logits are far apart: texts of this length part only if something is wrong."""
    assert ours.error is None
    assert ours.ids == theirs.ids


@pytest.mark.parametrize("strategy", ["ngram:nodes=60:min_n=1", "model:nodes=40:branch=16:p_min=0", "auto"])
def test_slots_that_all_want_the_whole_step(llama: Path, llama_draft: Path, strategy: str) -> None:
    with open_session(options(llama, slots=3, batch=64), llama_draft) as session:
        texts = ("the cat " * 30, "abc" * 30, "zyx " * 20)
        requests = [request(session.prompt_ids(text), strategy, 30) for text in texts]
        together = side_by_side(session.engine, requests)
        assert_clean(session.engine)
        for wanted, found in zip(requests, together):
            assert_same_or_near_tie(found, answer(session.engine, wanted))


def test_a_huge_tree_in_one_slot_runs_out_of_ids_gracefully(engine: Engine, prompt: tuple[int, ...]) -> None:
    plain = answer(engine, request(prompt, "off", 30))
    assert answer(engine, request(prompt, "model:nodes=200:branch=16:p_min=0", 30)).ids == plain.ids


def test_one_slot_failing_to_start_leaves_the_others_alone(llama: Path, other_vocabulary: Path) -> None:
    with open_session(options(llama, slots=2), other_vocabulary) as session:
        prompt = session.prompt_ids(TEXT)
        expected = answer(session.engine, request(prompt, "off", 20)).ids
        with pytest.raises(UsageError, match="draft"):
            session.engine.submit(request(prompt, "model2", 20))
        broken = request(prompt, "ngram:nonsense=1", 20)
        good, bad = side_by_side(session.engine, [request(prompt, "ngram", 20), broken])
        assert good.ids == expected
        assert isinstance(bad.error, UsageError)
        assert_clean(session.engine)


def test_an_error_of_the_step_ends_all_requests_and_the_engine_goes_on(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lcspec.errors import DecodeError

    with open_session(options(llama, slots=2)) as session:
        prompt = session.prompt_ids(TEXT)
        expected = answer(session.engine, request(prompt, "off", 20)).ids

        def fail(*_: Any, **__: Any) -> float:
            raise DecodeError("no room")

        with monkeypatch.context() as patch:
            patch.setattr(session.engine.context, "decode", fail)
            found = side_by_side(session.engine, [request(prompt, "ngram", 20)] * 3)
        assert [type(f.error) for f in found] == [DecodeError] * 3
        assert session.engine.pool.free == session.engine.pool.n - 1
        assert answer(session.engine, request(prompt, "ngram", 20)).ids == expected


# --- how a text ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["off", "ngram:min_n=1", "model:p_min=0:branch=2:nodes=12", "auto"])
def test_a_full_context_ends_the_text(llama: Path, llama_draft: Path, strategy: str) -> None:
    with open_session(options(llama, ctx=64), llama_draft) as session:
        prompt = session.prompt_ids(TEXT)
        found = answer(session.engine, request(prompt, strategy, None))
        assert found.reason == "context"
        assert len(prompt) + len(found.ids) == 64
        assert answer(session.engine, request(prompt, strategy, 1000)).reason == "context"
        assert_clean(session.engine)


def test_a_prompt_that_fills_the_context(llama: Path) -> None:
    with open_session(options(llama, ctx=64)) as session:
        fitting = answer(session.engine, request([5] * 63, "off", 10))
        assert (fitting.reason, len(fitting.ids)) == ("context", 1)
        with pytest.raises(ContextOverflow, match="64"):
            session.engine.submit(request([5] * 64, "off", 10))
        with pytest.raises(UsageError, match="empty"):
            session.engine.submit(request([], "off", 10))
        with pytest.raises(UsageError, match="-1"):
            session.engine.submit(request([5], "off", -1))


@pytest.mark.parametrize("strategy", ["off", "ngram:min_n=1", "model:p_min=0"])
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_the_token_limit_is_exact(engine: Engine, prompt: tuple[int, ...], strategy: str, n: int) -> None:
    found = answer(engine, request(prompt, strategy, n))
    assert found.reason == "length"
    assert len(found.ids) == found.finished.completion_tokens == n
    assert bool(found.text) == (n > 0)


@pytest.mark.parametrize("strategy", ["off", "model:p_min=0"])
def test_a_stop_string_across_token_borders(tiny_session: Session, prompt: tuple[int, ...], strategy: str) -> None:
    engine, vocab = tiny_session.engine, tiny_session.model.vocab
    text = answer(engine, request(prompt, "off", 60)).text
    pieces = [vocab.text([t]) for t in answer(engine, request(prompt, "off", 60)).ids]
    # The last character of one token and the first of the next, somewhere after the beginning.
    at = next(i for i in range(20, 58) if "\ufffd" not in pieces[i] + pieces[i + 1] and pieces[i] and pieces[i + 1])
    stop = pieces[at][-1] + pieces[at + 1][0]
    found = answer(engine, request(prompt, strategy, 60, stop=("never in there", stop)))
    assert (found.reason, found.finished.stop) == ("stop", stop)
    assert found.text == text[: text.index(stop)]
    missed = answer(engine, request(prompt, strategy, 60, stop=("never in there",)))
    assert (missed.reason, missed.finished.stop, missed.text) == ("length", None, text)
    assert_clean(engine)


@pytest.mark.parametrize("strategy", ["off", "model:p_min=0", "ngram:min_n=1"])
def test_the_end_token_ends_the_text_and_is_not_shown(
    llama: Path, llama_draft: Path, prompt: tuple[int, ...], strategy: str
) -> None:
    with open_session(options(llama), llama_draft) as session:
        vocab = session.model.vocab
        bias = SamplingParams(temperature=0.8, seed=3, logit_bias=((vocab.eos, 4.5),))
        plain = answer(session.engine, request(prompt, "off", 300, sampling=bias, ignore_end=False))
        assert plain.reason == "stop"
        assert vocab.eos not in plain.ids
        found = answer(session.engine, request(prompt, strategy, 300, sampling=bias, ignore_end=False))
        assert (found.ids, found.text, found.reason) == (plain.ids, plain.text, "stop")
        assert_clean(session.engine)


# --- reuse ------------------------------------------------------------------------------------------------------------


def test_a_common_beginning_is_not_evaluated_again(engine: Engine, llama: Path, prompt: tuple[int, ...]) -> None:
    engine.prefix_cache.clear()
    first = answer(engine, request(prompt, "ngram:min_n=1:branch=3", 20))
    assert first.started.reused == 0
    longer = [*prompt, *first.ids, 70, 71, 72]
    second = answer(engine, request(longer, "model:p_min=0", 20))
    # All of the first text but its last token, which was emitted and never evaluated.
    assert second.started.reused == len(prompt) + 19
    again = answer(engine, request(prompt, "off", 20))
    assert again.started.reused == len(prompt) - 1
    assert again.ids == first.ids
    other = answer(engine, request([*prompt[:9], 70, 71, 72], "off", 20))
    assert other.started.reused == 9
    with open_session(options(llama)) as fresh:
        assert answer(fresh.engine, request(longer, "off", 20)).ids == second.ids
        fresh.engine.prefix_cache.clear()
        assert answer(fresh.engine, request([*prompt[:9], 70, 71, 72], "off", 20)).ids == other.ids


def test_the_cache_with_the_longest_common_beginning_is_taken(llama: Path) -> None:
    with open_session(options(llama, slots=2)) as session:
        a, b = session.prompt_ids("first text, quite long " * 3), session.prompt_ids("second text, as long " * 3)
        side_by_side(session.engine, [request(a, "off", 5), request(b, "off", 5)])
        assert answer(session.engine, request([*b, 9], "off", 5)).started.reused >= len(b)
        assert answer(session.engine, request([*a, 9], "off", 5)).started.reused >= len(a)


# --- statistics -------------------------------------------------------------------------------------------------------


def assert_adds_up(found: Answer) -> None:
    """The totals are the sums of the steps, in every breakdown."""
    stats, steps = found.finished.stats, found.steps
    assert stats.target_steps == len(steps) == sum(stats.widths.values())
    assert stats.drafted == sum(step.tree.n_drafted for step in steps) == sum(stats.drafted_by_depth)
    assert stats.accepted == sum(step.accepted for step in steps) == sum(stats.accepted_by_depth)
    assert all(a <= d for a, d in zip(stats.accepted_by_depth, stats.drafted_by_depth))
    assert len(stats.accepted_by_depth) == len(stats.drafted_by_depth)
    assert stats.widths == {n: sum(1 for s in steps if len(s.tree) == n) for n in {len(step.tree) for step in steps}}
    # The first token comes from the prompt's last row, all others from decode steps.
    assert stats.step_tokens == max(0, len(found.ids) - 1)
    assert sum(1 for info in found.infos if info.drafter) == stats.accepted
    if steps:
        assert stats.mean_acceptance_length == pytest.approx(stats.step_tokens / len(steps))
        assert stats.tokens_per_second == pytest.approx(stats.step_tokens / stats.decode_seconds)
    assert stats.target_seconds == pytest.approx(sum(step.target_seconds for step in steps))
    assert stats.draft_seconds == pytest.approx(sum(step.draft_seconds for step in steps))
    total = stats.target_seconds + stats.draft_seconds + stats.overhead_seconds
    assert total == pytest.approx(stats.decode_seconds)
    shares = stats.by_drafter.values()
    assert all(share["accepted"] <= share["drafted"] for share in shares)
    # A node that two proposed counts for both.
    assert sum(share["drafted"] for share in shares) >= stats.drafted
    assert sum(share["accepted"] for share in shares) >= stats.accepted


@pytest.mark.parametrize("strategy", ["off", *ALL, "auto", "ngram:min_n=1,suffix,model:p_min=0"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_statistics_add_up(engine: Engine, prompt: tuple[int, ...], strategy: str, sampling: SamplingParams) -> None:
    found = answer(engine, request(prompt, strategy, 50, sampling=sampling))
    assert_adds_up(found)
    stats = found.finished.stats
    named = {part.split(":")[0] for part in strategy.split(",")}
    if strategy == "off":
        assert (stats.drafted, stats.by_drafter, stats.widths, stats.mean_acceptance_length) == (0, {}, {1: 49}, 1.0)
    elif strategy != "auto":
        assert set(stats.by_drafter) <= named
        if "," not in strategy:
            tally = {"drafted": stats.drafted, "accepted": stats.accepted}
            assert stats.by_drafter == ({next(iter(named)): tally} if stats.drafted else {})


def test_events_come_in_order(engine: Engine, prompt: tuple[int, ...]) -> None:
    engine.prefix_cache.clear()
    found = answer(engine, request(prompt, "model", 12))
    kinds = [type(e) for e in found.events]
    assert kinds[:2] == [Started, Prefill] and kinds[-1] is Finished
    assert set(kinds[2:-1]) == {Tokens, StepStats}
    assert found.started.prompt_tokens == found.finished.prompt_tokens == len(prompt)
    assert found.finished.seed == found.started.seed == 1


def test_a_long_prompt_comes_in_chunks_with_progress(llama: Path) -> None:
    with open_session(options(llama, batch=40)) as session:
        prompt = session.prompt_ids("a sentence of some length. " * 8)
        found = answer(session.engine, request(prompt, "ngram", 4))
        done = [e.done for e in found.events if isinstance(e, Prefill)]
        assert len(done) >= 3 and done == sorted(done) and done[-1] == len(prompt)


def test_a_seed_is_drawn_and_reported(engine: Engine, prompt: tuple[int, ...]) -> None:
    free = SamplingParams(temperature=1.0)
    first = answer(engine, request(prompt, "off", 20, sampling=free))
    second = answer(engine, request(prompt, "off", 20, sampling=free))
    assert first.started.seed != second.started.seed
    fixed = SamplingParams(temperature=1.0, seed=first.finished.seed)
    assert answer(engine, request(prompt, "model", 20, sampling=fixed)).ids == first.ids


# --- logprobs and text ------------------------------------------------------------------------------------------------


def rows_of(session: Session, tokens: list[int], first: int) -> np.ndarray:
    """Log-probabilities of every token from index `first` on, decoded plainly in a context of their own."""
    from lcspec.llama import Context

    with Context(session.model, session.engine.options) as context:
        context.batch.clear()
        for pos, token in enumerate(tokens[:-1]):
            context.batch.add(token, pos, (0,), logits=pos >= first - 1)
        context.decode()
        logits = context.logits().astype(np.float64)
        return np.asarray(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))


@pytest.mark.parametrize("strategy", ["off", "model:p_min=0", "model:branch=3:nodes=12:p_min=0", "prediction"])
def test_logprobs_are_the_target_s_own(tiny_session: Session, prompt: tuple[int, ...], strategy: str) -> None:
    sampling = SamplingParams(temperature=0.8, top_k=5, repeat_penalty=1.3, seed=5)  # none of it in the logprobs
    expected = tuple(answer(tiny_session.engine, request(prompt, "off", 40, sampling=sampling)).ids)
    wanted = request(prompt, strategy, 40, sampling=sampling, logprobs=3, prediction=expected)
    found = answer(tiny_session.engine, wanted)
    rows = rows_of(tiny_session, [*prompt, *found.ids], len(prompt))
    if strategy != "off":
        assert any(info.drafter for info in found.infos)
    for info, row in zip(found.infos, rows):
        assert info.logprob == pytest.approx(row[info.id], abs=2e-2)
        assert [token for token, _ in info.top] == np.argsort(-row)[:3].tolist()
        assert [logprob for _, logprob in info.top] == pytest.approx(np.sort(row)[::-1][:3].tolist(), abs=2e-2)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_logprobs_under_exact_are_equal_to_the_bit(demo_session: Session, sampling: SamplingParams) -> None:
    prompt = prompts(demo_session, 0, 1)[0]
    plain = answer(demo_session.engine, request(prompt, "off", 40, sampling=sampling, exact=True, logprobs=2))
    for strategy in ("ngram:nodes=7", "ngram:branch=3", "model:branch=3:nodes=12:p_min=0"):
        found = answer(demo_session.engine, request(prompt, strategy, 40, sampling=sampling, exact=True, logprobs=2))
        assert [(i.id, i.logprob, i.top) for i in found.infos] == [(i.id, i.logprob, i.top) for i in plain.infos]


def test_no_logprobs_unless_asked_for(engine: Engine, prompt: tuple[int, ...]) -> None:
    assert all(i.logprob is None and i.top == () for i in answer(engine, request(prompt, "model", 10)).infos)


@pytest.mark.parametrize("strategy", ["off", "prediction", "ngram:min_n=1"])
def test_characters_split_over_tokens_come_out_whole(llama: Path, strategy: str) -> None:
    """Every emoji is four tokens in this vocabulary; the model is led along a text full of them by the logit bias."""
    emoji = "🙂🚀é漢🙂🚀"
    with open_session(options(llama)) as session:
        vocab = session.model.vocab
        wanted = vocab.tokenize(emoji, special=False)
        assert len(wanted) == len(emoji.encode())
        bias = tuple((token, 60.0) for token in set(wanted))
        found = answer(
            session.engine,
            request(
                session.prompt_ids(emoji * 4),
                strategy,
                60,
                sampling=SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=2, logit_bias=bias),
                prediction=tuple(wanted * 4),
            ),
        )
        assert set(found.ids) <= set(wanted)
        assert found.text == vocab.text(found.ids)
        shown = [e.text for e in found.events if isinstance(e, Tokens)]
        assert "".join(shown) == found.text


@pytest.mark.parametrize("strategy", ["off", "prediction:nodes=12"])
def test_a_whole_emoji_is_one_piece(llama: Path, strategy: str) -> None:
    emoji = "a🙂b"
    with open_session(options(llama)) as session:
        tokens = session.model.vocab.tokenize(emoji, special=False)
        grammar = f'root ::= "{emoji * 3}"'
        found = answer(
            session.engine,
            request(
                session.prompt_ids("x"),
                strategy,
                100,
                sampling=SamplingParams(temperature=0.0, grammar=grammar),
                prediction=tuple(tokens * 3),
                ignore_end=False,
            ),
        )
        assert (found.text, found.reason) == (emoji * 3, "stop")
        pieces = [piece.text for e in found.events if isinstance(e, Tokens) for piece in e.pieces]
        assert "🙂" in pieces  # with the token that completes it, never as four unknown characters
        if strategy != "off":
            assert found.finished.stats.accepted > 0


def test_streamed_text_is_the_detokenized_text(demo_session: Session) -> None:
    for prompt in prompts(demo_session, 1, 2):
        for strategy in ("off", "ngram,model:p_min=0"):
            found = answer(demo_session.engine, request(prompt, strategy, 48, sampling=SEEDED, stop=("never there",)))
            assert found.text == demo_session.model.vocab.text(found.ids)


# --- speculation options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_max_draft_limits_every_step(engine: Engine, prompt: tuple[int, ...], limit: int) -> None:
    for strategy in ("model:p_min=0:branch=2", "ngram:min_n=1,model:p_min=0", "auto"):
        found = answer(engine, request(prompt, strategy, 30, max_draft=limit))
        assert max(step.tree.n_drafted for step in found.steps) <= limit
    assert max(step.tree.n_drafted for step in found.steps) <= limit


@pytest.mark.parametrize(
    "text", ["nosuch", "ngram:nonsense=1", "ngram:max_n=x", "ngram:max_n=0", "model:p_min=2", "model:branch=-1"]
)
def test_unknown_drafters_and_options_are_refused(engine: Engine, prompt: tuple[int, ...], text: str) -> None:
    with pytest.raises(UsageError):
        answer(engine, request(prompt, text, 8))


def test_a_prediction_is_drafted_and_does_not_change_the_text(engine: Engine, prompt: tuple[int, ...]) -> None:
    plain = answer(engine, request(prompt, "off", 40))
    edited = [*plain.ids[:10], 70, 71, *plain.ids[12:40]]
    found = answer(engine, request(prompt, "prediction", 40, prediction=tuple(edited)))
    assert found.ids == plain.ids
    assert found.finished.stats.accepted > 20  # it found its place again after the difference


def test_plain_speculation_params_are_off() -> None:
    assert Request((1,)).speculation == SpeculationParams()
    assert not SpeculationParams().drafters


def test_a_target_that_is_its_own_worst_draft(llama: Path, folder: Path) -> None:
    """An unrelated draft model (same vocabulary): nothing is accepted, and the text is the same."""
    unrelated = tiny.write_llama(folder / "unrelated.gguf", seed=99)
    with open_session(options(llama), unrelated) as session:
        prompt = session.prompt_ids(CODE[0])
        for sampling in SAMPLINGS.values():
            plain = answer(session.engine, request(prompt, "off", 40, sampling=sampling))
            found = answer(session.engine, request(prompt, "model:p_min=0", 40, sampling=sampling))
            assert found.ids == plain.ids
            assert found.finished.stats.accepted < found.finished.stats.drafted / 4
