"""Where model files lie on this machine: the places that other programs use, and walking through them.

Reads directories and Ollama's manifests only, never a model file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable, Iterator, Literal, Mapping, Sequence

from lcspec.modelfiles.starter import models_dir
from lcspec.paths import printable

Source = Literal["bundled", "folder", "pulled", "huggingface", "lmstudio", "ollama", "llama.cpp"]

MAX_DEPTH = 10
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_PROJECTOR = re.compile(r"(^|[-_.])mmproj([-_.]|$)", re.IGNORECASE)
_MODEL_LAYER = "application/vnd.ollama.image.model"
_SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv", ".Trash", "dosdevices"})
_SYSTEM = ("/proc", "/sys", "/dev")  # never entered from above


@dataclass(frozen=True)
class Place:
    """A directory to search, and as many levels of directories below it (0: its own files only)."""

    source: Source
    path: Path
    depth: int = MAX_DEPTH


@dataclass(frozen=True)
class Found:
    """A file that may be a model; nothing of it has been read. `label` is what people call it there."""

    path: Path
    source: Source
    label: str
    size: int


def places(
    folders: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
    platform: str = sys.platform,
    near: Sequence[Path] = (),
) -> list[Place]:
    """Existing directories to search: the given folders, those of LCSPEC_MODELS, `near` (their own files only), what
    was pulled, `~/models`, Downloads, then the caches as their programs' variables place them."""
    env = os.environ if environ is None else environ
    home = Path(os.path.expanduser("~")) if home is None else home
    listed = [Path(os.path.expanduser(part)) for part in env.get("LCSPEC_MODELS", "").split(os.pathsep) if part]
    found = [Place("folder", folder) for folder in (*folders, *listed)]
    found += [Place("folder", folder, 0) for folder in near]
    found += [Place("pulled", models_dir()), Place("folder", home / "models"), Place("folder", home / "Downloads", 1)]
    found += [Place(source, path) for source, path in _caches(env, home, platform == "darwin")]
    seen: set[str] = set()
    out = []
    for place in found:
        real = os.path.realpath(place.path)
        if real not in seen and os.path.isdir(real):
            seen.add(real)
            out.append(place)
    return out


def _caches(env: Mapping[str, str], home: Path, mac: bool) -> Iterator[tuple[Source, Path]]:
    """Every place that a program may use, whether it is there or not."""

    def from_env(name: str) -> Path | None:
        value = env.get(name)
        return Path(os.path.expanduser(value)) if value else None

    cache = from_env("XDG_CACHE_HOME") or home / ".cache"
    yield "huggingface", hub_cache(env, home)

    yield "llama.cpp", from_env("LLAMA_CACHE") or (home / "Library/Caches" if mac else cache) / "llama.cpp"

    lmstudio = _lmstudio_home(home)
    if lmstudio is not None:
        yield "lmstudio", lmstudio / "models"
    yield "lmstudio", home / ".lmstudio/models"
    yield "lmstudio", home / ".cache/lm-studio/models"

    ollama = from_env("OLLAMA_MODELS")
    if ollama is not None:
        yield "ollama", ollama
    yield "ollama", home / ".ollama/models"
    if not mac:
        yield "ollama", Path("/usr/share/ollama/.ollama/models")
        yield "ollama", Path("/var/lib/ollama/models")


def here() -> tuple[Path, ...]:
    """The current folder, if there still is one."""
    try:
        return (Path.cwd(),)
    except OSError:
        return ()


def hub_cache(environ: Mapping[str, str] | None = None, home: Path | None = None) -> Path:
    """Hugging Face's cache, where its own programs look for it."""
    env = os.environ if environ is None else environ
    home = Path(os.path.expanduser("~")) if home is None else home
    for name, below in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if env.get(name):
            return Path(os.path.expanduser(env[name])) / below
    return home / ".cache/huggingface/hub"


