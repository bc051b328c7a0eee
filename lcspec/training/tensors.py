"""Weights of a model or a head out of its GGUF, as float32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lcspec.drafters.medusa.target import as_float
from lcspec.errors import UnsupportedModel
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


def read_weights(path: Path, names: Iterable[str]) -> dict[str, NDArray[np.float32]]:
    """Tensors by their names.

    Raises:
        UnsupportedModel: one is not there, or of a type that cannot be read here.
    """
    out = {}
    for name in names:
        found = read_tensor(path, name)
        if found is None:
            raise UnsupportedModel(f"{path.name} has no tensor {name}")
        out[name] = found
    return out


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a file, as numpy has it."""
    parts = [read_gguf(part) for part in read_header(path).parts]
    return {tensor.name: tuple(reversed(tensor.shape)) for part in parts for tensor in part.tensors}


def check_further(path: Path, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a file to train further that has other tensors than `wanted`, which are those of files made here.

    Raises:
        UnsupportedModel: says what is different.
    """
    found = shapes_of(path)
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            have, want = found.get(name, "not there"), wanted.get(name, "not there")
            raise UnsupportedModel(
                f"{path.name} cannot be trained further: its tensor {name} is {have}, and {want} was expected"
            )
