"""Having the library multiply row by row, so that a row's bits do not depend on how many there are.

Where it can, llama.cpp multiplies several rows with `llamafile_sgemm` or, from 8 rows of K-quants on, in tiles, and a
single one with code that sums in another order. Those functions refuse what they do not know, and the library then
takes the code for single rows at every width. That is slow for prompts. So the functions are made to refuse for some
decodes only: an ELF library calls them through its global offset table, and there their entries are pointed to a
function that answers "no" (System V gABI, chapter 5; GNU C library, dladdr(3)). Where they could be compiled
(few_rows.py) there are functions instead that multiply with the bits of single rows, and at all other times others that
take the faster way. Repacked weights have functions of their own for four rows at once, for which others stand in
(repacked_rows.py).

The fused attention kernel sums a single row in parts, and 64 rows and more in tiles, unless the library's CPU backend
is told to use its reference code (ggml-cpu, `ggml_backend_cpu_set_use_ref`): then each row is summed by itself. This is
told for the same decodes, where a context computes attention that way.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import platform
import struct
import sys
import threading
from typing import Any, Iterable, Iterator, NamedTuple

from lcspec.llama.few_rows import EXPERTS, SGEMM, TILED, kernels
from lcspec.llama.lib import C, features
from lcspec.llama.native import address_of
from lcspec.llama.repacked_rows import stand_ins

SEVERAL_ROWS = (SGEMM, TILED, EXPERTS)
REFUSES = "ggml_cpu_has_vsx"  # 0 on these processors
# llama_context::get_sched, and what leads from there to the CPU backend and its switch.
REFERENCE = (
    "_ZNK13llama_context9get_schedEv",
    "ggml_backend_sched_get_n_backends",
    "ggml_backend_sched_get_backend",
    "ggml_backend_is_cpu",
    "ggml_backend_cpu_set_use_ref",
)
DYNAMIC = 2  # PT_DYNAMIC
PLT_SIZE, STRINGS, SYMBOLS, RELOCATIONS, RELOCATIONS_SIZE, PLT = 2, 5, 6, 7, 8, 23  # DT_...
ENTRY = 24  # bytes of a relocation with addend, and of a symbol
READ_WRITE = 3  # PROT_READ | PROT_WRITE

# Held while a decode relies on the switch: another context of this process may want it the other way.
_lock = threading.Lock()


class _Switch(NamedTuple):
    """Entries of the global offset table, the functions they hold as a rule, and those they hold for some decodes.

    `name` changes with what stands in.
    """

    entries: tuple[ctypes.c_void_p, ...]
    on: tuple[int, ...]
    off: tuple[int, ...]
    name: str

    def set(self, refuse: bool) -> None:
        for entry, function in zip(self.entries, self.off if refuse else self.on):
            entry.value = function


class _Place(ctypes.Structure):
    """`Dl_info` of dladdr(3)."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def can_go_row_by_row() -> bool:
    """Whether `row_by_row` has an effect here."""
    return _places() is not None


def take_faster_kernels() -> None:
    """Have the library multiply with the kernels of few_rows.py, if there are any, from now on."""
    _switch()


def functions_switched() -> str:
    """A name for what stands in for the library's functions: what was measured with it holds for these."""
    switch = _switch()
    return switch.name if switch is not None else ""


def can_fuse_row_by_row() -> bool:
    """The same with the fused attention kernel."""
    return can_go_row_by_row() and _library_has(*REFERENCE)


@contextlib.contextmanager
def row_by_row(on: bool, backend: int | None = None) -> Iterator[None]:
    """Inside, decodes multiply row by row, or (not `on`) as fast as they can; for one thread at a time.

    `backend`: that of the context that decodes (see `cpu_backend`), if its attention goes row by row.
    """
    with _lock:
        switch = _switch() if on else None
        if switch is not None:
            switch.set(refuse=True)
        if backend is not None:
            C.llama_cpp._lib.ggml_backend_cpu_set_use_ref(ctypes.c_void_p(backend), ctypes.c_bool(True))
        try:
            yield
        finally:
            if switch is not None:
                switch.set(refuse=False)
            if backend is not None:
                C.llama_cpp._lib.ggml_backend_cpu_set_use_ref(ctypes.c_void_p(backend), ctypes.c_bool(False))


