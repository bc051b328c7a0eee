"""Which way of computing attention is faster here: the library's fused kernel (flash attention) or matrix products.

The fused kernel goes over the cache anew for every row. On many CPUs a wide step, and speculation is made of those,
then takes several times as long over its attention as with matrix products, which read the cache once for all rows; on
other CPUs there is no difference, and GPUs have better kernels. So a CPU is asked, by means of a model of a few layers
with the heads of the model in question and next to nothing else: a second shows what would drown in the other work of
the model itself, however large that is.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Sequence

import numpy as np

from lcspec import disk_cache
from lcspec.config import QUANTIZED, ModelOptions
from lcspec.errors import LcspecError
from lcspec.kv_cache.prompt_reader import converted
from lcspec.llama import Context, Model, build, can_go_row_by_row, functions_switched, version
from lcspec.modelfiles.attention_layers import Heads, write_layers
from lcspec.modelfiles.kv_shape import kv_shape
from lcspec.modelfiles.memory import machine_memory, needed
from lcspec.modelfiles.windows import PRODUCT_ROWS
from lcspec.profiles.steadiness import Presence

if TYPE_CHECKING:
    from lcspec.modelfiles.modelfile import ModelHeader

# The answer that is timed: a piece of a prompt, then steps of these widths, at so many tokens of a text.
CONTEXT = 1024
PIECE = 256
WIDTHS = (1, 2, 4)
STEPS = 64
# A piece is read so many times; steps are taken so many times, or for so many seconds, the least number apart.
READS = 2
REPEAT, LEAST_REPEAT, ENOUGH = 7, 3, 1.5
# Layers of the model that is timed, where heads are small: what a decode takes besides then weighs little. Larger heads
# get fewer, so that the measurement is short.
LAYERS = 8
SMALL = 512  # numbers in the queries of a token
# Slots beyond these are not filled, for the same reason.
MOST_SLOTS = 8
# Bytes written before a decode that is timed, as a model's weights pass through the caches between two layers.
OTHER = 64 << 20
# Matrix products must save this share of the time: they need more memory.
WORTH = 0.05
# Memory that their scores may take, as a share of the machine's.
SCORES_SHARE = 1 / 8


class Layer(NamedTuple):
    """Seconds of one layer's attention, `slots` of them at most MOST_SLOTS.

    Attributes:
        read: reading PIECE tokens behind CONTEXT - PIECE others.
        steps: of each of WIDTHS, while a single text runs.
        crowd: a step with one row for every slot, while all of them have a text.
        slots: how many.
    """

    read: float
    steps: tuple[float, ...]
    crowd: float
    slots: int

    @property
    def answer(self) -> float:
        """Seconds of the answer that is timed: a server's user is alone half of the time."""
        alone, shared = statistics.fmean(self.steps), self.crowd / self.slots
        return self.read + STEPS * (alone if self.slots == 1 else (alone + shared) / 2)


class Times(NamedTuple):
    """A layer with the fused kernel, with matrix products, and with the two ways that are exact: the fused kernel and
    values in BF16, and, where the library can, products row by row with a cache for every slot.
    """

    fused: Layer
    products: Layer
    exact: Layer
    rows: Layer | None = None

    @property
    def alone(self) -> Times:
        """Those of one slot."""
        ways = [way and way._replace(crowd=way.steps[0], slots=1) for way in self]
        return Times(*ways)  # type: ignore[arg-type]

    @property
    def fastest(self) -> Layer:
        """What is taken where nobody asks for exactness."""
        return self.products if self.fused_is_slower else self.fused

    @property
    def fused_is_slower(self) -> bool:
        """Whether matrix products are worth their memory."""
        return self.products.answer < (1 - WORTH) * self.fused.answer


def with_attention(model: Model, options: ModelOptions) -> ModelOptions:
    """`options` with a decision: `attention` is not "measured" any more."""
    if options.attention != "measured":
        return options
    times = times_for(model, options)
    return replace(options, attention="products" if times is not None and times.fused_is_slower else "library")


