"""What the kernel is told about this process's memory, on Linux: which pages should be huge, and which are not needed.

A decode streams all weights through the cores, and with 4 KiB pages part of that time goes into address translation.
Where the kernel gives huge pages to those who ask (`/sys/kernel/mm/transparent_hugepage/enabled` says madvise, the
usual setting), the library does not ask. Its large anonymous buffers (repacked weights) exist when it first reports
progress and are filled afterwards, so asking then costs nothing: the pages are huge from the first touch. A context's
compute buffers are large as well and untouched when it has been made; the first long prompt touches them, and takes up
to twice as long as the next one where the kernel is slow at it. A server has its memory before it says it is ready.

Repacked weights are copies, and of the file that the library maps hardly a page is read again. Given back, it does not
count as this process's memory. It stays in the system's cache, and what is read after all comes from there.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import Iterator

MADV_DONTNEED, MADV_HUGEPAGE, MADV_POPULATE_WRITE = 4, 14, 23
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MAPS = Path("/proc/self/maps")
# Smaller mappings are not weights worth the system call.
MIN_BYTES = 16 << 20
# How often a file's pages are given back while its weights are copied.
TIMES = 16
BUFFER = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0\s*$")
MAPPED_FILE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r--s \S+ \S+ [1-9]")


def wanted() -> bool:
    """Whether asking can change anything here: Linux, set to `madvise`, and not switched off (LCSPEC_HUGE_PAGES=0)."""
    if sys.platform != "linux" or os.environ.get("LCSPEC_HUGE_PAGES") == "0":
        return False
    try:
        return "[madvise]" in SETTING.read_text()
    except OSError:
        return False


def large_mappings(maps: str, kind: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Start and end address of every large mapping of this kind (BUFFER: private, anonymous and writable; MAPPED_FILE:
    shared and only read) in the text of a maps file."""
    for line in maps.splitlines():
        found = kind.match(line)
        if found is not None:
            start, stop = int(found[1], 16), int(found[2], 16)
            if stop - start >= MIN_BYTES:
                yield start, stop


def ask() -> int:
    """Ask for huge pages in all large anonymous mappings of this process; returns how many bytes were asked for."""
    return _advise(MADV_HUGEPAGE, BUFFER) if wanted() else 0


def populate() -> int:
    """Have the kernel provide all memory of these mappings now instead of at its first use, for programs whose first
    answer should not be late; returns how many bytes that was done for (Linux 5.14 and later).

    Not for models with recurrent layers: the library reserves 40 graph nodes for every token of a batch of theirs
    (llama_context::graph_max_nodes), hundreds of megabytes that it never touches.
    """
    return _advise(MADV_POPULATE_WRITE, BUFFER)


def give_back() -> int:
    """Give the pages of large mapped files back; returns how many bytes that was done for (none that are locked)."""
    return _advise(MADV_DONTNEED, MAPPED_FILE)


def _advise(advice: int, kind: re.Pattern[str]) -> int:
    if sys.platform != "linux":
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    try:
        found = list(large_mappings(MAPS.read_text(), kind))
    except OSError:
        return 0
    return sum(stop - start for start, stop in found if madvise(start, stop - start, advice) == 0)
