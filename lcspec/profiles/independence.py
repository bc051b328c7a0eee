"""Whether rows have the same bits at every width, beside other requests and after any pieces of a prompt."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Iterator

import numpy as np

from lcspec import disk_cache
from lcspec.config import ModelOptions
from lcspec.errors import ExactnessError, LcspecError
from lcspec.kv_cache.prompt_reader import LEAST_ROWS, InPlaceReader, PromptReader
from lcspec.kv_cache.sequence_cache import SequenceCache
from lcspec.kv_cache.sequence_pool import SequencePool
from lcspec.llama import Context, Model
from lcspec.llama.model import Progress
from lcspec.modelfiles.slice import Slice, find_slice, write_slice
from lcspec.modelfiles.windows import BLOCK_ROWS, windows_of
from lcspec.profiles.certification import Prober
from lcspec.profiles.exactness import Certificate, ScratchPad
from lcspec.profiles.step_cost import curve_key, sample_tokens

# What a look at independence compares: so many rows of a text behind so many tokens, which are cells enough for the
# kernels that split a row's keys (from 512 on; the library rounds up to 256).
INDEPENDENT_SPOT = 264
INDEPENDENT_ROWS = 8
INDEPENDENT_WIDTHS = (2, 3, 4, 5, 6, 7, 8, 16, 32)
# Pieces a text is read in, which must not show in its rows.
PIECES = (32, 128)
# The same of a text that is read apart from steps, and where pieces are whole blocks (see InPlaceReader).
CUTS = ((INDEPENDENT_SPOT,), (37, 101, 200, INDEPENDENT_SPOT))
SMALL_CUTS = ((INDEPENDENT_SPOT,), (1, 9, 37, 101, 103, 200, INDEPENDENT_SPOT))
WHOLE_CUTS = ((4 * LEAST_ROWS,), (LEAST_ROWS, 3 * LEAST_ROWS, 4 * LEAST_ROWS))
# Positions that are looked at, and what all that takes: prompt rows read, here and apart, and narrow steps.
CHECKED_CONTEXT = INDEPENDENT_SPOT + 6 * max(INDEPENDENT_WIDTHS)
CHECKED_ROWS, CHECKED_STEPS = 4 * INDEPENDENT_SPOT, 40
# Parts of the check that are told of, of which reading twice more is the last.
PARTS = len(INDEPENDENT_WIDTHS) + 4
# Files of less than so many bytes are asked whole: that takes no longer than to write a part of them.
SMALL = 64 << 20


def independence_of(
    model: Model, options: ModelOptions, small_pieces: bool = False, progress: Progress | None = None
) -> Certificate | None:
    """Whether rows have the same bits at every width, beside other requests and after any pieces of the prompt.

    Measured in a small context of its own with `options`' types, attention and threads, and kept for later sessions.
    None where it cannot be measured. `small_pieces`: pieces that are read in place may have any number of tokens.
    `progress` is called with 0.0 .. 1.0; returning False gives up (None).
    """
    found = certified(model, options, small_pieces)
    if found is not None:
        return found
    try:
        with _sliced(model, options) as (asked, small, rows):
            certificate = _measured(asked, small, rows, small_pieces, _Counter(progress))
    except LcspecError:
        return None
    if certificate is not None:
        disk_cache.save("exact", _independence_key(model, options, small_pieces), certificate.as_dict())
    return certificate


@contextlib.contextmanager
def _sliced(model: Model, options: ModelOptions) -> Iterator[tuple[Model, ModelOptions, int]]:
    """The model's first layers in its place if most can be left out, and how many rows to compare: more, as there
    are fewer layers. A difference shows in a few only, because inputs of quantized matrices are rounded to 8 bits.
    """
    found = slice_of(model, options)
    if found is None:
        yield model, options, INDEPENDENT_ROWS
        return
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(disk_cache.temporary_folder("slice-"))
            small = replace(options, path=folder / "slice.gguf", gpu_layers=0)
            write_slice(found, small.path)
            sliced = stack.enter_context(Model.load(small))
        except (OSError, LcspecError):  # no room, or the library wants more of it
            sliced, small = model, options
        rows = INDEPENDENT_ROWS if sliced is model else math.ceil(INDEPENDENT_ROWS * found.stands_for)
        yield sliced, small, rows


def slice_of(model: Model, options: ModelOptions) -> Slice | None:
    """The part of the model that is asked in its place; None: there is none, or it is small anyway."""
    if model.gpu_layers != 0 or options.acting or model.header.file_size < SMALL:
        return None
    if model.traits.n_swa and windows_of(model.header) is None:
        return None  # which layers see all positions is not known: with none of them the library ends the process
    return find_slice(options.path)


class _Counter:
    """Tells how much of a check is done, part by part."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._done = progress, 0

    def __call__(self) -> None:
        """Another part is done.

        Raises:
            ExactnessError: it was given up.
        """
        self._done += 1
        if self._progress is not None and self._progress(self._done / PARTS) is False:
            raise ExactnessError("given up")


