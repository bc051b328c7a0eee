"""Kernels for one row of tokens and a few, compiled on this machine: as fast as they are exact.

llama.cpp has none for two to eight rows on x86: it multiplies them one by one, so that two drafted tokens cost nearly
as much as decoding them. Those of few_rows.cpp unpack the weights once for all rows, and a row's sums are those that it
has alone. A single row is faster as well, and so are keys and values in 16 bits and the weights of experts. They are
compiled when they are first needed, with the C++ compiler of the machine, and kept in the cache directory. A type of
weights whose bits are not those of the library's dot product is left to the library, and so is everything where there
is no compiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Callable, Iterable, Mapping, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lcspec.disk_cache import cache_dir
from lcspec.llama.amx import processor_flags

SOURCES = Path(__file__).with_name("kernels")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-shared", "-fPIC")
COMPILERS = ("c++", "g++", "clang++")
PATIENCE = 60.0  # seconds for the compiler
# Functions of the library: for several rows, for those of an expert, how threads share work, how wide its vectors are.
SGEMM, TILED = "llamafile_sgemm", "ggml_compute_forward_mul_mat_tiled"
EXPERTS = "ggml_compute_forward_mul_mat_id_tiled"
CALLED = (
    SGEMM,
    TILED,
    EXPERTS,
    "ggml_threadpool_chunk_set",
    "ggml_threadpool_chunk_add",
    "ggml_barrier",
    "ggml_cpu_has_avx512",
)


class _Type(NamedTuple):
    """A type of weights: its number, its name, values and bytes of a block; what rows are rounded to."""

    number: int
    name: str
    values: int
    size: int
    rounded: _Rounded

    @property
    def dot(self) -> str:
        """The library's dot product."""
        return f"ggml_vec_dot_{self.name}" + (f"_{self.rounded.name}" if self.values > 1 else "")


class _Rounded(NamedTuple):
    """A type that rows are rounded to: its number, its name, values and bytes of a block."""

    number: int
    name: str
    values: int
    size: int


F16, Q8_0 = _Rounded(1, "f16", 1, 2), _Rounded(8, "q8_0", 32, 34)
Q8_1, Q8_K = _Rounded(9, "q8_1", 32, 36), _Rounded(15, "q8_K", 256, 292)
TYPES = (
    _Type(1, "f16", 1, 2, F16),
    _Type(2, "q4_0", 32, 18, Q8_0),
    _Type(3, "q4_1", 32, 20, Q8_1),
    _Type(6, "q5_0", 32, 22, Q8_0),
    _Type(7, "q5_1", 32, 24, Q8_1),
    _Type(8, "q8_0", 32, 34, Q8_0),
    _Type(10, "q2_K", 256, 84, Q8_K),
    _Type(11, "q3_K", 256, 110, Q8_K),
    _Type(12, "q4_K", 256, 144, Q8_K),
    _Type(13, "q5_K", 256, 176, Q8_K),
    _Type(14, "q6_K", 256, 210, Q8_K),
    _Type(20, "iq4_nl", 32, 18, Q8_0),
    _Type(23, "iq4_xs", 256, 136, Q8_K),
    _Type(39, "mxfp4", 32, 17, Q8_0),
)
# Types that the library repacks on x86. The first is faster so; the second is with the kernels for it, which take VNNI
# with 512 bits; the others are faster as they are stored.
REPACKED = ("Q4_0", "Q4_K", "Q2_K", "IQ4_NL", "MXFP4")
REPACKED_Q4_0 = "ggml_gemm_q4_0_8x8_q8_0"
# The library's functions for a single row of those that have such a kernel.
SINGLE = {"q4_0": "ggml_gemv_q4_0_8x8_q8_0", "q4_K": "ggml_gemv_q4_K_8x8_q8_K"}
# What computes everything that has to do with repacked weights, what tells which those are, and what else is called.
FORWARD, REPACKED_TYPE = "ggml_cpu_extra_compute_forward", "_Z35ggml_backend_cpu_repack_buffer_typev"
TYPE_OF = "ggml_backend_buffer_get_type"
CALLED_FOR_REPACKED = (FORWARD, REPACKED_TYPE, TYPE_OF, *SINGLE.values(), "ggml_op_name")
OPERATIONS = 64  # of the library's operations, among which are both multiplications
# Of the matrix that is multiplied to compare bits: rows of weights, rows of tokens, values of each; 24 more where they
# are not in blocks, so that some are left over.
COMPARED = (12, 8, 512)


class _Params(ctypes.Structure):
    """The beginning of `ggml_compute_params`."""

    _fields_ = [
        ("ith", ctypes.c_int),
        ("nth", ctypes.c_int),
        ("wsize", ctypes.c_size_t),
        ("wdata", ctypes.c_void_p),
        ("threadpool", ctypes.c_void_p),
    ]


