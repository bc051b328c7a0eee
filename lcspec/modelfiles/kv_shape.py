"""What a model's attention stores for every token, and its recurrent layers for every text, as its header tells.

Sizes are those that the library (0.3.36 of llama-cpp-python) allocates: llama_model::create_memory and llama_hparams.
"""

from __future__ import annotations

from dataclasses import dataclass

from lcspec.modelfiles.gguf_header import MetadataArray, read_gguf
from lcspec.modelfiles.modelfile import ROUTED, ModelHeader
from lcspec.modelfiles.windows import windows_of

# Query heads of a layer, and its key/value heads.
HEADS = ("attention.head_count", "attention.head_count_kv")
# Latent attention, with which a key and a value may be one.
LATENT = "attention.kv_lora_rank"
# How many tokens a cell holds, layer by layer (DeepSeek V4), or how many an indexer takes together (qwen4exp).
RATIOS = "attention.compress_ratios"
INDEX_LENGTH = "attention.indexer.key_length"
# Models with such metadata have layers without a KV cache, or compress what they store.
OTHERWISE = ("ssm.", "shortconv.", "wkv", RATIOS)
# Tensors that only a recurrent layer has, some that only a layer with a KV cache has, and those whose results are
# cached for choosing what to attend to.
RECURRENT = ("ssm_", "shortconv.", "time_mix_")
ATTENTION = ("attn_k.weight", "attn_kv_a_mqa.weight")
# Queries, keys and values in one, which recurrent layers may have as well.
JOINED = ("attn_qkv.weight",)
# Architectures whose recurrent layers are lightning attention: a state of key x value for every head.
LIGHTNING = frozenset({"minimax-01"})
LIGHTNING_LAYER = ("attn_norm_2.",)
INDEXED = ("indexer.attn_k.weight", "indexer.k_proj.weight")
# Hybrids whose layers for multi-token prediction have cells in the model's own context, too.
DRAFTING_TOO = frozenset({"bailingmoe3", "nemotron_h_moe"})
TOKEN_SHIFTS = 2
# The library's caches of compressed cells grow by so many.
COMPRESSED_BLOCK = 256


@dataclass(frozen=True)
class KvShape:
    """The heads of a model that has attention alone.

    Attributes:
        queries: query heads of each layer; empty where attention is more than heads over keys and values.
        keys: key/value heads of each layer that stores its own.
        key_length, value_length: numbers in a key and in a value of one head; 0: values are a part of keys.
        window_length: numbers in a key and a value together, in layers with a sliding window.
        windowed: which layers have one.
        indexed: numbers that each layer stores besides, to choose what to attend to.
        router: numbers that a layer of its own stores, to choose an adapter.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    key_length: int
    value_length: int
    window_length: int = 0
    windowed: tuple[bool, ...] = ()
    indexed: tuple[int, ...] = ()
    router: int = 0

    @property
    def per_layer(self) -> tuple[int, ...]:
        """Numbers that a token leaves in the KV cache of each layer."""
        full, rest = self.key_length + self.value_length, [0] * len(self.keys)
        kinds, besides = (*self.windowed, *rest), (*self.indexed, *rest)
        layers = tuple(
            n * (self.window_length if windowed else full) + more
            for n, windowed, more in zip(self.keys, kinds, besides)
        )
        return (*layers, self.router) if self.router else layers

    @property
    def elements(self) -> int:
        """Numbers that a token leaves in the KV cache over all layers."""
        return sum(self.per_layer)


@dataclass(frozen=True)
class StateShape:
    """What a hybrid or recurrent model keeps.

    Attributes:
        state: numbers (of four bytes) of one text's state over all recurrent layers.
        per_layer: numbers that a token leaves in the KV cache of each layer.
        compressed: of each layer, how many tokens share a cell of another cache, and the numbers in it; empty = none.
        value_length: 0: values are a part of keys.
    """

    state: int
    per_layer: tuple[int, ...]
    compressed: tuple[tuple[int, int], ...] = ()
    value_length: int = 1

    @property
    def token(self) -> int:
        """Numbers that a token leaves in the KV cache over all layers."""
        return sum(self.per_layer)


class _Figures:
    """A header's figures, by their keys without the architecture, and the names of its tensors.

    Attributes:
        layers: how many there are.
        trunk: those that do not only draft (`nextn`), if there are any.
        lightning: recurrent layers are lightning attention.
    """

    def __init__(self, header: ModelHeader) -> None:
        prefix = f"{header.architecture}."
        self._contents = [read_gguf(path, arrays={prefix + key for key in (*HEADS, RATIOS)}) for path in header.parts]
        arrays = {k: v for k, v in self._contents[0].metadata.items() if isinstance(v, MetadataArray)}
        found = {**header.metadata, **arrays}  # the header has none
        self._values = {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}
        self.loops, self.width = header.loops, header.embedding_length or 0
        self.layers = (header.block_count or 0) * self.loops
        self.lightning = header.architecture in LIGHTNING
        drafting = self.number("nextn_predict_layers")
        self.trunk = self.layers - drafting if 0 < drafting < self.layers else self.layers

    def has(self, *keys: str) -> bool:
        """Whether there is a figure whose key begins so."""
        return any(key.startswith(keys) for key in self._values)

    def number(self, key: str, default: int = 0) -> int:
        """A figure of the model."""
        value = self._values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def each(self, key: str) -> tuple[int, ...]:
        """A figure of each layer; empty if there is none."""
        value = self._values.get(key)
        if isinstance(value, MetadataArray):
            return tuple(n for n in value.values or () if isinstance(n, int)) * self.loops
        return (self.number(key),) * self.layers if key in self._values else ()

    def layers_with(self, names: tuple[str, ...]) -> set[int]:
        """The layers that have a tensor whose name begins so."""
        blocks = (t.name.removeprefix("blk.").partition(".") for part in self._contents for t in part.tensors)
        return {int(block) for block, _, rest in blocks if block.isdigit() and rest.startswith(names)}

    @property
    def heads(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Query heads of each layer, and its key/value heads."""
        queries = self.each(HEADS[0])
        return queries, self.each(HEADS[1]) or queries

    @property
    def lengths(self) -> tuple[int, int]:
        """Numbers in a key and in a value of one head; 0: values are a part of keys (latent attention)."""
        most = max(self.heads[0], default=0)
        per_head = self.width // most if most else 0
        key, value = (self.number(f"attention.{what}_length", per_head) for what in ("key", "value"))
        return key, 0 if self.has("attention.key_length_mla") else value

    @property
    def rows(self) -> tuple[int, ...]:
        """Numbers that a token's key and value have in each layer, if it stores any."""
        return tuple(n * sum(self.lengths) for n in self.heads[1])


