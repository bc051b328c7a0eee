"""Which cache types and attention a context gets: the fastest, or those under which every request is exact.

There are two exact ways on a CPU:

- K in F16, V in BF16 and the fused kernel: with unequal types the library neither splits the keys of a single row nor
  tiles many rows, so a row is summed in the same order whatever else is in the batch (ggml-cpu,
  ggml_compute_forward_flash_attn_ext_f16).
- Matrix products row by row (lcspec.llama.sgemm), for a single slot whose text lies in the first cells, in order: sums
  run over all cells. So drafts are chains.

Each is certified where it runs (certification.py), and taken by itself where it costs next to nothing.
"""

from __future__ import annotations

import contextlib
import operator
import statistics
from dataclasses import replace
from typing import NamedTuple, Sequence

import numpy as np

from lcspec import disk_cache
from lcspec.config import ModelOptions
from lcspec.errors import LcspecError
from lcspec.kv_cache.prompt_reader import LEAST_ROWS
from lcspec.llama import Context, Model, build, can_go_row_by_row, version
from lcspec.profiles.attention import PIECE, WIDTHS, Layer, times_for, with_attention
from lcspec.profiles.certification import CHECKED_CONTEXT, CHECKED_ROWS, CHECKED_STEPS, certified, independence_of
from lcspec.profiles.exactness import Certificate
from lcspec.profiles.step_cost import adapter_key, sample_tokens

# What exactness may cost by itself: shares of a decode step's time, and of the time to a long prompt's first token.
MOST_DECODE, MOST_FIRST = 0.03, 0.10
# Seconds that certifying may take unasked; `lcspec verify` and `--exact` take longer.
LONGEST_CHECK = 20.0
REPEAT = 5

# Seconds of decodes by their width.
Work = dict[int, float]


class Price(NamedTuple):
    """What exactness costs.

    Attributes:
        decode: a decode step's time over that of the fastest context, for a single text or for all slots together,
            whichever is more.
        first: the same of the time to a long prompt's first token.
        check: seconds that certifying it takes, once.
    """

    decode: float
    first: float
    check: float

    @property
    def is_small(self) -> bool:
        """Whether exactness is worth it without being asked for."""
        return self.decode <= 1 + MOST_DECODE and self.first <= 1 + MOST_FIRST and self.check <= LONGEST_CHECK


class Kernels(NamedTuple):
    """`options` with cache types and attention decided, and `exact` True or False.

    `certificate`: where rows are the same whatever else is in a batch.
    """

    options: ModelOptions
    certificate: Certificate | None = None


def choose_kernels(model: Model, options: ModelOptions) -> Kernels:
    """Decide on cache types and attention.

    `exact` None is decided by what it costs here. Where it is True and this model has no exact types, the library's
    own attention is taken, whose widths fall into classes (see lcspec.profiles.exactness).
    """
    if options.exact is False or (options.exact is None and not _is_open(options)):
        return Kernels(replace(with_attention(model, options), exact=False))
    for exact, found in prices(model, options) if _can_be_exact(model, options) else ():
        wanted = options.exact is True or (found is not None and found.is_small)
        certificate = independence_of(model, exact) if wanted else None
        if certificate is not None and certificate.independent:
            return Kernels(exact, certificate)
    if options.exact:
        return Kernels(replace(options, attention="library", exact=True))
    return Kernels(replace(with_attention(model, options), exact=False))


def prices(model: Model, options: ModelOptions) -> Sequence[tuple[ModelOptions, Price | None]]:
    """The exact ways there are, and what each costs a model: the cheapest first; None: not known.

    A price follows from a layer's attention and all other work, each measured once.
    """
    ways = _exact_ways(options)
    times = times_for(model, options)
    work = _work(model, options, ways) if times is not None else None
    if times is None or work is None:
        return [(way, None) for way in ways]
    layers, usual = model.traits.n_layer, work[0]
    fastest = times.products if times.fused_is_slower else times.fused

    def alone(layer: Layer, work: Work) -> list[float]:
        return [work[width] + layers * seconds for width, seconds in zip(WIDTHS, layer.steps)]

    def crowd(layer: Layer, work: Work) -> float:
        return float(np.interp(layer.slots, list(work), list(work.values()))) + layers * layer.crowd

    def price(way: ModelOptions, layer: Layer, work: Work) -> Price:
        one = statistics.fmean(map(operator.truediv, alone(layer, work), alone(fastest, usual)))
        decode = one if layer.slots == 1 else max(one, crowd(layer, work) / crowd(fastest, usual))
        reading = usual[LEAST_ROWS] / LEAST_ROWS * PIECE
        long = (reading + layers * layer.read) / (reading + layers * fastest.read)
        first = max(long, work[LEAST_ROWS] / usual[LEAST_ROWS])  # short prompts are read as answers are decoded
        rows = CHECKED_ROWS * work[LEAST_ROWS] / LEAST_ROWS + CHECKED_STEPS * work[WIDTHS[-1]]
        return Price(decode, first, 0.0 if certified(model, way) is not None else rows)

    layers_of = [times.rows if way.attention == "rows" and times.rows is not None else times.exact for way in ways]
    return sorted(zip(ways, map(price, ways, layers_of, work[1:])), key=lambda priced: priced[1].decode)


