"""The library's memory as numpy arrays, and arrays as pointers for it."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray


def rows(address: int, n: int, width: int) -> NDArray[np.float32]:
    """A view of float32 [n, width] at `address`; [0, width] where there is nothing."""
    if n == 0 or not address:
        return np.zeros((0, width), dtype=np.float32)
    buffer = (ctypes.c_float * (n * width)).from_address(address)
    return np.ctypeslib.as_array(buffer).reshape(n, width)


def side_by_side(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Arrays [n, width] as one [n, sum of widths]; a single one is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def as_bytes(data: NDArray[np.uint8]) -> ctypes._Pointer[ctypes.c_uint8]:
    """A pointer to `data`."""
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
