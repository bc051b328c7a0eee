"""Several draft models at once, cascades, and draft models with another vocabulary: the same text from all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lcspec.config import DraftFiles
from lcspec.drafters.base import Budget, SequenceView
from lcspec.drafters.cascade import CascadeDrafter
from lcspec.drafters.draft_model import ModelDrafter
from lcspec.drafters.translated import TranslatedDrafter
from lcspec.errors import UsageError, VocabularyMismatch
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session
from lcspec.spec.token_tree import TokenTree
from tests import tiny_gguf as tiny
from tests.commands.test_command_line import fails, ok, run
from tests.running import CODE, GREEDY, SAMPLINGS, SEEDED, answer, options, prompts, request, side_by_side

pytestmark = pytest.mark.model

TEXT = "the cat and the dog and the cat and the "
N = 40


@pytest.fixture(scope="module")
def second_draft(folder: Path) -> Path:
    """A draft model that is wrong in other places than `llama_draft`."""
    return tiny.write_llama(folder / "second.gguf", noise=0.05)


@pytest.fixture(scope="module")
def pair(llama: Path, llama_draft: Path, second_draft: Path) -> Iterator[Session]:
    with open_session(options(llama), DraftFiles((llama_draft, second_draft))) as session:
        yield session


def test_p_min_is_about_the_draft_model_s_own_probabilities(pair: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    first: dict[str, list[float]] = {"model:p_min=1e-9": [], "model": []}
    real = ModelDrafter.draft_batch
    for strategy, probs in first.items():

        def draft(
            self: ModelDrafter, sequences: list[SequenceView], budgets: list[Budget], seen: list[float] = probs
        ) -> list[TokenTree]:
            trees = real(self, sequences, budgets)
            for tree in trees:
                seen += tree.probs[1:2]
            return trees

        monkeypatch.setattr(ModelDrafter, "draft_batch", draft)
        answer(
            pair.engine, request(pair.prompt_ids(TEXT), strategy, 8, max_draft=1, draft=pair.engine.drafting.env.draft)
        )
    own, estimates = first.values()
    assert len(own) == len(estimates) > 2
    assert all(p < e for p, e in zip(own, estimates)), "the favourite's share of the squares is larger"


# --- several draft models ---------------------------------------------------------------------------------------------

TOGETHER = (
    "model:p_min=0,model2:p_min=0",
    "model:branch=2:nodes=6:p_min=0,model2:branch=2:nodes=6:p_min=0",
    "model2:p_min=0",
    "ngram,model,model2",
)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_two_draft_models_keep_the_text(pair: Session, sampling: SamplingParams) -> None:
    prompt = pair.prompt_ids(TEXT)
    plain = answer(pair.engine, request(prompt, "off", N, sampling=sampling, exact=True, logprobs=0))
    for strategy in (*TOGETHER, "auto"):
        wanted = request(
            prompt, strategy, N, sampling=sampling, exact=True, logprobs=0, draft=pair.engine.drafting.env.draft
        )
        found = answer(pair.engine, wanted)
        assert found.bits == plain.bits, strategy
        if strategy != "auto":
            tallies = found.finished.stats.by_drafter
            assert all(tallies[n]["drafted"] > 0 for n in ("model", "model2") if f"{n}:" in strategy + ":")


def test_a_draft_model_is_timed_once_and_before_it_is_first_asked(
    llama: Path, strangers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []
    real = ModelDrafter.step_seconds

    def step_seconds(self: ModelDrafter, repeat: int = 9) -> float:
        timed.append(self.name)
        return real(self, repeat)

    monkeypatch.setattr(ModelDrafter, "step_seconds", step_seconds)
    with open_session(options(llama), DraftFiles((llama, strangers["smaller"]))) as session:
        engine, prompt = session.engine, session.prompt_ids(TEXT)
        plain = answer(engine, request(prompt, "off", N))
        assert not timed
        wanted = request(prompt, "auto", N, draft=engine.drafting.env.draft)
        engine.submit(wanted)
        assert engine.drafting.auto is not None and timed == ["model", "model2"]
        records = engine.drafting.auto.costly.records
        assert all(records[name].level_seconds > 0 and records[name].tested == 0 for name in timed)
        while engine.busy:
            engine.step()
        assert answer(engine, wanted).ids == plain.ids
        assert timed == ["model", "model2"]


def test_each_model_drafts_in_its_own_name_and_both_accept(pair: Session) -> None:
    found = answer(pair.engine, request(pair.prompt_ids(TEXT), TOGETHER[1], 80))
    tallies = found.finished.stats.by_drafter
    assert tallies["model"]["accepted"] > tallies["model2"]["accepted"] > 0
    assert tallies["model"]["drafted"] + tallies["model2"]["drafted"] > found.finished.stats.drafted, "shared nodes"


@pytest.mark.parametrize("verifier", ["rejection", "multi_step"])
def test_sampling_verifiers_see_both_distributions(pair: Session, verifier: str) -> None:
    prompt = pair.prompt_ids(TEXT)
    strategy = "model:branch=2:nodes=6:p_min=0,model2:branch=2:nodes=6:p_min=0"
    found = answer(pair.engine, request(prompt, strategy, 60, sampling=SEEDED, verifier=verifier))
    assert len(found.ids) == 60 and found.finished.lossless and found.finished.stats.accepted > 10
    again = answer(pair.engine, request(prompt, strategy, 60, sampling=SEEDED, verifier=verifier))
    assert again.ids == found.ids
    drawn = [len({id(t.draft) for t in s.tree.trials_of(0)}) for s in found.steps if s.tree.trials]
    assert max(drawn) >= 2, "no step tried draws of two distributions"
    assert (
        answer(pair.engine, request(prompt, strategy, N, verifier=verifier)).ids
        == answer(pair.engine, request(prompt, "off", N)).ids
    )


def test_two_models_draw_independently(llama: Path, llama_draft: Path) -> None:
    """The same model twice: what it draws must not be the same tokens twice."""
    with open_session(options(llama), DraftFiles((llama_draft, llama_draft))) as session:
        hot = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=3)
        strategy = "model:nodes=1:p_min=0,model2:nodes=1:p_min=0"
        found = answer(
            session.engine, request(session.prompt_ids(TEXT), strategy, 40, sampling=hot, verifier="multi_step")
        )
        firsts = [[s.tree.tokens[t.child] for t in s.tree.trials_of(0)] for s in found.steps]
        assert sum(len(set(f)) == 2 for f in firsts) > len(firsts) // 2


def test_side_by_side_with_two_models(llama: Path, llama_draft: Path, second_draft: Path) -> None:
    with open_session(options(llama, slots=2), DraftFiles((llama_draft, second_draft))) as session:
        wanted = [request(session.prompt_ids(TEXT + more), TOGETHER[0], N) for more in ("rain", "he", "so")]
        for one, w in zip(side_by_side(session.engine, wanted), wanted):
            plain = answer(session.engine, request(w.prompt, "off", N, logprobs=2))
            assert len(one.ids) == N
            assert one.ids == plain.ids or any(abs(i.top[0][1] - i.top[1][1]) < 0.5 for i in plain.infos)
            assert one.finished.stats.by_drafter["model2"]["accepted"] > 0


def test_a_model_that_was_not_named(pair: Session) -> None:
    with pytest.raises(UsageError, match="needs 3 draft models, and 2 are named"):
        answer(pair.engine, request(pair.prompt_ids(TEXT), "model3", 4))
    with pytest.raises(UsageError, match="at most 4"):
        DraftFiles((Path("a"),) * 5)


# --- cascades ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo_pair(demo: tuple[Path, Path]) -> Iterator[Session]:
    with open_session(options(demo[0]), demo[1]) as session:
        yield session


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize(
    "strategy", ["cascade:p_min=0", "cascade:guesses=0:p_min=0", "cascade:tail=0:p_min=0:nodes=12", "ngram,cascade"]
)
def test_a_cascade_keeps_the_text(demo_pair: Session, strategy: str, sampling: SamplingParams) -> None:
    for prompt in prompts(demo_pair, 1, 2):
        plain = answer(demo_pair.engine, request(prompt, "off", N, sampling=sampling, exact=True, logprobs=0))
        found = answer(demo_pair.engine, request(prompt, strategy, N, sampling=sampling, exact=True, logprobs=0))
        assert found.bits == plain.bits
        assert found.finished.stats.by_drafter["cascade"]["drafted"] > 0


@pytest.mark.parametrize("case", ["greedy", "seeded", "drawn"])
def test_guessing_drafts_the_same_chain_with_fewer_decodes(demo_pair: Session, case: str) -> None:
    engine = demo_pair.engine
    sampling = GREEDY if case == "greedy" else SamplingParams(temperature=0.05, seed=7)
    verifier = "rejection" if case == "drawn" else "coupled"
    decodes: dict[int, int] = {}
    trees: dict[int, list[list[int]]] = {}
    for guesses in (0, 3):
        decodes[guesses], trees[guesses] = 0, []
        for text in ("0, " * 80, CODE[4] * 6):
            wanted = request(
                demo_pair.prompt_ids(text), f"cascade:tail=0:nodes=8:p_min=0:min_n=1:guesses={guesses}", 30,
                sampling=sampling, verifier=verifier,
            )  # fmt: skip
            number = engine.submit(wanted)
            cascade = engine.drafting.drafters["cascade"]
            assert isinstance(cascade, CascadeDrafter)
            decode = cascade.strong.context.decode

            def counted(batch: object = None, decode: object = decode, guesses: int = guesses) -> float:
                decodes[guesses] += 1
                return decode()  # type: ignore[operator, no-any-return]

            cascade.strong.context.decode = counted  # type: ignore[method-assign]
            try:
                while engine.busy:
                    for event in engine.step():
                        assert event.request == number
                        if hasattr(event, "tree"):
                            trees[guesses].append(list(event.tree.tokens))
            finally:
                cascade.strong.context.decode = decode  # type: ignore[method-assign]
    # Another width, other bits: where two tokens are nearly equally likely a chain may part, seldom.
    same = sum(a == b for a, b in zip(trees[0], trees[3]))
    assert same >= 0.9 * min(len(trees[0]), len(trees[3]))
    assert decodes[3] < 0.8 * decodes[0]


def test_the_tail_follows_where_the_model_stops(demo_pair: Session) -> None:
    prompt = demo_pair.prompt_ids(CODE[4] * 2)
    short = answer(demo_pair.engine, request(prompt, "cascade:nodes=8:tail=6", 30))
    assert max(len(s.tree.depths) and max(s.tree.depths) for s in short.steps) > 2
    of_ngrams = {matched / (matched + 1) for matched in range(1, 30)}
    stated = {prob for s in short.steps for prob in s.tree.probs[1:]}
    assert stated & of_ngrams and stated - of_ngrams
    none = answer(demo_pair.engine, request(prompt, "cascade:nodes=8:tail=0", 30))
    assert of_ngrams.isdisjoint(prob for s in none.steps for prob in s.tree.probs[1:])


def test_a_cascade_leaves_the_draft_cache_in_order(demo_pair: Session) -> None:
    cascade = demo_pair.engine.drafting.drafters["cascade"]
    assert isinstance(cascade, CascadeDrafter)
    strong = cascade.strong
    kept = {cache.main for cache in strong.prefix_cache.caches}
    assert strong.pool.free + len(kept) == strong.pool.n
    assert all(strong.context.memory.end(cache.main) == cache.length for cache in strong.prefix_cache.caches)


def test_a_cascade_needs_a_draft_model(llama: Path) -> None:
    with open_session(options(llama)) as session, pytest.raises(UsageError, match="--draft"):
        answer(session.engine, request(session.prompt_ids("x"), "cascade", 4))


# --- another vocabulary -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strangers(folder: Path) -> dict[str, Path]:
    """Draft models whose vocabularies are not `llama`'s."""
    return {
        "permuted": tiny.write_llama(folder / "permuted.gguf", vocab=tiny.byte_bpe_vocab(permutation=1)),
        "smaller": tiny.write_llama(folder / "smaller.gguf", vocab=tiny.byte_bpe_vocab(265)),
        "sentencepiece": tiny.write_llama(folder / "spm.gguf", vocab=tiny.spm_vocab()),
        "hybrid": tiny.write_hybrid(folder / "hybrid-stranger.gguf", vocab=tiny.byte_bpe_vocab(permutation=2)),
    }


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("kind", ["permuted", "smaller", "sentencepiece", "hybrid"])
def test_a_stranger_drafts_through_text(
    llama: Path, strangers: dict[str, Path], kind: str, sampling: SamplingParams, caplog: pytest.LogCaptureFixture
) -> None:
    with open_session(options(llama), strangers[kind]) as session:
        engine, drafted = session.engine, 0
        for text in (TEXT, "ä naïve 日本 cat", CODE[0]):
            prompt = session.prompt_ids(text)
            plain = answer(engine, request(prompt, "off", N, sampling=sampling, exact=True, logprobs=0))
            for strategy in ("model:p_min=0", "ngram,model:nodes=3:p_min=0", "auto"):
                found = answer(engine, request(prompt, strategy, N, sampling=sampling, exact=True, logprobs=0))
                assert found.bits == plain.bits, (text, strategy)
                drafted += found.finished.stats.by_drafter.get("model", {}).get("drafted", 0)
        assert drafted > 20
        assert isinstance(engine.drafting.drafters["model"], TranslatedDrafter)
    assert [r.message for r in caplog.records if "through text" in r.message] == [
        f"{strangers[kind].name} drafts through text: its vocabulary is not the target's"
    ]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_stranger_drafts_for_the_demo_target(
    demo: tuple[Path, Path], strangers: dict[str, Path], sampling: SamplingParams
) -> None:
    with open_session(options(demo[0]), strangers["sentencepiece"]) as session:
        for prompt in prompts(session, 1, 1):
            plain = answer(session.engine, request(prompt, "off", N, sampling=sampling, exact=True, logprobs=0))
            wanted = request(prompt, "ngram,model:p_min=0", N, sampling=sampling, exact=True, logprobs=0)
            found = answer(session.engine, wanted)
            assert found.bits == plain.bits and found.finished.stats.by_drafter["model"]["drafted"] > 0


