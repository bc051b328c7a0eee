"""Keeping the library from AMX code that crashes.

Compiled by GCC, llama.cpp's AMX kernels may load a tile configuration that was never written, because the compiler is
told of only 8 of its 64 bytes (llama.cpp issue 20824): on CPUs with AMX they crash or compute nonsense. A library that
was compiled with native/tile_config.h, as `make setup` does, says so by a symbol. With any other the kernels are not
used: the library asks the kernel's permission to use tiles when it first lists its kinds of buffers, and gets none
while a thread has a signal stack too small for a frame with tiles (Linux, Documentation/arch/x86/xstate.rst). It then
goes on with its other kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import sys
from pathlib import Path
from typing import Iterator

# Exported by a library whose tile configuration is sound.
MARK = "lcspec_tile_config"
ARCH_PRCTL, ARCH_GET_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1022, 18
SMALL_STACK = 2048  # MINSIGSTKSZ: the smallest there may be, and no room for 8 KiB of tiles


class _Stack(ctypes.Structure):
    """`stack_t` of sigaltstack(2)."""

    _fields_ = [("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


@functools.cache
def processor_flags() -> tuple[str, ...]:
    """What the first processor can do, as Linux names it; nothing on other systems and processors."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return ()
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except (OSError, UnicodeDecodeError):
        return ()
    return next((tuple(line.split()) for line in first.splitlines() if line.startswith("flags")), ())


def cpu_has_amx() -> bool:
    """Whether this is a Linux machine whose processor multiplies int8 tiles."""
    return "amx_int8" in processor_flags()


def sound(library: ctypes.CDLL) -> bool:
    """Whether the AMX code of the loaded `library` may run; LCSPEC_AMX=1 or 0 overrides what it says of itself."""
    wish = os.environ.get("LCSPEC_AMX")
    return wish == "1" if wish in ("0", "1") else hasattr(library, MARK)


def forbid(library: ctypes.CDLL) -> bool:
    """Make `library` list its kinds of buffers while it cannot have tiles; False: it may have them all the same.

    Only before any model was loaded: the library lists them once.
    """
    try:
        register, device, lookup = (
            getattr(library, name)
            for name in ("ggml_backend_cpu_reg", "ggml_backend_reg_dev_get", "ggml_backend_reg_get_proc_address")
        )
    except AttributeError:
        return False
    register.restype = device.restype = lookup.restype = ctypes.c_void_p
    with _small_signal_stack() as small:
        cpu = ctypes.c_void_p(register())
        address = lookup(cpu, ctypes.c_char_p(b"ggml_backend_dev_get_extra_bufts"))
        if not small or not address or permitted():
            return False
        ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(device(cpu, ctypes.c_size_t(0)))
    return not permitted()


def permitted() -> bool:
    """Whether this process may use tiles (arch_prctl(2), ARCH_GET_XCOMP_PERM)."""
    mask = ctypes.c_uint64(0)
    failed = ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_GET_XCOMP_PERM, ctypes.byref(mask))
    return failed == 0 and bool(mask.value >> XFEATURE_XTILEDATA & 1)


@contextlib.contextmanager
def _small_signal_stack() -> Iterator[bool]:
    """Make this thread's signal stack small for a while; False: the kernel refuses that."""
    libc = ctypes.CDLL(None)
    room = ctypes.create_string_buffer(SMALL_STACK)
    small, before = _Stack(ctypes.addressof(room), 0, SMALL_STACK), _Stack()
    done = libc.sigaltstack(ctypes.byref(small), ctypes.byref(before)) == 0
    try:
        yield done
    finally:
        if done:
            libc.sigaltstack(ctypes.byref(before), None)
