"""The first layers of a model as a model of its own, for questions whose answer does not depend on how many there are.

Only the layers go: the vocabulary, the output matrix and everything else stay. Tensors and metadata are copied as they
are, so this takes about as long as reading what is kept.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lcspec.errors import ModelFileError
from lcspec.modelfiles.gguf_header import (
    ARRAY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    STRING,
    GGUFContents,
    MetadataArray,
    TensorInfo,
    align,
    read_gguf,
)
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.windows import windows_of

LAYER = re.compile(r"blk\.(\d+)\.(.+)")
# Arrays of an architecture that have an entry for something else than a layer, whatever their length is.
NOT_PER_LAYER = ("rope.dimension_sections", "classifier.output_labels")
# A second layer reads cells that depend on the first one's; and of every kind one of so many layers is kept at least.
_LEAST_LAYERS, _MOST_APART = 2, 8
# Layers at the end that predict further tokens: a text does without.
_PREDICTING = "nextn_predict_layers"
# What layers share, or tensors that have a part for each of them; and what depends on the number of layers.
_SHARED = ("embedding_length_per_layer_input", "attention.shared_kv_layers")
_BY_COUNT = frozenset({"exaone4"})


class Slice(NamedTuple):
    """The first `layers` of a model, `share` of the bytes of all of them.

    `stands_for`: layers of the whole model for one in the slice, of the kind for which they are most.
    """

    contents: GGUFContents
    layers: int
    share: float
    stands_for: float


def find_slice(path: Path) -> Slice | None:
    """The fewest first layers among which there are enough of every kind (of tensors, their shapes and types, and
    windows); None if that is most of them, or if a model cannot be cut there.

    Raises:
        ModelFileError: it cannot be read.
    """
    contents = read_gguf(path)
    n = _count(contents)
    if n is None:
        return None
    windows = windows_of(read_header(path))
    kinds: list[set[object]] = [{windows is not None and windows.layers[i]} for i in range(n)]
    sizes = [0] * n
    for tensor in contents.tensors:
        match = LAYER.fullmatch(tensor.name)
        if match is not None and int(match[1]) < n:
            sizes[int(match[1])] += tensor.n_bytes or 0
            kinds[int(match[1])].add((match[2], tensor.shape, tensor.type_id))
    every = [frozenset(kind) for kind in kinds]
    counts = Counter(every)
    for layers in range(_LEAST_LAYERS, n // 2 + 1) if all(sizes) else ():
        kept = Counter(every[:layers])
        if kept.keys() == counts.keys() and (apart := max(counts[k] / kept[k] for k in kept)) <= _MOST_APART:
            return Slice(contents, layers, sum(sizes[:layers]) / sum(sizes), apart)
    return None


def _count(contents: GGUFContents) -> int | None:
    """The layers that a text needs; None if they cannot be parted."""
    metadata, architecture = contents.metadata, contents.metadata.get("general.architecture")
    n, ahead = metadata.get(f"{architecture}.block_count"), metadata.get(f"{architecture}.{_PREDICTING}") or 0
    whole = metadata.get("split.count", 0) in (0, 1) and all(t.n_bytes is not None for t in contents.tensors)
    shared = architecture in _BY_COUNT or any(metadata.get(f"{architecture}.{key}") for key in _SHARED)
    if not isinstance(n, int) or not isinstance(ahead, int) or not whole or shared:
        return None
    return n - ahead if 0 <= ahead < n <= len(contents.tensors) else None


def write_slice(found: Slice, dst: Path) -> None:
    """Write the slice to `dst`.

    Raises:
        ModelFileError: there is no room on the disk.
        OSError: it cannot be written.
    """
    contents, n = found.contents, found.layers
    kept = [tensor for tensor in contents.tensors if _is_kept(tensor, n)]
    alignment = contents.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    assert isinstance(alignment, int)
    if sum(t.n_bytes or 0 for t in kept) > shutil.disk_usage(dst.parent).free // 2:
        raise ModelFileError(f"there is not enough room in {dst.parent} for the first layers of {contents.path.name}")
    source = np.memmap(contents.path, dtype=np.uint8, mode="r")
    with dst.open("wb") as out:
        out.write(MAGIC + struct.pack("<IQQ", contents.version, len(kept), len(contents.metadata)))
        for key, (start, stop) in contents.entries.items():
            out.write(_cut(contents, key, n, source[start:stop].tobytes()))
        offset = 0
        for tensor in kept:
            name = tensor.name.encode()
            out.write(struct.pack("<Q", len(name)) + name + struct.pack("<I", len(tensor.shape)))
            out.write(struct.pack(f"<{len(tensor.shape)}QIQ", *tensor.shape, tensor.type_id, offset))
            offset += align(tensor.n_bytes or 0, alignment)
        for tensor in kept:
            out.write(b"\0" * (-out.tell() % alignment))
            start = contents.data_offset + tensor.offset
            out.write(source[start : start + (tensor.n_bytes or 0)].data)
        out.write(b"\0" * (-out.tell() % alignment))


def _is_kept(tensor: TensorInfo, n: int) -> bool:
    match = LAYER.fullmatch(tensor.name)
    return match is None or int(match[1]) < n


def _cut(contents: GGUFContents, key: str, n: int, entry: bytes) -> bytes:
    """The metadata entry of a model of `n` layers."""
    prefix = f"{contents.metadata['general.architecture']}."
    value, layers = contents.metadata[key], contents.metadata[f"{prefix}block_count"]
    head = 8 + len(key.encode())  # of the entry: its key
    if isinstance(value, MetadataArray):
        per_layer = key.startswith(prefix) and value.count == layers and not key.endswith(NOT_PER_LAYER)
        if not per_layer or value.element_type == STRING:
            return entry
        each = (len(entry) - head - 16) // value.count
        return (
            entry[:head] + struct.pack("<IIQ", ARRAY, value.element_type, n) + entry[head + 16 : head + 16 + n * each]
        )
    changed = {
        f"{prefix}block_count": n,
        f"{prefix}{_PREDICTING}": 0,
        f"{prefix}leading_dense_block_count": min(n, value) if isinstance(value, int) else 0,
    }
    return entry if key not in changed else entry[: head + 4] + changed[key].to_bytes(len(entry) - head - 4, "little")
