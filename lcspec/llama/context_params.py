"""ModelOptions as the library's llama_context_params."""

from __future__ import annotations

from typing import Any

from lcspec.config import DEFAULT_CTX_LIMIT, ModelOptions
from lcspec.llama.lib import C
from lcspec.llama.threads import default_threads
from lcspec.modelfiles.windows import CELL_BLOCK, LEAF_SEQUENCES, WindowCache, batch_rows

GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}
FLASH_ATTN = {"library": -1, "measured": -1, "products": 0, "rows": 0, "fused": 1, "fused_rows": 1}
# Cells for what exact requests freed and the library must not use again yet (lcspec.kv_cache.parking): a share of all
# others, within these bounds.
PARKING_SHARE, PARKING_LEAST, PARKING_MOST = 1 / 8, 256, 2048


def context_length(options: ModelOptions, n_ctx_train: int) -> int:
    """Positions a slot may use."""
    return options.ctx or min(n_ctx_train or DEFAULT_CTX_LIMIT, DEFAULT_CTX_LIMIT)


def context_params(
    options: ModelOptions,
    n_ctx_train: int,
    attention_only: bool,
    *,
    spare: bool = True,
    windows: WindowCache | None = None,
) -> Any:
    """The parameters of the context that `options` mean for a model.

    `spare` as for Context; `windows`: the cache of layers with a sliding window, None: they keep every position.
    """
    # Recurrent states are allocated per sequence id, so those models get one id a slot, and one to pad with if they may
    # draft.
    drafts = attention_only or options.rollback > 0
    n_seq = outputs = min(256, options.slots + drafts + (LEAF_SEQUENCES if attention_only else 0))
    if windows is not None:
        n_seq = windows.sequences
    if options.streams:
        n_seq = outputs = options.slots + (drafts and spare)
    caches, texts = (n_seq, 1) if options.streams else (1, options.slots)  # so many, each for so many texts
    text_cells = texts * context_length(options, n_ctx_train)
    cells = text_cells + (options.max_width + 1 if drafts else 0)
    if options.exact and not options.texts_in_order:
        cells += parking_room(text_cells)
    params = C.llama_context_default_params()
    params.n_ctx = -(-cells // CELL_BLOCK) * CELL_BLOCK * caches  # the library divides them evenly
    params.n_batch, params.n_ubatch = batch_rows(options)
    params.n_seq_max = n_seq
    params.n_rs_seq = 0 if attention_only or not options.planes else options.rollback
    # the library wants room for one output per sequence id
    params.n_outputs_max = max(options.max_width + 1, outputs)
    threads = options.threads or max(1, default_threads() - options.placement.draft_threads)
    params.n_threads = params.n_threads_batch = threads
    params.type_k = GGML_TYPES[options.kv_type]
    params.type_v = GGML_TYPES[options.kv_type_v or options.kv_type]
    params.flash_attn_type = FLASH_ATTN[options.attention]
    params.offload_kqv = options.placement.kv_offload
    params.embeddings = options.embeddings
    params.pooling_type = C.LLAMA_POOLING_TYPE_NONE  # a state for every row
    params.no_perf = True
    params.swa_full = windows is None
    params.kv_unified = not options.streams
    return params


def parking_room(cells: int) -> int:
    """Cells beside `cells` others for what has been freed and may not be used again yet."""
    return int(min(PARKING_MOST, max(PARKING_LEAST, PARKING_SHARE * cells)))
