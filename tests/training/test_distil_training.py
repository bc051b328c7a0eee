"""Distilled drafts: trained on tiny models, and the same numbers from PyTorch and from llama.cpp."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs PyTorch (lcspec[train])")

from lcspec.commands import draft_distil  # noqa: E402
from lcspec.config import DraftFiles, ModelOptions  # noqa: E402
from lcspec.llama import Context, Model  # noqa: E402
from lcspec.modelfiles.companions import sort_drafts  # noqa: E402
from lcspec.modelfiles.gguf_header import read_gguf  # noqa: E402
from lcspec.modelfiles.identity import fingerprint  # noqa: E402
from lcspec.session import open_session  # noqa: E402
from lcspec.training.clock import CHOICE, Measured  # noqa: E402
from lcspec.training.distil.dataset import Dataset  # noqa: E402
from lcspec.training.distil.export import write_draft  # noqa: E402
from lcspec.training.distil.initial import draft_weights, initial_weights  # noqa: E402
from lcspec.training.distil.network import SAMPLED, Batch, Draft  # noqa: E402
from lcspec.training.distil.shape import DraftShape, choose, read_shape  # noqa: E402
from lcspec.training.distil.train import Trainer, measure  # noqa: E402
from lcspec.training.texts import TOP, Text  # noqa: E402
from tests import tiny_gguf as tiny  # noqa: E402
from tests.running import GREEDY, answer, options, request  # noqa: E402
from tests.tiny_families import VOCAB, write_family  # noqa: E402
from tests.tiny_heads import forget_context  # noqa: E402
from tests.training.test_distil_drafts import OPTIONS  # noqa: E402

pytestmark = [pytest.mark.model, pytest.mark.slow]
TEXT = "the cat and the dog and the cat and the rat and the "
SMALL = DraftShape(vocab=VOCAB, layers=1, width=32, heads=1, kv_heads=1, head_dim=32, feed_forward=96)


def random_text(rng: np.random.Generator, n: int, prompt: int) -> Text:
    shares = rng.random((n, TOP)).astype(np.float16)
    shares = -np.sort(-(0.9 * shares / shares.sum(axis=1, keepdims=True)), axis=1)
    shares[: prompt - 1] = 0
    ids = np.stack([rng.permutation(VOCAB)[:TOP] for _ in range(n)]).astype(np.int32)
    return Text(np.zeros((n, 0), np.float16), rng.integers(3, VOCAB, n).astype(np.int32), ids, shares)


def dataset(lengths: tuple[int, ...] = (14, 9, 12, 11)) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset([random_text(rng, n, 3) for n in lengths], [i == 1 for i in range(len(lengths))])


def random_draft(shape: DraftShape, seed: int = 0) -> Draft:
    rng = np.random.default_rng(seed)
    return Draft(
        shape,
        {
            name: (1.0 + 0.1 * rng.standard_normal(size) if len(size) == 1 else 0.2 * rng.standard_normal(size))
            for name, size in shape.shapes().items()
        },
    )


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [tiny.byte_bpe_vocab(288), tiny.spm_vocab(288)], ids=["bpe", "pieces"])
@pytest.mark.parametrize(
    "changes", [{}, {"tied": False, "heads": 4, "kv_heads": 2, "head_dim": 16}], ids=["tied", "untied"]
)
def test_llama_cpp_computes_what_was_trained(tmp_path: Path, vocab: tiny.Vocab, changes: dict[str, int]) -> None:
    target = tiny.write_llama(tmp_path / "llama.gguf", vocab=vocab, width=128)
    shape = dataclasses.replace(choose(target, 64, 2), **changes)
    draft = random_draft(shape)
    path = tmp_path / "draft.gguf"
    write_draft(path, target, shape, draft.arrays(), {}, "f32")
    assert read_shape(path) == shape
    tokens = np.random.default_rng(1).integers(3, 280, 40)
    with torch.no_grad():
        wanted = (draft(torch.from_numpy(tokens)[None])[0] @ draft.output.T).numpy()
    own = ModelOptions(path, ctx=64, slots=1, threads=1, kv_type="f32")
    with Model.load(own) as model, Context(model, own) as context:
        context.batch.clear()
        for i, token in enumerate(tokens.tolist()):
            context.batch.add(token, i, (0,), logits=True)
        context.decode()
        found = context.logits().copy()
    assert np.abs(found - wanted).max() < 2e-2 * np.abs(wanted).max()  # 16-bit attention


def exact_loss(draft: Draft, batch: Batch) -> float:
    """Cross entropy over the named tokens and all others as one, from whole softmaxes."""
    with torch.no_grad():
        states = draft(batch.tokens).flatten(0, 1)[batch.learn]
        p = (states @ draft.output.T).double().softmax(1)
        named = p.gather(1, batch.ids)
        rest = 1.0 - batch.shares.double().sum(1)
        return float(-((batch.shares * named.log()).sum(1) + rest * (1.0 - named.sum(1)).log()).mean())


def test_the_loss_of_a_small_vocabulary_is_exact() -> None:
    draft, batch = random_draft(SMALL), dataset().batch([0, 2])
    assert float(draft.loss(batch).detach()) == pytest.approx(exact_loss(draft, batch), rel=1e-4)
    assert batch.shares[:, 0].min() > CHOICE and float(batch.shares.sum(1).max()) < 1.0


def test_a_sample_stands_for_a_large_vocabulary() -> None:
    """Loss and gradient are those of whole softmaxes, on average over samples."""
    draft = random_draft(dataclasses.replace(SMALL, vocab=12 * SAMPLED))
    batch = dataset().batch([0, 2])
    torch.manual_seed(0)
    found = [float(draft.loss(batch).detach()) for _ in range(40)]
    assert np.mean(found) == pytest.approx(exact_loss(draft, batch), rel=2e-3)
    assert np.std(found) > 0


def test_texts_side_by_side_are_as_alone() -> None:
    draft, data = random_draft(SMALL), dataset()
    with torch.no_grad():
        both = draft(data.batch([1, 0]).tokens)
        for row, which in enumerate((1, 0)):
            alone = draft(data.batch([which]).tokens)[0]
            assert torch.allclose(both[row, : len(alone)], alone, atol=1e-5)
    batch = data.batch([1, 0])
    assert batch.learn.tolist() == [*range(2, 9), *range(14 + 2, 14 + 14)]  # from the prompt's last token on
    assert batch.ids[0].tolist() == data.texts[1].ids[2].tolist()


def test_every_text_is_seen_once_a_pass() -> None:
    data = dataset((30, 9, 41, 17, 5, 22, 60, 8))
    seen = []
    for batch in data.batches(64, np.random.default_rng(3)):
        assert batch.tokens.numel() <= 64
        seen += [row[row != 0].tolist() for row in batch.tokens]
    wanted = [data.texts[i].tokens.tolist() for i in data.part(False)]
    assert sorted(seen) == sorted(wanted)


def test_acceptance_is_what_chains_give() -> None:
    """Counted by drafting every chain token by token."""
    data = dataset((40, 60, 44))
    draft = random_draft(SMALL)
    text = data.texts[1]
    rng = np.random.default_rng(5)
    for i in range(len(text)):  # most of it is what the target would have said; and the draft says that often
        if i + 1 < len(text) and rng.random() < 0.9:
            text.tokens[i + 1] = text.ids[i, 0]
    with torch.no_grad():
        said = (draft(torch.from_numpy(text.tokens.astype(np.int64))[None])[0] @ draft.output.T).argmax(1).numpy()
    for i in range(text.first, len(text)):
        if rng.random() < 0.7:
            text.ids[i, 0] = said[i]
            if i + 1 < len(text):
                text.tokens[i + 1] = said[i]
                with torch.no_grad():
                    said = (draft(torch.from_numpy(text.tokens.astype(np.int64))[None])[0] @ draft.output.T).argmax(1)
                    said = said.numpy()
    found = measure(draft, data, 1000)
    accepted, right, seen = [], np.zeros(4), np.zeros(4)
    for base in range(text.first, len(text) - 3):
        choices = text.ids[base : base + 4, 0].tolist()
        if text.tokens[base + 1 : base + 4].tolist() != choices[:3]:
            continue
        context, n = text.tokens[: base + 1].tolist(), 0
        for depth in range(4):
            seen[depth] += 1
            with torch.no_grad():
                token = int((draft(torch.tensor(context)[None])[0, -1] @ draft.output.T).argmax())
            if token != choices[depth]:
                break
            right[depth] += 1
            n += 1
            context.append(token)
        accepted.append(n)
    assert found.rows == len(accepted) > 20
    assert found.length == pytest.approx(1 + np.mean(accepted))
    assert found.depths == pytest.approx((right / np.maximum(1, seen)).tolist())
    assert 0.3 < found.depths[0] < 1.0


# --- training ---------------------------------------------------------------------------------------------------------


def stop_after(steps: int) -> Callable[[float], None]:
    taken = 0

    def show(_: float) -> None:
        nonlocal taken
        taken += 1
        if taken == steps:
            raise KeyboardInterrupt

    return show


def test_training_lowers_the_loss_and_goes_on(tmp_path: Path) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")
    data, shape = dataset((40,) * 8), choose(target, 32, 1)

    def trainer(seconds: float = 60.0) -> Trainer:
        return Trainer(data, shape, lambda: initial_weights(target, shape, 0), seconds, 1, tmp_path)

    first = trainer()
    batch = data.batch(data.part(False))
    began = exact_loss(first.network, batch)
    with pytest.raises(KeyboardInterrupt):
        first.run(stop_after(25))
    assert exact_loss(first.network, batch) < began - 0.2
    again = trainer()
    assert again.progress.step == first.progress.step == 25
    assert again.progress.history == first.progress.history
    for name, value in first.network.arrays().items():
        assert np.array_equal(value, again.network.arrays()[name]), name
    with pytest.raises(KeyboardInterrupt):
        again.run(stop_after(25))
    assert exact_loss(again.network, batch) < exact_loss(first.network, batch)
    trainer(again.progress.seconds).run(lambda share: pytest.fail("its time was spent"))
    (tmp_path / "draft.pt").write_bytes(b"not a checkpoint")
    assert trainer().progress.step == 0


# --- the command ------------------------------------------------------------------------------------------------------


def train(target: Path, out: Path, **changes: object) -> int:
    return draft_distil.run(model=target, **{**OPTIONS, "out": out, **changes})


def test_a_draft_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What follows from the last token alone is learned in seconds: drafts are accepted, and the text stays."""
    target = write_family("llama", tmp_path / "llama.gguf", change=forget_context)
    out, texts = tmp_path / "draft.gguf", tmp_path / "texts.txt"
    texts.write_text(TEXT * 200)
    assert train(target, out, minutes=0.4, positions=3000, answer=32, text=(texts,)) == 0
    told = capsys.readouterr().out
    assert "acceptance" in told and "before training" in told and "1 layers of width 32" in told
    assert f"lcspec generate {target} --draft {out}" in told
    assert sorted(p.name for p in tmp_path.iterdir()) == ["draft.gguf", "llama.gguf", "texts.txt"]
    contents = read_gguf(out)
    assert contents.metadata["general.architecture"] == "llama"
    assert contents.metadata["lcspec.distil.text"] == "texts.txt"
    assert contents.metadata["lcspec.distil.fingerprint"] == fingerprint(target)
    assert contents.metadata["lcspec.distil.acceptance_length"] > 1.3
    assert {t.type_name for t in contents.tensors if len(t.shape) == 2} == {"Q8_0"}
    with open_session(options(target, ctx=256), sort_drafts(target, DraftFiles((out,)))) as session:
        prompt = session.prompt_ids(TEXT)
        plain = answer(session.engine, request(prompt, "off", 32, sampling=GREEDY))
        drafted = answer(session.engine, request(prompt, "model:nodes=4", 32, sampling=GREEDY))
    assert drafted.ids == plain.ids
    assert len(drafted.steps) < 0.8 * len(plain.steps)


