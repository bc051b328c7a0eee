"""EAGLE-3 heads: trained on tiny models, and the same numbers from PyTorch and from llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs PyTorch (lcspec[train])")

from lcspec.commands import draft_eagle  # noqa: E402
from lcspec.config import DraftFiles, ModelOptions  # noqa: E402
from lcspec.errors import LcspecError, UnsupportedModel, UsageError  # noqa: E402
from lcspec.llama import Context, Model  # noqa: E402
from lcspec.llama.batch import StateBatch  # noqa: E402
from lcspec.modelfiles import companions  # noqa: E402
from lcspec.modelfiles.companions import sort_drafts, target_layers  # noqa: E402
from lcspec.modelfiles.gguf_header import read_gguf  # noqa: E402
from lcspec.modelfiles.identity import fingerprint  # noqa: E402
from lcspec.session import open_session  # noqa: E402
from lcspec.training.eagle.dataset import Dataset, make_dataset  # noqa: E402
from lcspec.training.eagle.export import write_head  # noqa: E402
from lcspec.training.eagle.initial import (  # noqa: E402
    embeddings,
    head_sizes,
    head_tokens,
    head_weights,
    initial_weights,
)
from lcspec.training.eagle.network import Head, step_loss  # noqa: E402
from lcspec.training.eagle.train import Trainer, load, measure  # noqa: E402
from lcspec.training.texts import TOP, Text  # noqa: E402
from tests.running import GREEDY, answer, options, request  # noqa: E402
from tests.tiny_families import VOCAB, WIDTH, write_family  # noqa: E402
from tests.tiny_heads import forget_context  # noqa: E402
from tests.training.test_eagle_texts import OPTIONS  # noqa: E402

pytestmark = [pytest.mark.model, pytest.mark.slow]
TEXT = "the cat and the dog and the cat and the rat and the "
LAYERS = (0, 1, 1)


def random_text(rng: np.random.Generator, n: int, prompt: int) -> Text:
    shares = rng.random((n, TOP)).astype(np.float16)
    shares = -np.sort(-(shares / shares.sum(axis=1, keepdims=True)), axis=1)
    shares[: prompt - 1] = 0
    ids = np.stack([rng.permutation(VOCAB)[:TOP] for _ in range(n)]).astype(np.int32)
    features = rng.standard_normal((n, 3 * WIDTH)).astype(np.float16)
    return Text(features, rng.integers(3, VOCAB, n).astype(np.int32), ids, shares)


def dataset(target: Path, lengths: tuple[int, ...] = (14, 9, 12, 11)) -> Dataset:
    rng = np.random.default_rng(0)
    texts = [random_text(rng, n, 3) for n in lengths]
    return make_dataset(texts, [i == 1 for i in range(len(texts))], 100, embeddings(target))


def test_llama_cpp_computes_what_was_trained(tmp_path: Path) -> None:
    """Logits of the features' rows and of three drafted tokens below one, in torch and in the library."""
    target = write_family("llama", tmp_path / "llama.gguf")
    data = dataset(target)
    sizes = head_sizes(target, len(data.kept))
    weights = initial_weights(target, sizes, data.kept, data.scale, 0)
    rng = np.random.default_rng(1)
    weights = {k: (v + 0.1 * rng.standard_normal(v.shape)).astype(np.float32) for k, v in weights.items()}
    rows, text, base = data.rows([2, 0]), data.texts[0], 6
    with torch.no_grad():
        steps = Head(sizes, weights).unroll(rows, 4)
    head = tmp_path / "head.gguf"
    merged = {**weights, "fc.weight": weights["fc.weight"] / data.scale}
    write_head(head, target, sizes, merged, data.kept, LAYERS, {}, "f32")
    assert sort_drafts(target, DraftFiles((head,))).eagle == head
    own = ModelOptions(target, ctx=64, slots=1, threads=1, kv_type="f32")
    heads = ModelOptions(head, ctx=64, slots=1, threads=1, kv_type="f32", attention="library", batch=64, max_width=16)
    with (
        Model.load(own) as model,
        Context(model, own) as context,
        Model.load(heads, None, head=True) as loaded,
        Context(loaded, heads, reads=WIDTH, other=context) as own_context,
    ):
        batch = own_context.batch
        assert isinstance(batch, StateBatch)
        fused = own_context.encode(text.features.astype(np.float32), 5)
        batch.clear()
        for i in range(base + 1):
            batch.add_state(int(text.tokens[i + 1]), i, (0,), fused[i], logits=True)
        own_context.decode()
        first = rows.starts[1]  # of the second text in the batch
        for depth, step in enumerate(steps):
            logits, state = own_context.logits()[-1].copy(), own_context.row_states()[-1].copy()
            at = int(((step.base == first + base) & (step.rows == first + base + depth)).nonzero()[0, 0])
            assert np.allclose(step.logits[at].numpy(), logits[data.kept], atol=5e-2), depth  # 16-bit attention
            outside = np.setdiff1d(np.arange(VOCAB), data.kept)
            assert np.isneginf(logits[outside]).all()
            batch.clear()
            position = base + depth + 1
            batch.add_state(int(text.tokens[position + 1]), position, (0,), state, logits=True)
            own_context.decode()