def test_its_cache_holds_its_own_tokens_of_the_text(llama: Path, strangers: dict[str, Path]) -> None:
    with open_session(options(llama), strangers["smaller"]) as session:
        engine = session.engine
        number = engine.submit(request(session.prompt_ids(TEXT), "model:p_min=0", N))
        checked = 0
        while engine.busy:
            engine.step()
            drafter = engine.drafting.drafters.get("model")
            assert drafter is None or isinstance(drafter, TranslatedDrafter)
            if drafter is None or not engine.running:
                continue
            sequence, state = engine.running[0], drafter._slots[number]
            inner = drafter.inner._slots[number].cache
            assert inner.length < len(state.text.tokens)
            if not state.text.held:  # within a character, it waits for the rest
                assert drafter._draft.text(state.text.tokens) == session.model.vocab.text(sequence.tokens)
            checked += inner.length > len(sequence.tokens) // 2
        assert checked > 5, "the cache must grow with the text"


def test_a_text_drafted_by_the_same_model_is_accepted(
    folder: Path, demo: tuple[Path, Path], strangers: dict[str, Path]
) -> None:
    """The demo draft for the demo target, told to go through text: it must still be right most of the time."""
    from lcspec.drafters.loading import load_draft

    with open_session(options(demo[0]), demo[1]) as session:
        engine = session.engine
        env = engine.drafting.env
        engine.drafting.drafters["model"] = TranslatedDrafter(env, 0, load_draft(env, 0), VocabularyMismatch("none"))
        prompt = prompts(session, 1, 0)[0]
        found = answer(engine, request(prompt, "model:p_min=0.3", 60))
        engine.drafting.drafters["model"].close()
        engine.drafting.drafters["model"] = ModelDrafter(env)
        direct = answer(engine, request(prompt, "model:p_min=0.3", 60))
        assert found.ids == direct.ids
        assert found.finished.stats.accepted >= 0.6 * direct.finished.stats.accepted > 0


