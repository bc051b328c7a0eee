"""What calls of functions in machine code need: addresses, and whether two of them computed the same."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from lcspec.llama.weight_types import WeightType

QUANTIZE = "ggml_quantize_chunk"


def address_of(library: ctypes.CDLL, name: str) -> int:
    """Where `library` has its function `name`."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def at(array: NDArray[np.generic]) -> ctypes.c_void_p:
    """Where an array's values begin."""
    return ctypes.c_void_p(array.ctypes.data)


def same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Whether two arrays have the same shape and bits."""
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def quantized(library: ctypes.CDLL, kind: WeightType, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The library's blocks for `weights`, float32 [m, k], as bytes: uint8 [m, bytes of a row]."""
    (m, k), long = weights.shape, ctypes.c_int64
    stored = np.zeros((m, k // kind.values * kind.size), np.uint8)
    quantize, number = getattr(library, QUANTIZE), ctypes.c_int(kind.number)
    quantize(number, at(weights), at(stored), long(0), long(m), long(k), None)
    return stored


def dot_products(
    library: ctypes.CDLL, kind: WeightType, k: int, stored: NDArray[np.uint8], rows: NDArray[np.uint8]
) -> NDArray[np.float32]:
    """The library's dot products of `rows` and weights as they are stored, of `k` values each: float32 [n, m].

    Args:
        library: has a dot product for `kind`.
        kind: type of the weights.
        k: values of a row.
        stored: bytes of m rows of weights.
        rows: bytes of n rows, rounded as `kind` says.
    """
    out = np.zeros((len(rows), len(stored)), np.float32)
    dot, none, whole = getattr(library, kind.dot), ctypes.c_size_t(0), ctypes.c_int
    for row, to in zip(rows, out):
        for i, weights in enumerate(stored):
            dot(whole(k), at(to[i:]), none, at(weights), none, at(row), none, whole(1))
    return out
