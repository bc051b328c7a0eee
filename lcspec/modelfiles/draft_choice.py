"""What drafts for a model when nobody says: a file beside it, a head inside it, a smaller model in the caches.

    found = choose_draft(Path("models/qwen3-8b-q4_0.gguf"))
    if found is not None:
        print(found.reason)      # qwen3-0.6b-q8_0.gguf lies beside it, has its vocabulary and 13 times fewer parameters

Only headers are read (see library.py). No llama_cpp.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lcspec.errors import LcspecError
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.library import LibraryModel, describe, drafts_for
from lcspec.modelfiles.pairing import can_be_taken_back, mtp_layers, why_not
from lcspec.modelfiles.places import Found, places, scan


@dataclass(frozen=True)
class DraftChoice:
    """What may draft.

    Attributes:
        where: a file "beside" the model, a head "inside" it, or a file in a "cache" of this or another program.
        path: the file to give to --draft; the model itself for a head inside it.
        reason: why this one, in a sentence for people.
    """

    where: Literal["beside", "inside", "cache"]
    path: Path
    reason: str


def choose_draft(target: Path, folders: Sequence[Path] = (), *, heads: bool = False) -> DraftChoice | None:
    """The best draft for `target` that is there; None if there is none.

    Args:
        target: the model to draft for.
        folders: further directories to search, before the caches.
        heads: whether heads inside the model can be used.
    """
    model = describe(Found(target, "folder", target.name, _size(target)))
    if not model.usable:
        return None
    beside = _best(model, map(_beside, _siblings(target)))
    if beside is not None:
        return DraftChoice("beside", beside.path, f"{beside.path.name} lies beside it and {_why(model, beside)}")
    if heads:
        layers = mtp_layers(read_gguf(target))
        if layers:
            word = "layer" if layers == 1 else "layers"
            return DraftChoice("inside", target, f"it has {layers} {word} for multi-token prediction inside")
    cached = _best(model, map(describe, scan(places(folders))))
    if cached is None:
        return None
    return DraftChoice("cache", cached.path, f"{cached.label} is on this machine and {_why(model, cached)}")


def _best(target: LibraryModel, candidates: Iterable[LibraryModel]) -> LibraryModel | None:
    """The smallest one that can draft, of the target's architecture if there is one of it."""
    fitting = [c for c in drafts_for(target, candidates) if _drafts(c.path)]
    return min(fitting, key=lambda c: (c.architecture != target.architecture, c.n_params, c.size), default=None)


def _drafts(path: Path) -> bool:
    try:
        return why_not(path) is None and can_be_taken_back(read_gguf(path).metadata)
    except LcspecError:
        return False


def _siblings(target: Path) -> list[Path]:
    """Other model files in the target's directory."""
    try:
        found = sorted(path for path in target.parent.iterdir() if path.suffix.lower() == ".gguf")
    except OSError:
        return []
    own = os.path.realpath(target)
    return [path for path in found if os.path.realpath(path) != own]


def _beside(path: Path) -> LibraryModel:
    return describe(Found(path, "folder", path.name, _size(path)))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _why(target: LibraryModel, draft: LibraryModel) -> str:
    return f"has its vocabulary and {target.n_params / draft.n_params:.3g} times fewer parameters"
