"""What calls of functions in machine code need: addresses, and whether two of them computed the same."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray


def address_of(library: ctypes.CDLL, name: str) -> int:
    """Where `library` has its function `name`."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def at(array: NDArray[np.generic]) -> ctypes.c_void_p:
    """Where an array's values begin."""
    return ctypes.c_void_p(array.ctypes.data)


def same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Whether two arrays have the same shape and bits."""
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))
