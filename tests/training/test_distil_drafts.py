"""Distilled drafts without PyTorch: their shape, what they start from, what is refused, and who is paired with them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lcspec.commands import draft_distil
from lcspec.commands.draft_distil import draft_shape
from lcspec.commands.models import as_dict, table
from lcspec.drafters.medusa.target import output_rows
from lcspec.errors import LcspecError, ModelFileError, UnsupportedModel, UsageError, VocabularyMismatch
from lcspec.llama import Model
from lcspec.model_choice import paired
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.identity import fingerprint
from lcspec.modelfiles.library import models
from lcspec.modelfiles.modelfile import read_header
from lcspec.training.distil.export import write_draft
from lcspec.training.distil.initial import draft_weights, initial_weights, reduced
from lcspec.training.distil.shape import COST, choose, read_shape, step_weights
from tests import tiny_gguf as tiny
from tests.commands.test_command_line import ok
from tests.running import GREEDY, answer, request
from tests.running import options as model_options
from tests.tiny_families import write_family

OPTIONS = {
    "text": (), "invent": 0, "out": None, "minutes": 0.02, "positions": 400, "answer": 16, "store": "q8_0",
    "slots": 4, "ctx": 128, "threads": 1, "seed": 1, "gpu_layers": 0, "device": (), "tensor_split": None,
    "width": 32, "layers": 1, "further": None,
}  # fmt: skip


@pytest.fixture
def torch_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused before training is refused whether PyTorch is installed or not."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "load", lambda *_: pytest.fail("it was loaded"))


def untrained(target: Path, out: Path, storage: str = "q8_0") -> Path:
    """A draft for `target` as it is before training."""
    shape = choose(target, 32, 1)
    write_draft(out, target, shape, initial_weights(target, shape, 0), {"fingerprint": fingerprint(target)}, storage)
    return out


# --- shape ------------------------------------------------------------------------------------------------------------


def test_a_draft_costs_a_share_of_its_target(tmp_path: Path) -> None:
    """Output matrix included, as near as widths in blocks of 32 allow."""
    target = tiny.write_llama(tmp_path / "big.gguf", width=512, n_layer=20, n_head=8, n_ff=1024)
    shape = choose(target)
    assert shape.layers == 2 and shape.width % 32 == 0 and shape.tied
    whole = step_weights(read_header(target))
    assert choose(target, shape.width - 32).step_weights < COST * whole < choose(target, shape.width + 32).step_weights
    assert choose(target, 64, 3).layers == 3 and choose(target, 64, 3).width == 64
    assert shape.step_weights < sum(int(np.prod(s)) for s in choose(target, shape.width, 3).shapes().values())


def test_a_step_does_not_pass_all_experts(tmp_path: Path) -> None:
    dense, moe = (write_family(name, tmp_path / f"{name}.gguf") for name in ("qwen3", "qwen3moe"))
    tensors = {t.name: t.n_elements for t in read_gguf(moe).tensors if len(t.shape) > 1}
    experts = sum(n for name, n in tensors.items() if "_exps" in name)
    everything = sum(tensors.values()) - tensors["token_embd.weight"]  # only looked up
    assert step_weights(read_header(moe)) == everything - experts // 2
    assert step_weights(read_header(dense)) == read_header(dense).n_params - 288 * 64 - sum(
        t.n_elements for t in read_gguf(dense).tensors if len(t.shape) == 1
    )


def test_shapes_that_cannot_be(tmp_path: Path) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")
    with pytest.raises(UsageError, match="--width 40 is no multiple of 32"):
        choose(target, 40)
    with pytest.raises(UsageError, match="costs as much as llama.gguf itself; choose a smaller --width"):
        choose(target, 128, 4)


def test_embeddings_keep_what_they_can(tmp_path: Path) -> None:
    """The differences between the target's rows, as far as so few dimensions can; by another way than the code's."""
    target = tiny.write_llama(tmp_path / "llama.gguf", quant="Q8_0")
    rows = output_rows(target, range(288))
    centred = (rows - rows.mean(axis=0)).astype(np.float64)
    left, scale, right = np.linalg.svd(centred, full_matrices=False)
    best = (left[:, :32] * scale[:32]) @ right[:32]
    found = reduced(target, 288, 32)
    # Whatever the axes are called: inner products of rows are those of the best approximation.
    assert np.allclose(found @ found.T, best @ best.T, atol=1e-2)
    weights = initial_weights(target, choose(target, 32, 1), 0)
    assert np.linalg.norm(weights["token_embd.weight"], axis=1).mean() == pytest.approx(1.0, abs=0.1)


def test_embeddings_of_an_unknown_kind_start_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")

    def unreadable(*_: object) -> object:
        raise UnsupportedModel("a type from the future")

    monkeypatch.setattr("lcspec.training.distil.initial.output_rows", unreadable)
    weights = initial_weights(target, choose(target, 32, 1), 0)
    assert weights["token_embd.weight"].std() == pytest.approx(0.02, rel=0.1)


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [tiny.byte_bpe_vocab(288), tiny.spm_vocab(288)], ids=["bpe", "pieces"])
def test_the_file_has_the_targets_tokenizer(tmp_path: Path, vocab: tiny.Vocab) -> None:
    target = tiny.write_llama(tmp_path / "llama.gguf", vocab=vocab, chat_template=tiny.CHATML_TEMPLATE)
    draft = untrained(target, tmp_path / "draft.gguf", "f32")
    arrays = [f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores", "merges")]
    ours, theirs = (read_gguf(path, arrays=arrays).metadata for path in (target, draft))
    for key in (key for key in ours if key.startswith("tokenizer.")):
        assert theirs[key] == ours[key], key
    assert {key for key in theirs if key.startswith("tokenizer.")} <= ours.keys()
    assert theirs["general.name"] == "draft distilled from tiny llama" and theirs["general.license"] == "mit"
    shape = read_shape(draft)
    assert shape == choose(target, 32, 1)
    for name, value in draft_weights(draft, shape).items():
        assert np.array_equal(value, initial_weights(target, shape, 0)[name]), name


def test_drafts_that_are_no_plain_models(tmp_path: Path) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")
    with pytest.raises(UnsupportedModel, match="its architecture is qwen3, and only llama is trained"):
        read_shape(write_family("qwen3", tmp_path / "q.gguf"))

    def bias(net: object) -> None:
        net.bias("blk.0.attn_q", 64)  # type: ignore[attr-defined]

    with pytest.raises(UnsupportedModel, match=r"its tensor blk.0.attn_q.bias is \(64,\), and not there was expected"):
        read_shape(write_family("llama", tmp_path / "biased.gguf", change=bias))
    scaled = tiny.write_llama(tmp_path / "scaled.gguf", extra={"rope.scaling.type": "yarn"})
    with pytest.raises(UnsupportedModel, match="it scales positions"):
        read_shape(scaled)
    assert read_shape(target).tied is False


# --- refused ----------------------------------------------------------------------------------------------------------


def test_without_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"training a draft needs PyTorch: pip install 'lcspec\[train\]'"):
        draft_distil.run(model=tmp_path / "any.gguf", **OPTIONS)


def refusals(folder: Path) -> Iterator[tuple[type[LcspecError], str, dict[str, object]]]:
    """What is asked for, and how it is refused."""
    llama = write_family("llama", folder / "llama.gguf")
    empty = folder / "empty.txt"
    empty.write_text("  \n")
    other = tiny.write_llama(folder / "other.gguf", vocab=tiny.byte_bpe_vocab(permutation=1))
    yield (
        UnsupportedModel,
        r"encoder.gguf: it is an encoder \(bert\)",
        {"model": tiny.write_bert(folder / "encoder.gguf")},
    )
    yield ModelFileError, "has no tokenizer", {"model": tiny.write_without_tokenizer(folder / "mute.gguf")}
    yield ModelFileError, "is not a GGUF file", {"model": tiny.write_not_gguf(folder / "no.gguf")}
    yield UsageError, "holds no text to make prompts from", {"model": llama, "text": (empty,)}
    yield UsageError, "does not exist; create it first", {"model": llama, "out": folder / "nowhere" / "d.gguf"}
    further = {"model": llama, "width": None, "layers": None}
    yield VocabularyMismatch, "has another vocabulary than llama.gguf", {**further, "further": other}
    yield UsageError, "leave --width and --layers out", {"model": llama, "further": other}
    yield ModelFileError, "does not exist", {**further, "further": folder / "missing.gguf"}


@pytest.mark.usefixtures("torch_there", "nothing_loads")
def test_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    made = set()
    for kind, message, asked in refusals(tmp_path):
        with pytest.raises(kind, match=message):
            draft_distil.run(**{**OPTIONS, "out": tmp_path / "draft.gguf", **asked})
        made |= {path.name for path in tmp_path.iterdir() if path.name.startswith("draft")}
    assert made == set()


@pytest.mark.usefixtures("torch_there")
def test_a_hint_of_another_run_is_left_alone(tmp_path: Path) -> None:
    work = tmp_path / "draft.gguf.work"
    work.mkdir()
    (work / "run.json").write_bytes(b"\xff{")
    target = write_family("llama", tmp_path / "l.gguf")
    with pytest.raises(UsageError, match="holds the unfinished work of a run with other settings"):
        draft_distil.run(model=target, **{**OPTIONS, "out": tmp_path / "draft.gguf"})
    assert (work / "run.json").read_bytes() == b"\xff{"


def test_a_draft_is_asked_for_in_words(tmp_path: Path) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")
    draft = untrained(target, tmp_path / "draft.gguf")
    assert draft_shape(target, draft, None, None) == choose(target, 32, 1)
    assert draft_shape(target, None, None, 1).layers == 1


# --- paired -----------------------------------------------------------------------------------------------------------


def test_a_draft_beside_its_model_is_paired(tmp_path: Path) -> None:
    """Though its architecture is another; with another model of the same vocabulary it is not."""
    ours = write_family("qwen3", tmp_path / "ours.gguf")
    theirs = write_family("qwen3", tmp_path / "theirs.gguf", seed=1)
    draft = untrained(ours, tmp_path / "ours.distil.gguf")
    found = paired({"model": ours})
    assert found.pair.draft.models == (draft,)
    assert found.line == "paired with ours.distil.gguf (--no-draft leaves it out)"
    assert paired({"model": theirs}).pair.draft.models == ()
    rows = {row.model.path: as_dict(row) for row in table(list(models([tmp_path])), None)}
    assert rows[ours]["draft"] == str(draft) and rows[theirs]["draft"] is None
    # A smaller one that anybody made is no rival to the one that was made for this model.
    llama = write_family("llama", tmp_path / "llama.gguf")
    own = untrained(llama, tmp_path / "llama.distil.gguf")
    tiny.write_llama(tmp_path / "aaa.gguf", width=16, n_layer=1, n_head=2, n_head_kv=2, n_ff=32)
    assert paired({"model": llama}).pair.draft.models == (own,)


@pytest.mark.model
def test_inspect_says_what_a_draft_is_for(tmp_path: Path) -> None:
    target = write_family("llama", tmp_path / "llama.gguf")
    shape = choose(target, 32, 1)
    draft = tmp_path / "draft.gguf"
    write_draft(draft, target, shape, initial_weights(target, shape, 0), {"target": "tiny llama"})
    assert json.loads(ok("inspect", draft, "--json").stdout)["distilled_from"] == "tiny llama"
    assert "drafting for tiny llama, from which it was distilled" in ok("inspect", draft).stdout
    assert json.loads(ok("inspect", target, "--json").stdout)["distilled_from"] is None
    assert "distilled" not in ok("inspect", target).stdout


@pytest.mark.model
@pytest.mark.parametrize("family", ["qwen3", "phi3", "gemma3", "lfm2"])
def test_texts_stay_as_they_are(tmp_path: Path, family: str) -> None:
    """BPE and SentencePiece, attention, windows, a hybrid: with the draft, the text is that of plain decoding."""
    from lcspec.session import open_session

    target = write_family(family, tmp_path / "target.gguf")
    draft = untrained(target, tmp_path / "draft.gguf")
    with open_session(model_options(target, ctx=256), draft) as session:
        prompt = session.prompt_ids("the cat and the dog and the ")
        plain = answer(session.engine, request(prompt, "off", 24, sampling=GREEDY))
        drafted = answer(session.engine, request(prompt, "model:nodes=4", 24, sampling=GREEDY))
    assert drafted.ids == plain.ids and any(len(step.tree) for step in drafted.steps)
