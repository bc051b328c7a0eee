"""What a model's attention stores for every token, as its header tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lcspec.gguf_header import MetadataArray, read_gguf

if TYPE_CHECKING:
    from lcspec.gguf_header import Scalar
    from lcspec.modelfile import ModelHeader

# Models with such metadata have layers without a KV cache, or compress what they store.
OTHERWISE = ("ssm.", "shortconv.", "wkv", "attention.kv_lora_rank")


@dataclass(frozen=True)
class KvShape:
    """The heads of a model whose layers store keys and values as they are.

    Attributes:
        queries: query heads of each layer.
        keys: key/value heads of each layer that stores its own.
        key_length, value_length: numbers in a key and in a value of one head.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    key_length: int
    value_length: int

    @property
    def elements(self) -> int:
        """Numbers that a token leaves in the KV cache over all layers."""
        return sum(self.keys) * (self.key_length + self.value_length)


def kv_shape(header: ModelHeader) -> KvShape | None:
    """The shape a header tells of; None where it tells nothing, and where not every layer stores keys and values."""
    prefix = f"{header.architecture}."
    metadata = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    layers = header.block_count or 0
    if any(key.startswith(OTHERWISE) for key in metadata):
        return None

    def per_layer(key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        if key in metadata:
            return (_int(metadata[key]),) * layers
        array = read_gguf(header.path, arrays={prefix + key}).metadata.get(prefix + key)
        if isinstance(array, MetadataArray):  # a figure for each layer
            return tuple(n for n in array.values or () if isinstance(n, int))
        return default

    queries = per_layer("attention.head_count", ())
    if not queries or not max(queries):
        return None
    keys = per_layer("attention.head_count_kv", queries)
    length = (header.embedding_length or 0) // max(queries)
    return KvShape(
        queries,
        keys[: max(0, layers - _int(metadata.get("attention.shared_kv_layers")))],
        _int(metadata.get("attention.key_length"), length),
        _int(metadata.get("attention.value_length"), length),
    )


def _int(value: Scalar | None, default: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
