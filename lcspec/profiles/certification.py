"""Which widths give bit-identical logits? Measured on real text, at several places of the context."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from lcspec import disk_cache
from lcspec.errors import ExactnessError
from lcspec.kv_cache.prefix_cache import PrefixCache
from lcspec.llama import Branching, Context
from lcspec.profiles.exactness import DEPENDS, PROMPT_BLOCK, Certificate, ScratchPad
from lcspec.profiles.step_cost import EVERY_WIDTH, curve_key, sample_tokens

# Places (context lengths) a quick certification looks at: the start, and both sides of the KV block border at 256.
QUICK_SPOTS = (24, 250, 506)
# Rows compared at each spot: enough that every row of the widest batch is among them.
SPAN = EVERY_WIDTH
QUICK_WIDTHS = (*range(1, 17), PROMPT_BLOCK)
ALL_WIDTHS = tuple(range(1, EVERY_WIDTH + 1))

Progress = Callable[[float], None]


@dataclass
class Comparison:
    """One width's logits against the reference width's, over all positions compared."""

    width: int
    largest: float = 0.0
    flips: int = 0
    digest: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def add(self, rows: NDArray[np.float32], reference: NDArray[np.float32]) -> None:
        """Compare float32 [n, n_vocab] rows."""
        self.digest.update(np.ascontiguousarray(rows).tobytes())
        if not np.array_equal(rows, reference):
            self.largest = max(self.largest, float(np.abs(rows - reference).max()))
            self.flips += int((rows.argmax(axis=1) != reference.argmax(axis=1)).sum())


@dataclass(frozen=True)
class Report:
    """A certificate with the figures behind it; `comparisons` are against `reference`."""

    certificate: Certificate
    reference: int
    comparisons: tuple[Comparison, ...]
    tree_mismatches: int


class Prober:
    """Decodes the same text at chosen widths on a scratch sequence."""

    def __init__(self, context: Context, seq: int, pad: ScratchPad) -> None:
        self.context = context
        self.seq = seq
        self.pad = pad
        self.tokens = sample_tokens(context, min(context.n_ctx, 2048))
        self._state: NDArray[np.uint8] | None = None  # a recurrent one, after what was read

    def fill(self, length: int) -> None:
        """Evaluate the text up to `length` as an exact prompt would be."""
        self.context.memory.remove(self.seq, 0)
        for start in range(0, length, PROMPT_BLOCK):
            stop = min(length, start + PROMPT_BLOCK)
            self.context.batch.clear()
            self.context.batch.add_run(self.tokens[start:stop], start, self.seq)
            self.pad.fill(PROMPT_BLOCK)
            self.context.decode()
            self.pad.drop()

    def read(self, length: int, piece: int) -> None:
        """Evaluate the text up to `length` in pieces of so many tokens."""
        self.context.memory.remove(self.seq, 0)
        for start in range(0, length, piece):
            self.context.batch.clear()
            self.context.batch.add_run(self.tokens[start : min(length, start + piece)], start, self.seq)
            self.context.decode()
        memory = self.context.memory
        self._state = memory.save_state(self.seq) if memory.branching is not Branching.TREE else None

    def _return(self, at: int) -> None:
        """Take back all rows from position `at` on, up to which the text was read."""
        if self._state is not None:
            self.context.memory.load_state(self.seq, self._state)
        self.context.memory.remove(self.seq, at)

    def rows_after_refusals(self, at: int, span: int) -> NDArray[np.float32]:
        """As `rows` at width 1, where every row has two others behind it that are taken back."""
        ctx, found = self.context, list[NDArray[np.float32]]()
        for pos in range(at, at + span):
            ctx.batch.clear()
            for i, token in enumerate([self.tokens[pos], *self.tokens[:2]]):
                ctx.batch.add(token, pos + i, (self.seq,), logits=True)
            ctx.decode()
            found.append(ctx.logits()[:1].copy())
            ctx.memory.remove(self.seq, pos + 1)
        self._return(at)
        rows: NDArray[np.float32] = np.concatenate(found)
        return rows

    def rows_beside(self, at: int, span: int, other: int) -> NDArray[np.float32]:
        """As `rows` at changing widths, with another text in the same cache and the same steps on sequence `other`."""
        ctx, found, start, done = self.context, list[NDArray[np.float32]](), 0, 0
        while start < span:
            width = min(1 + start % 4, span - start)
            ctx.batch.clear()
            for i in range(1 + start % 3):
                ctx.batch.add(self.tokens[7 + done + i], done + i, (other,), logits=True)
            first = ctx.batch.n
            for i in range(width):
                ctx.batch.add(self.tokens[at + start + i], at + start + i, (self.seq,), logits=True)
            ctx.decode()
            done += first
            found.append(ctx.logits()[first:].copy())
            start += width
        ctx.memory.remove(other, 0)
        self._return(at)
        rows: NDArray[np.float32] = np.concatenate(found)
        return rows

    def tree_is_alike(self, at: int, alone: NDArray[np.float32], branch_seq: int) -> bool:
        """Whether a small tree's rows are those of its paths alone; `alone`: rows of the text at `at`."""
        depth = 4
        side = [self.tokens[at], *self.tokens[at + 20 : at + 19 + depth]]
        expected = np.concatenate([alone[:depth], self.rows(at, 1, depth, side)[1:]])
        return bool(np.array_equal(self.tree_rows(at, 2 * depth - 1, branch_seq, side), expected))

    def rows(self, at: int, width: int, span: int, tokens: Sequence[int] | None = None) -> NDArray[np.float32]:
        """Logits float32 [span, n_vocab] of the `span` tokens from position `at`, decoded `width` at a time."""
        text = list(tokens if tokens is not None else self.tokens[at : at + span + width])
        found: list[NDArray[np.float32]] = []
        for start in range(0, span, width):
            self.context.batch.clear()
            for i, token in enumerate(text[start : start + width]):
                self.context.batch.add(token, at + start + i, (self.seq,), logits=True)
            self.pad.fill(width)
            self.context.decode()
            self.pad.drop()
            found.append(self.context.logits().copy())
        self._return(at)
        rows: NDArray[np.float32] = np.concatenate(found)[:span]
        return rows

    def tree_rows(self, at: int, width: int, branch_seq: int, side: Sequence[int]) -> NDArray[np.float32]:
        """Rows of a tree: the text's next `len(side)` tokens first, then `side` as a second branch of the first one."""
        ctx, k = self.context, len(side)
        ctx.memory.copy(self.seq, branch_seq, 0, at)
        ctx.batch.clear()
        ctx.batch.add(self.tokens[at], at, (self.seq, branch_seq), logits=True)
        for i in range(1, k):
            ctx.batch.add(self.tokens[at + i], at + i, (self.seq,), logits=True)
        for i in range(1, k):
            ctx.batch.add(side[i], at + i, (branch_seq,), logits=True)
        self.pad.fill(width)
        ctx.decode()
        self.pad.drop()
        rows: NDArray[np.float32] = ctx.logits()[: 2 * k - 1].copy()
        ctx.memory.remove(branch_seq, 0)
        ctx.memory.remove(self.seq, at)
        return rows


