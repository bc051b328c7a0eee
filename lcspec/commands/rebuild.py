"""The line that compiles the library again for this machine: for `lcspec doctor`, and for when it cannot be loaded.

Imports nothing of the library.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import importlib.util
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from lcspec.errors import LcspecError, LibraryError

LIBRARY = "llama-cpp-python"


@dataclass(frozen=True)
class Hardware:
    """What the machine has, whether or not the library uses it.

    Attributes:
        flags: instruction sets of the processor, by the kernel's names.
        gpu: "nvidia", "amd" or "" (Apple's is always used).
        toolkit: the compiler for that GPU is on the PATH.
    """

    flags: frozenset[str]
    gpu: str
    toolkit: bool


@dataclass(frozen=True)
class Advice:
    """What a better build would bring: one sentence each, and what to compile it with."""

    gains: tuple[str, ...]
    cmake: tuple[str, ...]
    header: bool


def hardware() -> Hardware:
    """Ask the kernel (Linux; elsewhere nothing is known, and nothing is missing)."""
    flags: frozenset[str] = frozenset()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                flags = frozenset(value.split())
                break
    except (OSError, UnicodeDecodeError):
        pass
    if Path("/dev/nvidia0").exists() or Path("/dev/dxg").exists() and shutil.which("nvidia-smi"):
        return Hardware(flags, "nvidia", shutil.which("nvcc") is not None or Path("/usr/local/cuda/bin/nvcc").exists())
    if Path("/dev/kfd").exists():
        return Hardware(flags, "amd", shutil.which("hipcc") is not None or Path("/opt/rocm/bin/hipcc").exists())
    return Hardware(flags, "", False)


def build_line(advice: Advice, library_version: str, header: Path, python: Path, installer: str) -> str:
    """The one line that compiles the library again into this environment.

    Args:
        advice: what to compile it with.
        library_version: of llama-cpp-python, which stays the same.
        header: tile_config.h, included before every source so that AMX code is sound.
        python: this environment's interpreter.
        installer: "pip" or "uv" (whose environments have no pip).
    """
    given = [f"CMAKE_ARGS={shlex.quote(' '.join(advice.cmake))}"] if advice.cmake else []
    if advice.header:
        # A shell reads the flags once more inside the build, so a path with a space needs quotes of its own.
        given.append(f"CXXFLAGS={shlex.quote(f'-include {shlex.quote(str(header))}')}")
    what = [f"--no-binary={LIBRARY}", f"{LIBRARY}=={library_version}"]
    if installer == "uv":
        how = ["uv", "pip", "install", "--python", str(python), "--no-cache", "--reinstall", "--no-deps"]
    else:
        how = [str(python), "-m", "pip", "install", "--no-cache-dir", "--force-reinstall", "--no-deps"]
    return " ".join([*given, shlex.join([*how, *what])])


def installer() -> str:
    """What installs packages into this environment."""
    return "uv" if importlib.util.find_spec("pip") is None and shutil.which("uv") else "pip"


def command(advice: Advice) -> str:
    """The line for this environment."""
    header = Path(str(importlib.resources.files("lcspec.native"))) / "tile_config.h"
    return build_line(advice, importlib.metadata.version(LIBRARY), header, Path(sys.executable), installer())


def broken(error: LibraryError) -> LcspecError:
    """The error for a library that cannot be loaded: why, and the line that makes it again, for the CPU alone."""
    try:
        line = command(Advice((), (), "amx_int8" in hardware().flags))
    except importlib.metadata.PackageNotFoundError:
        return LcspecError(f"{LIBRARY} is not installed: install lcspec again")
    return LcspecError(f"{LIBRARY} cannot be loaded ({error.why}); this makes it again for the CPU: {line}")