@pytest.mark.parametrize("family", ["phi3", "qwen35", "mamba"])
def test_other_families_are_distilled(tmp_path: Path, family: str) -> None:
    """SentencePiece; and recurrent states, of which the collector needs nothing."""
    target, out = write_family(family, tmp_path / f"{family}.gguf"), tmp_path / "draft.gguf"
    assert train(target, out) == 0
    metadata = read_gguf(out).metadata
    assert metadata["lcspec.distil.fingerprint"] == fingerprint(target) and metadata["lcspec.distil.tokens"] >= 200


def test_a_draft_is_trained_further(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the weights in its file, quantized or not, and never to something worse."""
    target, first = write_family("llama", tmp_path / "llama.gguf"), tmp_path / "first.gguf"
    train(target, first, minutes=0.1, store="f32")
    shape = read_shape(first)
    weights = draft_weights(first, shape)
    seen: list[dict[str, np.ndarray]] = []
    init = Trainer.__init__

    def watch(self: Trainer, *args: object, **rest: object) -> None:
        init(self, *args, **rest)  # type: ignore[arg-type]
        seen.append(self.network.arrays())

    again = tmp_path / "again.gguf"
    further = {"width": None, "layers": None, "further": first, "seed": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "__init__", watch)
        assert train(target, again, **further, store="f32") == 0
    assert all(np.array_equal(weights[name], value) for name, value in seen[0].items())
    metadata = read_gguf(again).metadata
    assert metadata["lcspec.distil.continued"] == "first.gguf"
    assert metadata["lcspec.distil.fingerprint"] == fingerprint(target)
    assert not np.array_equal(draft_weights(again, shape)["blk.0.attn_q.weight"], weights["blk.0.attn_q.weight"])
    # A draft with an output matrix of its own, of 8 bits, by somebody else.
    other = tiny.write_llama(tmp_path / "other.gguf", width=32, n_layer=1, n_head=2, n_head_kv=1, n_ff=64, quant="Q8_0")
    assert train(target, tmp_path / "more.gguf", **{**further, "further": other}) == 0
    assert read_shape(tmp_path / "more.gguf") == read_shape(other)
    # In its own place.
    assert train(target, again, **{**further, "further": again}) == 0
    assert read_gguf(again).metadata["lcspec.distil.continued"] == "again.gguf"


def interrupted(target: Path, out: Path) -> Path:
    """The work folder of a command that was stopped while it trained."""

    def interrupt(self: Trainer, show: object) -> None:
        self.save()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "run", interrupt)
        assert train(target, out) == 130
    return out.with_name(out.name + ".work")


def test_an_interrupted_command_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, out = write_family("llama", tmp_path / "llama.gguf"), tmp_path / "draft.gguf"
    work = interrupted(target, out)
    assert "the same command goes on from here" in capsys.readouterr().err
    assert not out.exists() and (work / "draft.pt").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "load", lambda *_: pytest.fail("the answers were there"))
        assert train(target, out) == 0
    assert out.exists() and not work.exists()


@pytest.mark.parametrize("damage", ["checkpoint", "note", "texts", "everything"])
def test_a_damaged_work_folder(tmp_path: Path, damage: str) -> None:
    """What is whole is used; what is not is made again."""
    target, out = write_family("llama", tmp_path / "llama.gguf"), tmp_path / "draft.gguf"
    work = interrupted(target, out)
    if damage in ("checkpoint", "everything"):
        (work / "draft.pt").write_bytes((work / "draft.pt").read_bytes()[:1000])
    if damage in ("note", "everything"):
        (work / "collect.json").write_text('{"seconds": 1')
        (work / "invented.json").write_text("[{")
    if damage in ("texts", "everything"):
        with (work / "ids.i32").open("r+b") as file:
            file.truncate((work / "ids.i32").stat().st_size // 2 + 5)
    assert train(target, out) == 0
    assert read_gguf(out).metadata["lcspec.distil.answers"] > 1 and not work.exists()


def test_nothing_learned_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file then holds what training began with, because no later look at held-out texts was better."""
    target, first = write_family("llama", tmp_path / "llama.gguf"), tmp_path / "first.gguf"
    train(target, first, store="f32")
    weights = draft_weights(first, read_shape(first))
    looks = iter(2.0 - 0.01 * i for i in range(1000))
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "measured", lambda self: Measured((0.5,) * 4, next(looks), 10))
        asked = {"width": None, "layers": None, "further": first, "store": "f32"}
        assert train(target, tmp_path / "same.gguf", **asked) == 0
    assert "it learned nothing that helps with held-out texts" in capsys.readouterr().err
    for name, value in draft_weights(tmp_path / "same.gguf", read_shape(first)).items():
        assert np.array_equal(weights[name], value), name
