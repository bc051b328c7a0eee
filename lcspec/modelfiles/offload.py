"""How many of a model's layers fit on the devices: weights, cache and compute buffers against free memory.

The library puts the *last* layers on devices, the output matrix after them, and spreads them by cumulated shares
(llama-model.cpp, load_tensors); `assign` does the same, so that what is planned here is what will be done there.
"""

from __future__ import annotations

import bisect
import itertools
import re
from dataclasses import dataclass, field
from typing import Mapping, Sequence

from lcspec.config import ModelOptions
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.memory import LOOKED_UP, layer_elements, needed
from lcspec.modelfiles.modelfile import ModelHeader

# Left free on every device: what the driver, the display and other programs come to want, and what fragments.
MARGIN_SHARE, MARGIN_LEAST = 1 / 16, 256 << 20


@dataclass(frozen=True)
class LayerCosts:
    """What a model's layers need, in bytes.

    Attributes:
        weights: of each layer, first to last.
        cache: KV cache and recurrent states of each layer; zeros where they stay in main memory.
        output: the output matrix and norm, which count as one layer more.
        pinned: weights that overrides put on a device, by its name, wherever their layers are.
    """

    weights: tuple[int, ...]
    cache: tuple[int, ...]
    output: int
    pinned: Mapping[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Layers in the library's sense: those of the model and the output."""
        return len(self.weights) + 1

    def of(self, layer: int) -> int:
        """Bytes of layer number `layer`, the output being the last."""
        return self.output if layer == len(self.weights) else self.weights[layer] + self.cache[layer]


@dataclass(frozen=True)
class Room:
    """A device's free memory, and what a computation takes on it whatever the number of layers; bytes."""

    free: int
    compute: int = 0

    @property
    def for_layers(self) -> int:
        """What is left for layers."""
        return max(0, self.free - self.compute - max(MARGIN_LEAST, int(self.free * MARGIN_SHARE)))


@dataclass(frozen=True)
class Plan:
    """Layers to put on devices (the output counts as one) and each device's share."""

    layers: int
    split: tuple[float, ...]


def layer_costs(header: ModelHeader, options: ModelOptions) -> LayerCosts:
    """From the headers of the model's files; a weight that is overridden to main memory costs a device nothing. Of
    several overrides the first that matches counts, as in the library."""
    n = header.layers
    weights, output, embedding, pinned = [0] * n, 0, 0, dict[str, int]()
    overrides = [(re.compile(pattern), device.upper()) for pattern, device in options.placement.overrides]
    for tensor in itertools.chain.from_iterable(read_gguf(path).tensors for path in header.parts):
        size = tensor.n_bytes or 0
        device = next((device for pattern, device in overrides if pattern.search(tensor.name)), None)
        if device is not None:
            pinned[device] = pinned.get(device, 0) + size
            continue
        block = re.match(r"blk\.(\d+)\.", tensor.name)
        if block is not None and int(block[1]) < n:
            weights[int(block[1])] += size
        elif tensor.name == "token_embd.weight":
            embedding = size  # the library keeps it in main memory, or a second time if it is the output matrix too
        elif tensor.name != LOOKED_UP:  # which stays in main memory, too
            output += size
    if not any(t.name == "output.weight" for part in header.parts for t in read_gguf(part).tensors):
        output += embedding
    return LayerCosts(tuple(weights), _cache(header, options, n), output, pinned)


def _cache(header: ModelHeader, options: ModelOptions, n: int) -> tuple[int, ...]:
    if not options.placement.kv_offload:
        return (0,) * n
    need = needed(header, options)
    # Cells for padding, and for what exact requests freed, beside those of the slots.
    total = need.kv_cache + need.states + need.kv_cache // (8 if options.exact else 32)
    shares = layer_elements(header, options, need.ctx) if not need.states else ()
    if sum(shares):
        return tuple(total * share // sum(shares) for share in (*shares, *[0] * n)[:n])
    return (-(-total // n),) * n if n else ()


def assign(count: int, layers: int, split: Sequence[float]) -> list[int | None]:
    """The device of each of `count` layers if `layers` of them are on devices; None: main memory."""
    edges = list(itertools.accumulate(split))
    start = max(0, count - layers)
    return [
        None if il < start else min(len(split) - 1, bisect.bisect_right(edges, (il - start) / layers * edges[-1]))
        for il in range(count)
    ]


def plan_layers(costs: LayerCosts, rooms: Sequence[Room], split: Sequence[float] = (), reserved: int = 0) -> Plan:
    """As many layers as fit.

    Args:
        costs: of the model.
        rooms: the devices, in the order the library uses them.
        split: their shares; () = by what they have left for layers.
        reserved: bytes that others (draft models) will want; taken from each device by its share.
    """
    left = [room.for_layers for room in rooms]
    reserve = [reserved * room // max(1, sum(left)) for room in left]
    left = [max(0, room - kept) for room, kept in zip(left, reserve)]
    shares = tuple(float(s) for s in (*split, *[0.0] * len(left))[: len(left)]) if split else tuple(map(float, left))
    if not left or not any(shares):
        return Plan(0, shares)
    for layers in range(costs.count, 0, -1):
        for candidate in _splits(costs, layers, left, shares, bool(split)):
            if _fits(costs, layers, left, candidate):
                return Plan(layers, candidate)
    return Plan(0, shares)


def _splits(
    costs: LayerCosts, layers: int, left: Sequence[int], shares: tuple[float, ...], given: bool
) -> list[tuple[float, ...]]:
    """Shares to try: those given; else by room, and whole layers filled in from the first device on."""
    if given or len(left) == 1:
        return [shares]
    counts, device, used = [0] * len(left), 0, 0
    for il in range(costs.count - layers, costs.count):
        while device < len(left) - 1 and used + costs.of(il) > left[device]:
            device, used = device + 1, 0
        counts[device] += 1
        used += costs.of(il)
    return [shares, tuple(map(float, counts))]


def _fits(costs: LayerCosts, layers: int, left: Sequence[int], split: Sequence[float]) -> bool:
    used = [0] * len(left)
    for il, device in enumerate(assign(costs.count, layers, split)):
        if device is not None:
            used[device] += costs.of(il)
    return all(u <= room for u, room in zip(used, left))


def fewer(layers: int, count: int) -> int | None:
    """What to try after `layers` of `count` (-1 = all) did not fit: a quarter less; None after none."""
    now = count if layers < 0 else min(layers, count)
    return None if now == 0 else min(now - 1, now * 3 // 4)
