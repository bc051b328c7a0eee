"""MTP and EAGLE: drafts are what the library's own functions give, texts are the same with and without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcspec.config import DraftFiles, ModelOptions
from lcspec.drafters.eagle import EagleDrafter
from lcspec.drafters.feature import FeatureDrafter
from lcspec.drafters.mtp import MtpDrafter
from lcspec.errors import UnsupportedModel, UsageError
from lcspec.llama import Context, Model, states
from lcspec.llama.batch import StateBatch
from lcspec.modelfiles.companions import sort_drafts
from lcspec.planner.policy import DraftPolicy
from lcspec.session import Session, open_session
from tests.family_matrix import Bench
from tests.running import GREEDY, SEEDED, Answer, answer, decodes_counted, options, request, side_by_side
from tests.tiny_families import write_family
from tests.tiny_heads import forget_context, mtp_that_knows, write_assistant, write_eagle, write_mtp_part

pytestmark = pytest.mark.model

TEXT = "the cat and the dog and the cat and the rat and the "
OTHER = "in the house of the cat there is a dog and the dog "
N = 32
SMALL = tuple(range(3, 250))  # what a head with a vocabulary of its own drafts


@dataclass(frozen=True)
class Case:
    """A model, and what drafts for it."""

    name: str
    target: Path
    files: DraftFiles

    def open(self, **changes: object) -> Session:
        own = options(self.target, **{"kv_type": "f32", "ctx": 256, **changes})
        return open_session(own, self.files)  # type: ignore[return-value]


CASES = ("qwen35", "glm4moe", "deepseek2", "step35", "part", "assistant", "eagle", "eagle small", "eagle bare")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("heads")  # a head beside a model is paired with it
    inside = ("qwen35", "glm4moe", "deepseek2", "step35")
    models = {name: write_family(name, folder / f"{name}-heads.gguf") for name in (*inside, "gemma4", "llama")}
    heads = {
        "part": ("qwen35", write_mtp_part("qwen35", folder / "part.gguf")),
        "assistant": ("gemma4", write_assistant(folder / "assistant-heads.gguf")),
        "eagle": ("llama", write_eagle(folder / "eagle.gguf")),
        "eagle small": ("llama", write_eagle(folder / "eagle-small.gguf", kept=SMALL)),
        "eagle bare": ("llama", write_eagle(folder / "eagle-bare.gguf", without=("token_embd", "output"))),
    }
    out = {name: Case(name, models[name], sort_drafts(models[name], DraftFiles())) for name in inside}
    for name, (target, head) in heads.items():
        out[name] = Case(name, models[target], sort_drafts(models[target], DraftFiles((head,))))
    return out


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    found: Case = cases[request.param]
    return found


def drafter(case: Case) -> str:
    (name,) = case.files.drafters
    return name


# --- what the library gives -------------------------------------------------------------------------------------------


class Reference:
    """Drafts by the library's functions alone: everything anew for every draft, a token at a time."""

    def __init__(self, case: Case, session: Session) -> None:
        self.case, self.model = case, session.model
        self.kept = replace(session.engine.options, attention="library")
        file = case.files.mtp or case.files.eagle
        assert file is not None
        self._chains: dict[tuple[tuple[int, ...], int], list[list[int]]] = {}
        self.own = None if file == case.target else Model.load(ModelOptions(file, threads=1, mtp=True), head=True)

    def chain(self, text: Sequence[int], n: int) -> list[list[int]]:
        """`n` drafted tokens; each as a list of those that come close to the best."""
        head, eagle = self.own or self.model, self.case.files.eagle
        layers = (0, 1, 2) if eagle else (self.model.traits.n_layer,)
        with Context(self.model, self.kept) as target:
            target.want_states(layers)
            reads = head.traits.n_embd if eagle else self.model.traits.n_embd_out
            made = replace(self.kept, exact=False, kv_type_v=None)
            with Context(head, made, mtp=eagle is None, reads=reads, other=target) as context:
                given = list(self._states(target, text[:-1], layers))
                if eagle:
                    return self._one(context, text[1:], list(context.encode(np.array(given), 9)), n)
                if head.header.architecture == "gemma4-assistant":
                    return self._assistant(context, text, given[-1], n)
                rows = [np.zeros(reads, np.float32), *given]
                if head.traits.n_mtp > 1:
                    return self._chained(context, text, rows, min(n, head.traits.n_mtp))
                return self._one(context, text, rows, n)

    @staticmethod
    def _states(target: Context, text: Sequence[int], layers: Sequence[int]) -> Iterator[np.ndarray]:
        for i, token in enumerate(text):
            target.batch.clear()
            target.batch.add(token, i, (0,), logits=True)
            target.decode()
            yield target.states(layers)[0].copy()

    @staticmethod
    def _decode(context: Context, rows: Sequence[tuple[int, int, np.ndarray]]) -> tuple[list[int], np.ndarray]:
        """(token, position, state) of each; the best tokens after the last one and the state there."""
        for i, (token, position, state) in enumerate(rows):
            batch = context.batch
            assert isinstance(batch, StateBatch)
            batch.clear()
            batch.add_state(token, position, (0,), state, logits=i == len(rows) - 1)
            context.decode()
        logits = context.logits()[-1]
        close = np.flatnonzero(logits > logits.max() - 2e-3)
        return sorted(close.tolist(), key=lambda t: -logits[t]), context.row_states()[-1].copy()

    def _one(self, context: Context, text: Sequence[int], rows: list[np.ndarray], n: int) -> list[list[int]]:
        best, state = self._decode(context, [(t, i, rows[i]) for i, t in enumerate(text)])
        out = [best]
        while len(out) < n:
            best, state = self._decode(context, [(out[-1][0], len(text) + len(out) - 1, state)])
            out.append(best)
        return out

    def _assistant(self, context: Context, text: Sequence[int], state: np.ndarray, n: int) -> list[list[int]]:
        token, out = text[-1], list[list[int]]()
        while len(out) < n:
            best, state = self._decode(context, [(token, len(text) - 1, state)])
            out.append(best)
            token = best[0]
        return out

    def _chained(self, context: Context, text: Sequence[int], rows: list[np.ndarray], n: int) -> list[list[int]]:
        tokens, given, out = list(text), list(rows), list[list[int]]()
        for head in range(n):
            context.memory.clear()
            context.select_head(head)
            best, state = self._decode(context, [(t, i, given[i]) for i, t in enumerate(tokens)])
            out.append(best)
            tokens.append(best[0])
            given.append(state)
        return out

    def check(self, prompt: Sequence[int], found: Answer, every: int = 5) -> int:
        """Compare every so many of an answer's drafts with what they should be; returns how many."""
        text, checked = [*prompt, *found.ids[:1]], 0
        for i, step in enumerate(found.steps):
            drafted = [step.tree.tokens[v] for v in range(1, len(step.tree))]
            if i % every == 1 and drafted:
                key = tuple(text), len(drafted)
                if key not in self._chains:
                    self._chains[key] = self.chain(*key)
                for depth, (token, close) in enumerate(zip(drafted, self._chains[key])):
                    assert token in close, f"step {i}: {token} at depth {depth}, the library says {close}"
                    if token != close[0]:
                        break  # from here on it is another draft
                checked += 1
            text += step.emitted
        return checked

    def close(self) -> None:
        if self.own is not None:
            self.own.close()


