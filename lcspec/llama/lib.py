"""The loaded library: one place that imports llama_cpp, and keeps its log quiet unless asked."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import os
import sys
import tempfile
from typing import Any, Iterator

# A failed assertion inside the library would start a debugger to print its stack.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

from lcspec.errors import LibraryError

try:
    import llama_cpp as C
except (ImportError, OSError, RuntimeError) as error:
    raise LibraryError(error) from error

from lcspec.llama import amx

__all__ = [
    "C",
    "ERROR_LEVEL",
    "build",
    "end_on_abort",
    "features",
    "init",
    "last_errors",
    "log_lines",
    "log_to_stderr",
    "logits_address",
    "may_repack",
    "uses_amx",
    "token_to_piece",
    "version",
]

ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR

# The binding's own returns a typed pointer, whose conversion to a number costs more than all else between two decodes.
_ADDRESS = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
logits_address = _ADDRESS(ctypes.cast(C.llama_get_logits, ctypes.c_void_p).value or 0)
# Vocabulary, token, where to write and for how many bytes, spaces to strip, special: bytes written. As above: numbers.
_SPELL = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_bool,
)
token_to_piece = _SPELL(ctypes.cast(C.llama_token_to_piece, ctypes.c_void_p).value or 0)

_recent: collections.deque[str] = collections.deque(maxlen=40)
_echo = bool(os.environ.get("LCSPEC_LLAMA_LOG"))
_watching: list[str] | None = None
_initialised = False
_repacks = True
_abort_ends = True


@C.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _user: Any) -> None:
    message = text.decode("utf-8", "replace").rstrip("\n")
    if level == ERROR_LEVEL and message.strip(" ."):
        _recent.append(message)
    if _watching is not None:
        _watching.append(message)
    if _echo:
        print(message, file=sys.stderr)


# At once: a backend that is only asked for its devices tells of them.
C.llama_log_set(_on_log, ctypes.c_void_p(0))


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # type: ignore[untyped-decorator]
def _on_abort(message: bytes | None) -> None:
    where = (message or b"").decode("utf-8", "replace").strip().rsplit("/", 1)[-1]
    text = (
        f"lcspec: llama.cpp gave up at {where}. The model file is damaged, or this build does not support it: get the "
        "file again, or see `lcspec doctor` for the build\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    if _abort_ends:
        os._exit(1)  # otherwise the library calls abort()


def end_on_abort(on: bool) -> None:
    """Whether a failed assertion of the library ends the process with code 1 (the default), or by SIGABRT."""
    global _abort_ends
    _abort_ends = on


def log_to_stderr(on: bool) -> None:
    """Show the library's own log on stderr, or (the default) only remember its errors."""
    global _echo
    _echo = on


def last_errors() -> list[str]:
    """The library's latest error lines, oldest first; reading clears them."""
    lines = list(_recent)
    _recent.clear()
    return lines


def init() -> None:
    """Initialise the backend once per process."""
    global _initialised, _repacks
    if not _initialised:
        C.llama_cpp._lib.ggml_set_abort_callback(_on_abort)
        C.llama_backend_init()
        if not uses_amx() and amx.cpu_has_amx():
            with printed_to_stderr():  # the library says that it may not use tiles
                _repacks = amx.forbid(C.llama_cpp._lib)
        _initialised = True


def uses_amx() -> bool:
    """Whether the library multiplies with this processor's tiles."""
    return amx.cpu_has_amx() and amx.sound(C.llama_cpp._lib)


def may_repack() -> bool:
    """Whether the library may give weights another layout: not where that would end in code known to crash."""
    return _repacks


def build() -> str:
    """What the library was compiled for, and whether its AMX code is used: another one takes other times."""
    return ("" if uses_amx() else "without AMX; ") + features()


@functools.cache
def features() -> str:
    """What the library was compiled for, as "CPU : AVX = 1 | FMA = 1 | ...". It notes that at the first call."""
    return str(C.llama_print_system_info().decode("utf-8", "replace"))


def version() -> str:
    """Version of llama-cpp-python and of the llama.cpp inside it."""
    inner = C.llama_version().decode() if hasattr(C, "llama_version") else "unknown"
    return f"{C.__version__} ({inner})"


@contextlib.contextmanager
def error_reason(fallback: str) -> Iterator[list[str]]:
    """Collects what the library logs as errors inside the block; the list holds one summary line afterwards."""
    last_errors()
    out: list[str] = []
    yield out
    lines = [line.split(": ", 1)[-1] for line in last_errors()]
    out.append(lines[0] if lines else fallback)


@contextlib.contextmanager
def log_lines() -> Iterator[list[str]]:
    """Collects everything the library logs inside the block, debugging included."""
    global _watching
    before = _watching
    lines: list[str] = []
    _watching = lines
    try:
        yield lines
    finally:
        _watching = before
        if before is not None:
            before += lines


@contextlib.contextmanager
def printed_to_stderr() -> Iterator[list[str]]:
    """Collects what the library prints straight to stderr inside the block, past its log; the list holds the lines."""
    out: list[str] = []
    try:
        saved = os.dup(2)
    except OSError:  # there is no stderr
        yield out
        return
    with tempfile.TemporaryFile() as file:
        try:
            os.dup2(file.fileno(), 2)
            yield out
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            out += [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
