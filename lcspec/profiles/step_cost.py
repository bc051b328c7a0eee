"""Measuring T(n) on the context in use, and keeping it between sessions."""

from __future__ import annotations

import math
import statistics
import time
from functools import cache
from pathlib import Path
from typing import Callable, Mapping, Sequence

from lcspec import disk_cache
from lcspec.config import ModelOptions
from lcspec.errors import TokenizeError
from lcspec.llama import Context, build, functions_switched, version
from lcspec.placement import Placement
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.stake import Stake
from lcspec.profiles.steadiness import KEPT_DISTURBED, RETRIES, disturbed, settled

# Widths that are measured one by one, and those beyond them, as far as T(n) stays flat.
EVERY_WIDTH = 32
WIDER = (40, 48, 64, 96, 128, 192, 256)
# T(n) has bent where twice as many rows take this many times as long: from there on a row costs nearly what it costs
# alone.
BENT = 1.5
SHORT_CONTEXT = 32
LONG_CONTEXT = 512
# After so many seconds `lcspec calibrate` begins no further round over the widths.
ENOUGH_SECONDS = 8.0
# Characters that are tokenized for each token of a sample. (In code a token has three to four.)
LONGEST_TOKEN = 16

Progress = Callable[[float], None]


@cache
def _sample_text() -> str:
    return "\n".join(p.read_text(encoding="utf-8") for p in sorted(Path(__file__).parent.glob("*.py"))[:6])


