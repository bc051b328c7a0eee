"""What a model's attention stores for every token, and its recurrent layers for every text, as its header tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lcspec.modelfiles.gguf_header import MetadataArray, read_gguf
from lcspec.modelfiles.windows import windows_of

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
        window_length: numbers in a key and a value together, in layers with a sliding window.
        windowed: which layers have one.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    key_length: int
    value_length: int
    window_length: int = 0
    windowed: tuple[bool, ...] = ()

    @property
    def per_layer(self) -> tuple[int, ...]:
        """Numbers that a token leaves in the KV cache of each layer."""
        full = self.key_length + self.value_length
        kinds = (*self.windowed, *[False] * len(self.keys))
        return tuple(n * (self.window_length if windowed else full) for n, windowed in zip(self.keys, kinds))

    @property
    def elements(self) -> int:
        """Numbers that a token leaves in the KV cache over all layers."""
        return sum(self.per_layer)


@dataclass(frozen=True)
class StateShape:
    """What a hybrid or recurrent model keeps.

    Attributes:
        state: numbers (of four bytes) of one text's state over all recurrent layers.
        token: numbers that a token leaves in the KV cache over all attention layers.
    """

    state: int
    token: int


# Tensors that only a recurrent layer has, and one that only a layer with a KV cache has.
RECURRENT = ("ssm_", "shortconv.", "time_mix_")
ATTENTION = ("attn_k.weight", "attn_kv_a_mqa.weight")
TOKEN_SHIFTS = 2


def state_shape(header: ModelHeader) -> StateShape | None:
    """The state a header and the tensors' names tell of; None for a model that has attention alone.

    Sizes as the library allocates them (llama_hparams: n_embd_r and n_embd_s). Layers that only draft (`nextn`) count
    for nothing.
    """
    prefix = f"{header.architecture}."
    arrays = {prefix + HEADS[1]}
    contents = [read_gguf(path, arrays=arrays) for path in header.parts]
    metadata = {k.removeprefix(prefix): v for k, v in header.metadata.items() if k.startswith(prefix)}

    def number(key: str, default: int = 0) -> int:
        value = metadata.get(key)
        return _int(value, default) if not isinstance(value, MetadataArray) else default

    layers = (header.block_count or 0) - number("nextn_predict_layers")
    recurrent, attention = set[int](), set[int]()
    for tensor in (tensor for part in contents for tensor in part.tensors):
        block, _, rest = tensor.name.removeprefix("blk.").partition(".")
        if tensor.name.startswith("blk.") and block.isdigit() and int(block) < layers:
            if rest.startswith(RECURRENT):
                recurrent.add(int(block))
            elif rest in ATTENTION:
                attention.add(int(block))
    if not recurrent:
        return None
    width, heads = header.embedding_length or 0, number(HEADS[0])
    kda, wkv, shortconv = number("kda.head_dim"), number("wkv.head_size"), number("shortconv.l_cache")
    kernel, inner, size = number("ssm.conv_kernel"), number("ssm.inner_size"), number("ssm.state_size")
    if wkv:
        state = width * (number("token_shift_count", TOKEN_SHIFTS) + wkv)
    elif shortconv:
        state = width * (shortconv - 1)
    elif kda:
        state = 3 * max(0, (kernel or 4) - 1) * heads * kda + heads * kda * kda
    else:
        state = max(0, kernel - 1) * (inner + 2 * number("ssm.group_count") * size) + inner * size
    array = contents[0].metadata.get(prefix + HEADS[1])
    keys = [n for n in array.values or () if isinstance(n, int)] if isinstance(array, MetadataArray) else []
    per_head = width // heads if heads else 0
    length = number("attention.key_length", per_head) + number("attention.value_length", per_head)
    if number("attention.kv_lora_rank"):  # keys and values compressed into one row
        token = (number("attention.kv_lora_rank") + number("rope.dimension_count")) * len(attention)
    else:
        token = sum(keys[i] if i < len(keys) else number(HEADS[1], heads) for i in attention) * length
    return StateShape(state * len(recurrent), token)


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
    key, value = (_int(metadata.get(f"attention.{what}_length"), length) for what in ("key", "value"))
    short = [_int(metadata.get(f"attention.{w}_length_swa"), n) for w, n in (("key", key), ("value", value))]
    windows = windows_of(header)
    return KvShape(
        queries,
        keys[: max(0, layers - _int(metadata.get("attention.shared_kv_layers")))],
        key,
        value,
        sum(short) if windows is not None else 0,
        windows.layers if windows is not None else (),
    )


def _int(value: Scalar | None, default: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