@pytest.mark.parametrize("verifier", ["rejection", "multi_step"])
def test_sampling_verifiers_refuse_a_stranger(llama: Path, strangers: dict[str, Path], verifier: str) -> None:
    with open_session(options(llama), strangers["permuted"]) as session:
        prompt = session.prompt_ids(TEXT)
        with pytest.raises(VocabularyMismatch, match="differ at entry .*coupled"):
            answer(session.engine, request(prompt, "model", 8, sampling=SEEDED, verifier=verifier))
        plain = answer(session.engine, request(prompt, "off", 8))
        assert answer(session.engine, request(prompt, "model:p_min=0", 8, verifier=verifier)).ids == plain.ids
        assert not session.engine.running


def test_side_by_side_with_a_stranger(llama: Path, strangers: dict[str, Path]) -> None:
    with open_session(options(llama, slots=2), strangers["smaller"]) as session:
        wanted = [request(session.prompt_ids(TEXT + more), "model:p_min=0", N) for more in ("rain", "he", "so")]
        assert [len(a.ids) for a in side_by_side(session.engine, wanted)] == [N] * 3


# --- the command line -------------------------------------------------------------------------------------------------


def test_several_draft_models_on_the_command_line(llama: Path, llama_draft: Path, second_draft: Path) -> None:
    common = ("generate", llama, "-p", TEXT, "-n", 24, "--temperature", 0, "--ignore-eos", "--threads", 1, "--json")
    both = ("--draft", llama_draft, "--draft", second_draft)
    plain = json.loads(ok(*common, "--speculate", "off").stdout)
    told = json.loads(ok(*common, *both, "--speculate", "model:p_min=0,model2:p_min=0").stdout)
    assert told["tokens"] == plain["tokens"] and set(told["stats"]["by_drafter"]) == {"model", "model2"}
    assert "2 draft models, and 1 are named" in fails(2, *common, "--draft", llama_draft, "--speculate", "model2")
    measured = json.loads(ok("calibrate", llama, *both, "--threads", 1, "--ctx", 256, "--json").stdout)
    assert set(measured["draft_step_seconds"]) == {"draft.gguf", "second.gguf"}
    assert set(measured["break_even_acceptance"]["draft_models"]) == {"draft.gguf", "second.gguf"}


