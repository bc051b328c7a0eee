"""Will it fit? Checked before anything is loaded, because running out of memory ends the whole process.

Only what cannot work is refused. Weights that would not fit are mapped from the file, so they may push other things out
of memory but not exceed it; the KV cache is allocated and written at once.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Sequence

from lcspec.config import DEFAULT_CTX_LIMIT, DraftFiles, ModelOptions
from lcspec.errors import ModelFileError, ModelLoadError
from lcspec.modelfiles.gguf_header import format_size, read_gguf
from lcspec.modelfiles.kv_shape import (
    COMPRESSED_BLOCK,
    KvShape,
    StateShape,
    drafting_elements,
    kv_shape,
    state_shape,
)
from lcspec.modelfiles.modelfile import ModelHeader, read_header
from lcspec.modelfiles.own_caches import own_caches_note, with_own_caches
from lcspec.modelfiles.pairing import TAKEN_BACK
from lcspec.modelfiles.windows import window_cache

# Bytes of an element of the KV cache.
KV_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
# The library keeps recurrent states as f32.
STATE_BYTES = 4
# Embeddings that layers look up. With some architectures the library maps them and reads the rows that it needs, if
# they have more bytes than so many (llama_model_loader::lazy_read).
LOOKED_UP, LARGE_TABLE = "per_layer_token_embd.weight", 4 << 30
READ_BY_ROWS = frozenset({"gemma4", "qwen4exp"})
COPY_BYTES = 2 << 30
# With fewer planes than this not even a chain of one token can be drafted.
MIN_ROLLBACK = 2


@dataclass(frozen=True)
class Memory:
    """This machine's memory in bytes, swap and limits of a container included; `swap` is in `free`, too."""

    total: int
    free: int
    swap: int = 0


@dataclass(frozen=True)
class Need:
    """What a model needs, in bytes; `ctx` is the tokens a slot has, `states` what recurrent layers keep (planes to go
    back to included). `weights` are those that must be in memory together.
    """

    weights: int
    kv_cache: int
    slots: int
    ctx: int
    states: int = 0

    def fits(self, memory: Memory) -> bool:
        """Whether it can work at all."""
        kept = self.kv_cache + self.states
        return kept <= memory.free and self.weights + kept <= memory.total


def check_memory(options: ModelOptions, draft: DraftFiles | Path | None = None, memory: Memory | None = None) -> Need:
    """Refuse what this machine has no memory for.

    Args:
        options: what is to be loaded.
        draft: the draft models that will be loaded as well.
        memory: what there is; None asks the machine.

    Raises:
        ModelFileError: the model file cannot be used.
        ModelLoadError: it cannot fit; the message has the numbers and what to change.
    """
    memory = memory or machine_memory()
    need = _needed_together(fit_windows(options, draft, memory)[0], draft)
    if memory is None or need.fits(memory):
        return need
    fewer = "fewer --slots, " if need.slots > 1 else ""
    draft_too = "".join(f" and {path.name}" for path in DraftFiles.of(draft).models)
    raise ModelLoadError(
        f"{options.path.name}{draft_too} cannot fit into memory: {format_size(need.weights)} of weights and "
        f"{format_size(need.kv_cache + need.states)} of KV cache ({need.slots} x {need.ctx} tokens), and this machine "
        f"has {format_size(memory.total)}, {format_size(memory.free)} of them free; use {fewer}a smaller --ctx, "
        "--kv-type q8_0, or a smaller quantization"
    )


def _needed_together(options: ModelOptions, draft: DraftFiles | Path | None) -> Need:
    """What a model and its draft models need."""
    needs = [needed(read_header(options.path), options)]
    for path in DraftFiles.of(draft).models:
        with contextlib.suppress(ModelFileError):  # said when it is loaded, which is not now
            needs.append(needed(read_header(path), replace(options, planes=False, full_windows=True, mtp=False)))
    weights, kv_cache, states = (sum(column) for column in zip(*((n.weights, n.kv_cache, n.states) for n in needs)))
    return Need(weights, kv_cache, options.slots, needs[0].ctx, states)


