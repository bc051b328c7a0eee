"""Kernels for a few rows have the bits of the library's single rows, and are left out where they have not."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lcspec.llama import Context, Model, few_rows, repacked_kernels, repacked_rows
from lcspec.llama import row_by_row as switching
from lcspec.llama.lib import C, uses_amx
from lcspec.llama.native import address_of, at, quantized, same_bits
from lcspec.llama.weight_types import TYPES, WeightType
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.memory import Memory
from scripts import shape_model
from scripts.scale_model import quantize
from tests.llama.test_repacked_rows import GEMM, rounded
from tests.llama.test_row_by_row import rows
from tests.running import options
from tests.tiny_families import write_family
from tests.tiny_gguf import write_llama

X86_LINUX = sys.platform == "linux" and platform.machine() == "x86_64"
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not X86_LINUX or few_rows.compiler() is None, reason="compiled on Linux on x86-64 only"),
]
LIBRARY = C.llama_cpp._lib
OLDEST = "haswell"


# What makes these compute as processors with VNNI do that have vectors of 256 bits only; by what they must know.
NARROW_VNNI = {"avx_vnni": ["-mavxvnni"], "avx512_vnni": ["-mavx512f", "-mavx512vl", "-mavx512vnni"]}


def for_processor(name: str) -> tuple[str, ...]:
    """Flags of the compiler."""
    assert "-march=native" in few_rows.FLAGS
    more: list[str] = []
    if name == "narrow VNNI":
        name, more = OLDEST, next((NARROW_VNNI[flag] for flag in NARROW_VNNI if flag in few_rows.processor_flags()), [])
        if not more:
            pytest.skip("this processor has no VNNI")
    return (*(f"-march={name}" if flag == "-march=native" else flag for flag in few_rows.FLAGS), *more)


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The kernels are sought again, in an empty cache directory; then the library has the ones it had."""
    found = switching._switch()
    assert found is not None and few_rows.kernels(LIBRARY) is not None
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path))
    few_rows.kernels.cache_clear()
    switching._switch.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    few_rows.kernels.cache_clear()
    switching._switch.cache_clear()
    assert (again := switching._switch()) is not None and again.name == found.name


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ctypes.CDLL]:
    """Kernels that nobody else uses; they were compiled before."""
    usual, own = few_rows.kernels(LIBRARY), tmp_path / "own.so"
    assert usual is not None
    shutil.copy(usual.compiled._name, own)
    monkeypatch.setattr(few_rows, "_compiled", lambda: ctypes.CDLL(str(own)))
    few_rows.kernels.cache_clear()
    found = few_rows.kernels(LIBRARY)
    few_rows.kernels.cache_clear()
    assert found is not None and found.compiled._name == str(own)
    yield found.compiled


def test_every_type_has_the_bits_of_single_rows(anew: Path) -> None:
    assert few_rows.kernels(LIBRARY) is not None
    compiled = few_rows._compiled()
    assert compiled is not None
    assert all([few_rows._agrees(LIBRARY, compiled, kind) for kind in TYPES])
    assert len(list((anew / "kernels").iterdir())) == 1  # compiled once


def test_several_processes_compile_once(tmp_path: Path) -> None:
    """Those that started together took so long that some gave up, and had no kernels while others had."""
    cxx, calls = tmp_path / "cxx", tmp_path / "calls"
    # The kernels are slow to compile; that is not what is tested.
    cxx.write_text(f'#!/bin/sh\necho >> {calls}\nsleep 1\nexec {few_rows.compiler()} "$@" -O0\n')
    cxx.chmod(0o700)
    code = "import sys; from lcspec.llama import few_rows; sys.exit(few_rows._compiled() is None)"
    env = {**os.environ, "CXX": str(cxx), "LCSPEC_CACHE_DIR": str(tmp_path / "cache")}
    started = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    assert calls.read_text() == "\n" * 3  # two parts, and to join them


