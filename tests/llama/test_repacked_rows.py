"""Repacked weights are multiplied row by row, by machine code of ours that calls the library's."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lcspec.llama import repacked_rows
from lcspec.llama.lib import C
from scripts.scale_model import quantize
from tests.tiny_gguf import write_llama

X86_LINUX = sys.platform == "linux" and platform.machine() == "x86_64"
pytestmark = [pytest.mark.model, pytest.mark.skipif(not X86_LINUX, reason="the code is for Linux on x86-64")]
LIBRARY = C.llama_cpp._lib
GEMM = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int
)
QUANTIZE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
K = 512  # values in a row


def rounded(row: str, values: repacked_rows._Values, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rows as the library rounds each of them."""
    k = rows.shape[1]
    out = np.zeros((len(rows), k // 2**values.shift * values.size), np.uint8)
    for values_of, place in zip(rows, out):
        QUANTIZE((row, LIBRARY))(values_of.ctypes.data, place.ctypes.data, k)
    return out


@pytest.mark.parametrize("name", repacked_rows.QUANTIZERS)
def test_four_rows_are_rounded_as_each_of_them(name: str) -> None:
    row, values = repacked_rows.QUANTIZERS[name], repacked_rows.Q8_K if "q8_K" in name else repacked_rows.Q8_0
    rows = np.random.default_rng(0).normal(size=(4, K)).astype(np.float32)
    expected = rounded(row, values, rows)
    out = np.zeros_like(expected)
    QUANTIZE(repacked_rows.stand_ins(LIBRARY)[name])(rows.ctypes.data, out.ctypes.data, K)
    assert np.array_equal(out, expected)
    QUANTIZE((name, LIBRARY))(rows.ctypes.data, out.ctypes.data, K)  # the library's own: interleaved
    assert not np.array_equal(out, expected)


@pytest.mark.parametrize("n_rows", [4, 12])
@pytest.mark.parametrize("columns", [8, 32, 40, 104])
@pytest.mark.parametrize("kind", repacked_rows.WEIGHTS)
def test_rows_are_multiplied_as_each_of_them(kind: str, columns: int, n_rows: int) -> None:
    size, values = repacked_rows.WEIGHTS[kind]
    random = np.random.default_rng(1)
    weights = random.integers(0, 256, (columns, K // 2**values.shift * size), np.uint8)
    row = "quantize_row_q8_K" if values is repacked_rows.Q8_K else "quantize_row_q8_0"
    rows = rounded(row, values, random.normal(size=(n_rows, K)).astype(np.float32))
    stride = columns + 24  # of the results: other columns are another thread's
    expected, out = np.zeros((2, n_rows, stride), np.uint32)
    gemv = GEMM((f"ggml_gemv_{kind}", LIBRARY))
    for one, place in zip(rows, expected):
        gemv(K, place.ctypes.data, stride, weights.ctypes.data, one.ctypes.data, 1, columns)
    gemm = GEMM(repacked_rows.stand_ins(LIBRARY)[f"ggml_gemm_{kind}"])
    gemm(K, out.ctypes.data, stride, weights.ctypes.data, rows.ctypes.data, n_rows, columns)
    assert expected[:, :columns].any(axis=1).all()
    assert np.array_equal(out, expected)  # bits, as random weights are not all numbers


CERTIFY = """
import sys
from pathlib import Path
from lcspec.config import ModelOptions
from lcspec.llama import Model, lib
from lcspec.profiles.independence import independence_of
lib.init()
options = ModelOptions(Path(sys.argv[1]), ctx=512, threads=2, attention="rows", exact=True)
with lib.log_lines() as lines:
    model = Model.load(options)
found = independence_of(model, options)
print(any("CPU_REPACK model buffer" in line for line in lines), found.independent, len(found.widths))
"""


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K_M"])
def test_repacked_weights_are_exact_row_by_row(kind: str, tmp_path: Path) -> None:
    """Without AMX, which repacks in a way of its own: every width, prompt in pieces, tokens that are taken back."""
    exact = write_llama(tmp_path / "exact.gguf", width=256, n_ff=512)
    quantize(exact, tmp_path / "repacked.gguf", kind, n_threads=1)
    done = subprocess.run(
        [sys.executable, "-c", CERTIFY, str(tmp_path / "repacked.gguf")],
        # without a compiler: where there is one, Q4_K is not repacked (lcspec.llama.few_rows)
        env={**os.environ, "LCSPEC_AMX": "0", "LCSPEC_CACHE_DIR": str(tmp_path), "PATH": "", "CXX": ""},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    repacked, independent, widths = done.stdout.split()
    assert repacked == str(LIBRARY.ggml_cpu_has_avx2() != 0)
    assert independent == "True" and int(widths) >= 32
