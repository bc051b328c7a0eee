"""Which way of computing attention is faster here: the library's fused kernel (flash attention) or matrix products.

The fused kernel goes over the cache anew for every row. On many CPUs a wide step, and speculation is made of those,
then takes several times as long over its attention as with matrix products, which read the cache once for all rows; on
other CPUs there is no difference, and GPUs have better kernels. So a CPU is asked, by means of a model of one layer
with the heads of the model in question and next to nothing else: a fraction of a second shows what would drown in the
other work of the model itself, however large that is.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lcspec import disk_cache
from lcspec.config import QUANTIZED, ModelOptions
from lcspec.errors import LcspecError
from lcspec.llama import Context, Model, build, version
from lcspec.modelfiles.kv_shape import kv_shape
from lcspec.modelfiles.memory import machine_memory, needed
from lcspec.modelfiles.one_layer import Heads, write_layer
from lcspec.modelfiles.windows import PRODUCT_ROWS

if TYPE_CHECKING:
    from lcspec.modelfiles.modelfile import ModelHeader

# The answer that is timed: a piece of a prompt, then steps of these widths in turn, at so many tokens a slot.
CONTEXT = 512
PIECE = 256
WIDTHS = (1, 4, 16)
STEPS = 64
REPEAT = 5
# Slots beyond these are not filled: the measurement is to be short.
MOST_SLOTS = 4
# Matrix products must save this share of the time: they need more memory.
WORTH = 0.05
# Memory that their scores may take, as a share of the machine's.
SCORES_SHARE = 1 / 8


class Layer(NamedTuple):
    """Seconds of one layer's attention: reading PIECE tokens behind as many others, and steps of each of WIDTHS."""

    read: float
    steps: tuple[float, ...]

    @property
    def answer(self) -> float:
        """Seconds of the answer that is timed."""
        return self.read + STEPS * statistics.fmean(self.steps)


class Times(NamedTuple):
    """A layer with the fused kernel, with matrix products, and with the fused kernel and values in BF16 (exact)."""

    fused: Layer
    products: Layer
    exact: Layer

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


def measure(heads: Heads, options: ModelOptions) -> Times:
    """Time both ways with `options`' threads, cache type and slots.

    Raises:
        LcspecError: the library refuses the model or runs out of memory.
        OSError: there is no room for a temporary file.
    """
    slots = min(options.slots, MOST_SLOTS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heads.gguf"
        write_layer(path, heads)
        small = ModelOptions(
            path,
            ctx=CONTEXT + PIECE,
            slots=slots,
            threads=options.threads,
            gpu_layers=0,
            kv_type=options.kv_type,
            batch=PIECE,
            max_width=max(WIDTHS),
        )
        with contextlib.ExitStack() as stack:
            model = stack.enter_context(Model.load(small))
            contexts = [
                stack.enter_context(Context(model, replace(small, attention=attention, kv_type_v=values)))
                for attention, values in (("fused", None), ("products", None), ("fused", "bf16"))
            ]
            for context in contexts:
                _fill(context, slots)
            reading: dict[int, list[float]] = {}
            steps: dict[tuple[int, int], list[float]] = {}
            for _ in range(REPEAT):  # in turn, so that a busy moment does not fall on one of them
                for i, context in enumerate(contexts):
                    reading.setdefault(i, []).append(_read(context, slots - 1))
                for width in WIDTHS:
                    for i, context in enumerate(contexts):
                        steps.setdefault((i, width), []).append(_step(context, width, slots - 1))
    # Whatever else runs on the machine only ever makes a decode take longer, so the shortest time is the truest.
    return Times(*(Layer(min(reading[i]), tuple(min(steps[i, width]) for width in WIDTHS)) for i in range(3)))


def _known(heads: Heads, options: ModelOptions) -> Times | None:
    """The stored times, or new ones; None if there is no way to measure."""
    slots = min(options.slots, MOST_SLOTS)
    key = disk_cache.key_of("attention", heads, options.threads, options.kv_type, slots, version(), build())
    stored = _from_list(disk_cache.load("attention", key))
    if stored is not None:
        return stored
    try:
        times = measure(heads, options)
    except (LcspecError, OSError):
        return None
    disk_cache.save("attention", key, [[layer.read, *layer.steps] for layer in times])
    return times


def _from_list(data: object) -> Times | None:
    """Stored times; None if they are not that."""
    n = len(Times._fields)
    if not isinstance(data, list) or len(data) != n or not all(isinstance(row, list) for row in data):
        return None
    if not all(len(row) == 1 + len(WIDTHS) and all(isinstance(s, float) and s > 0 for s in row) for row in data):
        return None
    return Times(*(Layer(row[0], tuple(row[1:])) for row in data))


def _has_room(heads: Heads, model: Model, options: ModelOptions) -> bool:
    """Whether the scores of all heads for the rows evaluated at a time (float32) fit beside everything else."""
    memory, need = machine_memory(), needed(model.header, options)
    scores = 4 * heads.queries * PRODUCT_ROWS * need.slots * need.ctx
    return memory is None or scores <= SCORES_SHARE * memory.total


def _fill(context: Context, slots: int) -> None:
    """Give every slot its text."""
    for seq in range(slots):
        for start in range(0, CONTEXT, PIECE):
            _decode_piece(context, start, seq)


def _read(context: Context, seq: int) -> float:
    """Seconds of reading the last piece of a text again."""
    context.seq_remove(seq, CONTEXT - PIECE)
    return _decode_piece(context, CONTEXT - PIECE, seq)


def _decode_piece(context: Context, start: int, seq: int) -> float:
    context.batch.clear()
    context.batch.add_run(_tokens(start, PIECE), start, seq)
    return context.decode()


def _step(context: Context, width: int, seq: int) -> float:
    """Seconds of a step of so many rows, which is then taken back."""
    context.batch.clear()
    for i, token in enumerate(_tokens(CONTEXT, width)):
        context.batch.add(token, CONTEXT + i, (seq,), logits=True)
    seconds = context.decode()
    context.seq_remove(seq, CONTEXT)
    return seconds


def _tokens(start: int, n: int) -> list[int]:
    return [3 + (start + i) * 97 % 256 for i in range(n)]