def _measured(model: Model, options: ModelOptions, rows: int, small_pieces: bool, done: _Counter) -> Certificate | None:
    """What `independence_of` finds by so many rows; None for an encoder.

    Raises:
        LcspecError: the library refuses, or it was given up.
    """
    in_order = options.texts_in_order
    slots = 2 if options.slots > 1 or not in_order else 1
    with Context(model, replace(options, ctx=CHECKED_CONTEXT, slots=slots, batch=max(PIECES))) as context:
        if not context.memory.exists:
            return None
        certificate = _independence(context, rows, done)
        if certificate.independent and in_order and not _reads_alike_in_place(context, small_pieces):
            certificate = replace(certificate, independent=False)
    if certificate.independent and not in_order and not _reads_alike(model, options):
        certificate = replace(certificate, independent=False)
    return certificate


def certified(model: Model, options: ModelOptions, small_pieces: bool = False) -> Certificate | None:
    """What `independence_of` found in an earlier session, if it was asked."""
    try:
        return Certificate.from_dict(disk_cache.load("exact", _independence_key(model, options, small_pieces)))
    except ValueError:
        return None


def revoke(model: Model, options: ModelOptions) -> None:
    """A longer look has shown that rows depend on more than their own text: later sessions know."""
    for small_pieces in (False, True):
        if (found := certified(model, options, small_pieces)) is not None:
            key = _independence_key(model, options, small_pieces)
            disk_cache.save("exact", key, replace(found, independent=False).as_dict())


def _independence_key(model: Model, options: ModelOptions, small_pieces: bool) -> str:
    planes = options.rollback if options.planes and not model.traits.attention_only else 0
    asked = "independence, small pieces" if small_pieces else "independence"
    return disk_cache.key_of(curve_key(options, options.threads, model.gpu_layers, planes), asked)


def _independence(context: Context, n: int, done: _Counter) -> Certificate:
    """Compare every row with that of the same text alone, token by token, also beside another text if there are slots
    for two, and in a tree if a context may have any.
    """
    pool, chains = SequencePool(context.n_seq), context.options.texts_in_order
    *others, own = [pool.take() for _ in range(min(3, pool.n) if context.options.slots > 1 else 1)]
    prober = Prober(context, own, ScratchPad(context, others[0] if others else own))  # which pads nothing here
    spot = INDEPENDENT_SPOT
    prober.read(spot, PIECES[0])
    done()
    alone = prober.rows(spot, 1, n)
    repeatable = bool(np.array_equal(alone[:4], prober.rows(spot, 1, 4)))
    alike = []
    for width in INDEPENDENT_WIDTHS:
        done()
        if np.array_equal(alone, prober.rows(spot, width, n)):
            alike.append(width)
    trees = not chains and prober.tree_is_alike(spot, alone, others[1])
    done()
    prober.read(spot, PIECES[1])
    done()
    pieces = np.array_equal(alone, prober.rows(spot, 4, n))
    beside = not others or np.array_equal(alone, prober.rows_beside(spot, n, others[-1]))
    # Without planes for two rows a state is saved and loaded, and tokens are decoded again.
    taken_back = not context.memory.max_rollback >= 3 or np.array_equal(alone, prober.rows_after_refusals(spot, n))
    same = repeatable and pieces and beside and taken_back and len(alike) == len(INDEPENDENT_WIDTHS)
    independent = same and (trees or chains)
    context.memory.clear()
    widths = tuple(range(1, max(alike) + 1)) if independent else (1, *alike)
    return Certificate((widths,), n, trees, repeatable, independent)


def _reads_alike(model: Model, options: ModelOptions) -> bool:
    """Whether cells read in a context of their own do not depend on the pieces that a prompt is read in."""
    reader = PromptReader(model, replace(options, slots=1, batch=INDEPENDENT_SPOT), INDEPENDENT_SPOT)
    try:
        tokens = sample_tokens(reader.context, INDEPENDENT_SPOT)
        states = []
        for cuts in CUTS:
            place = reader.begin([])
            for start, stop in zip((0, *cuts), cuts):
                reader.read(place, tokens[start:stop])
            states.append(reader.copied(place))
            reader.end(place)
        return states[0] == states[1]
    except ValueError:  # this library writes another format
        return False
    finally:
        reader.close()


def _reads_alike_in_place(context: Context, small_pieces: bool) -> bool:
    """The same of cells read where they are decoded."""
    reader = InPlaceReader(context, BLOCK_ROWS if small_pieces else LEAST_ROWS)
    cache = SequenceCache(context.memory, SequencePool(context.n_seq))
    block = max(PIECES)
    tokens = sample_tokens(context, INDEPENDENT_SPOT)
    states = []
    for cuts in WHOLE_CUTS if reader.whole else SMALL_CUTS if small_pieces else CUTS:
        place = reader.begin([], cache)
        for start, stop in zip((0, *cuts), cuts):
            for at in range(start, stop, block):
                reader.read(place, tokens[at : min(stop, at + block)])
        states.append(context.memory.state(cache.main))
        cache.empty()
    return states[0] == states[1]
