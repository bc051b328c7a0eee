"""Which model a file holds, so that what was trained for one is not used with another: read without loading it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.modelfile import ModelHeader, read_header, read_vocabulary

# Written by scripts/scale_model.py: the fingerprint of the model whose function the file computes.
SCALED_FROM = "lcspec.scaled_from"
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
    norms: dict[str, bytes] = {}
    for path in header.parts:
        contents = read_gguf(path)
        with path.open("rb") as file:
            for tensor in contents.tensors:
                if tensor.type_id == F32 and len(tensor.shape) == 1 and tensor.name.endswith("norm.weight"):
                    file.seek(contents.data_offset + tensor.offset)
                    norms[tensor.name] = file.read(tensor.n_bytes or 0)
    for name, values in sorted(norms.items()):  # programs that quantize write tensors in an order of their own
        digest.update(name.encode() + values)
    return digest.hexdigest()