def _is_open(options: ModelOptions) -> bool:
    """Whether nobody asked for other types or another attention."""
    return options.attention == "measured" and options.kv_type == "f16" and options.kv_type_v is None


def _exact_ways(options: ModelOptions) -> list[ModelOptions]:
    value = "bf16" if options.kv_type == "f16" else options.kv_type
    fused = replace(options, attention="fused", kv_type_v=value, exact=True)
    rows = replace(options, attention="rows", exact=True)
    if options.slots > 1 or not can_go_row_by_row():
        return [fused]
    if options.attention == "rows":
        return [rows]
    return [fused, rows] if _is_open(options) else [fused]


def _can_be_exact(model: Model, options: ModelOptions) -> bool:
    """Whether its memory is cells in order: no recurrent state, no window that cells fall out of; and on the CPU.

    It must know as many positions as the check looks at: with learned ones the library ends the process beyond them.
    """
    traits = model.traits
    in_order = traits.attention_only and not traits.n_swa and model.gpu_layers == 0
    return in_order and traits.n_ctx_train >= CHECKED_CONTEXT


def _work(model: Model, options: ModelOptions, ways: Sequence[ModelOptions]) -> list[Work] | None:
    """What decodes take with hardly any context, with the usual kernels and in each of the exact ways; None if that
    cannot be measured.
    """
    file, adapters = disk_cache.file_identity(options.path), adapter_key(options)
    usual, kinds = "fused", sorted({"fused", *(way.attention for way in ways)})
    key = disk_cache.key_of("work", file, options.threads, options.repack, kinds, version(), build(), *adapters)
    widths = (*WIDTHS, LEAST_ROWS)
    work = _work_of(disk_cache.load("work", key), kinds, widths)
    if work is None:
        with contextlib.suppress(LcspecError):
            stored = _measured_work(model, options, kinds, widths)
            disk_cache.save("work", key, stored)
            work = _work_of(stored, kinds, widths)
    return None if work is None else [work[usual], *(work[way.attention] for way in ways)]


def _measured_work(
    model: Model, options: ModelOptions, kinds: Sequence[str], widths: Sequence[int]
) -> list[list[float]] | None:
    """Seconds of a decode, for each kind of attention and width; None for an encoder.

    Raises:
        LcspecError: the library refuses.
    """
    small = replace(options, ctx=2 * LEAST_ROWS, slots=1, batch=LEAST_ROWS, kv_type_v=None)
    with contextlib.ExitStack() as stack:
        contexts = [stack.enter_context(Context(model, replace(small, attention=kind))) for kind in kinds]
        if contexts[0].memory is None:
            return None
        tokens = sample_tokens(contexts[0], LEAST_ROWS)
        # The shortest: the first decode reads the file, and other programs only ever make one take longer.
        rounds = [[[_decode(context, tokens[:n]) for context in contexts] for n in widths] for _ in range(REPEAT)]
        shortest: list[list[float]] = np.min(rounds, axis=0).T.tolist()
        return shortest


def _work_of(stored: object, kinds: Sequence[str], widths: Sequence[int]) -> dict[str, Work] | None:
    """What `_work` stored, by attention; None if it is not that."""
    if not isinstance(stored, list) or len(stored) != len(kinds) or not all(isinstance(row, list) for row in stored):
        return None
    if not all(len(row) == len(widths) and all(isinstance(s, float) and s > 0 for s in row) for row in stored):
        return None
    return {kind: dict(zip(widths, seconds)) for kind, seconds in zip(kinds, stored)}


def _decode(context: Context, tokens: list[int]) -> float:
    context.batch.clear()
    for i, token in enumerate(tokens):
        context.batch.add(token, i, (0,), logits=i + 1 == len(tokens) or len(tokens) < LEAST_ROWS)
    seconds = context.decode()
    context.seq_remove(0, 0)
    return seconds