def certify(
    context: Context,
    seqs: tuple[int, int],
    pad: ScratchPad,
    *,
    spots: Sequence[int] = QUICK_SPOTS,
    span: int = SPAN,
    widths: Sequence[int] = QUICK_WIDTHS,
    progress: Progress | None = None,
) -> Report:
    """Group `widths` into classes of identical logits.

    Args:
        context: an otherwise idle context.
        seqs: two unused sequence ids.
        pad: fills batches up to a width.
        spots: context lengths at which to compare; those that do not fit are left out.
        span: positions compared at each spot.
    """
    prober = Prober(context, seqs[0], pad)
    room = len(prober.tokens) - span - EVERY_WIDTH
    spots = [s for s in spots if s <= room] or [max(1, room)]
    # 4 is never alone with width 1 and is what most differences are measured against in the literature of kernels
    # that block rows by four; any fixed choice would do.
    reference = 4
    found = {w: Comparison(w) for w in widths}
    repeatable = True
    mismatches = 0
    done = 0
    for spot in spots:
        prober.fill(spot)
        base = prober.rows(spot, reference, span)
        repeatable &= bool(np.array_equal(base, prober.rows(spot, reference, span)))
        for width in widths:
            found[width].add(prober.rows(spot, width, span), base)
            done += 1
            if progress is not None:
                progress(done / (len(spots) * len(widths)))
    classes: dict[bytes, list[int]] = {}
    for width, comparison in found.items():
        classes.setdefault(comparison.digest.digest(), []).append(width)
    draft = Certificate(tuple(map(tuple, classes.values())), len(spots) * span, trees=False, repeatable=repeatable)
    branches = not context.memory.streams  # a text with a cache of its own shares none of it
    for spot in spots if branches else ():
        mismatches += _tree_mismatches(prober, spot, draft, seqs[1])
    context.memory.remove(seqs[0], 0)
    final = Certificate(draft.classes, draft.positions, trees=branches and mismatches == 0, repeatable=repeatable)
    return Report(final, reference, tuple(found.values()), mismatches)


