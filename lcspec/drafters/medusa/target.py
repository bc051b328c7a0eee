"""The output matrix of the heads' target, read from the GGUF without loading the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from lcspec.errors import ModelFileError, UnsupportedModel
from lcspec.modelfiles.gguf_header import GGUFContents, TensorInfo, read_gguf
from lcspec.modelfiles.modelfile import ModelHeader, read_header

OUTPUT_TENSORS = ("output.weight", "token_embd.weight")  # the second where both are one


def _tensors(header: ModelHeader) -> Iterator[tuple[GGUFContents, TensorInfo]]:
    for part in header.parts:
        contents = read_gguf(part)
        for tensor in contents.tensors:
            yield contents, tensor


def output_rows(path: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Rows of the target's output matrix for `tokens`, float32 [n, n_embd].

    Raises:
        UnsupportedModel: it has none, or one of a type that cannot be read.
        ModelFileError: the file cannot be read.
    """
    header = read_header(path)
    found = {t.name: (c, t) for c, t in _tensors(header) if t.name in OUTPUT_TENSORS}
    name = next((n for n in OUTPUT_TENSORS if n in found), None)
    if name is None:
        raise UnsupportedModel(f"{path.name} has no output matrix that heads could start from; use another model")
    contents, tensor = found[name]
    if len(tensor.shape) != 2 or not tensor.n_bytes or tensor.shape[1] <= max(tokens, default=0):
        raise ModelFileError(f"{path} has an output matrix of an unknown kind; upgrade lcspec")
    row_bytes = tensor.n_bytes // tensor.shape[1]
    mapped = np.memmap(contents.path, np.uint8, "r", contents.data_offset + tensor.offset, (tensor.shape[1], row_bytes))
    rows = np.ascontiguousarray(mapped[np.asarray(tokens, dtype=np.int64)])
    return as_float(rows, tensor, path)


def as_float(rows: NDArray[np.uint8], tensor: TensorInfo, path: Path) -> NDArray[np.float32]:
    """Raw rows of a tensor, uint8 [n, bytes a row], as float32 [n, row length].

    Raises:
        UnsupportedModel: the type cannot be read here.
    """
    kind = gguf.GGMLQuantizationType(tensor.type_id)
    try:
        if kind == gguf.GGMLQuantizationType.F32:
            return rows.view(np.float32)
        if kind == gguf.GGMLQuantizationType.F16:
            return rows.view(np.float16).astype(np.float32)
        return np.asarray(dequantize(rows, kind), dtype=np.float32).reshape(len(rows), tensor.shape[0])
    except NotImplementedError:
        raise UnsupportedModel(
            f"{path.name} stores {tensor.name} as {tensor.type_name}, which cannot be read here; "
            "use another quantization of the model"
        ) from None
