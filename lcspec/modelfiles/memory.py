"""Will it fit? Checked before anything is loaded, because running out of memory ends the whole process.

Only what cannot work is refused. Weights are mapped from the file, so they may push other things out of memory but
not exceed it; the KV cache is allocated and written at once.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path

from lcspec.config import DEFAULT_CTX_LIMIT, DraftFiles, ModelOptions
from lcspec.errors import ModelFileError, ModelLoadError
from lcspec.modelfiles.gguf_header import format_size
from lcspec.modelfiles.kv_shape import kv_shape
from lcspec.modelfiles.modelfile import ModelHeader, read_header

# Bytes of an element of the KV cache.
KV_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}


@dataclass(frozen=True)
class Memory:
    """This machine's memory in bytes, swap and limits of a container included."""

    total: int
    free: int


@dataclass(frozen=True)
class Need:
    """What a model needs, in bytes; `ctx` is the tokens a slot has."""

    weights: int
    kv_cache: int
    slots: int
    ctx: int

    def fits(self, memory: Memory) -> bool:
        """Whether it can work at all."""
        return self.kv_cache <= memory.free and self.weights + self.kv_cache <= memory.total


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
    needs = [needed(read_header(options.path), options)]
    drafts = DraftFiles.of(draft).models
    for path in drafts:
        with contextlib.suppress(ModelFileError):  # said when it is loaded, which is not now
            needs.append(needed(read_header(path), options))
    need = Need(sum(n.weights for n in needs), sum(n.kv_cache for n in needs), options.slots, needs[0].ctx)
    memory = memory or machine_memory()
    if memory is None or need.fits(memory):
        return need
    draft_too = "".join(f" and {path.name}" for path in drafts)
    raise ModelLoadError(
        f"{options.path.name}{draft_too} cannot fit into memory: {format_size(need.weights)} of weights and "
        f"{format_size(need.kv_cache)} of KV cache ({need.slots} x {need.ctx} tokens), and this machine has "
        f"{format_size(memory.total)}, {format_size(memory.free)} of them free; use fewer --slots, a smaller --ctx, "
        "--kv-type q8_0, or a smaller quantization"
    )


def needed(header: ModelHeader, options: ModelOptions) -> Need:
    """Estimate what `header`'s model needs with `options`, rather too little than too much."""
    ctx = options.ctx or min(header.context_length or DEFAULT_CTX_LIMIT, DEFAULT_CTX_LIMIT)
    shape = kv_shape(header)  # None: a cache of which the header tells too little
    elements = options.slots * ctx * shape.elements if shape is not None else 0
    return Need(header.file_size, int(elements * KV_BYTES[options.kv_type]), options.slots, ctx)


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
        swap = kib.get("SwapFree", 0)
        total, free = (kib["MemTotal"] + swap) * 1024, (kib["MemAvailable"] + swap) * 1024
    except (OSError, ValueError, KeyError):
        return None
    try:
        limit = int((cgroup / "memory.max").read_text())  # "max" without a limit
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        cached = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
        return Memory(min(total, limit), min(free, limit - used + cached))
    except (OSError, ValueError):
        return Memory(total, free)
