"""Medusa heads end to end: trained for seconds inside the test session, then drafting with the same text as plain."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

from lcspec.cli import cli
from lcspec.commands.draft_heads import run as draft_heads
from lcspec.config import DraftFiles
from lcspec.drafters import DrafterEnv, create
from lcspec.drafters.medusa.file import check_heads, read_heads, write_heads
from lcspec.drafters.medusa.inference import Heads
from lcspec.drafters.medusa.network import forward
from lcspec.drafters.medusa.target import output_rows
from lcspec.engine.events import StepStats
from lcspec.errors import LcspecError, ModelFileError, UsageError, VocabularyMismatch
from lcspec.llama import Context, Model
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.identity import SCALED_FROM, fingerprint
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session, parse_speculation
from lcspec.spec.tree_shapes import Shape
from lcspec.training.collect import Job, Writer
from lcspec.training.states import StateStore
from scripts.scale_model import scale_model
from tests.running import CHAT, SAMPLINGS, answer, options, prompts, request, side_by_side

pytestmark = [pytest.mark.model, pytest.mark.slow]

OPTIONS: dict[str, Any] = {
    "text": (), "invent": 0, "heads": 3, "minutes": 0.15, "positions": 3000, "answer": 48, "vocab": 1024,
    "hidden": 0, "embed": 32, "rank": None, "store": "f16", "slots": 8, "ctx": 256, "threads": 1, "gpu_layers": 0,
    "seed": 1,
}  # fmt: skip


def make(model: Path, out: Path, **changes: Any) -> Path:
    """Run `lcspec draft heads`."""
    assert draft_heads(**{**OPTIONS, "model": model, "out": out, **changes}) == 0
    return out


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts in the form of the chats that people have."""
    path = tmp_path_factory.mktemp("talk") / "chats.jsonl"
    lines = [json.dumps({"messages": [{"role": "user", "content": text}]}) for text in CHAT]
    lines += ['{"turns": ["Hi! Can I get a large iced latte?"]}', '{"prompt": "def add(a, b):"}', '{"other": 1}']
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def demo_heads(tmp_path_factory: pytest.TempPathFactory, demo: tuple[Path, Path], talk: Path) -> Path:
    """Heads for the bundled target."""
    return make(demo[0], tmp_path_factory.mktemp("heads") / "demo.heads.gguf", text=(talk,))