def sample_tokens(context: Context, n: int) -> list[int]:
    """`n` tokens of real text: with one repeated token, a mixture-of-experts model would use too few experts."""
    vocab = context.model.vocab
    try:
        tokens = vocab.tokenize(_sample_text()[: LONGEST_TOKEN * n], special=False)
    except TokenizeError:
        tokens = [t for t in range(vocab.n_tokens) if not vocab.is_end(t)]
    return (tokens * (n // max(1, len(tokens)) + 1))[:n]


class Meter:
    """Decodes real text at chosen widths on a scratch sequence of a context and times it."""

    def __init__(self, context: Context, seq: int, longest: int = LONG_CONTEXT) -> None:
        """Use the empty sequence `seq`, for contexts of up to `longest` tokens."""
        self.context = context
        self.seq = seq
        self.tokens = sample_tokens(context, longest + 64 + WIDER[-1])
        self.length = 0
        self._width = 0  # of the latest decode

    def fill(self, length: int) -> None:
        """Bring the sequence to `length` tokens of context."""
        ctx = self.context
        if length < self.length:
            ctx.memory.remove(self.seq, 0)
            self.length = 0
        while self.length < length:
            stop = min(length, self.length + ctx.options.batch)
            ctx.batch.clear()
            ctx.batch.add_run(self.tokens[self.length : stop], self.length, self.seq)
            ctx.decode()
            self.length, self._width = stop, 0

    def time(self, width: int, offset: int = 0) -> float:
        """Seconds of one decode of `width` tokens with logits for each, which is then taken back.

        The library builds a graph at every change of width. A step with drafts mostly follows a step without them, and
        a step without drafts follows another one. So a width of 1 is decoded once before it is timed, on a GPU three
        times, unless the decode before had this width (see lcspec.profiles.change).
        """
        if width == 1 != self._width:
            for _ in range(3 if self.context.model.gpu_layers else 1):
                self._decode(1, offset)
        self._width = width
        return self._decode(width, offset)

    def _decode(self, width: int, offset: int) -> float:
        ctx = self.context
        ctx.batch.clear()
        for i in range(width):
            token = self.tokens[(self.length + offset + i) % len(self.tokens)]
            ctx.batch.add(token, self.length + i, (self.seq,), logits=True)
        seconds = ctx.decode()
        if not ctx.memory.remove(self.seq, self.length):
            ctx.memory.remove(self.seq, 0)
            self.length = 0
        return seconds

    def close(self) -> None:
        """Remove the scratch sequence's cells."""
        self.context.memory.remove(self.seq, 0)


def measure(
    context: Context,
    seq: int,
    *,
    widths: Sequence[int] = (*range(1, EVERY_WIDTH + 1), *WIDER),
    repeat: int = 3,
    budget: float | None = None,
    enough: float = math.inf,
    progress: Progress | None = None,
) -> CostCurve:
    """Measure T(n) at `widths` and two context lengths, in `repeat` rounds each, fewer once `enough` seconds are spent.

    A round goes over all widths in turn, so that a busy moment does not fall on one width. Widths above EVERY_WIDTH are
    measured until T(n) bends. With a `budget` (seconds), the widest widths are left out when time is short, then the
    second context length; only measured widths are used later. Widths whose figures cannot be right are measured again:
    `CostCurve.retaken` names these, and `unsteady` those whose figures still cannot be right.

    Raises:
        DecodeError: the context cannot take the measurement.
    """
    meter = Meter(context, seq)
    widths = [w for w in widths if w <= min(context.n_batch, context.options.max_width)]
    widest = max(widths, default=1)
    lengths = [SHORT_CONTEXT, min(LONG_CONTEXT, context.n_ctx - widest - 1)]
    lengths = [n for n in lengths if n > 0 and n + widest < context.n_ctx] or [0]
    if not context.model.traits.attention_only:
        lengths = [0]  # its state cannot be taken back to a length, only emptied
    start = time.perf_counter()

    def spent() -> float:
        return time.perf_counter() - start

    samples: dict[tuple[int, int], list[float]] = {}
    retaken: set[int] = set()
    unsteady: set[int] = set()
    stake: Stake | None = None
    total = len(set(lengths)) * len(widths) * repeat
    try:
        for i, length in enumerate(dict.fromkeys(lengths)):
            if budget is not None and length > SHORT_CONTEXT and samples:
                per_token = min(samples[(max(w for w, _ in samples), lengths[0])]) / max(w for w, _ in samples)
                if spent() + per_token * length > budget:
                    break
            meter.fill(length)
            meter.time(1)  # the first decode of all takes longer
            for round_ in range(repeat):
                if round_ > 0 and spent() > enough * (i + 1) / len(set(lengths)):
                    break
                for width in widths:
                    if budget is not None and round_ == 0 and width > 8 and spent() > budget * 0.5:
                        widths = [w for w in widths if w < width]
                        break
                    if budget is not None and round_ > 0 and spent() > budget:
                        break
                    if round_ == 0 and width > EVERY_WIDTH and _bent(samples, width, length):
                        widths = [w for w in widths if w < width]
                        break
                    samples.setdefault((width, length), []).append(meter.time(width, offset=7 * round_))
                    if progress is not None:
                        progress(min(1.0, sum(map(len, samples.values())) / total))
            found, still = _retake(meter, samples, length, math.inf if budget is None else start + 2 * budget)
            retaken.update(found)
            unsteady.update(still)
        if context.memory.redecodes:
            stake = _state_seconds(meter, repeat)
    finally:
        meter.close()
    curve = CostCurve(stake=stake, retaken=tuple(sorted(retaken)), unsteady=tuple(sorted(unsteady)))
    pick = min if budget is not None else statistics.median
    for (width, length), seconds in samples.items():
        curve.points.setdefault(width, {})[length] = pick(seconds)
    return curve


def _bent(samples: Mapping[tuple[int, int], Sequence[float]], width: int, length: int) -> bool:
    """Whether T(n) has bent below `width`: the widest measured width takes more than BENT times as long as the widest
    one of at most half that width."""
    known = sorted(w for w, c in samples if c == length and w < width)
    half = max((w for w in known if 2 * w <= known[-1]), default=known[0])
    return min(samples[known[-1], length]) > BENT * min(samples[half, length])


def _state_seconds(meter: Meter, repeat: int) -> Stake:
    """Median seconds of saving a state and of loading it, in `repeat` rounds."""
    ctx, saves, loads = meter.context, list[float](), list[float]()
    meter.fill(1)
    state = ctx.memory.save_state(meter.seq)
    for _ in range(repeat):
        start = time.perf_counter()
        state = ctx.memory.save_state(meter.seq, state)
        saved = time.perf_counter()
        ctx.memory.load_state(meter.seq, state)
        saves.append(saved - start)
        loads.append(time.perf_counter() - saved)
    return Stake(statistics.median(saves), statistics.median(loads))


def _retake(
    meter: Meter, samples: dict[tuple[int, int], list[float]], length: int, until: float
) -> tuple[set[int], list[int]]:
    """Measure disturbed widths at `length` again, unless it is later than `until`; returns the widths that were
    measured again, and those that are still disturbed."""
    retaken: set[int] = set()
    for attempt in range(RETRIES):
        found = disturbed({w: s for (w, c), s in samples.items() if c == length})
        if not found or time.perf_counter() > until:
            return retaken, found
        retaken.update(found)
        for width in found:
            known = samples[width, length]
            fresh = [meter.time(width, offset=7 * (attempt + i)) for i in range(max(2, len(known)))]
            samples[width, length] = settled(known, fresh)
    return retaken, disturbed({w: s for (w, c), s in samples.items() if c == length})


def curve_key(options: ModelOptions, threads: int, gpu_layers: int, planes: int = 0) -> str:
    """A key made of all that T(n) depends on; `planes`: the states that each step of a recurrent model also writes."""
    return disk_cache.key_of(
        "curve",
        disk_cache.file_identity(options.path),
        threads,
        gpu_layers,
        options.kv_type,
        *([options.kv_type_v] if options.kv_type_v else []),
        options.attention,
        functions_switched(),
        options.repack,
        options.slots,
        version(),
        build(),
        *([planes] if planes else []),
        *adapter_key(options),
        *([repr(options.placement)] if gpu_layers and options.placement != Placement() else []),
    )


def adapter_key(options: ModelOptions) -> list[object]:
    """What adapters add to a key: they change a model's bits and its times."""
    return [part for lora in options.acting for part in (disk_cache.file_identity(lora.path), lora.scale)]


def _key(context: Context) -> str:
    planes = 0 if context.model.traits.attention_only else context.memory.max_rollback
    layers = context.model.gpu_layers
    key = curve_key(context.options, context.n_threads, layers, planes)
    return disk_cache.key_of(key, "replayed" if layers else "steady")


def load_curve(context: Context) -> CostCurve | None:
    """The stored curve of this model on this machine; None if there is none, or it is damaged or of another kind."""
    data = disk_cache.load("curves", _key(context))
    try:
        curve = CostCurve.from_dict(data) if data is not None else None
    except ValueError:
        return None
    return None if curve is not None and (curve.stake is not None) != context.memory.redecodes else curve


def save_curve(context: Context, curve: CostCurve) -> bool:
    """Store a curve, a disturbed one only for an hour and where there is no other; False if the cache cannot be
    written."""
    if curve.unsteady and load_curve(context) is not None:
        return True
    return disk_cache.save("curves", _key(context), curve.as_dict(), KEPT_DISTURBED if curve.unsteady else None)