def _lmstudio_home(home: Path) -> Path | None:
    """LM Studio's directory where it was moved: a file in the home directory points to it."""
    try:
        text = (home / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return Path(text) if text and "\0" not in text and "\n" not in text else None


# --- walking ----------------------------------------------------------------------------------------------------------


def scan(where: Iterable[Place], stop: Callable[[], bool] = lambda: False) -> Iterator[Found]:
    """Model files below the places, each once however many links lead to it; mmproj files and later parts of split
    models are skipped. Reads directories only, as it goes; what may not be read is passed over. `stop` is asked before
    each directory: a search through a whole disk can be given up."""
    files: set[tuple[int, int]] = set()
    for place in where:
        if stop():
            return
        found = _ollama(place.path) if place.source == "ollama" else _walk(place.path, stop, place.depth)
        for path, label in found:
            try:
                status = os.stat(path)
            except (OSError, ValueError):
                continue  # a link to nothing, or gone meanwhile
            identity = (status.st_dev, status.st_ino)
            if identity not in files:
                files.add(identity)
                yield Found(path, place.source, label or _label(place, path), status.st_size)


def _walk(root: Path, stop: Callable[[], bool], deepest: int) -> Iterator[tuple[Path, str]]:
    """GGUF files below a directory, in order of their names. Links are followed; no directory is entered twice."""
    entered: set[tuple[int, int]] = set()
    for system in _SYSTEM:
        with contextlib.suppress(OSError):
            status = os.stat(system)
            entered.add((status.st_dev, status.st_ino))
    stack = [(os.fspath(root), 0)]
    while stack and not stop():
        folder, depth = stack.pop()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except (OSError, ValueError):
            continue
        below = []
        for entry in listed:
            name = entry.name
            try:
                if name.lower().endswith(".gguf") and entry.is_file():
                    if not _LATER_PART.search(name) and not _PROJECTOR.search(name):
                        yield Path(entry.path), ""
                elif depth < deepest and name not in _SKIPPED and entry.is_dir():
                    below.append((entry.path, depth + 1))
            except OSError:
                continue
        stack += reversed(below)


def _label(place: Place, path: Path) -> str:
    """What people call a file: `org/repo/file` in Hugging Face's cache, else its path below the place."""
    try:
        below = path.relative_to(place.path)
    except ValueError:
        return printable(path.name)
    if place.source == "huggingface":
        parts = below.parts
        if len(parts) > 3 and parts[0].startswith("models--") and parts[1] == "snapshots":
            return printable("/".join([*parts[0].split("--")[1:], *parts[3:]]))
    return printable(str(below))


def _ollama(root: Path) -> Iterator[tuple[Path, str]]:
    """Models by Ollama's manifests: manifests/REGISTRY/NAMESPACE/MODEL/TAG names a blob by its digest."""
    manifests = root / "manifests"
    for folder, folders, names in os.walk(manifests):
        folders.sort()
        for name in sorted(names):
            manifest = Path(folder, name)
            try:
                if manifest.stat().st_size > 1 << 20:
                    continue
                layers = json.loads(manifest.read_bytes()).get("layers")
                digests = [layer["digest"] for layer in layers if layer["mediaType"] == _MODEL_LAYER]
            except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # another version of it, or half written
            # the first of several is the first part of a split model, which llama.cpp cannot open under these names
            if len(digests) == 1 and re.fullmatch(r"sha256:[0-9a-f]{8,128}", str(digests[0])):
                blob = root / "blobs" / str(digests[0]).replace(":", "-")
                yield blob, _ollama_name(manifest.relative_to(manifests).parts)


def _ollama_name(parts: tuple[str, ...]) -> str:
    """As `ollama list` shows it: llama3.2:1b, user/model:tag, hf.co/org/model:tag."""
    if len(parts) < 2:
        return printable("/".join(parts))
    *where, tag = parts
    if where[:1] == ["registry.ollama.ai"]:
        where = where[1:]
        if where[:1] == ["library"]:
            where = where[1:]
    return printable("/".join(where) + ":" + tag)
