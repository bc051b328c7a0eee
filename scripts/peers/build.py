"""Building llama.cpp's programs from the very sources that the installed llama-cpp-python was built from."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

PACKAGE = "llama-cpp-python"
TILE_CONFIG = Path(__file__).resolve().parents[2] / "native" / "tile_config.h"
PROGRAMS = (
    "llama-bench",
    "llama-lookup",
    "llama-lookahead",
    "llama-speculative-simple",
    "llama-speculative",
    "llama-server",
    "llama-batched-bench",
    "llama-quantize",
)
STAMP = "peers.json"
# What the comparison does not need; the server would fetch or build a web page otherwise.
SWITCHES = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "LLAMA_BUILD_COMMON": "ON",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_EXAMPLES": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
}

_OPTION = re.compile(r"^\s*option\((GGML_\w+)", re.MULTILINE)
_VALUE = re.compile(r'^set\((GGML_\w+) "(ON|OFF)"\)', re.MULTILINE)
# Options of ggml that say what is built beside the library, not how.
_NOT_HOW = {"GGML_BUILD_TESTS", "GGML_BUILD_EXAMPLES", "GGML_CCACHE", "GGML_STATIC", "GGML_ALL_WARNINGS"}


class BuildError(Exception):
    """The programs could not be built; the message says at which step and where the log is."""


def installed_version() -> str:
    """Version of llama-cpp-python in this environment.

    Raises:
        BuildError: it is not installed.
    """
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise BuildError(f"{PACKAGE} is not installed in {sys.executable}'s environment") from error


def library_options(source: Path, config: str) -> dict[str, str]:
    """The ggml options that the installed library was built with, as far as `source` knows them.

    Args:
        source: a llama.cpp tree.
        config: text of the library's installed ggml-config.cmake.
    """
    known = set(_OPTION.findall((source / "ggml" / "CMakeLists.txt").read_text(encoding="utf-8")))
    return {name: value for name, value in _VALUE.findall(config) if name in known - _NOT_HOW}


def installed_config() -> str:
    """Text of the installed package's ggml-config.cmake; empty when it has none."""
    for file in importlib.metadata.files(PACKAGE) or []:
        if file.name == "ggml-config.cmake":
            return Path(str(file.locate())).read_text(encoding="utf-8")
    return ""


def fetch_source(work: Path, report: Callable[[str], None]) -> Path:
    """The llama.cpp tree from the sdist of the installed version, downloaded by pip and unpacked under `work`.

    Raises:
        BuildError: the download failed or holds no llama.cpp.
    """
    version = installed_version()
    tree = work / f"source-{version}"
    if (tree / "CMakeLists.txt").is_file():
        return tree
    with tempfile.TemporaryDirectory(prefix="peers-", dir=work) as folder:
        report(f"downloading the source distribution of {PACKAGE} {version} ...")
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
        command += ["--no-deps", "--no-binary", PACKAGE, "--dest", folder, f"{PACKAGE}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True)
        archives = list(Path(folder).glob("*.tar.gz"))
        if not archives:
            lines = done.stderr.strip().splitlines() or ["no archive came"]
            raise BuildError(f"pip could not download {PACKAGE} {version} ({lines[-1]}); give a tree with --source DIR")
        unpacked = Path(folder, "unpacked")
        with tarfile.open(archives[0]) as archive:
            members = [m for m in archive if "/vendor/llama.cpp/" in m.name and (m.isfile() or m.isdir())]
            members = [m for m in members if ".." not in Path(m.name).parts and not m.name.startswith("/")]
            archive.extractall(unpacked, members)
        found = [path.parent for path in unpacked.glob("*/vendor/llama.cpp/CMakeLists.txt")]
        if not found:
            raise BuildError(f"{archives[0].name} holds no vendor/llama.cpp; give a tree with --source DIR")
        shutil.move(str(found[0]), tree)
    return tree


def build(work: Path, source: Path | None, jobs: int, report: Callable[[str], None]) -> Path:
    """Configure and build; returns the folder of the programs.

    Args:
        work: folder for sources, build files and log; created.
        source: an unpacked llama.cpp tree; None = from the sdist.
        jobs: compilers at a time.
        report: called with a line about each step.

    Raises:
        BuildError: a step failed.
    """
    if shutil.which("cmake") is None:
        raise BuildError("cmake is not installed: install it, or put it on PATH")
    work.mkdir(parents=True, exist_ok=True)
    tree = source or fetch_source(work, report)
    if not (tree / "ggml" / "CMakeLists.txt").is_file():
        raise BuildError(f"{tree} is not a llama.cpp tree")
    config = installed_config()
    if not config:
        report("the installed library does not say how it was built: using llama.cpp's defaults")
    options = {**library_options(tree, config), **SWITCHES}
    if platform.machine() == "x86_64" and sys.platform == "linux":
        options["CMAKE_CXX_FLAGS"] = f"-include {TILE_CONFIG}"  # they crash on CPUs with AMX without it
    folder, log = work / "build", work / "build.log"
    configure = ["cmake", "-S", str(tree), "-B", str(folder)]
    if not (folder / "CMakeCache.txt").exists() and shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    configure += [f"-D{name}={value}" for name, value in options.items()]
    compile_ = ["cmake", "--build", str(folder), "--config", "Release", "-j", str(jobs), "--target", *PROGRAMS]
    with log.open("w", encoding="utf-8") as stream:
        for step, command in (("configuring", configure), ("compiling (10 to 30 minutes on two cores)", compile_)):
            report(f"{step}; the log is {log}")
            if subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT).returncode:
                raise BuildError(f"{step.split()[0]} failed: see the end of {log}")
    binaries = folder / "bin"
    missing = [name for name in PROGRAMS if not (binaries / name).is_file()]
    if missing:
        raise BuildError(f"built, but {', '.join(missing)} did not appear in {binaries}")
    stamp = {"version": installed_version(), "options": options}
    (work / STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    return binaries


def check_build(work: Path) -> Path:
    """The folder of programs built earlier, for the library that is installed now.

    Raises:
        BuildError: there is none, or it belongs to another version.
    """
    try:
        version = json.loads((work / STAMP).read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise BuildError(f"no finished build in {work}: run the build command first") from None
    if version != installed_version():
        raise BuildError(f"{work} was built for {PACKAGE} {version}, installed is {installed_version()}: build again")
    return work / "build" / "bin"