def test_a_process_that_ends_waits_for_them(tmp_path: Path) -> None:
    cxx = tmp_path / "cxx"
    cxx.write_text(f'#!/bin/sh\nsleep 1\nexec {few_rows.compiler()} "$@" -O0\n')
    cxx.chmod(0o700)
    env = {**os.environ, "CXX": str(cxx), "LCSPEC_CACHE_DIR": str(tmp_path / "cache")}
    code = "from lcspec.llama.few_rows import compile_meanwhile; compile_meanwhile()"
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 1


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_a_type_with_other_bits_is_left_to_the_library(apart: ctypes.CDLL, kind: WeightType) -> None:
    """Here the library's dot product is another type's: what it was compiled to may change with its version."""

    class Changed:
        def __getattr__(self, name: str) -> object:
            if name == kind.dot:
                return ctypes.CFUNCTYPE(None)(lambda: None)
            return getattr(LIBRARY, name)

    assert not few_rows._agrees(Changed(), apart, kind)  # type: ignore[arg-type]
    params, out = few_rows._Params(0, 1), np.zeros(64, np.float32)
    done = apart.few_rows_exact(
        ctypes.byref(params), *map(ctypes.c_int64, (1, 2, 0)), None, ctypes.c_int64(0), None, ctypes.c_int64(0),
        at(out), ctypes.c_int64(1), *map(ctypes.c_int, (kind.number, kind.rounded.number, 0)),
    )  # fmt: skip
    assert not done
    assert few_rows._agrees(LIBRARY, apart, kind)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_long_rows_have_these_bits_or_are_left_to_the_library(apart: ctypes.CDLL, kind: WeightType) -> None:
    assert few_rows._agrees(LIBRARY, apart, kind, 32 * 1024)
    assert few_rows._agrees(LIBRARY, apart, kind, 33 * 1024) is (kind.name == "f16")
    assert few_rows._agrees(LIBRARY, apart, kind)