def test_drafts_are_the_librarys_own(case: Case) -> None:
    """Also of the same prompt again, which takes over the beginning, and of a talk that goes on."""
    with case.open() as session:
        prompt, name = session.prompt_ids(TEXT), drafter(case)
        reference = Reference(case, session)
        try:
            for _ in range(2):
                found = answer(session.engine, request(prompt, f"{name}:nodes=3", N, draft=case.files))
                assert reference.check(prompt, found) >= 4
            talk = (*prompt, *found.ids, 70, 71)
            longer = answer(session.engine, request(talk, f"{name}:nodes=3", N, draft=case.files))
            assert longer.started.reused >= len(prompt)
            assert reference.check(talk, longer) >= 4
        finally:
            reference.close()


@pytest.mark.parametrize("name", ["qwen35", "step35", "eagle"])
def test_drafts_are_the_same_where_rows_are_read_in_pieces(
    cases: dict[str, Case], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases[name]
    for kind in (FeatureDrafter, EagleDrafter):
        monkeypatch.setattr(kind, "slice", 8)
    with case.open(batch=16) as session:
        prompt, reference = session.prompt_ids(TEXT + OTHER), Reference(case, session)
        try:
            found = answer(session.engine, request(prompt, f"{drafter(case)}:nodes=3", N, draft=case.files))
            assert reference.check(prompt, found) >= 4
        finally:
            reference.close()


# --- texts ------------------------------------------------------------------------------------------------------------


def test_texts_are_the_same_with_and_without(case: Case) -> None:
    name = drafter(case)
    with case.open() as session:
        prompt = session.prompt_ids(TEXT)
        for sampling in (GREEDY, SEEDED):
            plain = answer(session.engine, request(prompt, "off", N, sampling=sampling)).ids
            for strategy in (name, f"{name}:branch=3:nodes=8", f"{name},ngram", "auto"):
                found = answer(session.engine, request(prompt, strategy, N, sampling=sampling, draft=case.files))
                assert found.ids == plain, strategy


def test_several_at_once_and_one_after_the_other(case: Case) -> None:
    with case.open(slots=2) as session:
        whole = session.prompt_ids(TEXT + OTHER)
        prompts = [whole[:30], (*whole[:30], 70, 71), (*whole[:20], 80, 90, 91), whole]
        wanted = [request(p, drafter(case), N, draft=case.files) for p in prompts]
        bench = Bench(case.target)
        for turn in range(2):
            for prompt, found in zip(prompts, side_by_side(session.engine, wanted)):
                bench.same(session, prompt, found.ids, f"side by side, turn {turn}")
            for prompt, w in zip(prompts, wanted):
                bench.same(session, prompt, answer(session.engine, w).ids, f"one by one, turn {turn}")


@pytest.mark.parametrize("verifier", ["coupled", "rejection", "multi_step", "typical", "lenient"])
@pytest.mark.parametrize("name", ["qwen35", "eagle small"])
def test_every_verifier(cases: dict[str, Case], name: str, verifier: str) -> None:
    case = cases[name]
    with case.open() as session:
        prompt = session.prompt_ids(TEXT)
        wanted = request(prompt, drafter(case), N, sampling=SEEDED, verifier=verifier, draft=case.files)
        first = answer(session.engine, wanted)
        assert len(first.ids) == N and first.finished.stats.drafted > 0


def test_a_change_of_drafters_within_an_answer(cases: dict[str, Case]) -> None:
    """Who joins late knows nothing of the beginning, and drafts from where it joined."""
    case = cases["glm4moe"]
    with case.open() as session:
        prompt = session.prompt_ids(TEXT)
        plain = answer(session.engine, request(prompt, "off", N)).ids
        engine, late = session.engine, request(prompt, "mtp", N, draft=case.files)
        number, found = engine.submit(request(prompt, "off", N)), Answer()
        while engine.busy:
            found.events += engine.step()
            if len(found.ids) == 12:
                engine.switch(number, late.speculation)
        assert found.ids == plain
        assert found.finished.stats.by_drafter["mtp"]["drafted"] > 0


# --- heads that know --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen35", "glm4moe", "deepseek2", "step35"])
def test_layers_that_know_what_comes_are_always_right(folder: Path, name: str) -> None:
    path = write_family(name, folder / f"{name}-knows.gguf", change=mtp_that_knows)
    with open_session(options(path, kv_type="f32", ctx=256)) as session:
        prompt = session.prompt_ids(TEXT)
        plain = answer(session.engine, request(prompt, "off", N))
        for sampling in (GREEDY, SEEDED):
            found = answer(session.engine, request(prompt, "mtp:nodes=3", N, sampling=sampling))
            stats = found.finished.stats
            assert stats.accepted == stats.drafted >= N // 2
        assert answer(session.engine, request(prompt, "mtp:nodes=3", N)).ids == plain.ids


@pytest.mark.parametrize("kept", [None, SMALL])
def test_an_eagle_head_that_knows_what_comes_next_is_right(tmp_path: Path, kept: Sequence[int] | None) -> None:
    target = write_family("llama", tmp_path / "llama-knows.gguf", change=forget_context)
    head = write_eagle(tmp_path / f"eagle-knows-{len(kept or ())}.gguf", knows="llama", kept=kept)
    with open_session(options(target, kv_type="f32", ctx=256), head) as session:
        found = answer(session.engine, request(session.prompt_ids(TEXT), "eagle:nodes=1", N))
        stats, inside = found.finished.stats, sum(token in (kept or found.ids) for token in found.ids[2:])
        assert stats.accepted >= 10
        if kept is None:
            assert stats.accepted == stats.drafted
        else:
            assert stats.drafted - stats.accepted <= N - 2 - inside


# --- what it must not cost, and what is refused -----------------------------------------------------------------------


def test_nothing_is_loaded_nor_kept_without_speculation(cases: dict[str, Case]) -> None:
    case = cases["qwen35"]
    with case.open(rollback=0) as session:
        assert session.model.traits.n_mtp == 0
        answer(session.engine, request(session.prompt_ids(TEXT), "off", 4))
        assert not session.engine.context._has_states and not session.engine.drafting.drafters
        with pytest.raises(UnsupportedModel, match="speculation was off"):
            session.engine.submit(request(session.prompt_ids(TEXT), "mtp", 4))
    with cases["glm4moe"].open(rollback=0) as session, pytest.raises(UsageError, match="speculation was off"):
        session.engine.submit(request(session.prompt_ids(TEXT), "mtp", 4))


def test_a_head_that_is_seldom_asked_does_not_read_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it read the next one; asked again, it drafts from where it is, and texts are what they were."""
    target = write_family("llama", tmp_path / "llama-knows.gguf", change=forget_context)
    head = write_eagle(tmp_path / "eagle-knows.gguf", knows="llama")
    rows = list[int]()
    read = EagleDrafter.read

    def counting(self: EagleDrafter, state: Any, tokens: Sequence[int], states: Any) -> float:
        rows.append(len(tokens))
        return read(self, state, tokens, states)

    monkeypatch.setattr(EagleDrafter, "read", counting)
    monkeypatch.setattr(EagleDrafter, "slice", 16)
    with open_session(options(target, kv_type="f32", ctx=512), head) as session:
        prompt = session.prompt_ids(TEXT)
        plain = answer(session.engine, request(prompt, "off", 300)).ids
        with monkeypatch.context() as patch:
            patch.setattr(DraftPolicy, "ask", lambda *_: None)
            rows.clear()
            assert answer(session.engine, request(prompt, "auto", 300, draft=DraftFiles(eagle=head))).ids == plain
            assert 50 < sum(rows) < 200
            rows.clear()
            assert answer(session.engine, request(prompt, "auto", 300, draft=DraftFiles(eagle=head))).ids == plain
            assert not rows
        found = answer(session.engine, request(prompt, "eagle:nodes=1", 300, draft=DraftFiles(eagle=head)))
        assert found.ids == plain
        assert found.finished.stats.accepted == found.finished.stats.drafted > 100


def test_states_are_kept_for_those_who_read_them_only(cases: dict[str, Case]) -> None:
    case = cases["glm4moe"]
    with case.open() as session:
        prompt, context = session.prompt_ids(TEXT), session.engine.context
        answer(session.engine, request(prompt, "mtp", 4, draft=case.files))
        assert context._has_states == {2} and not context._wants_states
        answer(session.engine, request(prompt, "ngram", 4))
        assert not context._has_states


def test_a_model_without_heads(llama: Path) -> None:
    with open_session(options(llama)) as session:
        prompt = session.prompt_ids("x")
        with pytest.raises(UsageError, match="needs layers for multi-token prediction"):
            session.engine.submit(request(prompt, "mtp", 4))
        with pytest.raises(UsageError, match="needs an EAGLE-3 head made for this model"):
            session.engine.submit(request(prompt, "eagle", 4))


def test_a_build_that_lacks_the_functions(cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lcspec.drafters.eagle.set_layer", None)
    monkeypatch.setattr("lcspec.drafters.mtp.set_nextn", None)
    for name, what in (("eagle", "an EAGLE-3 head"), ("glm4moe", "multi-token prediction")):
        with cases[name].open() as session, pytest.raises(UnsupportedModel, match=f"does not export what {what} needs"):
            session.engine.submit(request(session.prompt_ids("x"), drafter(cases[name]), 4, draft=cases[name].files))
    assert states._find(("no_such_function",), []) is None


def test_drafters_are_costly_and_can_be_timed(cases: dict[str, Case]) -> None:
    with cases["qwen35"].open() as session:
        answer(session.engine, request(session.prompt_ids(TEXT), "auto", 8, draft=cases["qwen35"].files))
        mtp = session.engine.drafting.drafters["mtp"]
        assert isinstance(mtp, MtpDrafter) and mtp.costly
        assert mtp.step_seconds(2) > 0.0
        assert session.engine.drafting.auto is not None and session.engine.drafting.auto.costly.level_seconds("mtp")


# --- several sequences ------------------------------------------------------------------------------------------------


def test_a_level_of_all_drafts_is_one_decode(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides what reads the text: layers that draft one after the other read it before every draft."""
    asked: list[tuple[int, int, int]] = []  # sequences, decodes, levels of the deepest tree
    real, read, reading = FeatureDrafter.draft_batch, FeatureDrafter._read_slice, [0]

    def reads(self: FeatureDrafter, *given: Any) -> float:
        reading[0] += 1
        try:
            return read(self, *given)
        finally:
            reading[0] -= 1

    def counted(self: FeatureDrafter, sequences: Sequence[Any], budgets: Sequence[Any]) -> list[Any]:
        with decodes_counted(self.context, unless=lambda: reading[0] > 0) as decodes:
            trees = real(self, sequences, budgets)
        asked.append((len(sequences), decodes[0], max(max(tree.depths) for tree in trees)))
        return trees

    monkeypatch.setattr(FeatureDrafter, "_read_slice", reads)
    monkeypatch.setattr(FeatureDrafter, "draft_batch", counted)
    texts = (TEXT, OTHER, "one, two, three, ")
    with case.open(slots=3) as session:
        strategy = f"{drafter(case)}:p_min=0"
        wanted = [request(session.prompt_ids(text), strategy, 16, max_draft=3, draft=case.files) for text in texts]
        found = [one.ids for one in side_by_side(session.engine, wanted)]
    together = [(decodes, levels) for n, decodes, levels in asked if n == len(texts) and levels]
    assert len(together) >= 3 and all(len(ids) == 16 for ids in found)
    assert all(decodes <= levels + 1 for decodes, levels in together), together
