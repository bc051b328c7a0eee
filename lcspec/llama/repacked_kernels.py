"""Kernels for repacked weights, once they have shown that they compute what the library does.

One function stands in for all that the library does with such weights (kernels/repacked_forward.h), and the library is
told that this is an ARM processor: there it repacks Q5_K, Q6_K and Q8_0, too. It asks when it loads a model and
whenever it builds a graph, and nowhere else. Of what it does not repack, some types are copied in such an order.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lcspec.llama import pages
from lcspec.llama.native import QUANTIZE, address_of, at, dot_products, quantized, same_bits
from lcspec.llama.threads import default_threads
from lcspec.llama.weight_types import Q8_K, TYPES, RowType, WeightType

# The library's functions for a single row of weights that have a kernel. Of the first four the kernels have the bits;
# the others sum in another order.
SINGLE = {
    "q4_0": "ggml_gemv_q4_0_8x8_q8_0",
    "q4_K": "ggml_gemv_q4_K_8x8_q8_K",
    "iq4_nl": "ggml_gemv_iq4_nl_8x8_q8_0",
    "mxfp4": "ggml_gemv_mxfp4_8x8_q8_0",
    "q2_K": "ggml_gemv_q2_K_8x8_q8_K",
    "q5_K": "ggml_gemv_q5_K_8x8_q8_K",
    "q6_K": "ggml_gemv_q6_K_8x8_q8_K",
    "q8_0": "ggml_gemv_q8_0_4x8_q8_0",
}
IN_MORE_STEPS = ("q2_K", "q5_K", "q6_K", "q8_0")
# The library's list of a model's tensors, by which they are found: a vector of pairs of a string and a pointer.
TENSORS, ENTRY = "_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model", 40
NEARLY = 1e-4  # of the largest result
COMPARED = (24, 4, 512)  # columns, rows, and values of each, that are multiplied to compare
FOUR_COLUMNS = "q8_0"  # are in a block; eight of the others
ROUND = "few_rows_round_q8_K"
# What the library asks to know whether this is such a processor, and what says yes here.
ARM, YES = ("ggml_cpu_has_neon", "ggml_cpu_has_matmul_int8"), "ggml_cpu_has_avx2"
# What computes everything that has to do with repacked weights, what tells which those are, and what else is called.
FORWARD, BUFFERS = "ggml_cpu_extra_compute_forward", "_Z35ggml_backend_cpu_repack_buffer_typev"
TYPE_OF, OPERATION, DEVICES = "ggml_backend_buffer_get_type", "ggml_op_name", "llama_supports_gpu_offload"
CALLED = (FORWARD, BUFFERS, TYPE_OF, OPERATION, DEVICES, QUANTIZE, *SINGLE.values(), *ARM, YES)
# Of the library's operations: the first so many, and those among them that the kernels compute.
OPERATIONS, COMPUTED = 80, (b"MUL_MAT", b"MUL_MAT_ID", b"FILL")


def stand_ins(library: ctypes.CDLL, compiled: ctypes.CDLL) -> dict[str, int]:
    """Addresses of what stands in for functions of the library; nothing where another result comes out.

    Libraries for GPUs keep Q5_K, Q6_K and Q8_0 as they are: they read prompts there, which takes weights as stored.
    """
    if not all(hasattr(library, name) for name in CALLED):
        return {}
    whole = ctypes.c_int
    name_of, buffers = getattr(library, OPERATION), getattr(library, BUFFERS)
    name_of.restype, buffers.restype = ctypes.c_char_p, ctypes.c_void_p
    names = [name_of(whole(i)) for i in range(OPERATIONS)]
    numbers = [whole(names.index(name)) for name in COMPUTED]
    forward, type_of = (ctypes.c_void_p(address_of(library, name)) for name in (FORWARD, TYPE_OF))
    compiled.few_rows_repacked_init(forward, *numbers, ctypes.c_void_p(buffers()), type_of)
    rounds = {Q8_K: address_of(compiled, ROUND)} if _rounds_alike(library, compiled) else {}
    for kind in TYPES:
        copied = copied_bytes(compiled, kind, kind.values) > 0
        if kind.name in SINGLE and not _as_the_library(library, compiled, kind):
            return {}
        if copied and not _as_stored(library, compiled, kind):
            return {}
        if kind.name in SINGLE or copied:
            round_row = rounds.get(kind.rounded) or address_of(library, f"quantize_row_{kind.rounded.name}")
            compiled.few_rows_use_repacked(whole(kind.number), ctypes.c_void_p(round_row))
    as_on_arm = () if getattr(library, DEVICES)() else ARM
    return {FORWARD: address_of(compiled, "few_rows_forward"), **dict.fromkeys(as_on_arm, address_of(library, YES))}


def _rounds_alike(library: ctypes.CDLL, compiled: ctypes.CDLL) -> bool:
    """Whether the kernels round rows to Q8_K with the library's bits."""
    rows = np.random.default_rng(2).standard_normal((64, Q8_K.values), np.float32)
    rows[::4] = np.abs(rows[::4])
    rows[1::4, 9], rows[1::4, 99] = 5.0, -5.0
    rows[2::4] *= np.float32(1e-20)
    rows[-1] = 0.0
    got, wanted = np.zeros((2, len(rows), Q8_K.size), np.uint8)
    values = ctypes.c_int64(rows.size)
    getattr(library, f"quantize_row_{Q8_K.name}")(at(rows), at(wanted), values)
    getattr(compiled, ROUND)(at(rows), at(got), values)
    return np.array_equal(got, wanted)


