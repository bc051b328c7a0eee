"""Writing a GGUF with a subset of a model's layers; the tensors are copied as they are, quantized or not."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lcspec.errors import ModelFileError, UnsupportedModel, UsageError
from lcspec.modelfiles.gguf_header import GGUFContents, MetadataArray, TensorInfo, format_size, read_gguf
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.slice import LAYER, NOT_PER_LAYER
from lcspec.modelfiles.windows import PATTERN, Windows, windows_of

# What ties a layer to its number, so that the others cannot close the gap.
_BY_NUMBER = (
    *("nextn_predict_layers", "full_attention_interval", "interleave_moe_layer_step"),
    *("embedding_length_per_layer_input", "attention.shared_kv_layers"),
)
# Architectures of which the library rotates positions in layers of some numbers only.
_ROTATED_BY_NUMBER = frozenset({"afmoe", "llama4", "smallthinker", "smollm3"})


def count_layers(contents: GGUFContents) -> int:
    """How many layers a model has, if any of them can be left out.

    Raises:
        ModelFileError: it is split or has no plain stack of layers.
        UnsupportedModel: what a layer does depends on its number.
    """
    path, metadata = contents.path, contents.metadata
    if metadata.get("split.count", 0) not in (0, 1):
        raise ModelFileError(f"{path} is split; merge its parts first with llama.cpp's llama-gguf-split --merge")
    architecture = metadata.get("general.architecture")
    n = metadata.get(f"{architecture}.block_count")
    numbers = {int(match[1]) for t in contents.tensors if (match := LAYER.fullmatch(t.name))}
    if not isinstance(n, int) or numbers != set(range(n)) or any(t.n_bytes is None for t in contents.tensors):
        raise ModelFileError(f"{path} has no plain stack of layers, so none of them can be left out")
    for key in _BY_NUMBER:
        if metadata.get(f"{architecture}.{key}"):
            raise _by_number(path, key)
    if architecture in _ROTATED_BY_NUMBER or (architecture == "exaone4" and n == 64):  # others have no windows
        raise _by_number(path, str(architecture))
    return n


def _by_number(path: Path, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{path.name} has layers whose kind depends on their number ({why}), so none of them can be left out"
    )


def can_keep(windows: Windows | None, layers: Sequence[int]) -> bool:
    """Whether a model with such windows runs with its `layers` alone: the library wants a window in one of them."""
    return windows is None or any(windows.layers[layer] for layer in layers)


def write_pruned(src: Path, dst: Path, layers: Sequence[int], about: Mapping[str, str | float] | None = None) -> None:
    """Write to `dst` the model `src` with only its `layers` (ascending), and what they are in its metadata.

    `about` adds keys below `lcspec.pruned.`. Tokenizer, template and everything else stay as they are.

    Raises:
        UsageError: `layers` are not layers of the model, or no model by themselves (see `can_keep`), or there is no
            room on the disk.
        ModelFileError, UnsupportedModel: see `count_layers`.
    """
    import gguf
    import numpy as np

    contents = read_gguf(src)
    n = count_layers(contents)
    layers = list(layers)
    if not layers or layers != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < n:
        raise UsageError(f"{src.name} has the layers 0 to {n - 1}, of which some are to be kept, not {layers}")
    windows = windows_of(read_header(src))
    if not can_keep(windows, layers):
        raise UsageError(f"{src.name} has sliding windows, so one of the layers that have them must be kept")
    kept = [(t, name) for t in contents.tensors if (name := _new_name(t, layers)) is not None]
    total = sum(t.n_bytes or 0 for t, _ in kept)
    if total > shutil.disk_usage(dst.parent).free:
        raise UsageError(f"the pruned model needs {format_size(total)}, more than is free in {dst.parent}")
    writer = gguf.GGUFWriter(dst, str(contents.metadata["general.architecture"]))
    alignment = contents.metadata.get("general.alignment")
    if isinstance(alignment, int):
        writer.data_alignment = alignment
    _copy_metadata(writer, contents, layers, n, about or {}, windows)
    for tensor, name in kept:
        kind = gguf.GGMLQuantizationType(tensor.type_id)
        shape = tuple(reversed(tensor.shape))  # the writer counts rows first
        writer.add_tensor_info(name, shape, np.dtype(np.float32), tensor.n_bytes or 0, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    data = np.memmap(src, dtype=np.uint8, mode="r")
    for tensor, _ in kept:
        start = contents.data_offset + tensor.offset
        writer.write_tensor_data(data[start : start + (tensor.n_bytes or 0)])
    writer.close()


def _new_name(tensor: TensorInfo, layers: Sequence[int]) -> str | None:
    """The tensor's name in the pruned model, None if its layer is left out."""
    match = LAYER.fullmatch(tensor.name)
    if match is None:
        return tensor.name
    number = int(match[1])
    return f"blk.{layers.index(number)}.{match[2]}" if number in layers else None


def copy_field(writer: Any, field: Any, value: Any) -> None:
    """Write a field that a gguf.GGUFReader read, with `value`, to a gguf.GGUFWriter, in its own type."""
    writer.add_key_value(field.name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)


def _copy_metadata(
    writer: Any,
    contents: GGUFContents,
    layers: Sequence[int],
    n: int,
    about: Mapping[str, str | float],
    windows: Windows | None,
) -> None:
    import gguf

    metadata = contents.metadata
    prefix = f"{metadata['general.architecture']}."
    name = str(metadata.get("general.name") or contents.path.stem)
    kinds = gguf.GGUFValueType
    changed: dict[str, tuple[Any, Any, Any]] = {
        "general.name": (f"{name} (layers {', '.join(map(str, layers))} of {n})", kinds.STRING, None),
        f"{prefix}block_count": (len(layers), kinds.UINT32, None),
        "lcspec.pruned.from": (contents.path.name, kinds.STRING, None),
        "lcspec.pruned.layers": (list(layers), kinds.ARRAY, kinds.INT32),
        "lcspec.pruned.of": (n, kinds.UINT32, None),
    }
    dense = metadata.get(f"{prefix}leading_dense_block_count")
    if isinstance(dense, int):
        changed[f"{prefix}leading_dense_block_count"] = (sum(i < dense for i in layers), kinds.UINT32, None)
    if windows is not None:
        pattern = [windows.layers[layer] for layer in layers]
        changed[f"{prefix}{PATTERN}"] = (pattern, kinds.ARRAY, kinds.BOOL)
    # Layers that take something of an image: there are none in a text.
    if f"{prefix}n_deepstack_layers" in metadata:
        changed[f"{prefix}n_deepstack_layers"] = (0, kinds.UINT32, None)
    if f"{prefix}deepstack_mapping" in metadata:
        changed[f"{prefix}deepstack_mapping"] = ([-1] * len(layers), kinds.ARRAY, kinds.INT32)
    for key, told in about.items():
        kind = kinds.STRING if isinstance(told, str) else kinds.FLOAT32
        changed[f"lcspec.pruned.{key}"] = (told, kind, None)
    for field in gguf.GGUFReader(contents.path).fields.values():
        key = field.name
        if key.startswith(("GGUF.", "lcspec.pruned.")) or key in changed:
            continue
        if key in ("general.architecture", "general.size_label"):
            continue
        value, found = field.contents(), metadata.get(key)
        per_layer = isinstance(found, MetadataArray) and found.count == n and key.startswith(prefix)
        if per_layer and not key.endswith(NOT_PER_LAYER):
            value = [value[i] for i in layers]
        copy_field(writer, field, value)
    for key, (value, kind, element) in changed.items():
        writer.add_key_value(key, value, kind, element)