class Kernels(NamedTuple):
    """Addresses of functions that stand in for the library's, and a name that changes with their code.

    Attributes:
        exact: by the names of those functions: every row has the bits that it has alone.
        fast: the same where bits do not matter: many rows, and types without a kernel, are the library's.
        always: the same for what is as fast as it is exact.
        name: of the compiled file.
        types: of weights, those that have a kernel.
        compiled: the file, loaded.
    """

    exact: Mapping[str, int]
    fast: Mapping[str, int]
    always: Mapping[str, int]
    name: str
    types: tuple[str, ...]
    compiled: ctypes.CDLL


@functools.cache
def kernels(library: ctypes.CDLL) -> Kernels | None:
    """The kernels for `library`; None where there are none: other processors and systems, or no compiler."""
    compiled = _compiled() if known_here() and all(hasattr(library, name) for name in CALLED) else None
    if compiled is None:
        return None
    compiled.few_rows_init(*(ctypes.c_void_p(_address(library, name)) for name in CALLED))
    compiled.few_rows_exact.restype = ctypes.c_bool
    types = tuple(kind.name.upper() for kind in TYPES if _agrees(library, compiled, kind))
    if not types:
        return None
    exact = {SGEMM: "few_rows_exact", EXPERTS: "few_rows_exact_experts"}
    fast = {SGEMM: "few_rows_fast", TILED: "few_rows_fast_tiled", EXPERTS: "few_rows_fast_experts"}
    of_exact, of_fast = ({name: _address(compiled, of) for name, of in some.items()} for some in (exact, fast))
    always = _wide_for_repacked(library, compiled)
    return Kernels(of_exact, of_fast, always, Path(compiled._name).stem, types, compiled)


def why_none() -> str:
    """Why there are no kernels here."""
    if not known_here():
        return "they are for Linux on x86-64 processors with AVX2"
    if compiler() is None:
        return "no C++ compiler was found: install one (on Debian and Ubuntu `apt install build-essential`)"
    return f"{compiler()} could not compile them, or the cache directory cannot be written"


def known_here() -> bool:
    """Whether this is a processor and a system that the kernels are written for."""
    return {"avx2", "fma", "f16c"} <= set(processor_flags())


def for_repacked(library: ctypes.CDLL, stand_ins: Mapping[str, int]) -> dict[str, int]:
    """What of `stand_ins` (see repacked_rows.py) has something faster here, and its address."""
    if REPACKED_Q4_0 not in stand_ins or (found := kernels(library)) is None:
        return {}
    address, compiled = stand_ins[REPACKED_Q4_0], found.compiled
    compiled.few_rows_q4_0_init(ctypes.c_void_p(address))
    (m, n, k), weights, rows = _repacked(library, Q8_0, 18)
    wanted, got = np.zeros((n, m), np.float32), np.zeros((n, m), np.float32)
    for function, out in (ctypes.CFUNCTYPE(None)(address), wanted), (compiled.few_rows_q4_0, got):
        width, of_rows, columns = ctypes.c_int(k), ctypes.c_int(n), ctypes.c_int(m)
        function(width, _at(out), ctypes.c_size_t(m), _at(weights), _at(rows), of_rows, columns)
    return {REPACKED_Q4_0: _address(compiled, "few_rows_q4_0")} if _same_bits(wanted, got) else {}


