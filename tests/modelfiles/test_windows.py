"""Which layers have a sliding window, and what the library allocates for them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lcspec.config import ModelOptions
from lcspec.errors import ModelLoadError
from lcspec.llama import Context, Model
from lcspec.llama.lib import log_lines
from lcspec.modelfiles.memory import Memory, check_memory, fit_windows, needed
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.windows import window_cache, windows_of
from lcspec.session import open_session
from tests import tiny_gguf as tiny
from tests.running import answer, request
from tests.tiny_families import FAMILIES, WINDOW, write_family
from tests.tiny_layers import LATENT, MOE
from tests.tiny_windows import write_eight_layers

pytestmark = pytest.mark.model


def allocated(options: ModelOptions) -> float:
    """Bytes of the context's KV caches, as the library tells them."""
    with Model.load(options) as model, log_lines() as lines, Context(model, options):
        pass
    return sum(float(n) for line in lines for n in re.findall(r"KV buffer size =\s+([0-9.]+) MiB", line)) * 2**20


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("gemma3", (True, True, False)),
        ("gemma4", (True, False, True, False)),
        ("gpt-oss", (True, False)),
        ("cohere2", (True, False)),
        ("step35", (False, True, False, True)),
        ("dots3note", (True, False, True, False)),
        ("plamo3", (True,) * 7 + (False,)),
        ("granite_swa", (False,) * 4 + (True,) * 4),
        ("spark2_5", (False,) * 4 + (True,) * 4),
    ],
)
def test_memory_is_what_the_library_allocates(family: str, layers: tuple[bool, ...], tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    if family in FAMILIES:
        write_family(family, path)
    else:
        write_eight_layers(path, family)
    header, small = (
        read_header(path),
        ModelOptions(path, ctx=4096, slots=2, threads=1, gpu_layers=0, attention="library", full_windows=False),
    )
    windows = windows_of(header)
    assert windows is not None and windows.size == WINDOW and windows.layers == layers
    full = replace(small, full_windows=True)
    own = window_cache(header, small, 4096)
    assert own is not None and own.cells < 4096 and window_cache(header, full, 4096) is None
    assert window_cache(header, replace(small, exact=True), 4096) is None
    if family != "step35":  # layers that only draft have cells in a context of their own
        for options in (small, full):
            found, said = allocated(options), needed(header, options).kv_cache
            assert 0.97 * found - 2**20 * 0.01 <= said <= found + 2**20 * 0.01
    assert needed(header, small).kv_cache < 0.8 * needed(header, full).kv_cache


def test_others_have_none(tmp_path: Path) -> None:
    assert windows_of(read_header(tiny.write_llama(tmp_path / "m.gguf"))) is None
    path = write_family("gemma3", tmp_path / "short.gguf")
    short = ModelOptions(path, ctx=256, full_windows=False)
    assert window_cache(read_header(path), short, 256) is None, "hardly less than a full one"


def test_windows_keep_less_where_there_is_no_memory_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_family("gemma3", tmp_path / "m.gguf")
    wanted = ModelOptions(path, ctx=4096, slots=2, threads=1, gpu_layers=0, attention="library")
    small = replace(wanted, full_windows=False)
    full, own = (needed(read_header(path), options) for options in (wanted, small))
    enough, short, none = (Memory(10**12, kept) for kept in (full.kv_cache, full.kv_cache - 1, own.kv_cache - 1))
    assert fit_windows(wanted, memory=enough) == (wanted, "")
    assert fit_windows(small, memory=short) == (small, "")
    found, note = fit_windows(wanted, memory=short)
    assert found == small and "--no-swa-full" in note and "\n" not in note
    assert check_memory(wanted, memory=short) == own
    assert fit_windows(wanted, memory=none) == (wanted, "")
    with pytest.raises(ModelLoadError, match="cannot fit"):
        check_memory(wanted, memory=none)
    llama = replace(wanted, path=tiny.write_llama(tmp_path / "llama.gguf"))
    assert fit_windows(llama, memory=Memory(10**12, 1)) == (llama, "")

    monkeypatch.setattr("lcspec.modelfiles.memory.machine_memory", lambda: short)
    with open_session(wanted) as session:
        assert session.engine.context.memory.slack > 0
        assert len(answer(session.engine, request(session.prompt_ids("abc" * 40), "ngram:min_n=1", 20)).ids) == 20
    assert "keep only their windows" in capsys.readouterr().err


# A file of each architecture with windows, whatever it is of besides: layers, and what it says of them.
PATTERN = "attention.sliding_window_pattern"
BY_PERIOD = (
    *("afmoe", "cohere2", "cohere2moe", "exaone-moe", "gemma2", "gemma3", "gemma3n", "gpt-oss", "laguna", "mellum"),
    *("muse-glimmer", "olmo2", "plamo3", "smallthinker"),
)
BY_NAME = ("dots3note", "gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35")
SAYING = [
    *((architecture, 9, {}) for architecture in BY_PERIOD),
    *((architecture, 4, {PATTERN: [True, False, True, True]}) for architecture in BY_NAME),
    ("exaone4", 64, {}),
    ("exaone4", 65, {"nextn_predict_layers": 1}),
]
ANYTHING = {
    **MOE,
    **LATENT,
    **{f"attention.{name}_{of}": 24 for name in ("key_length", "value_length") for of in ("swa", "mla_swa")},
    "attention.kv_lora_rank_swa": 32,
    "attention.q_lora_rank": 32,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.sliding_window": WINDOW,
    "attention.shared_kv_layers": 0,
    "attention.indexer.head_count": 32,
    "attention.indexer.key_length": 64,
    "attention.indexer.top_k": 8,
    "embedding_length_per_layer_input": 8,
    "expert_gating_func": 2,
    "expert_shared_count": 1,
    "expert_shared_feed_forward_length": 32,
    "leading_dense_block_count": 1,
    "logit_scale": 1.0,
    "rope.freq_base_swa": 10000.0,
}


@pytest.mark.parametrize(("architecture", "layers", "says"), SAYING)
def test_windows_are_those_of_the_library(
    architecture: str, layers: int, says: dict[str, object], tmp_path: Path
) -> None:
    """The library says which layers have one before it misses the tensors of these files."""
    own = {"swiglu_clamp_exp": [7.0] * layers, "attention.indexer.types": [True] * layers, "block_count": layers}
    metadata = {"context_length": 512, "embedding_length": 64, "attention.head_count": 4, **ANYTHING, **own, **says}
    path = tmp_path / "m.gguf"
    tensors = {"output_norm.weight": np.ones(64, np.float32)}
    tiny._write(path, architecture, metadata, tensors, vocab=tiny.byte_bpe_vocab())
    with pytest.raises(ModelLoadError, match="tensor '"), log_lines() as lines:
        Model.load(ModelOptions(path, gpu_layers=0))
    told = [line for line in lines if "is_swa = " in line][:layers]
    windows = windows_of(read_header(path))
    assert windows is not None and windows.layers == tuple("is_swa = 1" in line for line in told)
