"""Which cache types and attention a context gets: the fastest, or those under which every request is exact.

Exact are K in F16, V in BF16 and the fused kernel: with unequal types the library neither splits the keys of a single
row nor tiles many rows, so a row is summed in the same order whatever else is in the batch (ggml-cpu,
ggml_compute_forward_flash_attn_ext_f16). That is certified where it runs (certification.py), and taken by itself
where it costs next to nothing.
"""

from __future__ import annotations

import contextlib
import operator
import statistics
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lcspec import disk_cache
from lcspec.config import ModelOptions
from lcspec.errors import LcspecError
from lcspec.kv_cache.prompt_reader import LEAST_ROWS
from lcspec.llama import Context, Model, build, version
from lcspec.profiles.attention import PIECE, WIDTHS, Layer, times_for, with_attention
from lcspec.profiles.certification import CHECKED_CONTEXT, CHECKED_ROWS, CHECKED_STEPS, certified, independence_of
from lcspec.profiles.exactness import Certificate
from lcspec.profiles.step_cost import adapter_key, sample_tokens

# What exactness may cost by itself: shares of a decode step's time, and of the time to a long prompt's first token.
MOST_DECODE, MOST_FIRST = 0.03, 0.10
# Seconds that certifying may take unasked; `lcspec verify` and `--exact` take longer.
LONGEST_CHECK = 20.0
REPEAT = 3


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
    exact = _exact(options)
    if _can_be_exact(model, options):
        wanted = options.exact is True or _price_is_small(model, options)
        certificate = independence_of(model, exact) if wanted else None
        if certificate is not None and certificate.independent:
            return Kernels(exact, certificate)
    if options.exact:
        return Kernels(replace(options, attention="library", exact=True))
    return Kernels(replace(with_attention(model, options), exact=False))


def price(model: Model, options: ModelOptions) -> Price | None:
    """What exactness costs a model, from its attention and its other work, each measured once; None: not known."""
    times = times_for(model, options)
    work = _work(model, options) if times is not None else None
    if times is None or work is None:
        return None
    layers = model.traits.n_layer
    fastest = times.products if times.fused_is_slower else times.fused

    def alone(layer: Layer) -> list[float]:
        return [work[width] + layers * seconds for width, seconds in zip(WIDTHS, layer.steps)]

    def crowd(layer: Layer) -> float:
        return float(np.interp(layer.slots, list(work), list(work.values()))) + layers * layer.crowd

    one = statistics.fmean(map(operator.truediv, alone(times.exact), alone(fastest)))
    decode = max(one, crowd(times.exact) / crowd(fastest))
    reading = work[LEAST_ROWS] / LEAST_ROWS * PIECE
    first = (reading + layers * times.fused.read) / (reading + layers * fastest.read)
    known = certified(model, _exact(options)) is not None
    rows = CHECKED_ROWS * work[LEAST_ROWS] / LEAST_ROWS + CHECKED_STEPS * work[WIDTHS[-1]]
    return Price(decode, first, 0.0 if known else rows)


def _price_is_small(model: Model, options: ModelOptions) -> bool:
    found = price(model, options)
    return found is not None and found.is_small


def _is_open(options: ModelOptions) -> bool:
    """Whether nobody asked for other types or another attention."""
    return options.attention == "measured" and options.kv_type == "f16" and options.kv_type_v is None


def _exact(options: ModelOptions) -> ModelOptions:
    value = "bf16" if options.kv_type == "f16" else options.kv_type
    return replace(options, attention="fused", kv_type_v=value, exact=True)


def _can_be_exact(model: Model, options: ModelOptions) -> bool:
    """Whether its memory is cells in order: no recurrent state, no window that cells fall out of; and on the CPU.

    It must know as many positions as the check looks at: with learned ones the library ends the process beyond them.
    """
    traits = model.traits
    in_order = traits.attention_only and not traits.n_swa and model.gpu_layers == 0
    return in_order and traits.n_ctx_train >= CHECKED_CONTEXT


def _work(model: Model, options: ModelOptions) -> dict[int, float] | None:
    """Seconds of decodes of some widths with hardly any context, by width; None if they cannot be measured."""
    file, adapters = disk_cache.file_identity(options.path), adapter_key(options)
    key = disk_cache.key_of("work", file, options.threads, options.repack, version(), build(), *adapters)
    widths = (*WIDTHS, LEAST_ROWS)
    stored = disk_cache.load("work", key)
    if isinstance(stored, list) and len(stored) == len(widths) and all(isinstance(s, float) and s > 0 for s in stored):
        return dict(zip(widths, stored))
    with contextlib.suppress(LcspecError):
        small = replace(options, ctx=2 * LEAST_ROWS, slots=1, batch=LEAST_ROWS, attention="fused")
        with Context(model, small) as context:
            if context.memory is None:  # an encoder
                return None
            tokens = sample_tokens(context, LEAST_ROWS)
            # The shortest: the first decode reads the file, and other programs only ever make one take longer.
            seconds = [min(_decode(context, tokens[:n]) for _ in range(REPEAT)) for n in widths]
        disk_cache.save("work", key, seconds)
        return dict(zip(widths, seconds))
    return None


def _decode(context: Context, tokens: list[int]) -> float:
    context.batch.clear()
    for i, token in enumerate(tokens):
        context.batch.add(token, i, (0,), logits=i + 1 == len(tokens) or len(tokens) < LEAST_ROWS)
    seconds = context.decode()
    context.seq_remove(0, 0)
    return seconds
