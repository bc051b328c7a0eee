"""What a model's memory allows is asked of the library, and no kind of model ever gives a wrong answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcspec.commands.inspect import describe
from lcspec.config import BY_ROWS
from lcspec.drafters.draft_model import REDECODED
from lcspec.errors import ExactnessError
from lcspec.llama import Branching, Context, can_fuse_row_by_row
from lcspec.profiles import kernels
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session
from tests import tiny_gguf as tiny
from tests.running import SAMPLINGS, answer, options, request, side_by_side

pytestmark = pytest.mark.model

TEXTS = ("the cat and the dog and the cat and the ", "abcabcabcabc ", "x")
CHAINS = ("ngram:min_n=1:nodes=8", "suffix:nodes=15", "ngram:min_n=1:nodes=30", "auto")
TREES = ("ngram:branch=3:min_n=1:nodes=12", "model:branch=3:nodes=12:p_min=0", "ngram:branch=2:min_n=1,model:branch=2")
ids = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
KINDS = ("llama", "sliding_window", "recurrent", "hybrid")


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Path:
    """The model that a test's parameter names."""
    path: Path = request.getfixturevalue(request.param)
    return path


every_kind = pytest.mark.parametrize("kind", KINDS, indirect=True)


@pytest.mark.parametrize(
    "kind, branching, rollback",
    [
        ("llama", Branching.TREE, 512),
        ("sliding_window", Branching.TREE, 512),
        ("recurrent", Branching.CHAIN, 0),
        ("hybrid", Branching.CHAIN, 16),
    ],
    indirect=["kind"],
)
def test_kinds_are_recognised(kind: Path, branching: Branching, rollback: int) -> None:
    with open_session(options(kind)) as session:
        assert (session.engine.context.memory.branching, session.engine.context.memory.max_rollback) == (
            branching,
            rollback,
        )
    told = describe(kind)
    assert told["speculation"] == branching.value
    assert (told["trees"], told["rollback"]) == (branching is Branching.TREE, rollback > 0)
    assert told["redecodes"] == (kind.stem == "recurrent")


def in_a_new_context(session: Session, tokens: list[int], width: int = 1) -> np.ndarray:
    """Logits after every token, in a context of their own: no slot, no reuse, no rollback."""
    rows = []
    with Context(session.model, session.engine.options) as context:
        for start in range(0, len(tokens), width):
            context.batch.clear()
            for i, token in enumerate(tokens[start : start + width]):
                context.batch.add(token, start + i, (0,), logits=True)
            context.decode()
            rows.append(context.logits().copy())
    return np.concatenate(rows)


@every_kind
def test_plain_decoding_is_the_library_s_greedy(kind: Path) -> None:
    with open_session(options(kind)) as session:
        for text in TEXTS:
            prompt = session.prompt_ids(text)
            found = answer(session.engine, request(prompt, "off", 40))
            rows = in_a_new_context(session, [*prompt, *found.ids])
            assert found.ids == rows[len(prompt) - 1 : -1].argmax(axis=1).tolist()


@ids
@pytest.mark.parametrize("kind", ["llama", "sliding_window"], indirect=True)
def test_trees_on_attention(kind: Path, folder: Path, sampling: SamplingParams) -> None:
    write = tiny.write_llama if kind.stem == "llama" else tiny.write_sliding_window
    draft = write(folder / f"{kind.stem}-near.gguf", noise=0.02)
    with open_session(options(kind), draft) as session:
        for text in TEXTS:
            prompt = session.prompt_ids(text)
            plain = answer(session.engine, request(prompt, "off", 60, sampling=sampling, exact=True))
            branched = 0
            for strategy in (*TREES, *CHAINS):
                found = answer(session.engine, request(prompt, strategy, 60, sampling=sampling, exact=True))
                assert found.ids == plain.ids, strategy
                branched += sum(1 for step in found.steps if len(step.tree.leaves()) > 1)
            assert branched > 0


def test_a_window_is_rolled_back_far(sliding_window: Path) -> None:
    """A prefix much shorter than the text, with more than a window in between."""
    with open_session(options(sliding_window)) as session:
        prompt = session.prompt_ids(TEXTS[0] * 3)
        answer(session.engine, request(prompt, "ngram:branch=2:min_n=1", 60))
        found = answer(session.engine, request([*prompt[:20], 7, 8], "off", 40))
        assert found.started.reused == 20
    with open_session(options(sliding_window)) as session:
        assert answer(session.engine, request([*prompt[:20], 7, 8], "off", 40)).ids == found.ids


# --- recurrent --------------------------------------------------------------------------------------------------------


