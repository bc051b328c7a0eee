"""Kernels for one row of tokens and a few, compiled on this machine: as fast as they are exact.

llama.cpp has none for two to eight rows on x86: it multiplies them one by one, so that two drafted tokens cost nearly
as much as decoding them. Those here (kernels/) unpack the weights once for all rows, and a row's sums are those that it
has alone. A single row is faster as well, and so are keys and values in 16 bits and the weights of experts. They are
compiled when they are first needed, with the C++ compiler of the machine, and kept in the cache directory. A type of
weights whose bits are not those of the library's dot product is left to the library, and so is everything where there
is no compiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, NamedTuple

import numpy as np

from lcspec.disk_cache import cache_dir
from lcspec.llama.amx import processor_flags
from lcspec.llama.native import QUANTIZE, address_of, at, dot_products, quantized, same_bits
from lcspec.llama.repacked_kernels import Copies, stand_ins
from lcspec.llama.weight_types import TYPES, WeightType

SOURCES = Path(__file__).with_name("kernels")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fPIC")
COMPILERS = ("c++", "g++", "clang++")
PATIENCE = 300.0  # seconds for the compiler: it takes 8 on two cores where it is alone
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


# Types that the library repacks on x86. The first is faster so, the others with kernels for them (repacked_kernels.py).
REPACKED = ("Q4_0", "Q2_K", "Q4_K", "IQ4_NL", "MXFP4")
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
    compiled.few_rows_init(*(ctypes.c_void_p(address_of(library, name)) for name in CALLED))
    compiled.few_rows_exact.restype = ctypes.c_bool
    types = tuple(kind.name.upper() for kind in TYPES if _agrees(library, compiled, kind))
    if not types:
        return None
    exact = {SGEMM: "few_rows_exact", EXPERTS: "few_rows_exact_experts"}
    fast = {SGEMM: "few_rows_fast", TILED: "few_rows_fast_tiled", EXPERTS: "few_rows_fast_experts"}
    of_exact, of_fast = ({name: address_of(compiled, of) for name, of in some.items()} for some in (exact, fast))
    always = stand_ins(library, compiled)
    return Kernels(of_exact, of_fast, always, Path(compiled._name).stem, types, compiled)


def compile_meanwhile() -> None:
    """Begin to compile the kernels, while a download is waited for. A process that ends sooner waits for them."""
    if known_here():
        threading.Thread(target=_compiled).start()


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


def faster_as_stored(library: ctypes.CDLL, types: Iterable[str]) -> bool:
    """Whether weights of these types, the most frequent ones first, are multiplied faster if they are not repacked."""
    if (found := kernels(library)) is None or found.always:
        return False
    return next((name for name in types if name in REPACKED), REPACKED[0]) != REPACKED[0]


def copies(library: ctypes.CDLL, model: Any) -> Copies | None:
    """Copies of the weights of `model`, a llama_model on the CPU, of which the kernels are faster (see Copies)."""
    found = kernels(library)
    return Copies(library, found.compiled, model) if found is not None and found.always else None


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
            folder = os.open(file.parent, os.O_RDONLY)
            try:
                with contextlib.suppress(OSError):  # some file systems have no locks
                    fcntl.flock(folder, fcntl.LOCK_EX)  # several that start together do not slow each other
                if not file.exists():
                    _compile(command, file)
            finally:
                os.close(folder)
        return ctypes.CDLL(str(file))
    return None


def _compile(command: str, file: Path) -> None:
    """Have `command` compile the kernels to `file`, which is there when it is whole.

    Raises:
        OSError, subprocess.SubprocessError: it does not.
    """
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        parts = [(source, Path(folder) / f"{source.stem}.o") for source in sorted(SOURCES.glob("*.cpp"))]
        _run(*([command, *FLAGS, "-c", str(source), "-o", str(part)] for source, part in parts))
        new = Path(folder) / file.name
        _run([command, "-shared", *(str(part) for _, part in parts), "-o", str(new)])
        os.replace(new, file)


def _run(*commands: list[str]) -> None:
    """Run them at once.

    Raises:
        OSError, subprocess.SubprocessError: one of them fails.
    """
    quiet, started = subprocess.DEVNULL, list[subprocess.Popen[bytes]]()
    try:
        for command in commands:
            started.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))
        for process in started:
            if process.wait(PATIENCE) != 0:
                raise subprocess.CalledProcessError(process.returncode, process.args)
    finally:
        for process in started:
            process.kill()
            process.wait()


def _agrees(library: ctypes.CDLL, compiled: ctypes.CDLL, kind: WeightType, values: int = COMPARED[2]) -> bool:
    """Whether the kernel for this type has the bits of the library's dot product; only then it is used."""
    name = f"quantize_row_{kind.rounded.name}" if kind.values > 1 else "ggml_fp32_to_fp16_row"
    round_row = getattr(library, name, None)
    if not all(hasattr(library, called) for called in (kind.dot, QUANTIZE)) or round_row is None:
        return False
    m, n, _ = COMPARED
    k = values if kind.values > 1 else values + 24
    random, blocks = np.random.default_rng(0), k // kind.values
    weights, rows = (random.standard_normal((some, k), np.float32) for some in (m, n))
    stored = quantized(library, kind, weights)
    rounded = np.zeros((n, k // kind.rounded.values * kind.rounded.size), np.uint8)
    long, whole = ctypes.c_int64, ctypes.c_int
    for row, into in zip(rows, rounded):
        round_row(at(row), at(into), long(k))
    wanted = dot_products(library, kind, k, stored, rounded)
    use: Callable[[int, bool], None] = compiled.few_rows_use
    use(kind.number, True)
    same = True
    for width in range(1, n + 1):
        got = np.zeros((width, m), np.float32)
        done = compiled.few_rows_exact(
            ctypes.byref(_Params(0, 1)), long(m), long(width), long(blocks), at(stored), long(blocks), at(rounded),
            long(blocks), at(got), long(m), whole(kind.number), whole(kind.rounded.number), whole(0),
        )  # fmt: skip
        same &= bool(done) and same_bits(wanted[:width], got)
    use(kind.number, same)
    return same