def times_for(model: Model, options: ModelOptions) -> Times | None:
    """Both ways' times for a model, measured once a machine and shape of heads.

    None where the library decides: where layers are on a GPU, where the cache is quantized or scores would take much
    memory, for models whose layers are not alike, and where nothing can be measured.
    """
    heads, traits = heads_of(model.header), model.traits
    # Where layers have a sliding window only the fused kernel passes over what lies behind it.
    alike = traits.attention_only and not traits.n_swa
    quantized = options.kv_type in QUANTIZED or options.kv_type_v in QUANTIZED
    if heads is None or not alike or model.gpu_layers != 0 or quantized:
        return None
    return _known(heads, options) if _has_room(heads, model, options) else None


def heads_of(header: ModelHeader) -> Heads | None:
    """The heads of a model whose layers are all alike and store keys and values as they are; else None."""
    shape = kv_shape(header)
    if shape is None or len(set(shape.queries)) != 1 or len(set(shape.keys)) != 1:
        return None
    heads = Heads(shape.queries[0], shape.keys[0], shape.key_length, shape.value_length)
    return heads if min(heads) > 0 and heads.key_length % 2 == 0 and heads.queries % heads.keys == 0 else None


class Found(NamedTuple):
    """What was measured, of every way in the order of Times: [read, *steps], and [crowd]."""

    texts: list[list[float]]
    crowds: list[list[float]]