@ids
@pytest.mark.parametrize("strategy", ["ngram:min_n=1:nodes=8", "suffix", "model:p_min=0", "ngram:branch=3", "auto"])
def test_chains_on_a_recurrent_model(recurrent: Path, folder: Path, strategy: str, sampling: SamplingParams) -> None:
    """Its state cannot be taken back: it is saved before a step, and loaded after a refusal."""
    near = tiny.write_recurrent(folder / "recurrent-near.gguf", noise=0.05)
    with open_session(options(recurrent), near) as session:
        for text in TEXTS:
            prompt = session.prompt_ids(text)
            plain = answer(session.engine, request(prompt, "off", 60, sampling=sampling))
            found = answer(session.engine, request(prompt, strategy, 60, sampling=sampling))
            assert found.ids == plain.ids
            assert all(len(step.tree.leaves()) == 1 and step.tree.n_drafted < 16 for step in found.steps)


def test_what_was_accepted_is_decoded_again_for_a_few_steps_only(recurrent: Path) -> None:
    """Drafts that are refused every time make no step wider and wider."""
    with open_session(options(recurrent)) as session:
        prompt = session.prompt_ids(TEXTS[0])
        plain = answer(session.engine, request(prompt, "off", 60))
        wrong = tuple(token + (i % 4 == 3) for i, token in enumerate(plain.ids))
        found = answer(session.engine, request(prompt, "prediction:nodes=4", 60, prediction=wrong))
        assert found.ids == plain.ids
        assert found.finished.stats.drafted > found.finished.stats.accepted > 0
        assert max(step.width for step in found.steps) <= REDECODED + 4


def test_a_stop_within_a_chain_keeps_what_the_saved_state_holds(recurrent: Path) -> None:
    """The text ends before the end of the accepted chain: the cache goes back to the step's beginning, not to 0."""
    with open_session(options(recurrent)) as session:
        prompt = session.prompt_ids(TEXTS[0])
        plain = answer(session.engine, request(prompt, "off", 40))
        stop = plain.text[20:22]
        found = answer(session.engine, request(prompt, "prediction", 40, prediction=tuple(plain.ids), stop=(stop,)))
        assert found.text == plain.text[: plain.text.index(stop)]
        after = [*prompt, *found.ids, 70]
        again = answer(session.engine, request(after, "off", 20))
        assert again.started.reused > len(prompt) // 2
        rows = in_a_new_context(session, [*after, *again.ids])
        assert again.ids == rows[len(after) - 1 : -1].argmax(axis=1).tolist()


@pytest.mark.skipif(not can_fuse_row_by_row(), reason="this library cannot go row by row")
def test_an_exact_request_beside_others(recurrent: Path, hybrid: Path) -> None:
    """In a context of its own it has the bits that it has in a session with one slot."""
    for path in (recurrent, hybrid):
        bits = []
        for given in ({}, {"slots": 2}, {"exact": True}):
            with open_session(options(path, **given)) as session:
                prompt = session.prompt_ids(TEXTS[0])
                wanted = [request(prompt, how, 24, exact=True, logprobs=0) for how in ("off", "ngram:min_n=1:nodes=8")]
                bits += [found.bits for found in side_by_side(session.engine, wanted)]
        assert bits == bits[:1] * 6


def test_exact_is_refused_where_it_cannot_be_promised(
    recurrent: Path, hybrid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "can_fuse_row_by_row", lambda: False)
    for path in (recurrent, hybrid):
        with open_session(options(path)) as session, pytest.raises(ExactnessError, match="recurrent state"):
            session.engine.submit(request(session.prompt_ids("x"), "off", 8, exact=True))


def test_a_recurrent_model_drafts(llama: Path, recurrent: Path) -> None:
    with open_session(options(llama), recurrent) as session:
        prompt = session.prompt_ids(TEXTS[0])
        plain = answer(session.engine, request(prompt, "off", 40))
        found = answer(session.engine, request(prompt, "model", 40))
        assert found.ids == plain.ids and found.finished.stats.drafted > 0


