"""What exactness costs a model on this machine: estimated from a layer's attention and from all its other work, each
measured once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import NamedTuple, Sequence

import numpy as np

from lcspec import disk_cache
from lcspec.config import BY_ROWS, ModelOptions
from lcspec.errors import LcspecError
from lcspec.kv_cache.prompt_reader import EVERY_PROMPT, LEAST_ROWS, LONG_PROMPT, UNNOTICED
from lcspec.llama import Context, Model, build, functions_switched, version
from lcspec.profiles.attention import PIECE, WIDTHS, Layer, Times, times_for
from lcspec.profiles.independence import CHECKED_ROWS, CHECKED_STEPS, certified, slice_of
from lcspec.profiles.steadiness import Presence
from lcspec.profiles.step_cost import adapter_key, sample_tokens

# What exactness may cost by itself: shares of a decode step's time (3 %, and what the estimate errs by), and of the
# time to a prompt's first token.
MOST_DECODE, MOST_FIRST = 0.05, 0.10
# Seconds that certifying may take unasked; `lcspec verify` and `--exact` take longer.
LONGEST_CHECK = 20.0
# Decodes are timed so many times, or for so many seconds: long ones are disturbed less.
REPEAT, ENOUGH = 5, 1.5
# How often a step has each of WIDTHS: the wider, the rarer.
FREQUENCY = tuple(1 / width for width in WIDTHS)

# Seconds of decodes by their width.
Work = dict[int, float]


class Price(NamedTuple):
    """What exactness costs.

    Attributes:
        alone, crowd: a decode step's time over that of the fastest context, for a single text, and for all slots.
        first: the same of the time to a prompt's first token.
        beyond: prompts of more tokens are read apart (see lcspec.kv_cache.prompt_reader); None: none are. EVERY_PROMPT:
            all are, and answers stay as they were decoded.
        check: seconds that certifying it takes, once.
    """

    alone: float
    crowd: float
    first: float
    beyond: int | None
    check: float

    @property
    def decode(self) -> float:
        """The larger one of `alone` and `crowd`."""
        return max(self.alone, self.crowd)

    @property
    def keeps_answers(self) -> bool:
        """Whether prompts are read apart in pieces of any size, and answers stay as they were decoded."""
        return self.beyond == EVERY_PROMPT

    @property
    def is_small(self) -> bool:
        """Whether exactness is worth it without being asked for."""
        return self.decode <= 1 + MOST_DECODE and self.first <= 1 + MOST_FIRST and self.check <= LONGEST_CHECK


@dataclass(frozen=True)
class _Measured:
    """What a model's decodes take: `layers` times a layer's attention, and all other work (`usual`, with the kernels
    that are not exact).
    """

    layers: int
    times: Times
    usual: Work

    def dearer(self, work: Work, layer: Layer) -> tuple[float, float]:
        """`Price.alone` and `crowd` of decodes that take these."""

        def steps(work: Work, layer: Layer) -> list[float]:
            return [work[width] + self.layers * seconds for width, seconds in zip(WIDTHS, layer.steps)]

        def crowd(work: Work, layer: Layer) -> float:
            return float(np.interp(layer.slots, list(work), list(work.values()))) + self.layers * layer.crowd

        ratios = np.divide(steps(work, layer), steps(self.usual, self.times.alone.fastest))
        alone = float(np.average(ratios, weights=FREQUENCY))
        return alone, alone if layer.slots == 1 else crowd(work, layer) / crowd(self.usual, self.times.fastest)

    def slower(self, work: Work, layer: Layer) -> float:
        """The same of reading a piece of a long prompt."""

        def reading(work: Work, layer: Layer) -> float:
            return work[LEAST_ROWS] / LEAST_ROWS * PIECE + self.layers * layer.read

        # Texts of several slots are those of one, so what one takes decides how prompts are read.
        return reading(work, layer) / reading(self.usual, self.times.alone.fastest)


def prices(
    model: Model, options: ModelOptions, ways: Sequence[ModelOptions]
) -> Sequence[tuple[ModelOptions, Price | None]]:
    """Exact ways and what each costs a model; None: not known."""
    if not ways:
        return []
    times, kinds = times_for(model, options), {way.attention for way in ways}
    if times is None:  # heads that are not alike, or layers without any: fused attention is all there is
        work = _work(model, options, ("fused", "fused_rows")) if "fused_rows" in kinds else None
        return [
            (way, _of_work(model, way, work, bool(options.exact)) if way.attention == "fused_rows" else None)
            for way in ways
        ]
    work = _work(model, options, ("fused", "products", "rows") if kinds & set(BY_ROWS) else ("fused",))
    if work is None or ("rows" in kinds and times.rows is None):
        return [(way, None) for way in ways]
    measured = _Measured(model.traits.n_layer, times, work["fused"])
    by_rows = usual = work["fused"]
    if "rows" in work:  # a single row takes the same code either way
        by_rows = {n: s * (work["rows"][n] / work["products"][n] if n > 1 else 1.0) for n, s in usual.items()}

    def price(way: ModelOptions) -> Price:
        work = by_rows if way.attention in BY_ROWS else usual
        if times.rows is not None and way.attention == "rows":
            layer, reading = times.rows, _reading_by_rows(measured, work, times.rows, strict=bool(options.exact))
        elif way.attention == "fused_rows":  # that the kernel sums each row by itself costs nothing
            layer, reading = times.fused, _reading_apart(usual, work, measured.slower(usual, times.fused))
        else:
            layer, reading = times.exact, _reading_fused(measured, way)
        return Price(*measured.dearer(work, layer), *reading, _check(model, way, work, reading[1]))

    return [(way, price(way)) for way in ways]


def read_apart(model: Model, way: ModelOptions) -> int | None:
    """`Price.beyond` where the price is not known."""
    return LONG_PROMPT if way.attention in BY_ROWS or way.kv_type_v == "bf16" else None


def _of_work(model: Model, way: ModelOptions, work: dict[str, Work] | None, strict: bool) -> Price | None:
    """What going row by row costs with the fused kernel, which is the fastest there is for this model."""
    if work is None:
        return None
    usual = work["fused"]
    by_rows = {**work["fused_rows"], 1: usual[1]}  # a single row takes the same code either way
    dearer = float(np.average([by_rows[n] / usual[n] for n in WIDTHS], weights=FREQUENCY))
    first, beyond = _reading_apart(usual, by_rows, 1.0, keeps=not strict)
    return Price(dearer, dearer, first, beyond, _check(model, way, by_rows, beyond))


def _check(model: Model, way: ModelOptions, work: Work, beyond: int | None) -> float:
    """Seconds that certifying a way takes. A part of a model reads prompts sooner, but is asked for more rows."""
    if certified(model, way, beyond == EVERY_PROMPT) is not None:
        return 0.0
    share = found.share if (found := slice_of(model, way)) is not None else 1.0
    return share * CHECKED_ROWS * work[LEAST_ROWS] / LEAST_ROWS + CHECKED_STEPS * work[WIDTHS[-1]]


def _reading_apart(usual: Work, work: Work, apart: float, keeps: bool = False) -> tuple[float, int | None]:
    """`Price.first` and `beyond` where long prompts are read apart, at `apart` of the usual time. `keeps`: answers may
    stay as they were decoded."""
    short = work[LEAST_ROWS] / usual[LEAST_ROWS]
    if usual[LEAST_ROWS] > UNNOTICED:  # see _reading_by_rows
        noticed = short > 1 + MOST_FIRST
        return (apart, EVERY_PROMPT) if keeps and noticed else (max(short, apart), None)
    return (max(short, apart), LONG_PROMPT) if short <= 1 + MOST_FIRST else (apart, LEAST_ROWS)


def _reading_fused(measured: _Measured, way: ModelOptions) -> tuple[float, int | None]:
    """`Price.first` and `beyond` where long prompts are read with F16 values and the fused kernel."""
    first = measured.slower(measured.usual, measured.times.fused)
    return first, LONG_PROMPT if way.kv_type_v == "bf16" else None


def _reading_by_rows(measured: _Measured, work: Work, rows: Layer, strict: bool) -> tuple[float, int | None]:
    """The same where products are made row by row: prompts are read apart where that is noticed.

    Of a prompt that is read apart, the answers in it are read as well, and a slow model does not: then they stay as
    they were decoded, or (`strict`) no prompt is read apart.
    """
    short, long = work[LEAST_ROWS] / measured.usual[LEAST_ROWS], measured.slower(work, rows)
    slow = measured.usual[LEAST_ROWS] > UNNOTICED
    if max(short, long) <= 1 + MOST_FIRST or (slow and strict):
        return max(short, long), None
    apart = measured.slower(measured.usual, measured.times.products)
    if slow:
        return apart, EVERY_PROMPT
    return (max(short, apart), LONG_PROMPT) if short <= 1 + MOST_FIRST else (apart, LEAST_ROWS)


def _work(model: Model, options: ModelOptions, kinds: Sequence[str]) -> dict[str, Work] | None:
    """What decodes take with hardly any context, by attention; None if that cannot be measured."""
    file, adapters = disk_cache.file_identity(options.path), adapter_key(options)
    about = options.threads, options.repack, kinds, functions_switched(), version(), build()
    key = disk_cache.key_of("steady work", file, *about, *adapters)
    widths = (*WIDTHS, LEAST_ROWS)
    work = _work_of(disk_cache.load("work", key), kinds, widths)
    if work is None:
        presence = Presence()
        with contextlib.suppress(LcspecError):
            found = _measured_work(model, options, kinds, widths, presence)
            work = _work_of(disk_cache.load("work", key), kinds, widths)  # another process may have been faster
            if work is None:
                disk_cache.save("work", key, found, presence.lasts)
            work = work or _work_of(found, kinds, widths)
    return work


def _measured_work(
    model: Model, options: ModelOptions, kinds: Sequence[str], widths: Sequence[int], presence: Presence
) -> list[list[float]] | None:
    """Seconds of a decode, for each kind of attention and width; None for an encoder. `presence` watches.

    Raises:
        LcspecError: the library refuses.
    """
    small = replace(options, ctx=2 * LEAST_ROWS, slots=1, batch=LEAST_ROWS, kv_type_v=None)
    with contextlib.ExitStack() as stack:
        contexts = [stack.enter_context(Context(model, replace(small, attention=kind))) for kind in kinds]
        if not contexts[0].memory.exists:
            return None
        tokens = sample_tokens(contexts[0], LEAST_ROWS)
        _decode(contexts[0], tokens[:1])  # reads the file
        rounds: list[list[list[float]]] = []

        def timed(context: Context, n: int) -> float:
            if n == 1:
                _decode(context, tokens[:1])  # as for Meter.time
            with presence.watched(context.n_threads):
                return _decode(context, tokens[:n])

        while len(rounds) < REPEAT and np.sum(rounds) < ENOUGH:
            rounds.append([[timed(context, n) for context in contexts] for n in widths])
        # The shortest: other programs only ever make a decode take longer.
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
    context.memory.remove(0, 0)
    return seconds
