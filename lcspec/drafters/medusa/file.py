"""The heads file: a GGUF with the network, its reduced vocabulary, the sparse tree, and its provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from numpy.typing import NDArray

from lcspec.drafters.medusa.network import Floats, Parameters, Sizes
from lcspec.drafters.medusa.target import as_float
from lcspec.errors import LcspecError, ModelFileError, VocabularyMismatch
from lcspec.modelfiles.gguf_header import GGUFContents, MetadataArray, TensorInfo, read_gguf
from lcspec.modelfiles.identity import TargetIdentity, identify
from lcspec.spec.tree_shapes import Shape

ARCHITECTURE = "lcspec-heads"
VERSION = 1
P = "lcspec.heads."
SIZES = ("heads", "state", "hidden", "embed", "rank", "vocab")
ARRAYS = ("table", "scales", "tree.parents", "tree.ranks", "tokens")
STORAGE = ("f16", "q8_0")
LICENCE_NOTE = "Made from the outputs and the output matrix of the target model, whose licence applies to it."


@dataclass(frozen=True)
class HeadsFile:
    """The content of a heads file.

    Attributes:
        sizes, params: the network.
        tokens: the reduced vocabulary, int32 [sizes.vocab].
        scale: standard deviation of the target's hidden states, by which they are divided.
        scales: factors for each head's logits, float64 [heads].
        table: held-out accuracy by head and rank, float64 [heads, ranks].
        shape: the sparse tree, best nodes first.
        fingerprint, vocabulary, n_vocab, quantization, target: the model they were made for (see TargetIdentity).
        facts: provenance for users to read, by key.
        storage: how matrices are stored, one of STORAGE.
    """

    sizes: Sizes
    params: Parameters
    tokens: NDArray[np.int32]
    scale: float
    scales: NDArray[np.float64]
    table: NDArray[np.float64]
    shape: Shape
    fingerprint: str
    vocabulary: str
    n_vocab: int
    quantization: str
    target: str
    licence: str | None = None
    facts: dict[str, str | int | float] = field(default_factory=dict)
    storage: str = STORAGE[0]

    def top(self, k: int) -> list[float]:
        """Held-out top-k accuracy of every head."""
        return [float(row[:k].sum()) for row in self.table]


def write_heads(path: Path, heads: HeadsFile, storage: str = "f16") -> None:
    """Write the file atomically."""
    temporary = path.with_name(path.name + ".tmp")
    writer = gguf.GGUFWriter(temporary, ARCHITECTURE)
    writer.add_string("general.type", "heads")
    writer.add_string("general.name", f"Medusa heads for {heads.target}")
    writer.add_string("general.description", LICENCE_NOTE)
    if heads.licence:
        writer.add_string("general.license", heads.licence)
    writer.add_uint32(P + "version", VERSION)
    for name in SIZES:
        writer.add_uint32(P + name, getattr(heads.sizes, name))
    writer.add_float32(P + "scale", heads.scale)
    for name in ("fingerprint", "vocabulary", "quantization"):
        writer.add_string(f"{P}target.{name}", getattr(heads, name))
    writer.add_string(P + "target.name", heads.target)
    writer.add_uint32(P + "target.n_vocab", heads.n_vocab)
    for key, value in heads.facts.items():
        add: Any = {str: writer.add_string, int: writer.add_uint64, float: writer.add_float64}[type(value)]
        add(P + "made." + key, value)
    writer.add_array(P + "table", [float(x) for x in heads.table.ravel()])
    writer.add_array(P + "scales", [float(x) for x in heads.scales])
    writer.add_array(P + "tree.parents", list(heads.shape.parents))
    writer.add_array(P + "tree.ranks", list(heads.shape.ranks))
    writer.add_array(P + "tokens", [int(t) for t in heads.tokens])
    for name, data in heads.params.items():
        _add_tensor(writer, name, data, storage)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.replace(path)


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: Floats, storage: str) -> None:
    if "bias" in name:
        writer.add_tensor(name, data.astype(np.float32))
    elif kept_as(storage, data) == "q8_0":
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, data.astype(np.float16))


def kept_as(storage: str, data: Floats) -> str:
    """How a matrix is kept: its rows must be made of whole blocks for 8 bits."""
    return "f16" if storage == "q8_0" and data.shape[-1] % 32 else storage


def read_heads(path: Path) -> HeadsFile:
    """Read and check a heads file.

    Raises:
        ModelFileError: it is missing, truncated, damaged, or another kind of file.
    """
    contents = read_gguf(path, arrays=[P + name for name in ARRAYS])
    meta = contents.metadata
    if meta.get("general.architecture") != ARCHITECTURE:
        raise ModelFileError(f"{path} is no heads file; make one with: lcspec draft heads MODEL --out heads.gguf")
    if meta.get(P + "version") != VERSION:
        raise ModelFileError(f"{path} is of version {meta.get(P + 'version')}, which cannot be read; upgrade lcspec")
    try:
        sizes = Sizes(*(_integer(contents, name) for name in SIZES))
        heads = HeadsFile(
            sizes=sizes,
            params={name: _tensor(contents, name, shape) for name, shape in sizes.shapes().items()},
            tokens=np.array(_array(contents, "tokens"), dtype=np.int32),
            scale=float(_scalar(contents, "scale")),
            scales=np.array(_array(contents, "scales"), dtype=np.float64),
            table=np.array(_array(contents, "table"), dtype=np.float64).reshape(sizes.heads, -1),
            shape=Shape(tuple(_array(contents, "tree.parents")), tuple(_array(contents, "tree.ranks"))),
            fingerprint=str(_scalar(contents, "target.fingerprint")),
            vocabulary=str(_scalar(contents, "target.vocabulary")),
            n_vocab=_integer(contents, "target.n_vocab"),
            quantization=str(_scalar(contents, "target.quantization")),
            target=str(_scalar(contents, "target.name")),
            licence=str(meta["general.license"]) if "general.license" in meta else None,
            facts={k.removeprefix(P + "made."): v for k, v in meta.items() if _is_fact(k, v)},  # type: ignore[misc]
            storage="q8_0" if any(tensor.type_name == "Q8_0" for tensor in contents.tensors) else "f16",
        )
    except (KeyError, ValueError) as error:
        raise _damaged(path, str(error).strip("'\"")) from error
    _check(path, heads)
    return heads


def _damaged(path: Path, what: str) -> ModelFileError:
    return ModelFileError(f"{path} is damaged: {what}; make the heads again with lcspec draft heads")


def _is_fact(key: str, value: object) -> bool:
    return key.startswith(P + "made.") and not isinstance(value, MetadataArray)


def _scalar(contents: GGUFContents, name: str) -> Any:
    value = contents.metadata.get(P + name)
    if value is None or isinstance(value, MetadataArray):
        raise KeyError(f"{P}{name} is missing")
    return value


def _integer(contents: GGUFContents, name: str) -> int:
    value = _scalar(contents, name)
    if not isinstance(value, int):
        raise ValueError(f"{P}{name} is no number")
    return value


def _array(contents: GGUFContents, name: str) -> Sequence[Any]:
    value = contents.metadata.get(P + name)
    if not isinstance(value, MetadataArray) or value.values is None:
        raise KeyError(f"{P}{name} is missing")
    return value.values


def _tensor(contents: GGUFContents, name: str, shape: tuple[int, ...]) -> Floats:
    info = next((t for t in contents.tensors if t.name == name), None)
    if info is None:
        raise KeyError(f"the tensor {name} is missing")
    if tuple(reversed(info.shape)) != shape:
        raise ValueError(f"the tensor {name} has the shape {list(reversed(info.shape))} instead of {list(shape)}")
    return _load(contents, info, shape)


def _load(contents: GGUFContents, info: TensorInfo, shape: tuple[int, ...]) -> Floats:
    size = info.n_bytes
    if not size:
        raise ValueError(f"the tensor {info.name} is empty or of an unknown type")
    rows = info.n_elements // shape[-1]
    start = contents.data_offset + info.offset
    raw = np.fromfile(contents.path, np.uint8, size, offset=start).reshape(rows, size // rows)
    return np.ascontiguousarray(as_float(raw, info, contents.path).reshape(shape))


def _check(path: Path, heads: HeadsFile) -> None:
    """Check what the GGUF reader cannot know.

    Raises:
        ModelFileError: the parts do not fit together.
    """
    sizes, tokens = heads.sizes, heads.tokens
    if sizes.heads < 1 or sizes.vocab < 1 or len(tokens) != sizes.vocab or len(heads.scales) != sizes.heads:
        raise _damaged(path, "its sizes do not agree with each other")
    if tokens.min() < 0 or tokens.max() >= heads.n_vocab or len(np.unique(tokens)) != len(tokens):
        raise _damaged(path, "its reduced vocabulary names tokens that the target does not have")
    if not all(np.isfinite(data).all() for data in heads.params.values()) or not heads.scale > 0:
        raise _damaged(path, "it has numbers that are not finite")


def check_fits(path: Path, heads: HeadsFile, target: TargetIdentity, target_path: Path) -> str:
    """Check that heads belong to a target; returns a note for the user, or "".

    The fingerprint is the same for all quantizations of a model. Another quantization passes with a note, and so does
    a scaled-cost copy, which names its original.

    Raises:
        VocabularyMismatch: the target's vocabulary differs.
        ModelFileError: the heads were made for another model.
    """
    names = f"{path.name} was made for {heads.target}"
    advice = f"make heads for this model with: lcspec draft heads {target_path}"
    if heads.vocabulary != target.vocabulary or heads.n_vocab != target.n_vocab:
        raise VocabularyMismatch(f"{names}, and {target_path.name} has another vocabulary; {advice}")
    if heads.fingerprint != target.fingerprint or heads.sizes.state != target.n_embd:
        raise ModelFileError(f"{names}, and {target_path.name} is another model; {advice}")
    if heads.quantization != target.quantization:
        return (
            f"{path.name} was made for the {heads.quantization} quantization of this model and is used with "
            f"{target.quantization}: the text stays the same, a few more drafts may be rejected"
        )
    return ""


def check_heads(path: Path, target_path: Path) -> str:
    """Read both files' descriptions and check them with `check_fits`, for commands that do so before loading a model.

    Raises:
        LcspecError: as `read_heads`, `identify` and `check_fits` raise.
    """
    try:
        return check_fits(path, read_heads(path), identify(target_path), target_path)
    except OSError as error:
        raise LcspecError(f"cannot read {path}: {error.strerror}") from error