@pytest.mark.parametrize("kind", ["hybrid", "recurrent"], indirect=True)
def test_a_draft_model_goes_back_without_reading_its_text_again(kind: Path, llama: Path) -> None:
    with open_session(options(llama), kind) as session:
        prompt = session.prompt_ids(TEXTS[0] * 5)
        answer(session.engine, request(prompt, "model:nodes=4", 2))
        context = session.engine.drafting.drafters["model"].context  # type: ignore[attr-defined]
        assert context.memory.max_rollback == 0  # no memory for planes, which are those of one decode
        read, decode = [], context.decode

        def count(**named: Any) -> float:
            read.append(context.batch.n)
            return float(decode(**named))

        context.decode = count
        found = answer(session.engine, request([*prompt, 70, 71], "model:nodes=4", 40))
        assert found.finished.stats.drafted > found.finished.stats.accepted
        assert max(read[len(prompt) // 128 + 2 :]) <= REDECODED + 1


# --- hybrid -----------------------------------------------------------------------------------------------------------


@ids
def test_chains_on_a_hybrid_model(hybrid: Path, hybrid_draft: Path, sampling: SamplingParams) -> None:
    with open_session(options(hybrid), hybrid_draft) as session:
        rejected = 0
        for text in TEXTS:
            prompt = session.prompt_ids(text)
            plain = answer(session.engine, request(prompt, "off", 60, sampling=sampling, logprobs=0))
            for strategy in (*CHAINS, *TREES, "model:p_min=0", "model"):  # trees become chains
                found = answer(session.engine, request(prompt, strategy, 60, sampling=sampling, logprobs=0))
                assert found.ids == plain.ids, strategy
                gaps = [abs(a.logprob - b.logprob) for a, b in zip(found.infos, plain.infos)]
                assert max(gaps) < 1e-3
                for step in found.steps:
                    assert len(step.tree.leaves()) == 1
                    assert step.tree.n_drafted < 16
                rejected += found.finished.stats.drafted - found.finished.stats.accepted
        assert rejected > 100


@ids
def test_a_hybrid_draft_model_keeps_its_state_right(hybrid: Path, hybrid_draft: Path, sampling: SamplingParams) -> None:
    """A draft is decoded token by token, and the library can only take back tokens of the latest decode."""
    with open_session(options(hybrid), hybrid_draft) as session:
        for text in TEXTS[:2]:
            prompt = session.prompt_ids(text)
            stats = answer(session.engine, request(prompt, "model:p_min=0", 60, sampling=sampling)).finished.stats
            assert stats.drafted > stats.accepted  # so it was rolled back
            assert stats.accepted > stats.drafted / 3


@pytest.mark.parametrize("cut", [1, 2, 5, 9])
@pytest.mark.parametrize("strategy", ["off", "ngram:min_n=1:nodes=8"])
@pytest.mark.parametrize("kind", ["hybrid", "recurrent", "sliding_window"], indirect=True)
def test_an_earlier_text_that_is_only_partly_shared(kind: Path, strategy: str, cut: int) -> None:
    """The next prompt parts from the cached text a few tokens before its end."""
    with open_session(options(kind)) as session:
        prompt = session.prompt_ids(TEXTS[0])
        first = answer(session.engine, request(prompt, strategy, 12))
        second = [*prompt, *first.ids[:-cut], 70, 71]
        found = answer(session.engine, request(second, strategy, 30))
        rows = in_a_new_context(session, [*second, *found.ids])
        assert found.ids == rows[len(second) - 1 : -1].argmax(axis=1).tolist()


@every_kind
def test_the_same_prompt_again_and_a_conversation(kind: Path) -> None:
    with open_session(options(kind)) as session:
        prompt = session.prompt_ids(TEXTS[0])
        first = answer(session.engine, request(prompt, "auto", 3, draft=None))
        assert answer(session.engine, request(prompt, "off", 3)).ids == first.ids
        turn = [*prompt, *first.ids, 70, 71, 72]
        second = answer(session.engine, request(turn, "auto", 20, draft=None))
        assert second.started.reused > 0
        rows = in_a_new_context(session, [*turn, *second.ids])
        assert second.ids == rows[len(turn) - 1 : -1].argmax(axis=1).tolist()


@pytest.mark.parametrize("strategy", ["off", "ngram:min_n=1:nodes=8"])
def test_a_stop_string_within_a_chain(hybrid: Path, strategy: str) -> None:
    """The text ends before the end of the accepted chain, so more than the text is in the state."""
    with open_session(options(hybrid)) as session:
        prompt = session.prompt_ids(TEXTS[1])
        text = answer(session.engine, request(prompt, "off", 40)).text
        stop = text[12:14]
        found = answer(session.engine, request(prompt, strategy, 40, stop=(stop,)))
        assert found.text == text[: text.index(stop)]
        after = [*prompt, *found.ids, 70]
        next_one = answer(session.engine, request(after, strategy, 20))
        rows = in_a_new_context(session, [*after, *next_one.ids])
        assert next_one.ids == rows[len(after) - 1 : -1].argmax(axis=1).tolist()


@every_kind
def test_two_slots_on_every_kind(kind: Path) -> None:
    with open_session(options(kind, slots=2)) as session:
        strategies = ("ngram:min_n=1:nodes=8", "auto")
        requests = [request(session.prompt_ids(t), s, 30, draft=None) for t, s in zip(TEXTS, strategies)]
        together = side_by_side(session.engine, requests)
    for wanted, found in zip(requests, together):
        with open_session(options(kind)) as session:
            assert answer(session.engine, request(wanted.prompt, "off", 30)).ids == found.ids


# --- learned positions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["library", *BY_ROWS])
def test_no_position_is_used_that_the_model_has_not_learned(
    attention: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library ends the process there."""
    path, exact = tiny.write_gpt2(tmp_path / "gpt2.gguf", n_ctx=400), attention in BY_ROWS
    with open_session(options(path, attention=attention, exact=exact, ctx=1024)) as session:
        assert session.engine.context.n_ctx == 400
        assert "knows 400 positions, so its context holds 400 tokens" in capsys.readouterr().err
        prompt = session.prompt_ids("the cat and the dog " * 99)[:380]
        for text in (prompt[:360], prompt):  # the second goes on from the first by a few tokens
            found = answer(session.engine, request(text, "ngram:min_n=1", 60))
        assert len(found.ids) == 400 - 380