def test_rows_of_other_texts_and_prompts_do_not_count(tmp_path: Path) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")
    data = dataset(target)
    sizes = head_sizes(target, len(data.kept))
    head = Head(sizes, initial_weights(target, sizes, data.kept, data.scale, 0))
    with torch.no_grad():
        alone, together = head.unroll(data.rows([0]), 3), head.unroll(data.rows([2, 0]), 3)
    first = data.rows([2, 0]).starts[1]
    for one, both in zip(alone, together):
        mine = both.base >= first
        assert torch.equal(both.rows[mine] - first, one.rows)
        assert torch.allclose(both.logits[mine], one.logits, atol=1e-4)
    assert int(alone[0].rows.min()) == 1  # the prompt's last token is row 1
    assert torch.isfinite(step_loss(together[0], data.rows([2, 0])))


def test_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")
    data = dataset(target, (40,) * 8)
    sizes = head_sizes(target, len(data.kept))

    def trainer(seconds: float) -> Trainer:
        return Trainer(
            data, sizes, lambda: initial_weights(target, sizes, data.kept, data.scale, 0), seconds, 1, tmp_path
        )

    assert load(tmp_path, sizes) is None
    first = trainer(60.0)
    taken = 0

    def stop(_: float) -> None:
        nonlocal taken
        taken += 1
        if taken == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.run(stop)
    again = trainer(60.0)
    assert again.progress.step == first.progress.step == 5
    assert again.progress.seconds == pytest.approx(first.progress.seconds)
    for name, value in first.network.arrays().items():
        assert np.array_equal(value, again.network.arrays()[name]), name
    start = initial_weights(target, sizes, data.kept, data.scale, 0)
    assert not np.array_equal(start["fc.weight"], again.network.arrays()["fc.weight"])
    assert np.array_equal(start["output.weight"], again.network.arrays()["output.weight"])
    trainer(again.progress.seconds).run(lambda share: pytest.fail("its time was spent"))
    (tmp_path / "head.pt").write_bytes(b"not a checkpoint")
    assert load(tmp_path, sizes) is None


def train(target: Path, out: Path, **changes: object) -> int:
    return draft_eagle.run(model=target, **{**OPTIONS, "out": out, **changes})


def test_a_head_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What follows from the last token alone is learned in seconds, and drafts are accepted."""
    target = write_family("llama", tmp_path / "llama.gguf", change=forget_context)
    out = tmp_path / "head.gguf"
    texts = tmp_path / "texts.txt"
    texts.write_text(TEXT * 200)
    assert train(target, out, minutes=0.5, positions=3000, answer=32, text=(texts,), invent=4) == 0
    told = capsys.readouterr().out
    assert "acceptance" in told and f"lcspec generate {target} --draft {out}" in told
    assert sorted(p.name for p in tmp_path.iterdir()) == ["head.gguf", "llama.gguf", "texts.txt"]
    metadata = read_gguf(out).metadata
    assert (
        metadata["general.architecture"] == "eagle3"
        and metadata["lcspec.eagle.text"] == "texts.txt, prompts invented by the model itself"
    )
    assert len(target_layers(out)) == 3
    with open_session(options(target, ctx=256), sort_drafts(target, DraftFiles((out,)))) as session:
        prompt = session.prompt_ids(TEXT)
        plain = answer(session.engine, request(prompt, "off", 32, sampling=GREEDY))
        drafted = answer(session.engine, request(prompt, "eagle:nodes=4", 32, sampling=GREEDY))
    assert drafted.ids == plain.ids
    assert len(drafted.steps) < 0.8 * len(plain.steps)


def test_a_head_belongs_to_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model of the same shape and vocabulary is refused; among bundled heads the right one is found."""
    ours, theirs = (write_family("llama", tmp_path / f"{i}.gguf", seed=i) for i in (0, 1))
    out = tmp_path / "ours.eagle3.gguf"
    train(ours, out)
    with pytest.raises(UnsupportedModel, match="it was trained for tiny llama; train one with: lcspec draft eagle"):
        sort_drafts(theirs, DraftFiles((out,)))
    monkeypatch.setattr(companions, "bundled_heads", lambda: [out])
    assert sort_drafts(ours, DraftFiles()).eagle == out
    assert sort_drafts(theirs, DraftFiles()).eagle is None


