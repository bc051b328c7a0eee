"""Which file may draft for which, by headers alone."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import gguf
import numpy as np
import pytest

from lcspec.errors import UnsupportedModel
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.library import Found, describe, drafts_for
from lcspec.modelfiles.modelfile import TEXT_BYTES
from lcspec.modelfiles.mtp_layers import mtp_layers
from lcspec.modelfiles.pairing import can_be_taken_back, check_draft, why_not
from tests import tiny_gguf as tiny
from tests.tiny_families import FAMILIES, write_family


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's is read or written."""
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


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
        ("lcspec-heads", {}, "Medusa heads: give it to --heads"),
        ("nomic-bert", {}, "encoder"),
        ("newcomer", {"attention.causal": False}, "encoder"),
        ("llada", {}, "diffusion"),
        ("qwen3tts", {}, "speech"),
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
    assert mtp_layers(contents) == FAMILIES[name].mtp + (name == "dots3note")  # which the library cannot run
    assert can_be_taken_back(contents.metadata) == (FAMILIES[name].memory != "state")


def test_a_file_that_cannot_be_read_is_left_to_its_loading(tmp_path: Path) -> None:
    check_draft(tmp_path / "target.gguf", tmp_path / "missing.gguf")
    check_draft(tmp_path / "target.gguf", tiny.write_not_gguf(tmp_path / "note.gguf"))


def test_nothing_that_cannot_draft_is_paired(tmp_path: Path) -> None:
    """The picker's list, which goes by vocabulary and size."""
    made = [
        tiny.write_llama(tmp_path / "target.gguf", n_layer=8),
        tiny.write_bert(tmp_path / "bert.gguf"),
        other_file(tmp_path / "head.gguf", "eagle3"),
        tiny.write_llama(tmp_path / "draft.gguf", n_layer=1),
    ]
    described = [describe(Found(path, "folder", path.name, path.stat().st_size)) for path in made]
    assert [m.path.name for m in drafts_for(described[0], described)] == ["draft.gguf"]


def test_bytes_of_a_text_are_those_of_assigned_characters() -> None:
    held: set[int] = set()
    for start in (*range(0, 0x3000, 1), *range(0x3000, 0x110000, 7)):
        character = chr(start)
        private = 0xE000 <= start < 0xF900  # symbols of fonts, found in texts from terminals
        if unicodedata.category(character) not in ("Cc", "Cn", "Co", "Cs") or character in "\t\n\r" or private:
            held.update(character.encode())
    held.update("\U000e0067\U000e0100".encode())  # tags and variation selectors begin with 0xF3
    assert held == TEXT_BYTES
