"""What a draft looks like: a `llama` model with the target's vocabulary. Chosen by one rule, or read from a GGUF."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lcspec.errors import UnsupportedModel, UsageError
from lcspec.modelfiles.gguf_header import MetadataArray, read_gguf
from lcspec.modelfiles.modelfile import ModelHeader, read_header
from lcspec.training.layer_sizes import LayerSizes
from lcspec.training.tensors import check_further, shapes_of

# Of the target's step, in weights that a token passes.
COST = 1 / 20
# Layers of the target for one of the draft's, and how few and how many that may be.
LAYERS_EACH, FEWEST_LAYERS, MOST_LAYERS = 8, 2, 4
# Widths are multiples of a block of q8_0. What is wider learns too slowly on a processor.
BLOCK, MOST_WIDTH = 32, 512
# The feed-forward layer against the width, and the weights of a layer against the square of the width.
WIDENING = 3
LAYER_WEIGHTS = 4 + 3 * WIDENING
ARCHITECTURE = "llama"


@dataclass(frozen=True, kw_only=True)
class DraftShape(LayerSizes):
    """A draft's shape. `tied`: its output matrix is its embedding matrix."""

    layers: int
    tied: bool = True

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor by its name in the GGUF."""
        matrix, norm = (self.vocab, self.width), (self.width,)
        out: dict[str, tuple[int, ...]] = {"token_embd.weight": matrix, "output_norm.weight": norm}
        if not self.tied:
            out["output.weight"] = matrix
        for i in range(self.layers):
            out |= self.layer(i)
        return out

    @property
    def step_weights(self) -> int:
        """Weights that a token passes: all matrices, the embeddings only as output."""
        sizes = {name: math.prod(shape) for name, shape in self.shapes().items() if len(shape) > 1}
        return sum(sizes.values()) - (0 if self.tied else sizes["token_embd.weight"])


def choose(target: Path, width: int | None = None, layers: int | None = None) -> DraftShape:
    """The shape for a target: its step costs COST of the target's, output matrix included; or as wide or deep as said.

    Raises:
        ModelFileError: the target cannot be read.
        UsageError: a width that cannot be, or a draft that costs as much as the target.
    """
    header = read_header(target)
    if layers is None:
        layers = min(MOST_LAYERS, max(FEWEST_LAYERS, round((header.block_count or 0) / LAYERS_EACH)))
    whole = step_weights(header)
    if width is None:
        # vocab * width + layers * LAYER_WEIGHTS * width^2 = COST * whole
        square = layers * LAYER_WEIGHTS
        exact = (math.sqrt(header.n_vocab**2 + 4 * square * COST * whole) - header.n_vocab) / (2 * square)
        most = min(MOST_WIDTH, max(BLOCK, (header.embedding_length or MOST_WIDTH) // BLOCK * BLOCK))
        width = min(most, max(BLOCK, round(exact / BLOCK) * BLOCK))
    if width % BLOCK:
        raise UsageError(f"--width {width} is no multiple of {BLOCK}, as the stored blocks of numbers need it")
    head = 64 if width >= 256 and width % 64 == 0 else 32
    shape = DraftShape(
        vocab=header.n_vocab,
        width=width,
        layers=layers,
        heads=width // head,
        kv_heads=width // head,
        head_dim=head,
        feed_forward=WIDENING * width,
    )
    if shape.step_weights >= whole:
        raise UsageError(
            f"a draft of {layers} layers of width {width} costs as much as {target.name} itself; "
            "choose a smaller --width or fewer --layers"
        )
    return shape


def step_weights(header: ModelHeader) -> int:
    """Weights of a model that a token passes; of experts, as many as it is sent to.

    Raises:
        ModelFileError: a part of it cannot be read.
    """
    tensors = [t for part in header.parts for t in read_gguf(part).tensors if len(t.shape) > 1]
    untied = any(t.name == "output.weight" for t in tensors)
    used = header.metadata.get(f"{header.architecture}.expert_used_count")
    experts = header.metadata.get(f"{header.architecture}.expert_count")
    share = used / experts if isinstance(used, int) and isinstance(experts, int) and experts else 1.0
    weights = 0.0
    for tensor in tensors:
        if not (untied and tensor.name == "token_embd.weight"):
            weights += tensor.n_elements * (share if "_exps." in tensor.name else 1.0)
    return int(weights)


def read_shape(draft: Path) -> DraftShape:
    """The shape of a draft that is to be trained further.

    Raises:
        ModelFileError: it cannot be read.
        UnsupportedModel: it is no plain `llama` model, and says what is in the way.
    """
    header = read_header(draft)
    name = f"{draft.name} cannot be trained further"
    if header.architecture != ARCHITECTURE:
        raise UnsupportedModel(f"{name}: its architecture is {header.architecture}, and only {ARCHITECTURE} is trained")
    contents = [read_gguf(part) for part in header.parts]
    numbers: dict[str, float] = {}
    for key in ("embedding_length", "block_count", "attention.head_count", "feed_forward_length"):
        numbers[key] = _number(name, header, contents[0].metadata, key)
    width, heads = int(numbers["embedding_length"]), int(numbers["attention.head_count"])
    kv_heads = _number(name, header, contents[0].metadata, "attention.head_count_kv", heads)
    shape = DraftShape(
        vocab=header.n_vocab,
        width=width,
        layers=int(numbers["block_count"]),
        heads=heads,
        kv_heads=int(kv_heads),
        head_dim=int(_number(name, header, contents[0].metadata, "attention.key_length", width // heads)),
        feed_forward=int(numbers["feed_forward_length"]),
        rope_base=float(_number(name, header, contents[0].metadata, "rope.freq_base", 10000.0)),
        epsilon=float(_number(name, header, contents[0].metadata, "attention.layer_norm_rms_epsilon", 1e-5)),
        tied="output.weight" not in shapes_of(draft),
    )
    check_further(draft, shape.shapes())
    if header.metadata.get(f"{ARCHITECTURE}.rope.scaling.type") not in (None, "none"):
        raise UnsupportedModel(f"{name}: it scales positions, which is not trained here")
    return shape


def _number(
    name: str,
    header: ModelHeader,
    metadata: Mapping[str, object],
    key: str,
    otherwise: float | None = None,
) -> float:
    value = metadata.get(f"{header.architecture}.{key}", otherwise)
    if isinstance(value, MetadataArray):
        raise UnsupportedModel(f"{name}: its layers differ from one another ({key})")
    if not isinstance(value, (int, float)) or value <= 0:
        raise UnsupportedModel(f"{name}: it does not say its {key}")
    return float(f"{value:.6g}")  # 1e-5 as it was meant, not as 32 bits have it
