"""Models whose texts cannot lie in one cache, as llama.cpp (0.3.36 of llama-cpp-python) has them: each gets its own.

DeepSeek V4 keeps several positions in one cell, so the library copies nothing but whole texts, and ends the process if
it is asked for less. MiniMax M3 chooses blocks of cells to attend to, by where they lie: in a cache for several texts,
and without its fused kernel, the library attends to all cells instead, which is another model. Qwen 4's experiment
(qwen4exp) chooses cells by the blocks of positions that they belong to: which of the last block it takes depends on
where they lie, and a block of which only a part is shared with another text is never left out.
"""

from __future__ import annotations

from dataclasses import replace

from lcspec.config import BY_ROWS, ModelOptions
from lcspec.errors import ExactnessError
from lcspec.modelfiles.modelfile import ModelHeader

OWN_CACHES = frozenset({"deepseek4", "minimax-m3", "qwen4exp"})
# Those that attend to blocks of cells, and what takes the place of matrix products.
BLOCKS = frozenset({"minimax-m3"})
FUSED = {"products": "library", "rows": "fused_rows"}


def with_own_caches(header: ModelHeader, options: ModelOptions) -> ModelOptions:
    """The options of a context that is right for the model."""
    if header.architecture not in OWN_CACHES:
        return options
    attention = options.attention
    return replace(
        options, streams=True, attention=FUSED.get(attention, attention) if header.architecture in BLOCKS else attention
    )


def check_exact(header: ModelHeader, options: ModelOptions) -> None:
    """Refuse an exact context in which a text's bits would be compared with those of branches.

    Raises:
        ExactnessError: these models have no branches.
    """
    if options.exact and header.architecture in BLOCKS and options.attention not in BY_ROWS:
        raise ExactnessError(
            f"--exact is not available for {options.path.name} here: it needs --kv-type f16 and --gpu-layers 0"
        )


def own_caches_note(header: ModelHeader, name: str) -> str:
    """A line for the user, or "": what such a model does not have."""
    if header.architecture not in BLOCKS:
        return ""
    return f"{name} attends to blocks of a text's cells, so every slot has a cache of its own, and drafts are chains"