@pytest.fixture(scope="module")
def tiny_heads(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """Heads for a random model, whose prompts it had to invent itself."""
    return make(llama, tmp_path_factory.mktemp("heads") / "tiny.heads.gguf", minutes=0.05, positions=500, store="q8_0")


# --- hidden states ----------------------------------------------------------------------------------------------------


def test_hidden_states_are_those_behind_the_logits(demo: tuple[Path, Path]) -> None:
    """The output matrix times the state is the row of logits; and nothing is given for a decode with a prompt chunk."""
    with Model.load(options(demo[0])) as model, Context(model, options(demo[0])) as context:
        matrix = output_rows(demo[0], range(model.n_vocab))
        tokens = model.vocab.tokenize("The quick brown fox jumps over the lazy dog and runs away.")
        context.want_hidden()
        context.batch.clear()
        context.batch.add_run(tokens[:-4], 0, 0)
        context.decode()
        assert context.hidden().shape == (0, model.traits.n_embd)
        context.batch.clear()
        for i, token in enumerate(tokens[-4:], start=len(tokens) - 4):
            context.batch.add(token, i, (0,), logits=True)
        context.decode()
        hidden, logits = context.hidden(), context.logits()
        assert hidden.shape == (4, model.traits.n_embd)
        # Q8_0 kernels round the state to 8 bits before they multiply.
        assert np.abs(hidden @ matrix.T - logits).max() < 0.05 * logits.std()


def test_a_prompt_longer_than_the_output_buffer_is_no_problem(demo: tuple[Path, Path], demo_heads: Path) -> None:
    """With hidden states on the library makes a row for every token: there is no room for 300."""
    with open_session(options(demo[0]), DraftFiles(heads=demo_heads)) as session:
        prompt = session.prompt_ids("one two three four five six seven " * 60)[:300]
        assert len(prompt) > session.engine.options.max_width * 2
        assert len(answer(session.engine, request(prompt, "medusa", 16)).ids) == 16


def test_texts_written_side_by_side_keep_their_own_states(llama: Path, tiny_session: Session) -> None:
    """Greedy texts are those of the engine, and every token is the favourite of the state that is kept with it."""
    starts = [(5, 6, 7), (8,), (9, 10, 11, 12, 13), (14, 15), (16,) * 20, (21, 22)]
    found: dict[int, Job] = {}
    chosen = options(llama, slots=4)
    with Model.load(chosen) as model, Context(model, replace(chosen, streams=True), spare=False) as context:
        jobs = (Job(i, start, 10 + i, 0.0) for i, start in enumerate(starts))
        Writer(context, 1).run(jobs, lambda job: found.update({job.group: job}))
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    matrix = output_rows(llama, range(288))
    for i, start in enumerate(starts):
        states = np.stack(found[i].states).astype(np.float32)
        assert (states @ matrix.T).argmax(axis=1).tolist() == found[i].tokens
        n = len(found[i].tokens)
        assert answer(tiny_session.engine, request(start, "off", n)).ids == found[i].tokens


# --- drafting ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session(demo: tuple[Path, Path], demo_heads: Path) -> Iterator[Session]:
    """The bundled target with heads."""
    with open_session(options(demo[0]), DraftFiles((demo[1],), heads=demo_heads)) as opened:
        yield opened


STRATEGIES = ("medusa", "medusa:nodes=30", "blockwise", "medusa,blockwise,model")


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_heads_do_not_change_the_text(session: Session, sampling: SamplingParams) -> None:
    drafted, accepted = dict.fromkeys(STRATEGIES, 0), 0
    for prompt in prompts(session, 1, 1):
        plain = answer(session.engine, request(prompt, "off", 40, sampling=sampling, exact=True, logprobs=0))
        for strategy in (*STRATEGIES, "auto"):
            wanted = request(prompt, strategy, 40, sampling=sampling, exact=True, logprobs=0)
            found = answer(session.engine, wanted)
            assert found.bits == plain.bits, f"{strategy} changed the text"
            if strategy in drafted:
                figures = found.finished.stats.by_drafter[strategy.split(",")[0].split(":")[0]]
                drafted[strategy] += figures["drafted"]
                accepted += figures["accepted"]
    assert all(n > 0 for n in drafted.values()), drafted
    assert accepted > 0, "heads trained for a moment are right now and then"


def test_the_first_step_has_no_state_and_the_others_have(session: Session) -> None:
    prompt = prompts(session, 1, 0)[0]
    steps = answer(session.engine, request(prompt, "blockwise:nodes=2", 24)).steps
    assert steps[0].tree.n_drafted == 0
    assert all(step.tree.n_drafted == 2 for step in steps[1:-2])


def test_a_window_beside_the_heads_takes_no_state_from_them(session: Session) -> None:
    """Probes whose logits nobody reads would leave the step without hidden states."""
    prompt = prompts(session, 1, 0)[0]
    found = answer(session.engine, request(prompt, "blockwise:nodes=2,lookahead:w=4:n=4", 24))
    assert found.finished.stats.probes > 0
    assert all(step.tree.n_drafted >= 2 for step in found.steps[1:-2])


def test_hidden_states_are_kept_only_while_somebody_needs_them(session: Session) -> None:
    prompt = prompts(session, 1, 0)[0]
    for strategy, rows in (("off", 0), ("blockwise:nodes=2", 3), ("off", 0)):
        events = session.engine.run(request(prompt, strategy, 24))
        for event in events:
            if isinstance(event, StepStats) and event.tree.n_drafted + 1 >= rows:
                assert len(session.engine.context.hidden()) == rows
                break
        else:
            raise AssertionError("no step to look at")
        events.close()  # type: ignore[attr-defined]


def test_trees_keep_to_budgets(session: Session) -> None:
    prompt = prompts(session, 1, 0)[0]
    for strategy, nodes, branch in (("medusa:nodes=7", 7, 7), ("medusa:nodes=9:branch=2", 9, 2), ("blockwise", 3, 1)):
        steps = answer(session.engine, request(prompt, strategy, 24)).steps[1:]
        drafted = max(step.tree.n_drafted for step in steps)
        assert drafted == nodes if branch != 2 else 2 < drafted <= nodes  # the stored tree may have fewer of rank 1
        assert max(step.tree.depths[-1] for step in steps) <= 3  # there are three heads
        assert max(len(step.tree.children(0)) for step in steps) <= branch
        # A head says the same whatever came before: equal depth and rank is an equal token.
        assert all(len(set(s.tree.tokens[v] for v in s.tree.children(0))) == len(s.tree.children(0)) for s in steps)


def test_several_requests_side_by_side_have_their_own_states(session: Session, demo: tuple[Path, Path]) -> None:
    alone = [answer(session.engine, request(p, "off", 24)).text for p in prompts(session, 3, 0)]
    with open_session(options(demo[0], slots=3), session.engine.drafting.env.draft) as several:
        together = side_by_side(several.engine, [request(p, "medusa", 24) for p in prompts(several, 3, 0)])
        assert sum(a.finished.stats.accepted for a in together) > 0
        # Kernels of other widths may settle a near tie otherwise; a state of another request would ruin everything.
        assert sum(a.text[:12] == b[:12] for a, b in zip(together, alone)) >= 2


def test_a_switch_in_the_middle_starts_without_a_state(session: Session) -> None:
    """The state from before the other drafters had their turn belongs to another place in the text."""
    engine, prompt = session.engine, prompts(session, 1, 0)[0]
    plain = answer(engine, request(prompt, "off", 40, exact=True)).ids
    number = engine.submit(request(prompt, "medusa", 40, exact=True))
    seen: list[int] = []
    turn = 0
    while engine.busy:
        for event in engine.step():
            seen += [t.id for t in getattr(event, "tokens", ()) if hasattr(t, "id")]
        turn += 1
        if turn in (3, 6) and engine.running:
            names = "ngram" if turn == 3 else "medusa"
            engine.switch(number, parse_speculation(names))
            assert engine.running[0].hidden is None
    assert seen == plain


def test_the_planner_takes_heads_into_account(session: Session) -> None:
    files = DraftFiles(heads=Path("heads.gguf"))
    params = parse_speculation("auto", files)
    assert [d.name for d in params.drafters] == ["suffix", "medusa"]
    answer(session.engine, request(prompts(session, 1, 0)[0], "auto", 48, draft=files))
    assert session.engine.drafting.auto is not None
    record = session.engine.drafting.auto.costly.records["medusa"]
    assert record.level_seconds > 0  # it was asked at least once, and its cost is known


def test_typical_acceptance_says_that_it_is_lossy(session: Session) -> None:
    prompt = prompts(session, 1, 0)[0]
    wanted = request(prompt, "medusa", 32, sampling=SAMPLINGS["seeded"], verifier="typical")
    assert not answer(session.engine, wanted).finished.lossless


@pytest.mark.parametrize("changes", [{"embed": 0}, {"rank": 16}, {"embed": 0, "rank": 16, "heads": 1}], ids=str)
def test_other_networks(changes: dict[str, Any], llama: Path, tmp_path: Path) -> None:
    """Heads without the pending token, as in the paper, and with a factored output matrix."""
    path = make(llama, tmp_path / "h.gguf", minutes=0.04, positions=300, **changes)
    file = read_heads(path)
    assert file.sizes.embed == changes.get("embed", 32)
    assert file.sizes.rank == changes.get("rank", 0)
    rng = np.random.default_rng(0)
    hidden, pending = rng.standard_normal((5, 64)).astype(np.float32), np.array([3, 70, 200, 287, 1], dtype=np.int32)
    reduced = np.full(288, file.sizes.vocab, dtype=np.int32)
    reduced[file.tokens] = np.arange(file.sizes.vocab)
    expected, _ = forward(file.params, file.sizes, hidden / np.float32(file.scale), reduced[pending])
    heads = Heads(replace(file, storage="f32"))
    for i in range(5):
        for n in range(1, file.sizes.heads + 1):
            found = heads.logits(hidden[i], int(pending[i]), n)
            assert np.allclose(found, expected[:n, i] * file.scales[:n, None], atol=1e-4)
    with open_session(options(llama), DraftFiles(heads=path)) as session:
        plain = answer(session.engine, request((1, 2, 3), "off", 24, exact=True)).ids
        assert answer(session.engine, request((1, 2, 3), "medusa", 24, exact=True)).ids == plain


# --- files ------------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(demo_heads: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    heads = read_heads(demo_heads)
    assert heads.sizes.heads == 3
    assert heads.table.shape == (3, 10)
    assert all(1 >= five >= one >= 0 for one, five in zip(heads.top(1), heads.top(5)))
    assert heads.facts["target_file"] == demo[0].name
    assert heads.facts["text"] == "chats.jsonl"
    assert 0.5 < float(heads.facts["coverage"]) <= 1.0
    assert heads.licence == "mit"
    assert heads.shape.n_drafted > 8
    copy = tmp_path / "copy.gguf"
    write_heads(copy, heads, "q8_0")
    again = read_heads(copy)
    assert copy.stat().st_size < 0.7 * demo_heads.stat().st_size
    assert np.array_equal(again.tokens, heads.tokens)
    for name, value in heads.params.items():
        assert np.abs(again.params[name] - value).max() <= 0.01 * np.abs(value).max(), name


def test_a_heads_file_is_no_model(demo_heads: Path) -> None:
    with pytest.raises(ModelFileError, match="not a model"):
        Model.load(options(demo_heads))


def test_other_quantizations_pass_with_a_note(
    demo_heads: Path, demo: tuple[Path, Path], demo_as: Callable[[str], Path]
) -> None:
    assert check_heads(demo_heads, demo[0]) == ""
    note = check_heads(demo_heads, demo_as("Q4_0"))
    assert "Q8_0" in note and "Q4_0" in note


def test_scaled_copies_take_the_heads_of_the_small_model(
    demo_heads: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """The copy's hidden states are those of the small model, so that the very same tokens are accepted."""
    large = scale_model(demo[0], tmp_path / "large.gguf", "12m")
    assert read_gguf(large).metadata[SCALED_FROM] == fingerprint(demo[0]) == fingerprint(large)
    twice = scale_model(large, tmp_path / "larger.gguf", "20m")
    assert fingerprint(twice) == fingerprint(demo[0])
    assert check_heads(demo_heads, large) == ""
    found = []
    for path in (demo[0], large):
        with open_session(options(path), DraftFiles(heads=demo_heads)) as opened:
            prompt = prompts(opened, 1, 0)[0]
            found.append(answer(opened.engine, request(prompt, "medusa", 40, exact=True)))
    assert found[0].ids == found[1].ids
    assert found[0].finished.stats.accepted == found[1].finished.stats.accepted > 0


def test_heads_of_another_model_are_refused(
    demo_heads: Path, tiny_heads: Path, llama: Path, llama_draft: Path, other_vocabulary: Path, demo: tuple[Path, Path]
) -> None:
    with pytest.raises(VocabularyMismatch, match="another vocabulary; make heads for this model with"):
        check_heads(demo_heads, llama)
    with pytest.raises(VocabularyMismatch, match="another vocabulary"):
        check_heads(tiny_heads, other_vocabulary)  # as many tokens, in another order
    with pytest.raises(ModelFileError, match="is another model; make heads for this model with: lcspec draft heads"):
        check_heads(tiny_heads, llama_draft)  # the same shape and vocabulary, other weights
    assert check_heads(tiny_heads, llama) == ""
    with open_session(options(llama), DraftFiles(heads=demo_heads)) as session:
        with pytest.raises(VocabularyMismatch):
            session.engine.submit(request((1, 2, 3), "medusa", 4))
        assert answer(session.engine, request((1, 2, 3), "off", 4)).ids  # and the engine goes on


def test_without_heads_the_drafters_say_what_they_need(llama: Path) -> None:
    with Model.load(options(llama)) as model:
        for name in ("medusa", "blockwise"):
            with pytest.raises(UsageError, match="lcspec draft heads MODEL, then add --heads FILE"):
                create(name, DrafterEnv(model, 1))


def rewritten(source: Path, out: Path, *, drop: str = "", change: dict[str, Any] | None = None) -> Path:
    """A copy of a heads file without one tensor or key, or with other values."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, "lcspec-heads")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", drop):
            continue
        value = (change or {}).get(field.name, field.contents())
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], element)
    for tensor in reader.tensors:
        if tensor.name != drop:
            data = np.asarray(tensor.data)
            if tensor.name in (change or {}):
                data = (change or {})[tensor.name](data)
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ({"drop": "up"}, "the tensor up is missing"),
        ({"drop": "embed"}, "the tensor embed is missing"),
        ({"drop": "lcspec.heads.tokens"}, "tokens is missing"),
        ({"drop": "lcspec.heads.target.fingerprint"}, "fingerprint is missing"),
        ({"drop": "lcspec.heads.version"}, "version None"),
        ({"change": {"lcspec.heads.version": 99}}, "version 99, which cannot be read; upgrade lcspec"),
        ({"change": {"lcspec.heads.hidden": 7}}, "has the shape"),
        ({"change": {"lcspec.heads.target.n_vocab": 20}}, "tokens that the target does not have"),
        ({"change": {"lcspec.heads.tree.parents": [-1, 5]}}, "shape|parents"),
        ({"change": {"bias": lambda data: data * np.float32(np.nan)}}, "not finite"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_incomplete_and_damaged_files_are_refused(
    what: dict[str, Any], match: str, tiny_heads: Path, tmp_path: Path
) -> None:
    path = rewritten(tiny_heads, tmp_path / "bad.gguf", **what)
    with pytest.raises(ModelFileError, match=match):
        read_heads(path)


def test_truncated_and_foreign_files_are_refused(tiny_heads: Path, llama: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_heads.read_bytes()[:-1000])
    with pytest.raises(ModelFileError, match="truncated"):
        read_heads(cut)
    with pytest.raises(ModelFileError, match="is no heads file; make one with"):
        read_heads(llama)
    with pytest.raises(ModelFileError, match="does not exist"):
        read_heads(tmp_path / "nothing.gguf")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_goes_on_after_a_kill(demo: tuple[Path, Path], talk: Path, tmp_path: Path) -> None:
    """Killed while collecting and while training: what was there is used, and the work folder is gone at the end."""
    out = tmp_path / "heads.gguf"
    wanted = {**OPTIONS, "model": demo[0], "out": out, "text": (talk,), "minutes": 0.25, "positions": 1500}
    first = tmp_path / "first"
    with pytest.MonkeyPatch.context() as patch:
        kept = StateStore.append

        def append(self: StateStore, *rest: Any) -> None:
            kept(self, *rest)
            if self.answers == 10:
                raise KeyboardInterrupt

        patch.setattr(StateStore, "append", append)
        assert draft_heads(**wanted) == 130
    work = tmp_path / "heads.gguf.work"
    shutil.copytree(work, first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lcspec.training.train.Trainer._look", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert draft_heads(**wanted) == 130
    store = StateStore(work, 256)
    assert store.answers > 10
    before = StateStore(first, 256).tokens()
    assert len(before) > 50
    assert np.array_equal(store.tokens()[: len(before)], before)
    assert (work / "train.npz").exists()
    with pytest.raises(UsageError, match="with other settings: remove it, or use another --out"):
        draft_heads(**{**wanted, "heads": 2})
    assert draft_heads(**wanted) == 0
    assert not work.exists()
    assert read_heads(out).facts["positions"] == len(store)


def test_the_command_line(demo: tuple[Path, Path], demo_heads: Path, talk: Path, tmp_path: Path) -> None:
    out = tmp_path / "heads.gguf"
    arguments = ["draft", "heads", str(demo[0]), "--text", str(talk), "--out", str(out), "--minutes", "0.03"]
    arguments += ["--positions", "300", "--heads", "2", "--threads", "1", "--slots", "4", "--vocab", "200"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "2 heads for" in done.output
    assert "--speculate medusa" in done.output
    arguments = ["generate", str(demo[0]), "-p", "Hello", "-n", "8", "--threads", "1", "--temp", "0"]
    done = CliRunner().invoke(cli, [*arguments, "--heads", str(out), "--speculate", "medusa"])
    assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(cli, [*arguments, "--heads", str(demo[1]), "--speculate", "medusa"])
    assert isinstance(refused.exception, LcspecError)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"store": "q2"}, "--store must be one of f16, q8_0"),
        ({"out": Path("/nowhere/heads.gguf")}, "does not exist; create it first"),
        ({"text": (Path("/nowhere.txt"),)}, "cannot read"),
    ],
)
def test_mistakes_are_usage_errors(changes: dict[str, Any], match: str, llama: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=match):
        draft_heads(**{**OPTIONS, "model": llama, "out": tmp_path / "h.gguf", **changes})
    assert list(tmp_path.iterdir()) == []


def test_text_without_prompts_is_refused(llama: Path, tmp_path: Path) -> None:
    for name, content, match in (("a.jsonl", "{}\n", "holds no text"), ("b.jsonl", "{\n", "line 1: not JSON")):
        (tmp_path / name).write_text(content)
        with pytest.raises(UsageError, match=match):
            draft_heads(**{**OPTIONS, "model": llama, "out": tmp_path / "h.gguf", "text": (tmp_path / name,)})


def test_a_recurrent_model_is_refused(recurrent: Path, tmp_path: Path) -> None:
    with pytest.raises(LcspecError, match="recurrent state"):
        make(recurrent, tmp_path / "h.gguf")


def test_a_tree_from_the_file_is_used(tiny_heads: Path, llama: Path, tmp_path: Path) -> None:
    heads = replace(read_heads(tiny_heads), shape=Shape.of_paths([(0,), (2,), (2, 1)]))
    path = tmp_path / "own-tree.gguf"
    write_heads(path, heads)
    with open_session(options(llama), DraftFiles(heads=path)) as session:
        steps = answer(session.engine, request((1, 2, 3, 4), "medusa", 12)).steps[1:-3]
        assert steps
        for step in steps:
            assert sorted(step.tree.depths) == [0, 1, 1, 2]
