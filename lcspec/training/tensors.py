"""Weights of a model out of its GGUF, as float32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lcspec.drafters.medusa.target import as_float
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.modelfile import read_header

# By their names in a GGUF.
Weights = Mapping[str, NDArray[np.float32]]


def read_tensor(path: Path, name: str) -> NDArray[np.float32] | None:
    """A tensor of at most two dimensions, float32 [n] or [rows, n]; None if there is none of that name.

    Raises:
        UnsupportedModel: its type cannot be read here.
    """
    for part in read_header(path).parts:
        contents = read_gguf(part)
        for tensor in contents.tensors:
            if tensor.name != name or len(tensor.shape) > 2 or not tensor.n_bytes:
                continue
            rows = 1 if len(tensor.shape) == 1 else tensor.shape[1]
            at = contents.data_offset + tensor.offset
            raw = np.fromfile(contents.path, np.uint8, tensor.n_bytes, offset=at).reshape(rows, -1)
            values = as_float(raw, tensor, path)
            return values[0] if len(tensor.shape) == 1 else values
    return None