def state_shape(header: ModelHeader) -> StateShape | None:
    """The state a header and the tensors' names tell of; None for a model that has attention alone."""
    figures = _Figures(header)
    number, layers = figures.number, figures.trunk
    marks = LIGHTNING_LAYER if figures.lightning else RECURRENT
    recurrent = {layer for layer in figures.layers_with(marks) if layer < layers}
    if not recurrent:
        return _compressed(figures) if figures.has(RATIOS) else None
    width, heads = figures.width, max(figures.heads[0], default=0)
    kda, wkv, shortconv = number("kda.head_dim"), number("wkv.head_size"), number("shortconv.l_cache")
    kernel, inner, size = number("ssm.conv_kernel"), number("ssm.inner_size"), number("ssm.state_size")
    if figures.lightning:
        state = heads * figures.lengths[0] ** 2
    elif wkv:
        state = width * (number("token_shift_count", TOKEN_SHIFTS) + wkv)
    elif shortconv:
        state = width * (shortconv - 1)
    elif kda:
        state = 3 * max(0, (kernel or 4) - 1) * heads * kda + heads * kda * kda
    else:
        state = max(0, kernel - 1) * (inner + 2 * number("ssm.group_count") * size) + inner * size
    attention = figures.layers_with(ATTENTION) | (figures.layers_with(JOINED) - recurrent)
    indexed = figures.layers_with(INDEXED)
    # An indexer of pools stores a key, what weighs it in its pool, and the pool's key.
    index = number(INDEX_LENGTH) * (3 if number("attention.indexer.kpool") else 1)
    with_cells = figures.layers if header.architecture in DRAFTING_TOO else layers
    rows = tuple(n * (i in attention) + index * (i in indexed) for i, n in enumerate(figures.rows[:with_cells]))
    # The library has one layer at most that looks n-grams up: it keeps them for a convolution that skips as many.
    ngrams = max(0, number("ple.conv_kernel") - 1) * number("ple.ngram_size")
    ngrams *= number("hyper_connection.count") * width
    return StateShape(state * len(recurrent) + ngrams, rows, value_length=figures.lengths[1])


def _compressed(figures: _Figures) -> StateShape:
    """DeepSeek V4: a key for every token, compressed keys (with an indexer's where four tokens share one), and the
    states of what compresses them, each of values and scores (llama_kv_cache_dsv4)."""
    key, index, ratios = figures.lengths[0], figures.number(INDEX_LENGTH), figures.each(RATIOS)
    cells, state = [], 0
    for ratio in ratios[: figures.trunk]:
        four = ratio == 4
        cells.append((ratio, key + index * four if ratio else 0))
        state += 2 * (2 * ratio * 2 * (key + index) if four else ratio * key)
    return StateShape(state, (key,) * figures.trunk, tuple(cells), value_length=0)


def kv_shape(header: ModelHeader) -> KvShape | None:
    """The shape a header tells of; None where it tells nothing, and where not every layer stores keys and values."""
    figures = _Figures(header)
    (queries, keys), (key, value), layers = figures.heads, figures.lengths, figures.trunk
    if figures.has(*OTHERWISE) or figures.lightning or not max(queries, default=0):
        return None
    index, indexed = figures.number(INDEX_LENGTH), set[int]()
    if index:  # its value is as long as any other, if there are values
        indexed = figures.layers_with(INDEXED)
    plain = not indexed and not figures.has(LATENT)
    short = [n and figures.number(f"attention.{w}_length_swa", n) for w, n in (("key", key), ("value", value))]
    windows = windows_of(header)
    return KvShape(
        queries[:layers] if plain else (),
        keys[: max(0, layers - figures.number("attention.shared_kv_layers"))],
        key,
        value,
        sum(short) if windows is not None else 0,
        windows.layers[:layers] if windows is not None else (),
        tuple((index + value) * (layer in indexed) for layer in range(layers)) if indexed else (),
        key + value if header.architecture in ROUTED else 0,
    )


def drafting_elements(header: ModelHeader) -> tuple[int, ...]:
    """Numbers that a token leaves in each layer for multi-token prediction, in the context that runs those; 0 for all
    other layers."""
    figures = _Figures(header)
    return tuple(n if layer >= figures.trunk else 0 for layer, n in enumerate(figures.rows))