@pytest.fixture(scope="module", params=["native", OLDEST, "narrow VNNI"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Kernels for this processor, for the oldest ones that have any, and for those between."""
    found = few_rows.kernels(LIBRARY)
    assert found is not None
    if request.param == "native":
        return found.compiled
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(few_rows, "FLAGS", for_processor(request.param))
        changed.setenv("LCSPEC_CACHE_DIR", str(tmp_path_factory.mktemp("older")))
        older = few_rows._compiled()
    assert older is not None and older._name != found.compiled._name
    assert set(repacked_kernels.stand_ins(LIBRARY, older)) == set(found.always)
    return older


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_rows_are_rounded_as_by_the_library(scale: float, compiled: ctypes.CDLL) -> None:
    rows = np.random.default_rng(3).standard_normal((300, 256)).astype(np.float32)
    rows[0] = 0.0
    rows[1, 1:] = 0.0
    rows[2] = np.arange(-128, 128) / 2  # halves, if the farthest is 127
    rows[2, 200] = 127.0
    rows[3, [70, 71]] = 9.0, -9.0  # equally far: the first counts
    rows[4, [71, 70]] = 9.0, -9.0
    rows *= np.float32(scale)
    got, wanted = np.zeros((2, len(rows), 292), np.uint8)
    values = ctypes.c_int64(rows.size)
    compiled.few_rows_round_q8_K(at(rows), at(got), values)
    LIBRARY.quantize_row_q8_K(at(rows), at(wanted), values)
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize("columns", [8, 24, 200])
@pytest.mark.parametrize("values", [256, 40 * 1024])
@pytest.mark.parametrize(
    "kind", [kind for kind in TYPES if kind.name in repacked_kernels.SINGLE], ids=lambda kind: kind.name
)
def test_repacked_weights_have_the_bits_of_single_rows(
    compiled: ctypes.CDLL, kind: WeightType, values: int, columns: int
) -> None:
    """As a row has them alone, however many there are, and in the library where it is fast; columns are taken 8 or 16,
    then 128 at a time."""
    random, blocks, most = np.random.default_rng(1), values // kind.values, 17
    together = 4 if kind.name == "q8_0" else 8
    weights = random.integers(0, 256, (columns // together, blocks, together * kind.size), np.uint8)
    if kind.name == "mxfp4":
        weights[:, :, :8] = random.choice([0, 1, 2, 110, 120], (columns // 8, blocks, 8))  # powers of two
    else:
        count = 2 * together if kind.name in ("q2_K", "q4_K", "q5_K") else together
        scales = random.normal(0, 0.01, (columns // together, blocks, count)).astype(np.float16)
        weights[:, :, : 2 * count] = scales.view(np.uint8)
    normal = random.normal(size=(most, values)).astype(np.float32)
    normal[0] = 1.0  # as large as they get
    normal[1] = np.where(random.random(values) < 0.5, -1.0, 1.0)
    form = repacked_rows.Q8_K if kind.values == 256 else repacked_rows.Q8_0
    rows_of = rounded(f"quantize_row_{kind.rounded.name}", form, normal)
    library, alone, got = (np.zeros((most, columns), np.float32) for _ in range(3))
    single = GEMM(address_of(LIBRARY, repacked_kernels.SINGLE[kind.name]))
    kernel, long = compiled.few_rows_repacked, ctypes.c_int64
    for row, wanted, out in zip(rows_of, library, alone):
        single(values, wanted.ctypes.data, columns, weights.ctypes.data, row.ctypes.data, 1, columns)
        kernel(kind.number, at(weights), long(columns), long(blocks), at(row), long(1), at(out))
    assert np.isfinite(library).all() and library.all()
    if kind.name in repacked_kernels.IN_MORE_STEPS:
        assert np.allclose(alone, library, rtol=0, atol=1e-5 * np.abs(library).max())
    else:
        assert same_bits(alone, library)
    for n in (2, 3, 4, 5, 7, 8, 9, 13, most):
        got[:] = 0
        kernel(kind.number, at(weights), long(columns), long(blocks), at(rows_of), long(n), at(got))
        assert same_bits(got[:n], alone[:n]) and not got[n:].any()


# Types, and what files are quantized to that have them.
COPIED = {"q4_1": "Q4_1", "q5_0": "Q5_0", "q5_1": "Q5_1", "q8_0": "Q8_0", "q3_K": "Q3_K_S", "iq4_xs": "IQ4_XS"}


@pytest.mark.parametrize("columns", [8, 24, 200])
@pytest.mark.parametrize("values", [256, 41 * 1024])
@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind.name in (*COPIED, "q2_K")], ids=lambda kind: kind.name)
def test_copies_of_weights_give_nearly_what_these_give(
    compiled: ctypes.CDLL, kind: WeightType, values: int, columns: int
) -> None:
    bytes_of = repacked_kernels.copied_bytes(compiled, kind, values)
    if not bytes_of:
        pytest.skip("copied with VNNI only")
    random, blocks, most, long = np.random.default_rng(1), values // kind.values, 21, ctypes.c_int64
    weights = random.normal(0, 0.1, (columns, values)).astype(np.float32)
    stored = quantized(LIBRARY, kind, weights)
    normal = random.normal(size=(most, values)).astype(np.float32)
    rows_of = np.zeros((most, blocks * kind.rounded.size), np.uint8)
    for row, into in zip(normal, rows_of):
        getattr(LIBRARY, f"quantize_row_{kind.rounded.name}")(at(row), at(into), long(values))
    library, alone, got = (np.zeros((most, columns), np.float32) for _ in range(3))
    dot, none, copy = getattr(LIBRARY, kind.dot), ctypes.c_size_t(0), np.zeros((columns, bytes_of), np.uint8)
    compiled.few_rows_reorder(kind.number, at(stored), long(columns), long(blocks), at(copy))
    for row, wanted, out in zip(rows_of, library, alone):
        for column, of_column in enumerate(stored):
            dot(values, at(wanted[column:]), none, at(of_column), none, at(row), none, 1)
        compiled.few_rows_repacked(kind.number, at(copy), long(columns), long(blocks), at(row), long(1), at(out))
    assert np.allclose(alone, library, rtol=0, atol=1e-5 * np.abs(library).max())
    for n in (2, 5, 7, 8, 9, 16, most):
        compiled.few_rows_repacked(kind.number, at(copy), long(columns), long(blocks), at(rows_of), long(n), at(got))
        assert same_bits(got[:n], alone[:n])


def copied_tensors(copies: repacked_kernels.Copies) -> int:
    return copies._compiled.few_rows_count(copies._copies) if copies._copies else 0


@pytest.mark.skipif(uses_amx(), reason="AMX has a layout of its own for some of them")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", COPIED)
@pytest.mark.parametrize("shape", ["qwen3-30b-a3b", "llama-3.2-1b"], ids=["experts", "dense"])
def test_what_the_library_does_not_repack_is_copied(
    shape: str, name: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights of Q4_1, Q5_0, Q5_1, Q3_K and IQ4_XS, experts included, and Q8_0 embeddings that are the output's
    weights as well; the bits are the same at every width."""
    kind, found = next(kind for kind in TYPES if kind.name == name), few_rows.kernels(LIBRARY)
    if found is None or not repacked_kernels.copied_bytes(found.compiled, kind, 256):
        pytest.skip("copied with VNNI only")
    file = small_shape(shape, COPIED[name], tmp_path, monkeypatch)
    one_by_one = options(file, gpu_layers=0, attention="rows", ctx=64, threads=threads)
    tensors = {tensor.name: tensor.type_name.lower() for tensor in read_gguf(file).tensors}
    output = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    types = {other.lower() for other in COPIED} - {"q8_0"}
    expected = sum(of in types and (called == output or called.startswith("blk.")) for called, of in tensors.items())
    expected += output == "token_embd.weight" and tensors[output] == "q8_0"
    with Model.load(replace(one_by_one, repack=False)) as model, Context(model, one_by_one) as context:
        assert model._copies is None
        stored = rows(context, 1)
    for _ in range(2):  # a second model may lie where the first one was
        with Model.load(one_by_one) as model, Context(model, one_by_one) as context:
            assert model._copies is not None and copied_tensors(model._copies) == expected
            of_width = {width: rows(context, width) for width in (1, 2, 4, 8, 16, 32)}
        assert not same_bits(of_width[1], stored)
        assert np.allclose(of_width[1], stored, rtol=0, atol=0.02 * np.ptp(stored))
        assert [width for width, some in of_width.items() if not np.array_equal(some, of_width[1])] == []


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("quant", ["Q4_K_S", "Q4_0", "IQ4_NL", "Q2_K", "Q5_K_S", "Q6_K", "Q8_0"])
@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "llama-3.2-1b"], ids=["experts", "dense"])
def test_models_of_repacked_weights_have_the_same_bits_at_every_width(
    name: str, quant: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nearly those of the library: each file has some weights in Q2_K, Q5_K, Q6_K or Q8_0."""
    file = small_shape(name, quant, tmp_path, monkeypatch)
    one_by_one = options(file, gpu_layers=0, attention="rows", ctx=64, threads=threads)
    with Model.load(one_by_one) as model, Context(model, one_by_one) as context:
        assert model.repack
        found = {width: rows(context, width) for width in (1, 2, 4, 8, 16, 32)}
        switch, few = switching._switch(), few_rows.kernels(LIBRARY)
        assert switch is not None and few is not None
        library = {few.always[repacked_kernels.FORWARD]: address_of(LIBRARY, repacked_kernels.FORWARD)}
        theirs = tuple(library.get(code, code) for code in switch.off)
        assert theirs != switch.off
        monkeypatch.setattr(switching, "_switch", lambda: switch._replace(off=theirs))
        alone = rows(context, 1)
    assert not same_bits(found[1], alone) and np.allclose(found[1], alone, rtol=0, atol=0.02 * np.ptp(alone))
    assert [width for width, some in found.items() if not np.array_equal(some, found[1])] == []


def test_experts_in_mxfp4_have_the_same_bits_at_every_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_other_types = test_models_of_repacked_weights_have_the_same_bits_at_every_width
    of_other_types("gpt-oss-20b", "MXFP4_MOE", 2, tmp_path, monkeypatch)


def small_shape(name: str, quant: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The layers of a published model, narrower."""
    shape = shape_model.SHAPES[name]
    small = replace(
        shape, width=256, ff=768, heads=4, kv_heads=2, vocab=328 * shape.layers, experts=shape.experts and 8
    )
    monkeypatch.setitem(shape_model.SHAPES, name, small)
    shape_model.write_shape(name, file := folder / "layers.gguf", quant)
    return file


class Tensor(ctypes.Structure):
    """`ggml_tensor`, as the kernels know it."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_float * 16),
        ("flags", ctypes.c_int),
        ("sources", ctypes.c_void_p * 11),
        ("view_offset", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("rest", ctypes.c_char * 80),
    ]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_tensor_is_filled(compiled: ctypes.CDLL, threads: int) -> None:
    """Rows of one number each, as those that a head's map of tokens begins with. Where there are gaps, and for other
    types, it is the library's work."""
    LIBRARY.ggml_op_name.restype = ctypes.c_char_p
    fill = next(i for i in range(96) if LIBRARY.ggml_op_name(ctypes.c_int(i)) == b"FILL")
    values = np.zeros(1 * 7 * 3 + 1, np.float32)
    strides, gaps = (4, 4, 28, 84), (4, 8, 56, 168)

    def filled(nb: tuple[int, ...] = strides, kind: int = 0) -> bool:
        tensor = Tensor(type=kind, ne=(1, 7, 3, 1), nb=nb, op=fill, op_params=(-np.inf,), data=values.ctypes.data)
        parts = [few_rows._Params(i, threads) for i in range(threads)]
        found = {bool(compiled.few_rows_forward(ctypes.byref(part), ctypes.byref(tensor)) & 1) for part in parts}
        assert len(found) == 1
        return found.pop()

    assert not filled(nb=gaps) and not filled(kind=1) and not values.any()
    assert filled() and (values[:-1] == -np.inf).all() and values[-1] == 0.0


def test_libraries_for_gpus_repack_what_they_always_did(apart: ctypes.CDLL) -> None:
    """On a GPU they read prompts with weights of the processor's layers, but not with repacked ones."""

    class WithDevices:
        def __getattr__(self, name: str) -> object:
            return (lambda: True) if name == repacked_kernels.DEVICES else getattr(LIBRARY, name)

    assert set(repacked_kernels.stand_ins(LIBRARY, apart)) == {repacked_kernels.FORWARD, *repacked_kernels.ARM}
    assert set(repacked_kernels.stand_ins(WithDevices(), apart)) == {repacked_kernels.FORWARD}  # type: ignore[arg-type]


def test_weights_whose_kernels_compute_something_else_stay_as_they_are_stored(
    anew: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(repacked_kernels.SINGLE, "q6_K", repacked_kernels.SINGLE["q4_K"])
    found = few_rows.kernels(LIBRARY)
    assert found is not None and not found.always and "Q4_K" in found.types
    assert few_rows.faster_as_stored(LIBRARY, ["Q4_K"]) and not few_rows.faster_as_stored(LIBRARY, ["Q4_0"])
    switch = switching._switch()
    assert switch is not None and not set(switch.on) & set(switch.off)


@pytest.mark.parametrize("flags", [("-no-such-flag",), ()], ids=["the compiler fails", "no compiler"])
def test_without_a_compiler_the_library_multiplies_alone(
    anew: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_rows, "FLAGS", flags)
    if not flags:
        monkeypatch.setattr(few_rows, "compiler", lambda: None)
    assert few_rows.kernels(LIBRARY) is None
    switch = switching._switch()
    assert switch is not None and switching.can_go_row_by_row()
    assert switch.on[0] == address_of(LIBRARY, switching.SGEMM)
    assert set(switch.off[:3]) == {address_of(LIBRARY, switching.REFUSES)}
    assert not few_rows.faster_as_stored(LIBRARY, ["Q4_K"])


# Types of weights; the last has no kernel.
QUANTS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "F16"]
QUANTS += ["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS", "IQ3_S"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("quant", QUANTS)
def test_a_row_has_the_same_bits_at_every_width(quant: str, threads: int, tmp_path: Path) -> None:
    wide, file = tmp_path / "wide.gguf", tmp_path / "file.gguf"
    # Rows of weights that are no multiple of what the threads take; where blocks are short, an odd number of them.
    write_llama(wide, width=256, n_ff=768 if "K" in quant or "S" in quant else 800, n_vocab=291)
    quantize(wide, file, quant)
    repack = not uses_amx()  # AMX has kernels of its own
    one_by_one = options(file, gpu_layers=0, attention="rows", ctx=64, threads=threads, repack=repack)
    with Model.load(one_by_one) as model, Context(model, one_by_one) as context:
        one = rows(context, 1)
        assert [width for width in (2, 4, 8, 16, 32) if not np.array_equal(one, rows(context, width))] == []


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4_MOE", "F16"])
def test_rows_of_experts_have_the_bits_of_the_library(
    quant: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that go to the same expert are multiplied together; alone, the library multiplied them with these bits."""
    file = write_family("qwen3moe", tmp_path / "f32.gguf")
    quantize(file, file := tmp_path / "file.gguf", quant)
    one_by_one = options(file, gpu_layers=0, attention="rows", ctx=64, threads=threads, repack=False)
    with Model.load(one_by_one) as model, Context(model, one_by_one) as context:
        found = {width: rows(context, width) for width in (1, 2, 4, 16, 32)}
        switch = switching._switch()
        assert switch is not None and (few := few_rows.kernels(LIBRARY)) is not None
        assert switch.off[2] == few.exact[few_rows.EXPERTS] != few.fast[few_rows.EXPERTS] == switch.on[2]
        refuse = address_of(LIBRARY, switching.REFUSES)
        monkeypatch.setattr(switching, "_switch", lambda: switch._replace(off=(refuse,) * len(switch.off)))
        alone = rows(context, 1)
    assert [width for width, some in found.items() if not np.array_equal(some, alone)] == []


@pytest.mark.skipif(uses_amx(), reason="with AMX weights are repacked")
def test_weights_with_kernels_are_repacked(tmp_path: Path) -> None:
    wide = write_llama(tmp_path / "wide.gguf", width=256, n_ff=512)
    for quant, repacked in (("Q4_K_M", True), ("IQ4_NL", True), ("Q2_K", True), ("Q4_0", True), ("Q8_0", True)):
        quantize(wide, tmp_path / f"{quant}.gguf", quant)
        with Model.load(options(tmp_path / f"{quant}.gguf", gpu_layers=0)) as model:
            assert model.repack is repacked
    assert not few_rows.faster_as_stored(LIBRARY, ["Q2_K", "Q4_K"])
    assert not few_rows.faster_as_stored(LIBRARY, ["Q6_K", "Q4_K", "Q2_K"])


@pytest.mark.skipif(uses_amx(), reason="with AMX weights are repacked")
def test_weights_that_exceed_the_memory_stay_in_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize(write_llama(tmp_path / "wide.gguf", width=256, n_ff=512), file := tmp_path / "file.gguf", "Q4_0")
    size = file.stat().st_size
    for free, swap, repacked in ((size, 0, True), (size - 1, 0, False), (size + 9, 9, True), (size + 9, 10, False)):
        memory = Memory(total=free, free=free, swap=swap)
        monkeypatch.setattr("lcspec.llama.model.machine_memory", lambda memory=memory: memory)
        with Model.load(options(file, gpu_layers=0)) as model:
            assert model.repack is repacked


def test_drafts_and_prompts_have_the_kernels_too(demo_as: Callable[[str], Path]) -> None:
    """They are for contexts that are not exact, too, and prompts of exact ones."""
    usual = options(demo_as("Q4_1"), gpu_layers=0, attention="products", ctx=64)
    with Model.load(usual) as model, Context(model, usual):
        switch = switching._switch()
        assert switch is not None and (few := few_rows.kernels(LIBRARY)) is not None
        assert [entry.value for entry in switch.entries[:3]] == list(few.fast.values())