def needed(header: ModelHeader, options: ModelOptions) -> Need:
    """Estimate what `header`'s model needs with `options`, rather too little than too much."""
    ctx = options.ctx or min(header.context_length or DEFAULT_CTX_LIMIT, DEFAULT_CTX_LIMIT)
    shape = _shape(header)  # None: the header tells too little
    values = (options.kv_type_v or options.kv_type) if shape is not None and shape.value_length else options.kv_type
    kv_bytes = (KV_BYTES[options.kv_type] + KV_BYTES[values]) / 2  # as if equally long
    kv_cache = int(sum(layer_elements(header, options, ctx)) * kv_bytes)
    # A state for every slot, one for padding if anything is drafted, and as many again for every plane.
    ids = options.slots + (options.rollback > 0)
    states = shape.state * STATE_BYTES * ids if isinstance(shape, StateShape) else 0
    planes = planes_of(header.architecture, options.rollback) if options.planes else 0
    return Need(header.file_size - _read_by_rows(header), kv_cache, options.slots, ctx, states * (1 + planes))


def _read_by_rows(header: ModelHeader) -> int:
    """Bytes of the file that need no memory, however many they are."""
    if header.architecture not in READ_BY_ROWS:
        return 0
    tensors = (tensor for part in header.parts for tensor in read_gguf(part).tensors if tensor.name == LOOKED_UP)
    return sum(size for tensor in tensors if (size := tensor.n_bytes or 0) > LARGE_TABLE)


