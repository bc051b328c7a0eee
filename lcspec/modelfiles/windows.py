"""Layers with a sliding window: which they are, and how many cells a context has for them.

The library gives such layers a cache of their own, of `window * sequence ids + rows of a decode` cells, if it is told
to (`swa_full` off). A text then leaves cells for the last positions alone. So every sequence id costs a window, and a
model with windows gets fewer ids for the leaves of trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lcspec.config import ModelOptions
from lcspec.modelfiles.gguf_header import MetadataArray, read_gguf
from lcspec.modelfiles.modelfile import ModelHeader

# Sequence ids a context has beyond one a slot: the leaves of all trees of a step. The library's limit is 256, and it
# keeps a row of logits for each.
LEAF_SEQUENCES = 63
# Leaves of a model with windows: as many as cost this share of a full cache.
LEAF_SHARE = 1 / 8
# Windows of their own are worth it if they leave no more than this of a full cache.
WORTH = 3 / 4
# The least positions that a text may be ahead of its oldest shared cell (see WindowCache.slack).
LEAST_SLACK = 16
CELL_BLOCK = 256
# Exact prompts are read in blocks of up to so many rows (see lcspec.kv_cache.prompt_reader), whatever `batch` is.
EXACT_ROWS = 64
# Kernels for repacked weights take so many rows at once, and what is left over singly: with other bits (ggml-cpu,
# repack.cpp). So those blocks are filled up.
BLOCK_ROWS = 4
# Rows evaluated at a time where attention is computed as matrix products: the scores of so many rows stay in the
# processor's caches, and prompts in larger pieces take up to three times as long over their attention.
PRODUCT_ROWS = 128

# Of so many layers one sees all positions, where the file does not say: the last of them, or the first.
PERIODS = {
    **dict.fromkeys(("gemma2", "gpt-oss"), 2),
    **dict.fromkeys(("afmoe", "cohere2", "exaone-moe", "exaone4", "mellum", "muse-glimmer", "olmo2"), 4),
    "gemma3n": 5,
    "gemma3": 6,
    "plamo3": 8,
}
FIRST_SEES_ALL = {"cohere2moe": 4, "laguna": 4, "smallthinker": 4}
# These files name every layer.
NAMED = ("dots3note", "gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35")
KEY, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"


@dataclass(frozen=True)
class Windows:
    """`size`: positions that the layers marked True in `layers` see."""

    size: int
    layers: tuple[bool, ...]


class WindowCache(NamedTuple):
    """The cache of layers with a window.

    Attributes:
        sequences: sequence ids that the context has.
        cells: of one layer.
        slack: positions beyond the window that a text may keep from the library (see SequenceCache).
    """

    sequences: int
    cells: int
    slack: int


def windows_of(header: ModelHeader) -> Windows | None:
    """The windows of a model that has attention alone; None where there are none, and where too little is known.

    As llama.cpp (0.3.36 of llama-cpp-python) reads them. Llama 4's chunks are no windows in this sense.
    """
    arch, layers = header.architecture, header.block_count or 0
    drafting = header.metadata.get(f"{arch}.nextn_predict_layers", 0)
    trunk = layers - (drafting if isinstance(drafting, int) else 0)
    known = arch in PERIODS or arch in FIRST_SEES_ALL or arch in NAMED
    if not known or (arch == "exaone4" and trunk != 64):
        return None
    size = header.metadata.get(f"{arch}.{KEY}", 4096 if arch in ("gemma2", "exaone4") else 0)
    size = 4096 if arch == "smallthinker" and size else size
    if not isinstance(size, int) or size <= 0:
        return None
    key = f"{arch}.{PATTERN}"
    period = header.metadata.get(key, PERIODS.get(arch, FIRST_SEES_ALL.get(arch)))
    pattern = None if key in header.metadata else read_gguf(header.path, arrays={key}).metadata.get(key)
    if isinstance(pattern, MetadataArray):
        marked = tuple(bool(one) for one in pattern.values or ())[:layers]
    elif isinstance(period, int) and arch not in NAMED:
        alone = 0 if arch in FIRST_SEES_ALL else period - 1
        marked = tuple(period == 0 or i % period != alone for i in range(trunk))
    else:
        return None
    marked = (*marked, *[False] * (layers - len(marked)))
    return Windows(size, marked) if any(marked) else None


def batch_rows(options: ModelOptions) -> tuple[int, int]:
    """Rows that a decode may have, and those that are evaluated at a time."""
    most = _whole(max(options.batch, options.max_width, EXACT_ROWS) + options.slots)
    if options.attention in ("products", "rows"):
        return most, min(most, max(PRODUCT_ROWS, _whole(options.max_width + options.slots)))
    return most, most


def _whole(rows: int) -> int:
    return -(-rows // BLOCK_ROWS) * BLOCK_ROWS


def window_cache(header: ModelHeader, options: ModelOptions, ctx: int) -> WindowCache | None:
    """The cache for a model's layers with a window, in a context of `ctx` positions a slot.

    None where they keep every position: where that is hardly more, and where texts must lie in order (`exact`).
    """
    windows = None if options.full_windows or options.exact else windows_of(header)
    if windows is None:
        return None
    window = windows.size
    full = -(-(options.slots * ctx + options.max_width + 1) // CELL_BLOCK) * CELL_BLOCK
    leaves = max(1, min(LEAF_SEQUENCES, int(full * LEAF_SHARE) // window))
    sequences = min(256, options.slots + 1 + leaves)
    rows, at_a_time = batch_rows(options)
    cells = -(-(window * sequences + at_a_time) // CELL_BLOCK) * CELL_BLOCK
    # Besides a window for every slot: one for what is measured, the rows of two steps, and rows evaluated before.
    spare = window * (sequences - options.slots - 1) - 2 * options.max_width - (rows - at_a_time)
    slack = spare // options.slots
    return WindowCache(sequences, cells, slack) if cells <= WORTH * full and slack >= LEAST_SLACK else None
