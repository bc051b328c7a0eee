"""What EAGLE-3 heads learn from, and commands that cannot be carried out. No PyTorch."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lcspec.commands import draft_eagle
from lcspec.config import ModelOptions
from lcspec.errors import UnsupportedModel, UsageError
from lcspec.llama import Context, Model
from lcspec.training.choices import ChoiceWriter, best_tokens
from lcspec.training.collect import TOP_K, Job
from lcspec.training.eagle.collect import FeatureWriter
from lcspec.training.layer_sizes import default_layers
from lcspec.training.texts import TOP, Text, TextStore
from tests.tiny_families import write_family

OPTIONS = {
    "text": (), "invent": 0, "out": None, "minutes": 0.02, "positions": 400, "answer": 16, "vocab": 4096,
    "store": "q8_0", "slots": 4, "ctx": 128, "threads": 1, "seed": 1, "gpu_layers": 0, "device": (), "further": None,
    "tensor_split": None,
}  # fmt: skip


def text(n: int, prompt: int = 2, seed: int = 0) -> Text:
    rng = np.random.default_rng(seed)
    shares = np.full((n, TOP), 1 / TOP, np.float16)
    shares[: prompt - 1] = 0
    ids = rng.integers(0, 50, (n, TOP)).astype(np.int32)
    return Text(rng.standard_normal((n, 6)).astype(np.float16), np.arange(n, dtype=np.int32), ids, shares)


def test_texts_survive_a_kill(tmp_path: Path) -> None:
    store = TextStore(tmp_path, 6)
    store.append(text(5), 3)
    store.append(text(7, seed=1), 4)
    with (tmp_path / "features.f16").open("ab") as file:
        file.write(b"half a ro")
    again = TextStore(tmp_path, 6)
    assert (len(again), again.answers) == (12, 2)
    again.append(text(4, seed=2), 16)
    for found, wanted in zip(again.open(), (text(5), text(7, seed=1), text(4, seed=2)), strict=True):
        assert np.array_equal(found.features, wanted.features) and np.array_equal(found.ids, wanted.ids)
        assert np.array_equal(found.tokens, wanted.tokens) and np.array_equal(found.shares, wanted.shares)
        assert found.first == 1
    assert again.held_out() == [False, False, True]
    with (tmp_path / "ids.i32").open("r+b") as file:  # the last text's ids were lost
        file.truncate(13 * 4 * TOP)
    assert TextStore(tmp_path, 6).answers == 2


def test_some_texts_are_always_held_out(tmp_path: Path) -> None:
    store = TextStore(tmp_path, 6)
    assert store.held_out() == [] and list(store.open()) == []
    for seed in range(3):
        store.append(text(4, seed=seed), 16)  # one source
    assert store.held_out() == [False, False, True]


def test_best_tokens() -> None:
    logits = np.full((2, 100), -5.0, np.float32)
    logits[0, [7, 3]] = 2.0, 1.0
    logits[1, 99] = 900.0
    ids, logs = best_tokens(logits)
    assert ids.shape == logs.shape == (2, TOP_K)
    assert ids[0, :2].tolist() == [7, 3] and ids[1, 0] == 99
    assert logs[0, 0] - logs[0, 1] == pytest.approx(1.0, abs=1e-5) and logs[1, 0] == 0.0
    rest = np.e**2 + np.e + 98 * np.e**-5  # tokens beyond the first ones are part of the whole
    assert logs[0, 0] == pytest.approx(2.0 - np.log(rest), abs=1e-5)
    ids, logs = best_tokens(logits[:, :3])
    assert (ids[:, 3:] == 0).all() and np.isneginf(logs[:, 3:]).all()


@pytest.mark.model
def test_the_writer_keeps_what_the_model_had(tmp_path: Path) -> None:
    """Texts written side by side have the features and choices that reading each alone gives."""
    options = ModelOptions(write_family("llama", tmp_path / "llama.gguf"), ctx=128, slots=3, threads=1, kv_type="f32")
    with Model.load(options) as model:
        layers = default_layers(model.traits.n_layer)
        prompts = [model.vocab.tokenize(t) for t in ("the cat and", "a dog", "in the house of the")]
        jobs = [Job(i, tuple(ids), 9 - i, 0.0, go_on=True) for i, ids in enumerate(prompts)]
        found: dict[int, Text] = {}
        with Context(model, replace(options, streams=True), spare=False) as context:
            writer = FeatureWriter(context, 0, layers)

            def done(job: Job) -> None:
                found[job.group] = writer.text(job)

            writer.run(iter(jobs), done)
        with Context(model, options) as context:
            context.want_states(layers)
            for job in jobs:
                mine = found[job.group]
                assert mine.tokens.tolist() == [*job.prompt, *job.tokens[:-1]]
                context.memory.clear()
                context.batch.clear()
                for at, token in enumerate(mine.tokens.tolist()):
                    context.batch.add(token, at, (0,), logits=True)
                context.decode()
                alone = context.states(layers)
                assert np.abs(alone - mine.features).max() <= 2e-2 * np.abs(alone).max()
                assert mine.first == len(job.prompt) - 1
                assert mine.ids[mine.first :, 0].tolist() == job.tokens
                assert context.logits().argmax(axis=1)[mine.first :].tolist() == job.tokens


@pytest.mark.model
def test_texts_that_nobody_asks_for_leave_nothing_behind(tmp_path: Path) -> None:
    """As when prompts are invented before they are answered: the next texts have their own choices."""
    options = ModelOptions(write_family("llama", tmp_path / "llama.gguf"), ctx=128, slots=3, threads=1, kv_type="f32")
    with Model.load(options) as model, Context(model, replace(options, streams=True), spare=False) as context:
        writer = ChoiceWriter(context, 0)
        writer.run((Job(i, (5, 6), 12, 1.0) for i in range(20)), lambda job: True)
        texts: list[tuple[Job, Text]] = []
        writer.run(
            (Job(i, (5, 6, 7), 4, 0.0, go_on=True) for i in range(20)), lambda j: texts.append((j, writer.text(j)))
        )
    assert len(texts) == 20
    for job, mine in texts:
        assert mine.ids[mine.first :, 0].tolist() == job.tokens and mine.first == 2
        assert mine.features.shape == (6, 0)


def test_without_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs PyTorch: pip install 'lcspec\[train\]'"):
        draft_eagle.run(model=tmp_path / "any.gguf", **OPTIONS)


@pytest.fixture
def torch_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused before training is refused whether PyTorch is installed or not."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.mark.usefixtures("torch_there")
def test_models_that_hand_out_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mamba, llama = write_family("mamba", tmp_path / "m.gguf"), write_family("llama", tmp_path / "l.gguf")
    out = tmp_path / "head.gguf"
    with pytest.raises(UnsupportedModel, match="hands out no hidden states of mamba models"):
        draft_eagle.run(model=mamba, **{**OPTIONS, "out": out})
    monkeypatch.setattr("lcspec.commands.draft_eagle.set_layer", None)
    with pytest.raises(UnsupportedModel, match="does not export what an EAGLE-3 head needs"):
        draft_eagle.run(model=llama, **{**OPTIONS, "out": out})
    with pytest.raises(UsageError, match="does not exist; create it first"):
        draft_eagle.run(model=llama, **{**OPTIONS, "out": tmp_path / "nowhere" / "head.gguf"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["l.gguf", "m.gguf"]


@pytest.mark.usefixtures("torch_there")
def test_the_work_of_another_run_is_left_alone(tmp_path: Path) -> None:
    work = tmp_path / "head.gguf.work"
    work.mkdir()
    (work / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="holds the unfinished work of a run with other settings"):
        draft_eagle.run(model=write_family("llama", tmp_path / "l.gguf"), **{**OPTIONS, "out": tmp_path / "head.gguf"})
    assert (work / "run.json").read_text() == "{}"