def cpu_backend(handle: Any) -> int | None:
    """The CPU backend of a llama_context; None where this library does not tell."""
    if not can_fuse_row_by_row():
        return None
    schedule, count, backend_of, is_cpu, _ = (getattr(C.llama_cpp._lib, name) for name in REFERENCE)
    schedule.restype = backend_of.restype = ctypes.c_void_p
    is_cpu.restype = ctypes.c_bool
    scheduler = ctypes.c_void_p(schedule(ctypes.cast(handle, ctypes.c_void_p)))
    found = [backend_of(scheduler, i) for i in range(count(scheduler))]
    return next((backend for backend in found if is_cpu(ctypes.c_void_p(backend))), None)


def _library_has(*names: str) -> bool:
    return all(hasattr(C.llama_cpp._lib, name) for name in names)


@functools.cache
def _places() -> dict[str, ctypes.c_void_p] | None:
    """Where the library finds its functions for several rows; None where that cannot be changed: another format of
    libraries, or one that calls a function directly."""
    library = C.llama_cpp._lib
    known = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    if not known or not hasattr(library, REFUSES) or getattr(library, REFUSES)():
        return None
    return _entries(library, [name for name in SEVERAL_ROWS if hasattr(library, name)])


@functools.cache
def _switch() -> _Switch | None:
    """The switch, set to the kernels that are fastest; None where there is none."""
    library, places = C.llama_cpp._lib, _places()
    if places is None:
        return None
    features()  # makes the library ready, and must be noted before some of what stands in says "ARM"
    repacked, few = stand_ins(library), kernels(library)
    on = {name: address_of(library, name) for name in places}
    off = dict.fromkeys(places, address_of(library, REFUSES))
    if few is not None:
        on |= few.fast
        off |= few.exact
    always = few.always if few is not None else {}
    usual = {name: address_of(library, name) for name in repacked}
    for as_a_rule, for_some in ((usual, repacked), (always, always)):
        others = _entries(library, for_some)  # all or none: they work together
        if others is not None:
            places = places | others
            on |= as_a_rule
            off |= for_some
    name = f"{len(places)} {few.name if few is not None else ''}"
    switch = _Switch(tuple(places.values()), tuple(on.values()), tuple(off.values()), name)
    switch.set(refuse=False)
    return switch


def _entries(library: ctypes.CDLL, names: Iterable[str]) -> dict[str, ctypes.c_void_p] | None:
    """The entries through which `library` calls functions, writable; None if one of them has none."""
    libc, place, entries = ctypes.CDLL(None), _Place(), dict[str, ctypes.c_void_p]()
    for name in names:
        function = ctypes.c_void_p(address_of(library, name))
        if not libc.dladdr(function, ctypes.byref(place)) or not place.base:
            return None
        address = _entry(place.base, name.encode())
        if address is None:
            return None
        page = address - address % mmap.PAGESIZE  # an entry that was bound at the start is read-only
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), READ_WRITE) != 0:
            return None
        entries[name] = ctypes.c_void_p.from_address(address)
    return entries


def _entry(base: int, name: bytes) -> int | None:
    """Address of the entry through which the 64-bit ELF library loaded at `base` calls `name`."""

    def at(address: int, form: str) -> tuple[int, ...]:
        return struct.unpack(form, ctypes.string_at(address, struct.calcsize(form)))

    def loaded(address: int) -> int:
        return address if address >= base else base + address  # not every C library relocates this table

    (headers,) = at(base + 32, "<Q")
    size, count = at(base + 54, "<HH")
    for header in range(base + headers, base + headers + size * count, size):
        if at(header, "<I")[0] == DYNAMIC:
            dynamic, length = base + at(header + 16, "<Q")[0], at(header + 40, "<Q")[0]
            break
    else:
        return None
    tags = {key: value for key, value in (at(dynamic + i, "<qQ") for i in range(0, length, 16))}
    tables = (tags.get(PLT, 0), tags.get(PLT_SIZE, 0)), (tags.get(RELOCATIONS, 0), tags.get(RELOCATIONS_SIZE, 0))
    for table, length in tables:
        for i in range(0, length if table else 0, ENTRY):
            offset, info = at(loaded(table) + i, "<QQ")
            symbol = info >> 32
            if symbol and STRINGS in tags and SYMBOLS in tags:
                (text,) = at(loaded(tags[SYMBOLS]) + ENTRY * symbol, "<I")
                if ctypes.string_at(loaded(tags[STRINGS]) + text) == name:
                    return base + offset
    return None
