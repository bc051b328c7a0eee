"""What a model's attention stores for every token, as its header tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lcspec.modelfiles.gguf_header import MetadataArray, read_gguf

if TYPE_CHECKING:
    from lcspec.modelfiles.gguf_header import Scalar
    from lcspec.modelfiles.modelfile import ModelHeader

# Models with such metadata have layers without a KV cache, or compress what they store.
OTHERWISE = ("ssm.", "shortconv.", "wkv", "attention.kv_lora_rank")
# Query heads of a layer, and its key/value heads.
HEADS = ("attention.head_count", "attention.head_count_kv")


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

    # A figure for each layer is an array, which the header leaves out.
    told = [prefix + key for key in HEADS]
    left_out = {key for key in told if key not in header.metadata}
    lists = read_gguf(header.path, arrays=left_out).metadata if left_out else {}

    def per_layer(key: str) -> tuple[int, ...]:
        if key in header.metadata:
            return (_int(header.metadata[key]),) * layers
        array = lists.get(key)
        return tuple(n for n in array.values or () if isinstance(n, int)) if isinstance(array, MetadataArray) else ()

    queries, keys = map(per_layer, told)
    if not queries or not max(queries):
        return None
    keys = keys or queries
    length = (header.embedding_length or 0) // max(queries)
    return KvShape(
        queries,
        keys[: max(0, layers - _int(metadata.get("attention.shared_kv_layers")))],
        _int(metadata.get("attention.key_length"), length),
        _int(metadata.get("attention.value_length"), length),
    )


def _int(value: Scalar | None, default: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
