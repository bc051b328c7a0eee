"""Which file may draft for which, by headers alone, and what is chosen when nobody says."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import gguf
import numpy as np
import pytest

from lcspec.errors import UnsupportedModel
from lcspec.modelfiles.draft_choice import choose_draft
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.modelfile import TEXT_BYTES
from lcspec.modelfiles.pairing import can_be_taken_back, check_draft, mtp_layers, why_not
from tests import tiny_gguf as tiny
from tests.tiny_families import FAMILIES, write_family


@pytest.fixture(autouse=True)
def _own_directories(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of this machine's is found or written; returns Hugging Face's cache."""
    for name in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    hub = tmp_path_factory.mktemp("hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    return hub


def other_file(path: Path, architecture: str, **metadata: object) -> Path:
    """A file of another architecture, with a vocabulary and one tensor."""
    return tiny._write(
        path, architecture, metadata, {"fc.weight": np.zeros((2, 4), dtype=np.float32)}, vocab=tiny.byte_bpe_vocab()
    )


@pytest.mark.parametrize(
    "architecture, metadata, reason",
    [
        ("eagle3", {}, "EAGLE-3 head"),
        ("gemma4-assistant", {}, "companion of Gemma 4"),
        ("nomic-bert", {}, "encoder"),
        ("newcomer", {"attention.causal": False}, "encoder"),
        ("llada", {}, "diffusion"),
        ("qwen3", {"pooling_type": 3}, "embeddings"),
    ],
)
def test_what_cannot_draft_is_refused_with_the_reason(
    tmp_path: Path, architecture: str, metadata: dict[str, object], reason: str
) -> None:
    target = tiny.write_llama(tmp_path / "target.gguf")
    draft = other_file(tmp_path / "draft.gguf", architecture, **metadata)
    assert reason in (why_not(draft) or "")
    with pytest.raises(UnsupportedModel, match=rf"draft.gguf cannot draft for target.gguf: .*{reason}.*--draft"):
        check_draft(target, draft)


def test_layers_for_multi_token_prediction_alone_cannot_draft(tmp_path: Path) -> None:
    whole = write_family("qwen35", tmp_path / "whole.gguf")
    alone = tmp_path / "alone.gguf"
    writer = gguf.GGUFWriter(alone, "qwen35")
    writer.add_uint32("qwen35.nextn_predict_layers", 1)
    for tensor in gguf.GGUFReader(whole).tensors:
        if not tensor.name.startswith(("blk.0.", "blk.1.")):
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert why_not(whole) is None and mtp_layers(read_gguf(whole)) == 1
    assert "not the model" in (why_not(alone) or "")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_may_draft_as_far_as_its_header_tells(tmp_path: Path, name: str) -> None:
    path = write_family(name, tmp_path / "model.gguf")
    contents = read_gguf(path)
    assert why_not(path) is None
    assert mtp_layers(contents) == FAMILIES[name].mtp
    assert can_be_taken_back(contents.metadata) == (FAMILIES[name].memory != "state")


def test_a_file_that_cannot_be_read_is_left_to_its_loading(tmp_path: Path) -> None:
    check_draft(tmp_path / "target.gguf", tmp_path / "missing.gguf")
    check_draft(tmp_path / "target.gguf", tiny.write_not_gguf(tmp_path / "note.gguf"))


def test_a_file_beside_the_model_is_chosen_before_one_in_a_cache(tmp_path: Path, _own_directories: Path) -> None:
    snapshot = _own_directories / "models--org--small" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (tmp_path / "models").mkdir()
    target = tiny.write_llama(tmp_path / "models" / "target.gguf", n_layer=8)
    assert choose_draft(target) is None
    cached = tiny.write_llama(snapshot / "tiny.gguf", n_layer=1)
    found = choose_draft(target)
    assert found is not None and (found.where, found.path) == ("cache", cached)
    assert "org/small/tiny.gguf" in found.reason
    beside = tiny.write_llama(target.with_name("middle.gguf"), n_layer=3)
    found = choose_draft(target)
    assert found is not None and (found.where, found.path) == ("beside", beside)
    assert "middle.gguf lies beside it" in found.reason


def test_the_smallest_of_the_model_s_own_architecture_is_chosen(tmp_path: Path) -> None:
    target = tiny.write_llama(tmp_path / "target.gguf", n_layer=12)
    tiny.write_llama(tmp_path / "large.gguf", n_layer=10)
    tiny.write_llama(tmp_path / "other.gguf", n_layer=1, vocab=tiny.byte_bpe_vocab(permutation=1))
    tiny.write_recurrent(tmp_path / "recurrent.gguf", n_layer=1)  # cannot be taken back
    tiny.write_bert(tmp_path / "bert.gguf")
    tiny.write_hybrid(tmp_path / "hybrid.gguf", n_layer=1)
    found = choose_draft(target)
    assert found is not None and found.path.name == "hybrid.gguf"  # nothing else fits
    tiny.write_llama(tmp_path / "four.gguf", n_layer=4)
    two = tiny.write_llama(tmp_path / "two.gguf", n_layer=2)
    found = choose_draft(target)
    assert found is not None and found.path == two


def test_a_head_inside_is_chosen_where_it_can_be_used(tmp_path: Path) -> None:
    target = write_family("glm4moe", tmp_path / "glm.gguf")
    assert choose_draft(target) is None
    found = choose_draft(target, heads=True)
    assert found is not None and (found.where, found.path) == ("inside", target)
    assert "1 layer for multi-token prediction" in found.reason


def test_nothing_is_chosen_for_a_file_that_is_no_model(tmp_path: Path) -> None:
    assert choose_draft(tiny.write_not_gguf(tmp_path / "note.gguf")) is None
    assert choose_draft(tmp_path / "missing.gguf") is None


def test_bytes_of_a_text_are_those_of_assigned_characters() -> None:
    held: set[int] = set()
    for start in (*range(0, 0x3000, 1), *range(0x3000, 0x110000, 7)):
        character = chr(start)
        private = 0xE000 <= start < 0xF900  # symbols of fonts, found in texts from terminals
        if unicodedata.category(character) not in ("Cc", "Cn", "Co", "Cs") or character in "\t\n\r" or private:
            held.update(character.encode())
    held.update("\U000e0067\U000e0100".encode())  # tags and variation selectors begin with 0xF3
    assert held == TEXT_BYTES
