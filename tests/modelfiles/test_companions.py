"""Heads for another model are refused by their headers, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lcspec.cli import cli
from lcspec.config import DraftFiles
from lcspec.errors import LcspecError, ModelFileError, UnsupportedModel, UsageError, VocabularyMismatch
from lcspec.modelfiles import companions
from lcspec.modelfiles.companions import (
    head_kind,
    held_out_acceptance,
    own_vocabulary,
    sort_drafts,
    target_layers,
)
from lcspec.modelfiles.demo import bundled_heads
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.identity import fingerprint
from lcspec.modelfiles.mtp_layers import mtp_layers, usable_mtp
from lcspec.session import open_session
from tests import tiny_gguf as tiny
from tests.running import answer, options, request
from tests.tiny_families import FAMILIES, VOCAB, write_family
from tests.tiny_heads import LAYERS, write_assistant, write_eagle, write_mtp_part
from tests.tiny_layers import Net

pytestmark = pytest.mark.slow


def family(folder: Path, name: str) -> Path:
    return write_family(name, folder / f"{name}.gguf")


def test_every_file_finds_its_place(tmp_path: Path) -> None:
    llama, qwen, gemma = (family(tmp_path, name) for name in ("llama", "qwen35", "gemma4"))
    small = write_family("llama", tmp_path / "small.gguf", noise=0.02)
    eagle, assistant = write_eagle(tmp_path / "eagle.gguf"), write_assistant(tmp_path / "assistant.gguf")
    part = write_mtp_part("qwen35", tmp_path / "part.gguf")
    assert sort_drafts(llama, DraftFiles((small, eagle))) == DraftFiles((small,), eagle=eagle)
    assert sort_drafts(qwen, DraftFiles()) == DraftFiles(mtp=qwen)
    assert sort_drafts(qwen, DraftFiles((part,))) == DraftFiles(mtp=part)
    assert sort_drafts(gemma, DraftFiles((assistant,))) == DraftFiles(mtp=assistant)
    for target, files in ((llama, DraftFiles((small, eagle))), (qwen, DraftFiles((part,)))):
        once = sort_drafts(target, files)
        assert sort_drafts(target, once) == once
    assert target_layers(eagle) == LAYERS


def test_a_bundled_head_is_found_by_its_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = family(tmp_path, "llama"), write_family("llama", tmp_path / "theirs.gguf", seed=1)
    facts = {"lcspec.eagle.fingerprint": fingerprint(ours), "lcspec.eagle.target_block_count": 2}
    head = write_eagle(tmp_path / "ours.eagle3.gguf", **facts)
    monkeypatch.setattr(companions, "bundled_heads", lambda: [head])
    assert sort_drafts(ours, DraftFiles()) == DraftFiles(eagle=head)
    assert sort_drafts(theirs, DraftFiles()) == DraftFiles()
    assert f"head for it:    {head.name}" in CliRunner().invoke(cli, ["inspect", str(ours)]).output


def test_bundled_heads_say_how_good_they_are() -> None:
    found = bundled_heads()
    assert found
    for path in found:
        chances = held_out_acceptance(path)
        assert len(chances) == 4 and all(0.5 < chance < 1.0 for chance in chances)
        assert path.with_suffix(".md").read_text(encoding="utf-8").startswith("# An EAGLE-3 head")


def test_which_tokens_a_head_can_draft(tmp_path: Path) -> None:
    assert own_vocabulary(write_eagle(tmp_path / "all.gguf")) is None
    found = own_vocabulary(write_eagle(tmp_path / "some.gguf", kept=(3, 4, 5, 6), d2t=(7, 300, 7, 4)))
    assert found is not None and found.tolist() == [4, 7, 300] and found.dtype == np.int32


def test_what_files_make_possible_is_named_in_order(tmp_path: Path) -> None:
    qwen, eagle = Path("qwen.gguf"), Path("eagle.gguf")
    files = DraftFiles((Path("a"), Path("b")), mtp=qwen, eagle=eagle)
    assert files.drafters == ["mtp", "eagle", "model", "model2"]
    assert files.named(qwen) == (Path("a"), Path("b"), eagle)


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_inside_are_used_where_the_library_runs_them(tmp_path: Path, name: str) -> None:
    runs = name != "glm5-next"  # of which the library (0.3.36) has no graph for these layers
    assert usable_mtp(read_gguf(family(tmp_path, name))) == FAMILIES[name].mtp * runs


def test_several_layers_of_a_family_that_runs_one_only_are_left_alone(tmp_path: Path) -> None:
    """The library ends the process there."""
    two = tmp_path / "two.gguf"
    net_names = ("blk.0.nextn.eh_proj.weight", "blk.1.nextn.eh_proj.weight")
    for architecture, runs in (("qwen35", 0), ("step35", 2), ("newcomer", 0)):
        tensors = {name: np.zeros((2, 4), np.float32) for name in net_names}
        tiny._write(two, architecture, {"nextn_predict_layers": 2}, tensors, vocab=tiny.byte_bpe_vocab())
        assert usable_mtp(read_gguf(two)) == runs


def _apart(net: Net) -> None:
    """Queries, keys and values of the layers that draft in matrices of their own."""
    for block in ("blk.2", "blk.3"):
        del net.tensors[f"{block}.attn_qkv.weight"]
        net.attend(block)


def _with_experts(net: Net) -> None:
    """Experts in the last layer."""
    for name in ("gate", "up", "down"):
        del net.tensors[f"blk.3.ffn_{name}.weight"]
    net.experts("blk.3")


@pytest.mark.parametrize("change", [_apart, _with_experts])
def test_layers_that_the_library_would_end_the_process_over_are_left_alone(
    tmp_path: Path, change: Callable[[Net], None]
) -> None:
    path = write_family("mimo2", tmp_path / "m.gguf", change=change)
    assert (mtp_layers(read_gguf(path)), usable_mtp(read_gguf(path))) == (2, 0)
    with open_session(options(path)) as session:
        draft, prompt = session.engine.drafting.env.draft, session.prompt_ids("the cat and the dog and the cat and ")
        assert len(answer(session.engine, request(prompt, "auto", 12, draft=draft)).ids) == 12
    said = CliRunner().invoke(cli, ["inspect", str(path)]).output
    assert "2 layers for multi-token prediction, which this version of llama.cpp cannot run" in said


@pytest.mark.parametrize(
    "target, changes, error, words",
    [
        ("gemma4", {}, VocabularyMismatch, "entry 0 of its vocabulary is .*, and '<unk>' was expected"),
        ("olmo2", {}, UnsupportedModel, "hands out no hidden states of olmo2 models"),
        ("qwen4exp", {}, UnsupportedModel, "hands out no hidden states of qwen4exp models"),
        ("llama", {"target_hidden_size": 128}, UnsupportedModel, "width 128, and 64 was expected"),
        ("llama", {"target_layers": [0, 1, 7]}, UnsupportedModel, "layers 0, 1, 7, and the model has 2"),
        ("llama", {"target_layers": [0, 1]}, UnsupportedModel, "reads 2 layers, and such heads read 3"),
        ("llama", {"without": ("fc",)}, UnsupportedModel, "the tensor fc is missing"),
        ("llama", {"without": ("token_embd",), "embedding_length": 96}, UnsupportedModel, "96, and 64 was expected"),
        ("llama", {"kept": (1, 2), "d2t": (1, VOCAB)}, UnsupportedModel, f"tokens 1 to {VOCAB}, and .* has {VOCAB}"),
        ("llama", {"kept": (1, 2), "d2t": (-1, 2)}, UnsupportedModel, "the tokens -1 to 2"),
        (
            "llama",
            {"vocab": tiny.byte_bpe_vocab(VOCAB, permutation=1)},
            VocabularyMismatch,
            "entry 0 of its vocabulary",
        ),
    ],
)
def test_an_eagle_head_for_another_model(
    tmp_path: Path, target: str, changes: dict[str, object], error: type[LcspecError], words: str
) -> None:
    head = write_eagle(tmp_path / "head.gguf", **changes)  # type: ignore[arg-type]
    with pytest.raises(error, match=rf"head.gguf .*cannot draft for {target}.gguf: .*{words}"):
        sort_drafts(family(tmp_path, target), DraftFiles((head,)))


def test_a_companion_for_another_model(tmp_path: Path) -> None:
    head = write_assistant(tmp_path / "head.gguf")
    for target, words in (("gemma3", "it is for Gemma 4 .*, and this is gemma3"), ("llama", "and this is llama")):
        with pytest.raises(UnsupportedModel, match=words):
            sort_drafts(family(tmp_path, target), DraftFiles((head,)))
    wide = write_assistant(tmp_path / "wide.gguf", embedding_length_out=128)
    with pytest.raises(UnsupportedModel, match="width 128, and 64 was expected"):
        sort_drafts(family(tmp_path, "gemma4"), DraftFiles((wide,)))
    for key, value, expected in (("head_count_kv", 1, 2), ("key_length", 16, 32), ("value_length_swa", 8, 16)):
        shaped = write_assistant(tmp_path / "shaped.gguf", **{f"attention.{key}": value})
        with pytest.raises(UnsupportedModel, match=f"attention.{key} {value}, and {expected} was expected"):
            sort_drafts(family(tmp_path, "gemma4"), DraftFiles((shaped,)))
    other = write_assistant(tmp_path / "other.gguf", vocab=tiny.spm_vocab(VOCAB, permutation=1))
    with pytest.raises(VocabularyMismatch, match="was expected; get the head"):
        sort_drafts(family(tmp_path, "gemma4"), DraftFiles((other,)))


def test_layers_for_another_model(tmp_path: Path) -> None:
    part = write_mtp_part("qwen35", tmp_path / "part.gguf")
    with pytest.raises(UnsupportedModel, match="they are for qwen35 models, and this is glm4moe"):
        sort_drafts(family(tmp_path, "glm4moe"), DraftFiles((part,)))


def test_a_head_that_breaks_off(tmp_path: Path) -> None:
    target, head = family(tmp_path, "llama"), write_eagle(tmp_path / "head.gguf")
    whole = head.read_bytes()
    for length in (len(whole) - 100, len(whole) // 2):
        head.write_bytes(whole[:length])
        with pytest.raises((UnsupportedModel, ModelFileError), match=r"cut off|truncated|incomplete|download"):
            sort_drafts(target, DraftFiles((head,)))


def test_a_head_of_an_unknown_kind(tmp_path: Path) -> None:
    target, head = family(tmp_path, "llama"), tmp_path / "head.gguf"
    tiny._write(head, "eagle9", {"target_hidden_size": 64}, {"fc.weight": np.zeros((2, 4), np.float32)}, vocab=None)
    with pytest.raises(UnsupportedModel, match=r"a head of an unknown kind \(eagle9\); known are eagle3"):
        sort_drafts(target, DraftFiles((head,)))
    tiny._write(head, "dflash", {"target_hidden_size": 64}, {"fc.weight": np.zeros((2, 4), np.float32)}, vocab=None)
    with pytest.raises(UnsupportedModel, match="DFlash head, which this version cannot use"):
        sort_drafts(target, DraftFiles((head,)))


def test_two_heads_of_a_kind(tmp_path: Path) -> None:
    target = family(tmp_path, "llama")
    heads = tuple(write_eagle(tmp_path / f"{name}.gguf") for name in ("one", "two"))
    with pytest.raises(UsageError, match="two EAGLE-3 heads were named, one.gguf and two.gguf"):
        sort_drafts(target, DraftFiles(heads))


def test_what_cannot_be_read_is_left_to_its_loading(tmp_path: Path) -> None:
    note = tiny.write_not_gguf(tmp_path / "note.gguf")
    assert head_kind(family(tmp_path, "llama"), note) is None
    assert sort_drafts(tmp_path / "missing.gguf", DraftFiles((note,))) == DraftFiles((note,))
