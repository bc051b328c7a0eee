"""Many requests on one engine: shared prefixes, fair prompts, streams that do not stall, nothing leaked, totals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lcspec.drafters.draft_model import MAX_LEVEL, SLICE, ModelDrafter
from lcspec.engine.engine import Engine
from lcspec.engine.events import Failed, Finished, Started, Tokens
from lcspec.engine.prefill_budget import UNNOTICED
from lcspec.engine.request import Request
from lcspec.errors import LcspecError
from lcspec.llama import Context
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session
from tests.running import GREEDY, SEEDED, Answer, answer, decodes_counted, options, request, side_by_side

pytestmark = pytest.mark.model

STORY = "once upon a time there was a cat that lived in a house at the end of the long road, and "
QUESTION = "the dog, the bird and the fish ask: where is the cat? "


@pytest.fixture(scope="module")
def four(llama: Path, llama_draft: Path) -> Iterator[Session]:
    """Four slots; every test leaves them idle."""
    with open_session(options(llama, slots=4, batch=64), llama_draft) as session:
        yield session


@pytest.fixture
def engine(four: Session) -> Iterator[Engine]:
    four.engine.prefix_cache.clear()
    yield four.engine
    assert not four.engine.busy
    assert_accounted(four.engine)
    four.engine.prefix_cache.clear()
    assert_empty(four.engine)


def caches(engine: Engine) -> list[tuple[int, int]]:
    """(main id, cells) of every cache there is."""
    held = engine.prefix_cache.caches
    return [(cache.main, cache.length) for cache in held]


def assert_accounted(engine: Engine) -> None:
    """Every sequence id is in the pool, the padding's, a cache's or a leaf; there are no more caches than slots."""
    leaves = sum(len(sequence.cache._upto) for sequence in engine.running)
    mains = caches(engine)
    assert len(mains) <= engine.options.slots
    assert engine.pool.free + len(mains) + leaves + 1 == engine.pool.n
    assert len(engine.prefix_cache._lent) == len(engine.running)
    for main, length in mains:
        assert engine.context.memory.end(main) == length


def assert_empty(engine: Engine) -> None:
    """Not a cell is left."""
    assert engine.pool.free + 1 == engine.pool.n
    assert all(engine.context.memory.end(seq) == 0 for seq in range(engine.pool.n))


def alone(path: Path, wanted: Request, **changes: object) -> Answer:
    """The request in a session of its own."""
    with open_session(options(path, **changes)) as session:
        return answer(session.engine, wanted)


def run_until(engine: Engine, number: int, kind: type) -> None:
    """Step until the request has had an event of `kind`."""
    for _ in range(200):
        if any(isinstance(e, kind) and e.request == number for e in engine.step()):
            return
    raise AssertionError(f"no {kind.__name__} for request {number}")


def drain(engine: Engine) -> None:
    engine.cancel(None)
    while engine.busy:
        engine.step()


# --- shared prefixes --------------------------------------------------------------------------------------------------


def test_a_running_request_s_prefix_is_shared_and_its_logits_are_those_of_evaluating_it(
    four: Session, engine: Engine, llama: Path
) -> None:
    story = four.prompt_ids(STORY * 2)
    first = engine.submit(request((*story, 70, 71), "off", 200))
    run_until(engine, first, Tokens)
    wanted = request((*story, 80, 81, 82), "off", 24, logprobs=3)
    found = answer(engine, wanted)
    assert found.started.reused == len(story)
    assert any(sequence.id == first for sequence in engine.running)  # it still had its own
    expected = alone(llama, wanted)
    assert found.ids == expected.ids
    for ours, theirs in zip(found.infos, expected.infos):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=2e-2)
    drain(engine)


@pytest.mark.parametrize("strategy", ["off", "ngram:min_n=1:branch=3", "model:p_min=0"])
def test_choices_of_one_prompt_evaluate_it_once(four: Session, engine: Engine, llama: Path, strategy: str) -> None:
    prompt = four.prompt_ids(STORY * 2)
    samplings = [SamplingParams(temperature=0.9, seed=seed) for seed in range(4)]
    before = engine.totals()
    wanted = [request(prompt, strategy, 20, sampling=sampling) for sampling in samplings]
    found = side_by_side(engine, wanted)
    after = engine.totals()
    assert after.prompt_evaluated - before.prompt_evaluated == len(prompt) + 3  # and each one's last row
    assert [f.started.reused for f in found] == [0] + [len(prompt) - 1] * 3
    assert len({tuple(f.ids) for f in found}) > 1
    for answered, sampling in zip(found, samplings):
        assert answered.ids == alone(llama, request(prompt, "off", 20, sampling=sampling)).ids


def test_requests_with_the_same_instructions_evaluate_them_once(four: Session, engine: Engine, llama: Path) -> None:
    story = four.prompt_ids(STORY * 2)
    prompts = [(*story, *four.prompt_ids(QUESTION * (i + 1))) for i in range(3)]
    before = engine.totals().prompt_evaluated
    found = side_by_side(engine, [request(p, "off", 10) for p in prompts])
    fresh = sum(len(p) - len(story) for p in prompts)
    # They share the first question as well, two of them the second.
    assert engine.totals().prompt_evaluated - before <= len(story) + fresh
    for p, f in zip(prompts, found):
        assert f.ids == alone(llama, request(p, "off", 10)).ids


def test_when_the_one_ahead_goes_away_the_next_one_reads_on(four: Session, engine: Engine, llama: Path) -> None:
    prompt = four.prompt_ids(STORY * 4)
    assert len(prompt) > 3 * 64
    wanted = [request(prompt, "off", 8, sampling=SamplingParams(seed=seed)) for seed in range(3)]
    numbers = [engine.submit(w) for w in wanted]
    engine.step()
    engine.step()
    engine.cancel(numbers[0])
    ids: dict[int, list[int]] = {number: [] for number in numbers}
    started = {}
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Tokens):
                ids[event.request] += [t.id for t in event.tokens]
            elif isinstance(event, Started):
                started[event.request] = event.reused
    assert started[numbers[1]] >= 64 and started[numbers[2]] == len(prompt) - 1
    for number, w in zip(numbers[1:], wanted[1:]):
        assert ids[number] == alone(llama, w).ids


def test_a_waiting_choice_can_be_cancelled(four: Session, engine: Engine) -> None:
    prompt = four.prompt_ids(STORY * 4)
    numbers = [engine.submit(request(prompt, "off", 8)) for _ in range(3)]
    engine.step()
    engine.cancel(numbers[1])
    reasons = {}
    while engine.busy:
        reasons.update({e.request: e.reason for e in engine.step() if isinstance(e, Finished)})
    assert reasons == {numbers[0]: "length", numbers[1]: "cancelled", numbers[2]: "length"}


def test_an_idle_cache_is_copied_and_stays_when_much_would_be_lost(four: Session, engine: Engine) -> None:
    story, long = four.prompt_ids(STORY), four.prompt_ids(QUESTION * 4)
    answer(engine, request((*story, *long), "off", 5))
    branch = answer(engine, request((*story, 70, 71), "off", 5))
    assert branch.started.reused == len(story)
    again = answer(engine, request((*story, *long, 9), "off", 5))
    assert again.started.reused >= len(story) + len(long)
    # A conversation that goes on takes its own cache: nothing is lost by that.
    assert len(caches(engine)) == 2


def test_without_main_memory_the_cache_that_was_idle_longest_gives_way(llama: Path) -> None:
    with open_session(options(llama, slots=2, cache_ram=0)) as session:
        engine = session.engine
        a, b, c = (session.prompt_ids(text * 4) for text in ("one text ", "another one ", "something else "))
        for prompt in (a, b, c):
            answer(engine, request(prompt, "off", 3))
        assert_accounted(engine)
        assert answer(engine, request(b, "off", 3)).started.reused == len(b) - 1
        assert answer(engine, request(c, "off", 3)).started.reused == len(c) - 1
        assert answer(engine, request(a, "off", 3)).started.reused < len(a) // 2


def test_full_slots_beside_idle_caches_always_find_room(llama: Path) -> None:
    """Every slot grows to the end of its context, over and over, with drafts."""
    with open_session(options(llama, slots=3, ctx=96, max_width=32)) as session:
        for round_ in range(3):
            prompts = [session.prompt_ids(f"{round_} {i} " + QUESTION)[:80] for i in range(5)]
            for found in side_by_side(session.engine, [request(p, "ngram:min_n=1:branch=2", None) for p in prompts]):
                assert found.error is None
                assert found.reason == "context"
                assert found.finished.prompt_tokens + len(found.ids) == 96
            assert_accounted(session.engine)


@pytest.mark.parametrize("strategy", ["ngram:min_n=1", "model:p_min=0:branch=2", "auto"])
def test_the_context_ends_where_it_ends_also_with_drafts(four: Session, engine: Engine, strategy: str) -> None:
    prompts = [(four.prompt_ids(text * 20))[:440] for text in (STORY, QUESTION)]
    assert all(len(p) == 440 for p in prompts)
    found = side_by_side(engine, [request(p, strategy, None) for p in prompts])
    plain = side_by_side(engine, [request(p, "off", None) for p in prompts])
    for p, ours, theirs in zip(prompts, found, plain):
        assert ours.reason == "context" and len(p) + len(ours.ids) == 512
        # `auto` chooses widths by the clock, and this attention's bits depend on them (test_exactness has the other).
        assert strategy == "auto" or ours.ids == theirs.ids


# --- fairness ---------------------------------------------------------------------------------------------------------


def test_a_short_prompt_beside_a_long_one_starts_within_a_few_steps(four: Session, engine: Engine) -> None:
    long, short = four.prompt_ids(STORY * 20)[:490], four.prompt_ids(QUESTION)
    assert len(long) == 490 and len(short) < 64
    first, second = engine.submit(request(long, "off", 4)), engine.submit(request(short, "off", 4))
    seen: dict[int, int] = {}
    for step in range(100):
        for event in engine.step():
            if isinstance(event, Tokens):
                seen.setdefault(event.request, step)
    assert seen[second] <= len(short) // 64 + 1  # the shorter prompt goes first
    assert seen[first] > seen[second]


def test_nobody_s_stream_misses_a_step_while_prompts_are_read(four: Session, engine: Engine) -> None:
    stream = engine.submit(request(four.prompt_ids(QUESTION), "off", 400))
    run_until(engine, stream, Tokens)
    prompts = [four.prompt_ids(text * 40)[:450] for text in (STORY, QUESTION, "a bc def ghij klm no ")]
    assert all(len(p) == 450 for p in prompts)
    waiting = {engine.submit(request(p, "off", 2)) for p in prompts}
    steps = 0
    while waiting:
        events = engine.step()
        waiting -= {e.request for e in events if isinstance(e, Finished)}
        assert any(isinstance(e, Tokens) and e.request == stream for e in events)
        steps += 1
    assert steps >= 450 * 3 // 64
    drain(engine)


@pytest.mark.parametrize("strategy", ["model", "model:p_min=0:branch=2", "cascade", "auto", "model rejection"])
def test_a_draft_model_reads_a_long_prompt_a_slice_a_step(llama: Path, llama_draft: Path, strategy: str) -> None:
    """All streams wait while a draft model reads, so it never reads much at once; texts are what they would be."""
    strategy, _, verifier = strategy.partition(" ")
    with open_session(options(llama, slots=2, ctx=1024), llama_draft) as session:
        engine, prompt = session.engine, session.prompt_ids(STORY * 30)[:900]
        assert len(prompt) == 900
        plain = answer(engine, request(prompt, "off", 40)).ids
        widths, events = draft_widths(session, strategy), list[object]()
        if not verifier:  # where the text depends on when drafts begin, company makes no difference
            other = engine.submit(request(session.prompt_ids(QUESTION), "off", 300))
            run_until(engine, other, Tokens)
        other_text: dict[str, Any] = {"sampling": SEEDED, "verifier": verifier} if verifier else {}
        number = engine.submit(request(prompt, strategy, 40, **other_text))
        while not any(isinstance(e, Finished) and e.request == number for e in events):
            before = len(widths)
            events += engine.step()
            assert sum(w for w in widths[before:] if w > MAX_LEVEL) <= SLICE
        ids = [t.id for e in events if isinstance(e, Tokens) and e.request == number for t in e.tokens]
        assert ids == plain or verifier
        if strategy != "auto":  # which may find that it is not worth asking
            finished = next(e for e in events if isinstance(e, Finished) and e.request == number)
            assert sum(w for w in widths if w > MAX_LEVEL) >= 900 - SLICE and finished.stats.drafted > 0
        drain(engine)


@pytest.mark.parametrize("strategy", ["model", "cascade"])
def test_a_draft_model_reads_on_while_nobody_else_waits(llama: Path, llama_draft: Path, strategy: str) -> None:
    """One stream alone has drafts from its second token on, unless it would be kept waiting noticeably."""
    with open_session(options(llama, slots=2, ctx=1024), llama_draft) as session:
        engine, prompt = session.engine, session.prompt_ids(STORY * 30)[:900]
        plain = answer(engine, request(prompt, "off", 40)).ids
        for seconds in (0.0, 0.4 * UNNOTICED):  # that a slice takes
            widths, read, ids = draft_widths(session, strategy, seconds), list[int](), list[int]()
            number = engine.submit(request(prompt, strategy, 40))
            while engine.busy:
                before = len(widths)
                ids += [t.id for e in engine.step() if isinstance(e, Tokens) and e.request == number for t in e.tokens]
                read.append(sum(w for w in widths[before:] if w > MAX_LEVEL))
            assert ids == plain
            most = 900 if seconds == 0.0 else 3 * SLICE
            assert max(read) <= most and sum(read) >= 900 - SLICE
            assert max(read) > most - SLICE, "all at once, or as much as is not noticed"


@pytest.mark.parametrize(("strategy", "draft"), [("model", "own"), ("cascade", "own"), ("model", "other")])
def test_a_draft_model_reads_a_repeated_prompt_anew_for_measurements(
    llama: Path, llama_draft: Path, other_vocabulary: Path, strategy: str, draft: str
) -> None:
    with open_session(
        options(llama, slots=2, ctx=1024), {"own": llama_draft, "other": other_vocabulary}[draft]
    ) as session:
        engine, prompt = session.engine, session.prompt_ids(STORY * 30)[:900]
        widths, read = draft_widths(session, strategy), list[int]()
        for forget in (False, False, True):
            if forget:
                engine.forget_texts()
            before = len(widths)
            answer(engine, request(prompt, strategy, 8))
            read.append(sum(w for w in widths[before:] if w > MAX_LEVEL))
        assert read[0] == read[2] >= 600 and read[1] == 0


def draft_widths(session: Session, strategy: str, seconds: float = 0.0) -> list[int]:
    """The widths of the draft model's decodes from now on, each of which is said to take so many seconds; all caches
    are empty.
    """
    engine, widths = session.engine, list[int]()
    answer(engine, request(session.prompt_ids(QUESTION), strategy, 2))  # that loads the draft model
    found = next(d for d in engine.drafting.drafters.values() if d.costly)
    drafter = cast(ModelDrafter, getattr(found, "strong", getattr(found, "inner", found)))
    engine.prefix_cache.clear()
    drafter.prefix_cache.clear()
    context, real = drafter.context, Context.decode

    def decode(**_: Any) -> float:
        widths.append(context.batch.n)
        real(context)
        return seconds

    context.decode = decode  # type: ignore[method-assign, assignment]
    return widths


def test_slots_are_given_in_the_order_of_the_requests(four: Session, engine: Engine) -> None:
    numbers = [engine.submit(request((5 + i,) * 9, "off", 6)) for i in range(10)]
    started = []
    while engine.busy:
        started += [e.request for e in engine.step() if isinstance(e, Started)]
    assert started == numbers


# --- any order of events ----------------------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 5), st.integers(0, 3)),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
    ),
    min_size=4,
    max_size=30,
)
STRATEGIES = ("off", "ngram:min_n=1:branch=3", "model:p_min=0:branch=2:nodes=8", "auto")


@pytest.fixture(scope="module")
def references(four: Session, llama: Path) -> list[tuple[Request, list[int]]]:
    """Requests that share beginnings in many ways, and their texts when each is alone."""
    story, question = four.prompt_ids(STORY), four.prompt_ids(QUESTION)
    prompts = [story, (*story, *question), (*story, 70), question, (*question, *story, *story), (*story[:40], 11)]
    out = []
    with open_session(options(llama)) as session:
        for i, prompt in enumerate(prompts):
            wanted = request(prompt, "off", 12 + i, sampling=GREEDY if i % 2 else SEEDED)
            session.engine.prefix_cache.clear()
            out.append((wanted, answer(session.engine, wanted).ids))
    return out


@settings(
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(ACTIONS)
def test_no_order_of_requests_and_cancellations_leaks_or_changes_a_text(
    engine: Engine, references: list[tuple[Request, list[int]]], actions: list[tuple[str, int, int]]
) -> None:
    texts: dict[int, list[int]] = {}
    wanted: dict[int, int] = {}
    ended: dict[int, str] = {}

    def step() -> None:
        for event in engine.step():
            assert not isinstance(event, Failed)
            assert event.request not in ended
            if isinstance(event, Tokens):
                texts[event.request] += [t.id for t in event.tokens]
            elif isinstance(event, Finished):
                ended[event.request] = event.reason
        assert_accounted(engine)

    for action, a, b in actions:
        if action == "submit":
            base = references[a][0]
            again = request(base.prompt, STRATEGIES[b], base.max_tokens, sampling=base.sampling)
            number = engine.submit(again)
            wanted[number], texts[number] = a, []
        elif action == "step":
            for _ in range(a):
                step()
        elif wanted:
            engine.cancel(list(wanted)[a % len(wanted)])
    while engine.busy:
        step()
    assert set(ended) == set(wanted)
    for number, reason in ended.items():
        expected = references[wanted[number]][1]
        assert texts[number] == (expected if reason == "length" else expected[: len(texts[number])])


# --- totals -----------------------------------------------------------------------------------------------------------


def test_totals_are_the_sums_of_the_requests(four: Session, engine: Engine) -> None:
    before = engine.totals()
    prompts = [four.prompt_ids(text) for text in (STORY, QUESTION, STORY + "more")]
    wanted = [request(p, "ngram:min_n=1,model:p_min=0", 15 + i) for i, p in enumerate(prompts)]
    numbers = [engine.submit(w) for w in [*wanted, *wanted]]
    assert engine.totals().waiting == 6
    engine.step()
    middle = engine.totals()
    assert (middle.running, middle.waiting, middle.slots) == (4, 2, 4)
    engine.cancel(numbers[-1])
    done: list[Finished] = []
    snapshots = [middle]
    with decodes_counted(engine.context) as decodes:
        while engine.busy:
            done += [event for event in engine.step() if isinstance(event, Finished)]
            snapshots.append(engine.totals())
    after = snapshots[-1]
    for a, b in zip(snapshots, snapshots[1:]):  # counters never go back
        for name in ("prompt_evaluated", "prompt_reused", "decode_tokens", "decode_steps", "drafted", "accepted"):
            assert getattr(a, name) <= getattr(b, name)
        assert all(b.done.get(reason, 0) >= n for reason, n in a.done.items())
    assert after.waiting == after.running == 0
    assert after.done.get("length", 0) - before.done.get("length", 0) == 5
    assert after.done.get("cancelled", 0) - before.done.get("cancelled", 0) == 1
    assert after.decode_tokens - before.decode_tokens == sum(f.completion_tokens for f in done)
    assert after.drafted - before.drafted == sum(f.stats.drafted for f in done)
    assert after.accepted - before.accepted == sum(f.stats.accepted for f in done)
    assert sum(after.drafted_by_depth) == after.drafted and sum(after.accepted_by_depth) == after.accepted
    ran = [f for f in done if f.completion_tokens]
    read = after.prompt_evaluated + after.prompt_reused - before.prompt_evaluated - before.prompt_reused
    assert read == sum(f.prompt_tokens for f in ran)
    made = [sum(totals.steps.values()) + totals.mixed_steps for totals in (middle, after)]
    assert made[1] - made[0] == decodes[0] > 3
    assert after.decode_seconds > before.decode_seconds
    shares = after.by_drafter
    assert set(shares) <= {"ngram", "model"} | set(before.by_drafter)


def test_totals_know_the_curve_once_there_is_one(llama: Path) -> None:
    with open_session(options(llama)) as session:
        assert session.engine.totals().plain_seconds is None
        answer(session.engine, request(session.prompt_ids(STORY), "auto", 60, draft=None))
        totals = session.engine.totals()
        assert totals.plain_seconds is not None and totals.plain_seconds > 0
        assert totals.speedup is not None and totals.rate == pytest.approx(totals.speedup / totals.plain_seconds)


def test_a_failed_start_counts_as_failed(four: Session, engine: Engine) -> None:
    before = engine.totals().done.get("failed", 0)
    (found,) = side_by_side(engine, [request((5, 6), "ngram:nonsense=1", 4)])
    assert isinstance(found.error, LcspecError)
    assert engine.totals().done["failed"] == before + 1


# --- kinds of models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_recurrent_states_are_shared_through_checkpoints(kind: str, request: pytest.FixtureRequest) -> None:
    from tests.running import request as wanted

    path: Path = request.getfixturevalue(kind)
    with open_session(options(path, slots=3)) as session:
        prompt = session.prompt_ids(STORY)
        found = side_by_side(session.engine, [wanted(prompt, "off", 12) for _ in range(5)])
        assert len({tuple(f.ids) for f in found}) == 1
        reused = [f.started.reused for f in found]
        assert reused[0] == 0 and all(0 < n < len(prompt) for n in reused[1:])
    assert found[0].ids == alone(path, wanted(prompt, "off", 12)).ids


def test_windows_are_shared(sliding_window: Path) -> None:
    with open_session(options(sliding_window, slots=3)) as session:
        prompt = session.prompt_ids(STORY)
        found = side_by_side(session.engine, [request(prompt, "ngram:min_n=1", 20) for _ in range(3)])
        assert [f.started.reused for f in found] == [0, len(prompt) - 1, len(prompt) - 1]
    expected = alone(sliding_window, request(prompt, "off", 20)).ids
    assert all(f.ids == expected for f in found)