def _as_the_library(library: ctypes.CDLL, compiled: ctypes.CDLL, kind: WeightType) -> bool:
    """Whether the kernel has the bits of the library's function, or nearly its results where that sums otherwise."""
    m, n, k = COMPARED
    together = 4 if kind.name == FOUR_COLUMNS else 8
    random, blocks = np.random.default_rng(0), k // kind.values
    weights = random.integers(0, 256, (m // together, blocks, together * kind.size), np.uint8)
    weights[:, :, : 4 * together] = np.full(2 * together, 0.01, np.float16).view(np.uint8)  # scales that are numbers
    rows, wanted, whole = _rounded_rows(library, kind.rounded), np.zeros((n, m), np.float32), ctypes.c_int
    for row, out in zip(rows, wanted):
        single = getattr(library, SINGLE[kind.name])
        single(whole(k), at(out), ctypes.c_size_t(m), at(weights), at(row), whole(1), whole(m))
    got = _multiplied(compiled, kind, weights, rows)
    return _nearly(wanted, got) if kind.name in IN_MORE_STEPS else same_bits(wanted, got)


def _as_stored(library: ctypes.CDLL, compiled: ctypes.CDLL, kind: WeightType) -> bool:
    """Whether the kernel computes from a copy nearly what the library does from the weights as they are stored."""
    m, _, k = COMPARED
    stored = quantized(library, kind, np.random.default_rng(0).standard_normal((m, k), np.float32))
    rows, copy = _rounded_rows(library, kind.rounded), np.zeros((m, copied_bytes(compiled, kind, k)), np.uint8)
    blocks, long = ctypes.c_int64(k // kind.values), ctypes.c_int64
    compiled.few_rows_reorder(ctypes.c_int(kind.number), at(stored), long(m), blocks, at(copy))
    return _nearly(dot_products(library, kind, k, stored, rows), _multiplied(compiled, kind, copy, rows))


def copied_bytes(compiled: ctypes.CDLL, kind: WeightType, values: int) -> int:
    """Bytes of so many values in a copy; 0: weights of this type are not copied."""
    compiled.few_rows_copied.restype = ctypes.c_int64
    return int(compiled.few_rows_copied(ctypes.c_int(kind.number), ctypes.c_int64(values // kind.values)))


def _multiplied(
    compiled: ctypes.CDLL, kind: WeightType, weights: NDArray[np.uint8], rows: NDArray[np.uint8]
) -> NDArray[np.float32]:
    m, n, k = COMPARED
    number, long, out = ctypes.c_int(kind.number), ctypes.c_int64, np.zeros((n, m), np.float32)
    compiled.few_rows_repacked(number, at(weights), long(m), long(k // kind.values), at(rows), long(n), at(out))
    return out


def _nearly(wanted: NDArray[np.float32], got: NDArray[np.float32]) -> bool:
    return bool(np.abs(wanted - got).max() <= NEARLY * np.abs(wanted).max())


class Copies:
    """Copies of a model's weights in the order that its kernels read; the library's own stay where they are."""

    def __init__(self, library: ctypes.CDLL, compiled: ctypes.CDLL, model: Any) -> None:
        """Copy what there is a kernel for and the library has not repacked of `model`, a llama_model."""
        self._compiled, self._copies = compiled, ctypes.c_void_p()
        if not hasattr(library, TENSORS) or getattr(library, DEVICES)():
            return
        tensors, room = getattr(library, TENSORS), compiled.few_rows_copies
        tensors.restype = ctypes.POINTER(ctypes.c_void_p)
        room.restype = ctypes.c_void_p
        first, last = tensors(ctypes.cast(model, ctypes.c_void_p))[:2]
        if first and last and (last - first) % ENTRY == 0:
            self._copies = ctypes.c_void_p(room(ctypes.c_void_p(first), ctypes.c_void_p(last)))
        if self._copies:
            self._fill()

    def _fill(self) -> None:
        """Make them, several at a time, and give back the pages of what was copied so far."""
        count, copy = self._compiled.few_rows_count, self._compiled.few_rows_copy
        count.restype = ctypes.c_int64
        n = count(self._copies)
        with ThreadPoolExecutor(default_threads()) as pool:
            for i, _ in enumerate(pool.map(lambda i: copy(self._copies, ctypes.c_int64(i)), range(n))):
                if i % -(-n // pages.TIMES) == 0:
                    pages.give_back()

    def close(self) -> None:
        """Free them; the model must still be there. Idempotent."""
        if self._copies:
            self._compiled.few_rows_drop(self._copies)
        self._copies = ctypes.c_void_p()


def _rounded_rows(library: ctypes.CDLL, form: RowType) -> NDArray[np.uint8]:
    """Rows to multiply, as bytes."""
    _, n, k = COMPARED
    rows = np.random.default_rng(1).standard_normal((n, k), np.float32)
    into = np.zeros((n, k // form.values * form.size), np.uint8)
    for row, to in zip(rows, into):
        getattr(library, f"quantize_row_{form.name}")(at(row), at(to), ctypes.c_int64(k))
    return into