def layer_elements(header: ModelHeader, options: ModelOptions, ctx: int) -> tuple[int, ...]:
    """Numbers in the KV cache of each layer; layers with a sliding window may have fewer cells.

    Layers for multi-token prediction have theirs in a context of their own, if they are loaded.
    """
    shape, options = _shape(header), with_own_caches(header, options)
    if shape is None:
        return ()
    # With streams there is one more than there are slots, to pad with if anything is drafted.
    texts = options.slots + (options.streams and (isinstance(shape, KvShape) or options.rollback > 0))
    cells, rows = texts * ctx, shape.per_layer
    own = list[int](n * cells for n in rows)
    if isinstance(shape, StateShape):
        for layer, (ratio, n) in enumerate(shape.compressed):
            blocks = -(-ctx // (max(1, ratio) * COMPRESSED_BLOCK))
            own[layer] += n * texts * blocks * COMPRESSED_BLOCK
    elif (windows := window_cache(header, options, ctx)) is not None:
        least = min(windows.cells, cells)
        own = [n * (least if windowed else cells) for n, windowed in zip(rows, _padded(shape.windowed, len(rows)))]
    if options.mtp:
        drafting = drafting_elements(header)
        own = [a + n * options.slots * ctx for a, n in zip(_padded(own, len(drafting)), drafting)]
    return tuple(own)


def _padded(values: Sequence[int], n: int) -> list[int]:
    """At least `n` of them, with zeros at the end."""
    return [*values, *[0] * (n - len(values))]


def _shape(header: ModelHeader) -> KvShape | StateShape | None:
    """What a model stores."""
    return kv_shape(header) or state_shape(header)


def planes_of(architecture: str, rollback: int) -> int:
    """The planes that the library allocates for each state when a step may take back `rollback` tokens."""
    return rollback if architecture in TAKEN_BACK else 0


def fit_rollback(
    options: ModelOptions, draft: DraftFiles | Path | None = None, memory: Memory | None = None
) -> tuple[ModelOptions, str]:
    """As many planes to roll a recurrent state back to as there is memory for.

    Planes take at most a quarter of what is free beside everything else: they are for speed, and a machine that swaps
    has none.

    Returns:
        The options with what `rollback` can be, and a line for the user if that is less than was asked for.

    Raises:
        ModelFileError: the model file cannot be used.
    """
    memory = memory or machine_memory()
    header = read_header(options.path)
    asked = planes_of(header.architecture, options.rollback) if options.planes else 0
    if memory is None or not asked:
        return options, ""
    bare = needed(header, replace(options, planes=False))
    for path in DraftFiles.of(draft).models:
        with contextlib.suppress(ModelFileError):
            other = needed(read_header(path), replace(options, rollback=0, full_windows=True, mtp=False))
            bare = replace(bare, kv_cache=bare.kv_cache + other.kv_cache, weights=bare.weights + other.weights)
    room = min(memory.free - bare.kv_cache, memory.total - bare.kv_cache - bare.weights) - bare.states
    planes = max(0, min(asked, room // 4 // max(1, bare.states)))
    if planes >= asked:
        return options, ""
    enough = planes >= MIN_ROLLBACK
    planes = planes if enough else 0
    what = f"drafts of up to {planes - 1} tokens" if enough else "drafts are verified from a saved state"
    return replace(options, **({"rollback": planes} if enough else {"planes": False})), (
        f"{options.path.name}: {format_size(bare.states)} for every state to roll back to and "
        f"{format_size(memory.free)} free, so it keeps {planes} of {asked}: {what}"
    )


def fit_positions(options: ModelOptions) -> tuple[ModelOptions, str]:
    """A context no longer than the positions that a model has learned, and a cache for every slot where texts cannot
    lie in one; the line is for the user, as of `fit_windows`.

    Raises:
        ModelFileError: the model file cannot be used.
    """
    header, name = read_header(options.path), options.path.name
    options, note = with_own_caches(header, options), own_caches_note(header, name)
    most = header.learned_positions
    if not most or options.ctx <= most:
        return options, note
    return replace(options, ctx=most), f"{name} knows {most} positions, so its context holds {most} tokens"


def fit_windows(
    options: ModelOptions, draft: DraftFiles | Path | None = None, memory: Memory | None = None
) -> tuple[ModelOptions, str]:
    """Layers with a sliding window keep every position, or their windows alone where there is no memory for more.

    Returns:
        The options with what `full_windows` can be, and a line for the user if that is not what was asked for.

    Raises:
        ModelFileError: the model file cannot be used.
    """
    memory = memory or machine_memory()
    if memory is None or not options.full_windows:
        return options, ""
    need, small = _needed_together(options, draft), replace(options, full_windows=False)
    own = _needed_together(small, draft)
    if need.fits(memory) or not own.fits(memory):
        return options, ""
    return small, (
        f"{options.path.name}: {format_size(need.kv_cache)} of KV cache and {format_size(memory.free)} free, so layers "
        f"with a sliding window keep only their windows ({format_size(own.kv_cache)}), as with --no-swa-full"
    )


def copy_budget(memory: Memory | None = None) -> int:
    """Bytes that checkpoints may take, and texts in main memory as many again: an eighth of what is free, `COPY_BYTES`
    at most.
    """
    memory = memory or machine_memory()
    return COPY_BYTES if memory is None else max(0, min(COPY_BYTES, memory.free // 8))


def machine_memory() -> Memory | None:
    """What this process may use; None where nobody tells."""
    if sys.platform == "darwin":
        import subprocess

        try:
            total = int(subprocess.run(["sysctl", "-n", "hw.memsize"], capture_output=True, check=True).stdout)
        except (OSError, subprocess.CalledProcessError, ValueError):
            return None
        return Memory(total, total)  # it compresses and swaps as it likes
    return read_memory(Path("/proc/meminfo"), Path("/sys/fs/cgroup"))


def read_memory(meminfo: Path, cgroup: Path) -> Memory | None:
    """From Linux's files: `meminfo`, narrowed by a container's limit in `cgroup`."""
    try:
        lines = [line.split() for line in meminfo.read_text().splitlines()]
        kib = {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
        available, swap = kib["MemAvailable"] * 1024, kib.get("SwapFree", 0) * 1024
        total = kib["MemTotal"] * 1024 + swap
    except (OSError, ValueError, KeyError):
        return None
    try:
        limit = int((cgroup / "memory.max").read_text())  # "max" without a limit
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        cached = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
        unused = limit - used + cached
    except (OSError, ValueError):
        limit = unused = total
    free = min(available + swap, unused)
    return Memory(min(total, limit), free, free - min(available, unused))
