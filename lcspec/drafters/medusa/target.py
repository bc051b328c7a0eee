"""Which model heads belong to, and its output matrix: read from the GGUF, without loading the model."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from lcspec.errors import ModelFileError, UnsupportedModel
from lcspec.modelfiles.gguf_header import GGUFContents, TensorInfo, read_gguf
from lcspec.modelfiles.modelfile import ModelHeader, read_header, read_vocabulary

# Written by scripts/scale_model.py: the fingerprint of the model whose function the file computes.
SCALED_FROM = "lcspec.scaled_from"
OUTPUT_TENSORS = ("output.weight", "token_embd.weight")  # the second where both are one
F32 = 0


@dataclass(frozen=True)
class TargetIdentity:
    """What heads must agree with.

    Attributes:
        fingerprint: the same for all quantizations of a model, and for scaled-cost copies of it.
        vocabulary: digest of its tokens in order.
        n_vocab: their number.
        n_embd: width of the hidden states.
        quantization: of this file.
        name: the file's own name for the model.
        licence: the model's licence, if it names one.
        scaled: the file is a scaled-cost copy, which says itself what it was made from.
    """

    fingerprint: str
    vocabulary: str
    n_vocab: int
    n_embd: int
    quantization: str
    name: str
    licence: str | None
    scaled: bool


def identify(path: Path) -> TargetIdentity:
    """Read a target's identity.

    Raises:
        ModelFileError: it is no complete model.
    """
    header = read_header(path)
    scaled = header.metadata.get(SCALED_FROM)
    tokens = read_vocabulary(path).tokens
    digest = hashlib.sha256(b"".join(len(t).to_bytes(4, "little") + t for t in tokens)).hexdigest()
    return TargetIdentity(
        fingerprint=scaled if isinstance(scaled, str) and scaled else _fingerprint(header, digest),
        vocabulary=digest,
        n_vocab=header.n_vocab,
        n_embd=header.embedding_length or 0,
        quantization=header.quantization,
        name=header.name or path.stem,
        licence=header.licence,
        scaled=bool(scaled),
    )


def fingerprint(path: Path) -> str:
    """`identify(path).fingerprint`."""
    return identify(path).fingerprint


def _fingerprint(header: ModelHeader, vocabulary: str) -> str:
    """Shape, vocabulary and normalisation weights. Those vectors stay in F32 whatever the matrices are quantized to,
    and differ between any two models that were trained apart.
    """
    arch = header.architecture
    shape = [
        header.metadata.get(f"{arch}.{key}")
        for key in ("embedding_length", "block_count", "feed_forward_length", "attention.head_count")
    ]
    digest = hashlib.sha256(f"{arch} {shape} {vocabulary}".encode())
    for contents, tensor in _tensors(header):
        if tensor.type_id == F32 and len(tensor.shape) == 1 and tensor.name.endswith("norm.weight"):
            digest.update(tensor.name.encode())
            digest.update(_bytes(contents, tensor, 0, tensor.n_bytes or 0))
    return digest.hexdigest()


def _tensors(header: ModelHeader) -> Iterator[tuple[GGUFContents, TensorInfo]]:
    for part in header.parts:
        contents = read_gguf(part)
        for tensor in contents.tensors:
            yield contents, tensor


def _bytes(contents: GGUFContents, tensor: TensorInfo, start: int, size: int) -> bytes:
    with contents.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        at = contents.data_offset + tensor.offset + start
        return mapped[at : at + size]


def output_rows(path: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Rows of the target's output matrix for `tokens`, float32 [n, n_embd].

    Raises:
        UnsupportedModel: it has none, or of a type that cannot be read.
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