def _tree_mismatches(prober: Prober, spot: int, certificate: Certificate, branch_seq: int) -> int:
    """Rows of a small tree that differ from the same paths decoded on their own, within the chosen class."""
    widest = max(certificate.widths)
    depth = min(4, (widest + 1) // 2)
    if depth < 2:
        return 1  # the class has no room for a tree
    side = [prober.tokens[spot], *prober.tokens[spot + 20 : spot + 19 + depth]]
    width = certificate.pad(2 * depth - 1)
    prober.fill(spot)
    tree = prober.tree_rows(spot, width, branch_seq, side)
    main = prober.rows(spot, certificate.pad(depth), depth, prober.tokens[spot : spot + depth])
    other = prober.rows(spot, certificate.pad(depth), depth, side)
    expected = np.concatenate([main, other[1:]])
    return int((tree != expected).any(axis=1).sum())


def certificate_for(cells: PrefixCache, pad: ScratchPad) -> Certificate:
    """The certificate of a context with one slot on this machine: stored, or measured now.

    Measuring drops what `cells` keeps of earlier requests; nothing may be running.

    Raises:
        ExactnessError: nothing can be certified here; the message says why.
    """
    context = cells.context
    name = context.model.options.path.name
    if context.options.slots > 1:
        raise ExactnessError("--exact needs a single slot: requests decoded side by side change each other's bits")
    if not context.model.traits.attention_only:
        raise ExactnessError(f"--exact is not available for {name}: it has a recurrent state, and {DEPENDS}")
    if context.memory.streams:
        raise ExactnessError(f"--exact is not available for {name} with these cache types: it needs --kv-type f16")
    certificate = None
    data = disk_cache.load("exact", _key(context))
    if data is not None:
        try:
            certificate = Certificate.from_dict(data)
        except ValueError:
            certificate = None
    if certificate is None:
        certificate = measure_certificate(cells, pad).certificate
        store(context, certificate)
    if not certificate.repeatable:
        raise ExactnessError(
            f"nothing can be certified for {name} on this machine: the same computation twice gives different bits"
        )
    return certificate


def store(context: Context, certificate: Certificate) -> bool:
    """Keep a certificate for later sessions; False if the cache cannot be written."""
    return disk_cache.save("exact", _key(context), certificate.as_dict())


def _key(context: Context) -> str:
    return disk_cache.key_of(curve_key(context.options, context.n_threads, context.model.gpu_layers), "exact")


def measure_certificate(cells: PrefixCache, pad: ScratchPad, **options: object) -> Report:
    """Run `certify` in a context that decodes nothing; what `cells` keeps of earlier requests is dropped."""
    cells.clear()
    seqs = cells.pool.take(), cells.pool.take()
    try:
        return certify(cells.context, seqs, pad, **options)  # type: ignore[arg-type]
    finally:
        for seq in seqs:
            cells.context.memory.remove(seq, 0)
            cells.pool.give(seq)
