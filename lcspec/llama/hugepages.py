"""Huge pages for weights and compute buffers, on Linux.

A decode streams all weights through the cores, and with 4 KiB pages part of that time goes into address translation.
Where the kernel gives huge pages to those who ask (`/sys/kernel/mm/transparent_hugepage/enabled` says madvise, the
usual setting), the library does not ask. Its large anonymous buffers (repacked weights) exist when it first reports
progress and are filled afterwards, so asking then costs nothing: the pages are huge from the first touch. A context's
compute buffers are large as well and untouched when it has been made; the first long prompt touches them, and takes up
to twice as long as the next one where the kernel is slow at it. A server has its memory before it says it is ready.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import Iterator

MADV_HUGEPAGE, MADV_POPULATE_WRITE = 14, 23
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MAPS = Path("/proc/self/maps")
# Smaller mappings are not weights worth the system call.
MIN_BYTES = 16 << 20
_PRIVATE_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0\s*$")


def wanted() -> bool:
    """Whether asking can change anything here: Linux, set to `madvise`, and not switched off (LCSPEC_HUGE_PAGES=0)."""
    if sys.platform != "linux" or os.environ.get("LCSPEC_HUGE_PAGES") == "0":
        return False
    try:
        return "[madvise]" in SETTING.read_text()
    except OSError:
        return False


def large_mappings(maps: str) -> Iterator[tuple[int, int]]:
    """Start and end address of every large, private, anonymous, writable mapping in the text of a maps file."""
    for line in maps.splitlines():
        found = _PRIVATE_ANONYMOUS.match(line)
        if found is not None:
            start, stop = int(found[1], 16), int(found[2], 16)
            if stop - start >= MIN_BYTES:
                yield start, stop


def ask() -> int:
    """Ask for huge pages in all large anonymous mappings of this process; returns how many bytes were asked for."""
    return _advise(MADV_HUGEPAGE) if wanted() else 0


def populate() -> int:
    """Have the kernel provide all memory of these mappings now instead of at its first use, for programs whose first
    answer should not be late; returns how many bytes that was done for (Linux 5.14 and later).

    Not for models with recurrent layers: the library reserves 40 graph nodes for every token of a batch of theirs
    (llama_context::graph_max_nodes), hundreds of megabytes that it never touches.
    """
    return _advise(MADV_POPULATE_WRITE) if sys.platform == "linux" else 0


def _advise(advice: int) -> int:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    try:
        found = list(large_mappings(MAPS.read_text()))
    except OSError:
        return 0
    return sum(stop - start for start, stop in found if madvise(start, stop - start, advice) == 0)