def _wide_for_repacked(library: ctypes.CDLL, compiled: ctypes.CDLL) -> dict[str, int]:
    """What stands in for the library's way to repacked weights, if it has the bits of its functions for single rows."""
    if not hasattr(compiled, "few_rows_repacked") or not all(hasattr(library, name) for name in CALLED_FOR_REPACKED):
        return {}
    whole, long, size, round_row = ctypes.c_int, ctypes.c_int64, ctypes.c_size_t, list[ctypes.c_void_p]()
    for kind in (kind for kind in TYPES if kind.name in SINGLE):
        (m, n, k), weights, rows = _repacked(library, kind.rounded, kind.size)
        wanted, got = np.zeros((n, m), np.float32), np.zeros((n, m), np.float32)
        for row, out in zip(rows, wanted):
            single = getattr(library, SINGLE[kind.name])
            single(whole(k), _at(out), size(m), _at(weights), _at(row), whole(1), whole(m))
        number, blocks = whole(kind.number), long(k // kind.rounded.values)
        compiled.few_rows_repacked(number, _at(weights), long(m), blocks, _at(rows), long(n), _at(got))
        if not _same_bits(wanted, got):
            return {}
        round_row.append(ctypes.c_void_p(_address(library, f"quantize_row_{kind.rounded.name}")))
    library.ggml_op_name.restype = ctypes.c_char_p
    names = [library.ggml_op_name(whole(i)) for i in range(OPERATIONS)]
    numbers = whole(names.index(b"MUL_MAT")), whole(names.index(b"MUL_MAT_ID"))
    type_of_repacked = getattr(library, REPACKED_TYPE)
    type_of_repacked.restype = ctypes.c_void_p
    forward, type_of = (ctypes.c_void_p(_address(library, name)) for name in (FORWARD, TYPE_OF))
    compiled.few_rows_repacked_init(forward, *numbers, ctypes.c_void_p(type_of_repacked()), type_of, *round_row)
    return {FORWARD: _address(compiled, "few_rows_forward")}


def _repacked(
    library: ctypes.CDLL, rounded: _Rounded, size: int
) -> tuple[tuple[int, int, int], NDArray[np.uint8], NDArray[np.uint8]]:
    """Columns, rows and values of a matrix to compare bits with; repacked weights, in blocks of `size` bytes; rows."""
    m, n, k = 24, 4, 512
    random, blocks = np.random.default_rng(0), k // rounded.values
    weights = random.integers(0, 256, (m // 8, blocks, 8 * size), np.uint8)
    weights[:, :, :32] = np.full(16, 0.01, np.float16).view(np.uint8)  # scales that are numbers
    rows, into = random.standard_normal((n, k), np.float32), np.zeros((n, blocks * rounded.size), np.uint8)
    for row, at in zip(rows, into):
        getattr(library, f"quantize_row_{rounded.name}")(_at(row), _at(at), ctypes.c_int64(k))
    return (m, n, k), weights, into


def _same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def faster_as_stored(library: ctypes.CDLL, types: Iterable[str]) -> bool:
    """Whether weights of these types, the most frequent ones first, are multiplied faster if they are not repacked."""
    most = next((name for name in types if name in REPACKED), REPACKED[0])
    if (found := kernels(library)) is None or most == REPACKED[0]:
        return False
    return most != REPACKED[1] or not found.always


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def compiler() -> str | None:
    """The C++ compiler of this machine (CXX names another one)."""
    return next((found for name in (os.environ.get("CXX", ""), *COMPILERS) if (found := shutil.which(name))), None)


def _compiled() -> ctypes.CDLL | None:
    """The kernels, compiled unless an earlier process did; None where that is not possible."""
    command = compiler()
    if command is None:
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        about = "\0".join([os.path.realpath(command), *processor_flags(), *FLAGS]).encode()
        about += b"".join(source.read_bytes() for source in sorted(SOURCES.iterdir()))
        file = cache_dir() / "kernels" / f"few_rows-{hashlib.sha256(about).hexdigest()[:16]}.so"
        if not file.exists():
            file.parent.mkdir(0o700, parents=True, exist_ok=True)  # it holds code that runs
            with tempfile.TemporaryDirectory(dir=file.parent) as folder:
                new = Path(folder) / file.name
                compile_it = [command, *FLAGS, "-o", str(new), str(SOURCES / "few_rows.cpp")]
                subprocess.run(compile_it, check=True, capture_output=True, timeout=PATIENCE)
                os.replace(new, file)
        return ctypes.CDLL(str(file))
    return None


def _agrees(library: ctypes.CDLL, compiled: ctypes.CDLL, kind: _Type, values: int = COMPARED[2]) -> bool:
    """Whether the kernel for this type has the bits of the library's dot product; only then it is used."""
    dot, quantize = getattr(library, kind.dot, None), getattr(library, "ggml_quantize_chunk", None)
    name = f"quantize_row_{kind.rounded.name}" if kind.values > 1 else "ggml_fp32_to_fp16_row"
    round_row = getattr(library, name, None)
    if dot is None or quantize is None or round_row is None:
        return False
    m, n, _ = COMPARED
    k = values if kind.values > 1 else values + 24
    random, blocks = np.random.default_rng(0), k // kind.values
    weights, rows = (random.standard_normal((some, k), np.float32) for some in (m, n))
    stored = np.zeros((m, blocks * kind.size), np.uint8)
    rounded = np.zeros((n, k // kind.rounded.values * kind.rounded.size), np.uint8)
    long, whole = ctypes.c_int64, ctypes.c_int
    quantize(whole(kind.number), _at(weights), _at(stored), long(0), long(m), long(k), None)
    for row, into in zip(rows, rounded):
        round_row(_at(row), _at(into), long(k))
    wanted = np.zeros((n, m), np.float32)
    none = ctypes.c_size_t(0)
    for j in range(n):
        for i in range(m):
            dot(whole(k), _at(wanted[j, i:]), none, _at(stored[i]), none, _at(rounded[j]), none, whole(1))
    use: Callable[[int, bool], None] = compiled.few_rows_use
    use(kind.number, True)
    same = True
    for width in range(1, n + 1):
        got = np.zeros((width, m), np.float32)
        done = compiled.few_rows_exact(
            ctypes.byref(_Params(0, 1)), long(m), long(width), long(blocks), _at(stored), long(blocks), _at(rounded),
            long(blocks), _at(got), long(m), whole(kind.number), whole(kind.rounded.number), whole(0),
        )  # fmt: skip
        same &= bool(done) and _same_bits(wanted[:width], got)
    use(kind.number, same)
    return same


def _at(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
