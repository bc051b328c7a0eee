"""Layers for multi-token prediction inside a file, told by its header: how many, and whether the library runs them.

No llama_cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from lcspec.errors import ModelFileError
from lcspec.modelfiles.gguf_header import GGUFContents, MetadataArray, Scalar, TensorInfo

# Architectures whose layers for multi-token prediction the library (0.3.36) runs with plain cells: one layer that is
# used again and again, or several that are chained.
SINGLE = frozenset(
    {
        *("qwen35", "qwen35moe", "qwen3next", "glm4moe", "glm-dsa", "deepseek2", "deepseek32", "cohere2moe"),
        *("nemotron_h_moe", "bailingmoe3"),
    }
)
CHAINED = frozenset({"step35", "mimo2", "hy_v3"})
# What such a layer must have, or the library ends the process: joined queries, keys and values, and no experts.
NEEDED = {"mimo2": ("attn_qkv", "ffn_gate", "ffn_up", "ffn_down")}
# The matrix that makes a layer one for multi-token prediction.
PROJECTION = "nextn.eh_proj"


def mtp_layers(contents: GGUFContents) -> int:
    """Layers for multi-token prediction inside a model file (not only announced by its metadata)."""
    architecture = contents.metadata.get("general.architecture")
    announced = contents.metadata.get(f"{architecture}.nextn_predict_layers")
    return min(announced, len(_found(contents.tensors))) if isinstance(announced, int) else 0


def usable_mtp(contents: GGUFContents) -> int:
    """Layers for multi-token prediction inside a model that the library can run; 0 = none."""
    found, architecture = mtp_layers(contents), str(contents.metadata.get("general.architecture"))
    names = {tensor.name for tensor in contents.tensors}
    needed = [f"blk.{i}.{name}.weight" for i in _found(contents.tensors) for name in NEEDED.get(architecture, ())]
    known = architecture in CHAINED or (found == 1 and architecture in SINGLE)
    return found if known and names.issuperset(needed) else 0


def mtp_only(contents: GGUFContents) -> bool:
    """Whether a file holds a model's layers for multi-token prediction without the model."""
    if f"{contents.metadata.get('general.architecture')}.nextn_predict_layers" not in contents.metadata:
        return False  # as in later parts of a split model
    names = [tensor.name for tensor in contents.tensors]
    return any(".nextn." in name for name in names) and not any(name.startswith("blk.0.") for name in names)


def announced_layers(metadata: Mapping[str, Scalar | MetadataArray]) -> range:
    """The layers that are for multi-token prediction by the metadata: the last ones. Empty if it says nothing."""
    architecture = metadata.get("general.architecture")
    announced, layers = (metadata.get(f"{architecture}.{key}") for key in ("nextn_predict_layers", "block_count"))
    if isinstance(announced, int) and isinstance(layers, int):
        return range(layers - announced, layers)
    return range(0)


def check_mtp_layers(
    path: Path, metadata: Mapping[str, Scalar | MetadataArray], tensors: Iterable[TensorInfo], *, part: bool = False
) -> None:
    """Refuse a file that announces other layers for multi-token prediction than it has: the library ends the process.

    A model that has none of them is a whole one: they are in another file.

    Args:
        path: of the file, or of its first part.
        metadata: of the same.
        tensors: of all parts.
        part: the file is nothing without these layers.

    Raises:
        ModelFileError: says what was announced and found.
    """
    announced, found = announced_layers(metadata), _found(tensors)
    if announced.start < 0:
        raise ModelFileError(
            f"{path} says that {len(announced)} of its {announced.stop} layers are for multi-token prediction, so it "
            "is damaged; get the file again"
        )
    missing = next((layer for layer in announced if layer not in found), None)
    if missing is None or metadata.get("general.architecture") not in SINGLE | CHAINED:
        return
    if found or part:
        raise ModelFileError(
            f"{path} has {announced.stop} layers, the last {len(announced)} for multi-token prediction, and the tensor "
            f"blk.{missing}.{PROJECTION} is missing; get another GGUF of it"
        )


def _found(tensors: Iterable[TensorInfo]) -> set[int]:
    """The layers that have the projection."""
    blocks = (t.name.removesuffix(f".{PROJECTION}.weight").partition("blk.") for t in tensors if PROJECTION in t.name)
    return {int(number) for before, _, number in blocks if not before and number.isdecimal()}
