"""Which cache types and attention a context gets: the fastest, or those under which every request is exact.

There are three exact ways on a CPU:

- K in F16, V in BF16 and the fused kernel: with unequal types the library neither splits the keys of a single row nor
  tiles many rows, so a row is summed in the same order whatever else is in the batch (ggml-cpu,
  ggml_compute_forward_flash_attn_ext_f16).
- Matrix products, and all others, row by row (lcspec.llama.row_by_row). Sums run over all cells, so a text must lie in
  the first ones, in order: every slot has a cache for itself, and drafts are chains.
- K and V in F16 and the fused kernel, row by row as well: the only way for sliding windows and recurrent states. Those
  have a cache for every slot, too.

Each is certified where it runs (independence.py), and taken by itself where it costs next to nothing.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Callable

from lcspec.config import BY_ROWS, ModelOptions
from lcspec.llama import Model, can_fuse_row_by_row, can_go_row_by_row
from lcspec.modelfiles.memory import machine_memory, needed
from lcspec.profiles.attention import WORTH, with_attention
from lcspec.profiles.exactness import Kernels
from lcspec.profiles.independence import CHECKED_CONTEXT, independence_of
from lcspec.profiles.price import Price, prices, read_apart

# What is told of at the first start of a model.
MEASURING, CHECKING = "measuring this model, once", "checking that its texts stay the same, once"
Progress = Callable[[str, float], bool | None]

WAYS = {"rows": "matrix products, row by row", "fused_rows": "the fused kernel, row by row"}


def name_of(way: ModelOptions) -> str:
    """What an exact way is called."""
    types = f"K in {way.kv_type.upper()} and V in {(way.kv_type_v or way.kv_type).upper()}"
    return WAYS.get(way.attention, f"the fused kernel with {types}")


def choose_kernels(model: Model, options: ModelOptions, progress: Progress | None = None) -> Kernels:
    """Decide on cache types and attention. `progress` is told what takes seconds at a model's first start.

    `exact` None is decided by what it costs here. Where it is True and this model has no exact types, the library's
    own attention is taken, whose widths fall into classes (see lcspec.profiles.exactness).
    """
    if options.exact is False or (options.exact is None and not _is_open(options)):
        return Kernels(replace(with_attention(model, options), exact=False))
    told = progress or (lambda what, share: None)
    told(MEASURING, 0.0)
    ways = priced_ways(model, options)
    told(MEASURING, 1.0)
    for exact, found in ways:
        wanted = options.exact is True or (found is not None and found.is_small and _fits(model, exact))
        small_pieces = found is not None and found.keeps_answers
        checking = functools.partial(told, CHECKING)
        certificate = independence_of(model, exact, small_pieces, checking) if wanted else None
        if certificate is not None and certificate.independent:
            beyond = found.beyond if found is not None else read_apart(model, exact)
            # What fills a piece of a prompt up that is read apart would take positions that nobody has learned.
            return Kernels(exact, certificate, None if model.header.learned_positions else beyond)
    if options.exact:
        return Kernels(replace(options, attention="library", exact=True))
    return Kernels(replace(with_attention(model, options), exact=False))


def _fits(model: Model, options: ModelOptions) -> bool:
    """Whether there is memory for the caches, of which streams need one more than there are slots."""
    memory = machine_memory()
    return memory is None or needed(model.header, options).fits(memory)


def _is_open(options: ModelOptions) -> bool:
    """Whether nobody asked for other types or another attention."""
    return options.attention == "measured" and options.kv_type == "f16" and options.kv_type_v is None


def priced_ways(model: Model, options: ModelOptions) -> list[tuple[ModelOptions, Price | None]]:
    """`exact_ways` and what each costs; None: not known. Who insists on exactness has the cheapest first, and those
    last that there is no memory for."""
    ways = list(prices(model, options, exact_ways(model, options)))
    if not options.exact:
        return ways

    def rank(priced: tuple[ModelOptions, Price | None]) -> tuple[bool, float]:
        # A single slot's texts should be those of several, so what one costs decides for both. Row by row drafts are
        # chains, so that must be cheaper by WORTH.
        way, price = priced
        chains = WORTH if way.attention in BY_ROWS else 0.0
        return way.streams and not _fits(model, way), (price.alone if price is not None else 1.0) + chains

    return sorted(ways, key=rank)


def exact_ways(model: Model, options: ModelOptions) -> list[ModelOptions]:
    """The options of an exact context, for each way there is, the preferred first; none on a GPU.

    The model must know as many positions as the check looks at: with learned ones the library ends the process
    beyond them.
    """
    traits = model.traits
    if model.gpu_layers != 0 or traits.n_ctx_train < CHECKED_CONTEXT:
        return []
    value = "bf16" if options.kv_type == "f16" else options.kv_type
    fused = replace(options, attention="fused", kv_type_v=value, exact=True)
    fused_rows, rows = (replace(options, attention=attention, exact=True) for attention in BY_ROWS)
    if not traits.attention_only or traits.n_swa:
        in_order = options.full_windows or bool(options.exact) or not traits.n_swa
        return [replace(fused_rows, streams=options.slots > 1)] if in_order and can_fuse_row_by_row() else []
    also = [fused_rows] if can_fuse_row_by_row() else []
    apart = [replace(rows, streams=options.slots > 1)] if can_go_row_by_row() else []
    if options.attention in BY_ROWS:
        return apart or also if options.attention == "rows" else also
    if not _is_open(options):
        return [fused]
    return [fused, *apart, *also]