def test_an_interrupted_command_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, out = write_family("llama", tmp_path / "llama.gguf"), tmp_path / "head.gguf"

    def interrupt(self: Trainer, show: object) -> None:
        self.save()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "run", interrupt)
        assert train(target, out) == 130
    work = tmp_path / "head.gguf.work"
    assert "the same command goes on from here" in capsys.readouterr().err
    assert not out.exists() and (work / "head.pt").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "load", lambda *_: pytest.fail("the answers were there"))
        assert train(target, out) == 0
    assert out.exists() and not work.exists()


def test_a_head_is_trained_further(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the weights in its file, in its own vocabulary and its own layers."""
    target, first = write_family("llama", tmp_path / "llama.gguf"), tmp_path / "first.gguf"
    train(target, first, vocab=100)
    weights = head_weights(first, head_sizes(first, 100), np.ones(3 * WIDTH, np.float32))
    seen: list[tuple[Dataset, dict[str, np.ndarray]]] = []
    init = Trainer.__init__

    def watch(self: Trainer, *args: object, **rest: object) -> None:
        init(self, *args, **rest)  # type: ignore[arg-type]
        seen.append((self.data, self.network.arrays()))

    again = tmp_path / "again.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "__init__", watch)
        assert train(target, again, further=first, seed=2, store="f32") == 0
    [(data, start)] = seen
    for name, value in start.items():
        expected = weights[name] * data.scale if name == "fc.weight" else weights[name]
        assert np.array_equal(value, expected), name
    assert head_tokens(again).tolist() == head_tokens(first).tolist() == data.kept.tolist()
    assert target_layers(again) == target_layers(first)
    metadata = read_gguf(again).metadata
    assert metadata["lcspec.eagle.continued"] == "first.gguf"
    assert metadata["lcspec.eagle.fingerprint"] == fingerprint(target)
    assert "before training)" in capsys.readouterr().out
    # In its own place.
    assert train(target, again, further=again, seed=3) == 0
    assert read_gguf(again).metadata["lcspec.eagle.continued"] == "again.gguf"


def test_heads_that_cannot_be_trained_further(tmp_path: Path) -> None:
    """Told before anything is collected."""
    target, other = (write_family("llama", tmp_path / f"{i}.gguf", seed=i) for i in (0, 1))
    head, theirs = tmp_path / "head.gguf", tmp_path / "theirs.gguf"
    train(target, head)
    sizes = head_sizes(target, 100)
    weights = {name: np.ones(shape, np.float32) for name, shape in sizes.shapes().items()}
    write_head(theirs, target, sizes, weights, np.arange(100), LAYERS, {})
    expected: list[tuple[Path, type[LcspecError], str]] = [
        (other, UnsupportedModel, "1.gguf cannot be trained further: it is no head that lcspec draft eagle made"),
        (theirs, UnsupportedModel, "theirs.gguf cannot be trained further: it is no head that lcspec draft eagle"),
        (tmp_path / "missing.gguf", LcspecError, "missing.gguf"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "load", lambda *_: pytest.fail("it was to be refused before"))
        for further, error, message in expected:
            with pytest.raises(error, match=message):
                train(target, tmp_path / "more.gguf", further=further)
        with pytest.raises(UnsupportedModel, match="it was trained for tiny llama"):
            train(other, tmp_path / "more.gguf", further=head)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.gguf", "1.gguf", "head.gguf", "theirs.gguf"]


def test_too_little_to_learn_from(tmp_path: Path) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")
    with pytest.raises(UsageError, match="are too few to learn from: give it more --minutes"):
        train(target, tmp_path / "head.gguf", positions=200, answer=250, ctx=400, slots=1)


def test_acceptance_is_counted_along_the_text(tmp_path: Path) -> None:
    """A head that says what the text says is right at every depth; where it is wrong once, nothing below counts."""
    target = write_family("llama", tmp_path / "llama.gguf", change=forget_context)
    data = dataset(target, (30, 30))
    for text in data.texts:  # greedy: each token is the one before's first choice
        text.tokens[1:] = text.ids[:-1, 0]
    sizes = head_sizes(target, len(data.kept))
    head = Head(sizes, initial_weights(target, sizes, data.kept, data.scale, 0))
    found = measure(head, data, 1000)
    assert found.rows > 10 and len(found.depths) == 4
    chances = np.cumprod(found.depths)
    assert found.length == pytest.approx(1 + chances.sum(), abs=1e-6)
