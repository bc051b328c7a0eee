"""Scaled-cost models: a bigger bill for exactly the same function."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import llama_cpp as ll
import numpy as np
import pytest

from lcspec.errors import LcspecError, ModelFileError, UsageError
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.modelfile import read_header, read_vocabulary
from scripts.scale_model import parse_size, quantize, scale_model
from tests import tiny_gguf as tiny
from tests.tiny_families import write_family

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
TOKENS = np.random.default_rng(7).integers(0, 280, 40).tolist()


@pytest.fixture(scope="module", autouse=True)
def _silent_library() -> object:
    callback = ll.llama_log_callback(lambda *_: None)
    ll.llama_log_set(callback, ctypes.c_void_p(0))
    return callback  # pytest keeps it alive while the module's tests run


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """0.6 M parameters; every dimension a multiple of 256, so that K-quants apply."""
    folder = tmp_path_factory.mktemp("scale")
    return tiny.write_llama(
        folder / "source.gguf", width=256, n_head=8, n_head_kv=4, n_ff=256, chat_template=tiny.CHATML_TEMPLATE
    )


def logits_of(path: Path, tokens: Sequence[int], width: int) -> np.ndarray:
    """Logits after each token, shape (len(tokens), n_vocab), decoded `width` tokens at a time on one thread."""
    model = ll.llama_model_load_from_file(str(path).encode(), ll.llama_model_default_params())
    assert model
    params = ll.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = 128, 64, 64, 1, 1
    context = ll.llama_init_from_model(model, params)
    n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
    batch = ll.llama_batch_init(width, 0, 1)
    rows = []
    for start in range(0, len(tokens), width):
        chunk = tokens[start : start + width]
        batch.n_tokens = len(chunk)
        for i, token in enumerate(chunk):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, 1
            batch.seq_id[i][0] = 0
        assert ll.llama_decode(context, batch) == 0
        rows += [
            np.ctypeslib.as_array(ll.llama_get_logits_ith(context, i), (n_vocab,)).copy() for i in range(len(chunk))
        ]
    ll.llama_batch_free(batch)
    ll.llama_free(context)
    ll.llama_model_free(model)
    return np.stack(rows)


def greedy(path: Path, n_tokens: int) -> list[int]:
    """A greedy continuation of the first eight tokens."""
    tokens = list(TOKENS[:8])
    for _ in range(n_tokens):
        tokens.append(int(logits_of(path, tokens, len(tokens))[-1].argmax()))
    return tokens[8:]


# Q4_K_M and Q4_K_S mix tensor types; IQ4_XS and Q4_0 are repacked on some machines; F16 sums in another order.
@pytest.mark.parametrize("quant", ["F32", "F16", "Q8_0", "Q4_0", "Q4_K_M", "Q4_K_S", "Q6_K"])
def test_the_function_is_unchanged(quant: str, source: Path, tmp_path: Path) -> None:
    """Against the small model quantized alike, with four times as many feed-forward units.

    Measured on x86-64 with AVX-512: not one bit differs, at any width and in any of 13 quantizations. The tolerance,
    a ten-thousandth of the logits' deviation, is for machines whose kernels sum a longer row in another order.
    """
    small, large = tmp_path / "small.gguf", tmp_path / "large.gguf"
    quantize(source, small, quant)
    scale_model(source, large, "2.1m", quant)
    assert read_header(large).metadata["llama.feed_forward_length"] == 1024
    for width in (1, 2, 8, 32):
        expected, found = logits_of(small, TOKENS, width), logits_of(large, TOKENS, width)
        assert np.abs(found - expected).max() <= 1e-4 * expected.std(), width
        assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1)), width


def test_greedy_text_is_unchanged(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "small.gguf", "Q4_0")
    scale_model(source, tmp_path / "large.gguf", "2.1m", "Q4_0")
    text = greedy(tmp_path / "small.gguf", 12)
    assert len(set(text)) > 2
    assert greedy(tmp_path / "large.gguf", 12) == text


def test_a_hybrid_and_its_layer_for_multi_token_prediction_are_scaled(tmp_path: Path) -> None:
    small = write_family("qwen35", tmp_path / "small.gguf")
    large = scale_model(small, tmp_path / "large.gguf", "1m")
    units = [t.shape[1] for t in read_gguf(large).tensors if t.name.endswith("ffn_up.weight")]
    assert len(units) == 3 and len(set(units)) == 1 and units[0] > 128
    expected, found = logits_of(small, TOKENS, 8), logits_of(large, TOKENS, 8)
    assert np.abs(found - expected).max() <= 1e-4 * expected.std()


def test_feed_forward_that_fills_no_whole_blocks(tmp_path: Path) -> None:
    """172 units: no quantization has blocks of that size, so llama.cpp leaves those rows in F16.

    The new columns then share SIMD registers with the old ones, and sums are rounded differently; on CPUs with AMX only
    the larger of the two gets its kernels, which quantize activations otherwise.
    """
    path = tiny.write_llama(tmp_path / "odd.gguf", n_ff=172)
    quantize(path, tmp_path / "small.gguf", "Q8_0")
    scale_model(path, tmp_path / "large.gguf", "0.5m", "Q8_0")
    expected, found = (logits_of(tmp_path / name, TOKENS, 8) for name in ("small.gguf", "large.gguf"))
    assert np.abs(found - expected).max() <= 0.06 * expected.std()


def test_the_comparison_would_notice_an_effect(source: Path, tmp_path: Path) -> None:
    """The control for the tests above: one wrong number in the added columns changes the logits."""
    large = scale_model(source, tmp_path / "large.gguf", "2.1m")
    before = logits_of(large, TOKENS, 8)
    contents = read_gguf(large)
    down = next(tensor for tensor in contents.tensors if tensor.name == "blk.0.ffn_down.weight")
    weights = np.memmap(large, np.float32, "r+", contents.data_offset + down.offset, (256, 1024))
    assert not weights[:, 256:].any()
    weights[3, 700] = 0.5
    weights.flush()
    assert np.abs(logits_of(large, TOKENS, 8) - before).max() > 1e-3 * before.std()


def test_the_added_units_do_real_work(source: Path, tmp_path: Path) -> None:
    """Their gate and up rows are neither zero nor the old rows in the same pairing, and the old ones are unchanged."""
    large = scale_model(source, tmp_path / "large.gguf", "2.1m")
    before, after = read_gguf(source), read_gguf(large)
    units = {}
    for part in ("gate", "up"):
        name = f"blk.1.ffn_{part}.weight"
        old, new = (next(t for t in contents.tensors if t.name == name) for contents in (before, after))
        small = np.memmap(source, np.float32, "r", before.data_offset + old.offset, (256, 256))
        wide = np.memmap(large, np.float32, "r", after.data_offset + new.offset, (1024, 256))
        assert np.array_equal(wide[:256], small)
        assert (np.abs(wide).max(axis=1) > 0).all()
        units[part] = wide
    pairs = {(units["gate"][i].tobytes(), units["up"][i].tobytes()) for i in range(1024)}
    assert len(pairs) > 1000


def test_mixtures_of_types_are_those_of_the_small_model(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "small.gguf", "Q4_K_M")
    scale_model(source, tmp_path / "large.gguf", "10m", "Q4_K_M")
    small, large = (read_gguf(tmp_path / name).tensors for name in ("small.gguf", "large.gguf"))
    assert [(t.name, t.type_name) for t in small] == [(t.name, t.type_name) for t in large]
    assert len(Counter(t.type_name for t in large)) == 3  # F32, Q4_K, Q6_K


def test_size_metadata_and_vocabulary(source: Path, tmp_path: Path) -> None:
    assert scale_model(source, tmp_path / "large.gguf", 20_000_000, "Q8_0") == tmp_path / "large.gguf"
    small, large = read_header(source), read_header(tmp_path / "large.gguf")
    assert large.n_params == pytest.approx(20e6, rel=0.02)
    assert large.quantization == "Q8_0"
    assert large.name == "tiny llama (scaled cost 19.8M)"
    assert large.metadata["general.size_label"] == "19.8M"
    assert int(large.metadata["llama.feed_forward_length"]) % 256 == 0
    changed = {"general.name", "general.file_type", "llama.feed_forward_length"}
    for key, value in small.metadata.items():
        assert key in changed or large.metadata[key] == value, key
    assert large.chat_template == tiny.CHATML_TEMPLATE
    assert large.licence == "mit"
    assert read_vocabulary(tmp_path / "large.gguf") == read_vocabulary(source)


def test_progress_counts_every_byte(source: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    class Progress:
        def __init__(self, total: int) -> None:
            seen.append(-total)

        def __enter__(self) -> object:
            return seen.append

        def __exit__(self, *_: object) -> None:
            pass

    scale_model(source, tmp_path / "large.gguf", "5m", "Q4_0", progress=Progress)  # type: ignore[arg-type]
    assert len(seen) > 5
    assert sum(seen) == 0


@pytest.mark.parametrize(
    ("text", "n_params"),
    [("0.5b", 500_000_000), ("1B", 10**9), (" 600m ", 600_000_000), ("12345", 12345), (".5k", 500)],
)
def test_sizes(text: str, n_params: int) -> None:
    assert parse_size(text) == n_params


@pytest.mark.parametrize("text", ["", "b", "1g", "-1b", "1.2.3m", "one"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_mistakes_leave_nothing_behind(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(UsageError, match="already"):
        scale_model(source, out, "0.1m")
    with pytest.raises(UsageError, match="more than is free"):
        scale_model(source, out, "900000b")
    with pytest.raises(UsageError, match="not a quantization"):
        scale_model(source, out, "2m", "Q9_9")
    with pytest.raises(UsageError, match="over itself"):
        scale_model(source, source, "2m")
    with pytest.raises(UsageError, match="does not exist"):
        scale_model(source, tmp_path / "nowhere" / "out.gguf", "2m")
    with pytest.raises(ModelFileError, match="truncated"):
        scale_model(tiny.write_truncated_data(tmp_path / "cut.gguf"), out, "2m")
    with pytest.raises(UsageError, match="no plain feed-forward"):
        scale_model(tiny.write_recurrent(tmp_path / "mamba.gguf"), out, "2m")
    with pytest.raises(LcspecError, match="imatrix"):
        quantize(source, out, "IQ2_XXS")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.gguf", "mamba.gguf"]


def test_command_line(source: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts" / "scale_model.py"), str(source), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, timeout=300)

    out = tmp_path / "out.gguf"
    result = run(str(out), "--size", "2.1m", "--quant", "Q4_0")
    assert result.returncode == 0, result.stderr
    assert "2.1 M parameters" in result.stdout
    assert result.stderr == ""
    assert read_header(out).quantization == "Q4_0"
    result = run(str(out), "--size", "huge")
    assert result.returncode == 2
    assert (
        result.stderr == "error: 'huge' is not a size; give a number of parameters such as 0.5b, 600m or 1000000000\n"
    )
