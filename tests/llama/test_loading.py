"""Loading: progress, giving up, and asking for huge pages while the buffers are still empty."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from lcspec.errors import ModelLoadError, UnsupportedModel
from lcspec.llama import Context, Model, pages
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.pairing import SPEECH
from lcspec.modelfiles.unusable import check_usable
from tests import tiny_gguf as tiny
from tests.running import options
from tests.tiny_families import FAMILIES, write_family

pytestmark = pytest.mark.model


def test_huge_pages_are_asked_for_before_the_weights_are_read(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(pages, "ask", lambda: order.append("ask") or 0)
    with Model.load(options(llama), lambda fraction: order.append("progress") or True):
        assert "ask" not in order, "so small a model has no huge page"
    order.clear()
    monkeypatch.setattr(pages, "MIN_BYTES", llama.stat().st_size)
    with Model.load(options(llama), lambda fraction: order.append("progress") or True):
        pass
    assert order[0] == "ask"
    assert 1 <= order.count("ask") <= 4 and order.count("progress") >= 1


def test_huge_pages_are_asked_for_a_context_s_buffers(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    with Model.load(options(llama)) as model:
        monkeypatch.setattr(pages, "ask", lambda: asked.append(1) or 0)
        Context(model, model.options).close()
    assert asked == [1]


def test_progress_can_stop_the_load(llama: Path) -> None:
    with pytest.raises(ModelLoadError, match="stopped"):
        Model.load(options(llama), lambda fraction: False)


def test_what_the_library_would_never_end_is_refused(tmp_path: Path) -> None:
    path = write_family("plamo2", tmp_path / "plamo.gguf", **{"attention.head_count": [0, 4]})
    with pytest.raises(UnsupportedModel, match="plamo.gguf is a PLaMo 2, on which this version of llama.cpp hangs"):
        Model.load(options(path))


@pytest.mark.parametrize("architecture", sorted(SPEECH))
def test_what_makes_speech_is_refused(architecture: str, tmp_path: Path) -> None:
    """The library would take tokens from it, of which none is a text's."""
    with patch.dict(FAMILIES, {architecture: replace(FAMILIES["llama"], architecture=architecture)}):
        path = write_family(architecture, tmp_path / "speech.gguf")
    with pytest.raises(UnsupportedModel, match=f"speech.gguf is not a left-to-right text model .it is {architecture}."):
        Model.load(options(path))


@pytest.mark.parametrize(
    ("architecture", "why"), [("cogvlm", "CogVLM, .* hands out"), ("glm-dsa", "GLM without .* ends the process")]
)
def test_what_the_library_would_run_wrongly_is_refused(architecture: str, why: str, tmp_path: Path) -> None:
    weights, vocab = {"output_norm.weight": np.ones(64, np.float32)}, tiny.byte_bpe_vocab()
    path = tiny._write(tmp_path / "m.gguf", architecture, {"block_count": 2}, weights, vocab=vocab)
    with pytest.raises(UnsupportedModel, match=f"m.gguf is a {why}"):
        Model.load(options(path))


def test_weights_may_be_in_a_later_part(tmp_path: Path) -> None:
    parts, names = (tmp_path / "a.gguf", tmp_path / "b.gguf"), ("output_norm.weight", "blk.0.indexer.proj.weight")
    for path, name in zip(parts, names):
        weights = {name: np.ones(64, np.float32)}
        tiny._write(path, "glm-dsa", {"block_count": 2}, weights, vocab=tiny.byte_bpe_vocab())
    header = read_header(parts[0])
    with pytest.raises(UnsupportedModel):
        check_usable(header)
    check_usable(replace(header, parts=parts))


def test_the_library_s_log_is_quiet_from_the_start() -> None:
    """Backends tell of their devices when they are first asked, which is before a model is loaded."""
    asked = "from lcspec.llama.lib import C; C.llama_model_load_from_file(b'/nowhere', C.llama_model_default_params())"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_cache_type_that_does_not_fit_the_heads(llama: Path) -> None:
    """Blocks of Q8_0 have 32 numbers, these heads 16: the advice is another type."""
    with pytest.raises(ModelLoadError, match="block size 32 .* or --kv-type f16"), Model.load(options(llama)) as model:
        Context(model, options(llama, kv_type="q8_0"))