def measure(heads: Heads, options: ModelOptions, presence: Presence, texts: list[list[float]] | None = None) -> Found:
    """Time all ways with `options`' threads, cache type and slots; `presence` watches.

    `texts`: `Found.texts` if it is known: what a single text takes does not depend on the slots.

    Raises:
        LcspecError: the library refuses the model or runs out of memory.
        OSError: there is no room for a temporary file.
        ValueError: the library's format of states is not known.
    """
    slots = min(options.slots, MOST_SLOTS)
    layers = max(1, min(LAYERS, LAYERS * SMALL // (heads.queries * heads.key_length)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heads.gguf"
        write_layers(path, heads, layers)
        small = ModelOptions(
            path,
            ctx=CONTEXT + max(WIDTHS),
            slots=slots,
            threads=options.threads,
            gpu_layers=0,
            kv_type=options.kv_type,
            batch=PIECE,
            max_width=max(*WIDTHS, MOST_SLOTS),
        )
        with contextlib.ExitStack() as stack:
            model = stack.enter_context(Model.load(small))
            fused, products = replace(small, attention="fused"), replace(small, attention="products")
            ways = [fused, products, replace(fused, kv_type_v="bf16")]
            if can_go_row_by_row():
                ways.append(replace(small, attention="rows", streams=slots > 1))
            contexts = [stack.enter_context(Context(model, way)) for way in ways]
            _fill(contexts, presence)
            if texts is None:
                # Exact prompts are read with F16 values; a single row takes the same code row by row.
                reading = [_read(context, presence) for i, context in enumerate(contexts) if i != 2]
                steps = _in_turn(contexts, [[0] * width for width in WIDTHS], presence)
                for own in steps[3:]:
                    own[0] = steps[1][0] = min(own[0], steps[1][0])
                reads = (*reading[:2], reading[0], *reading[2:])
                texts = [[s / layers for s in (read, *own)] for read, own in zip(reads, steps)]
            if slots == 1:
                return Found(texts, [row[1:2] for row in texts])
            for context in contexts:
                state = context.memory.state(0)
                for seq in range(1, slots):
                    context.memory.set_state(seq, state)
            crowds = _in_turn(contexts, [list(range(slots))], presence)
            return Found(texts, [[crowd / layers] for (crowd,) in crowds])


def _known(heads: Heads, options: ModelOptions) -> Times | None:
    """The stored times, or new ones, which are stored; None if there is no way to measure."""
    slots = min(options.slots, MOST_SLOTS)
    about = CONTEXT, heads, options.threads, options.kv_type, functions_switched(), version(), build()
    text, crowd = (disk_cache.key_of("attention of texts", n, *about) for n in (1, slots))
    texts = _table(disk_cache.load("attention", text), 1 + len(WIDTHS))
    crowds = [row[1:2] for row in texts or ()] if slots == 1 else _table(disk_cache.load("attention", crowd), 1)
    if texts is None or crowds is None or len(crowds) != len(texts):
        presence = Presence()
        try:
            found = measure(heads, options, presence, texts)
        except (LcspecError, OSError, ValueError):  # ValueError: the library's format of states is not known
            return None
        texts = texts or _kept(text, found.texts, presence)
        crowds = _kept(crowd, found.crowds, presence) if slots > 1 else [row[1:2] for row in texts]
    return Times(*(Layer(row[0], tuple(row[1:]), together[0], slots) for row, together in zip(texts, crowds)))


def _kept(key: str, found: list[list[float]], presence: Presence) -> list[list[float]]:
    """What was found, which is stored; or what another process has stored meanwhile, as both should decide alike."""
    stored = _table(disk_cache.load("attention", key), len(found[0]))
    if stored is not None:
        return stored
    disk_cache.save("attention", key, found, presence.lasts)
    return found


def _table(data: object, columns: int) -> list[list[float]] | None:
    """Stored rows, one for each way; None if they are not that."""
    if not isinstance(data, list) or len(data) not in (3, 4) or not all(isinstance(row, list) for row in data):
        return None
    if not all(len(row) == columns and all(isinstance(s, float) and s > 0 for s in row) for row in data):
        return None
    return data


def _has_room(heads: Heads, model: Model, options: ModelOptions) -> bool:
    """Whether the scores of all heads for the rows evaluated at a time (float32) fit beside everything else."""
    memory, need = machine_memory(), needed(model.header, options)
    scores = 4 * heads.queries * PRODUCT_ROWS * need.slots * need.ctx
    return memory is None or scores <= SCORES_SHARE * memory.total


def _fill(contexts: Sequence[Context], presence: Presence) -> None:
    """Have all contexts hold the text: read once for each format of states."""
    for like, context in zip((None, None, 0, 1), contexts):
        if like is not None:
            state = contexts[like].memory.state(0)
            if context.options.kv_type == "f16" and context.options.kv_type_v == "bf16":
                state = converted(state, 0, 0, "bf16")
            if context.memory.set_state(0, state):
                continue
        for start in range(0, CONTEXT, PIECE):
            _decode(context, [(0, start + i) for i in range(PIECE)], presence)


def _read(context: Context, presence: Presence) -> float:
    """Seconds of reading the text's last piece, the shortest of READS."""
    found = []
    for _ in range(READS):
        context.memory.remove(0, CONTEXT - PIECE)
        found.append(_decode(context, [(0, CONTEXT - PIECE + i) for i in range(PIECE)], presence))
    return min(found)


def _in_turn(contexts: Sequence[Context], steps: Sequence[Sequence[int]], presence: Presence) -> list[list[float]]:
    """Seconds of steps in every context, each given as the sequences of its rows; rows are taken back.

    Whatever else runs on the machine only ever makes a decode take longer, so the shortest time is the truest. The
    contexts take turns, so that a busy moment does not fall on one of them. The first of two decodes builds the graph.
    """
    found: list[list[list[float]]] = [[[] for _ in steps] for _ in contexts]
    other = np.empty(OTHER, dtype=np.uint8)
    start = time.perf_counter()
    for turn in range(REPEAT):
        if turn >= LEAST_REPEAT and time.perf_counter() - start > ENOUGH:
            break
        for i, rows in enumerate(steps):
            for context, times in zip(contexts, found):
                for again in range(2):
                    if again:
                        other.fill(0)
                    rows_at = [(seq, CONTEXT + rows[:n].count(seq)) for n, seq in enumerate(rows)]
                    seconds = _decode(context, rows_at, presence)
                    for seq in set(rows):
                        context.memory.remove(seq, CONTEXT)
                times[i].append(seconds)
    return [[min(some) for some in times] for times in found]


def _decode(context: Context, rows: Sequence[tuple[int, int]], presence: Presence) -> float:
    """Seconds of decoding a row for each (sequence, position)."""
    context.batch.clear()
    for seq, position in rows:
        context.batch.add(3 + position * 97 % 256, position, (seq,), logits=len(rows) < PIECE)
    with presence.watched(context.n_threads):
        return context.decode()