def test_the_benchmark_knows_them_all(llama: Path, llama_draft: Path, second_draft: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 20)
    ok("draft", "store", text, "--model", llama, "--out", tmp_path / "text.store")
    done = run(
        *("bench", llama, "--draft", llama_draft, "--draft", second_draft, "--store", tmp_path / "text.store"),
        *("--strategies", "model2;model,model2;cascade;store;auto", "--limit", 1, "-n", 8, "--repeat", 1),
        *("--threads", 1, "--ctx", 256, "--out", tmp_path / "report"),
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    assert results["settings"]["strategies"] == ["off", "model2", "model,model2", "cascade", "store", "auto"]
    assert [Path(d["file"]).name for d in results["draft"]] == ["draft.gguf", "second.gguf"]
    assert "second.gguf" in (tmp_path / "report" / "report.html").read_text()


def test_a_stranger_is_announced_on_stderr(llama: Path, strangers: dict[str, Path]) -> None:
    common = ("generate", llama, "-p", TEXT, "-n", 12, "--temperature", 0, "--threads", 1, "--json")
    done = run(*common, "--draft", strangers["permuted"], "--speculate", "model:p_min=0")
    assert done.returncode == 0 and json.loads(done.stdout)["stats"]["drafted"] > 0
    assert done.stderr == "permuted.gguf drafts through text: its vocabulary is not the target's\n"
