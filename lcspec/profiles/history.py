"""What was learned with a model, kept between sessions: earlier texts, acceptance, what drafters are worth.

Online speculative decoding (Liu et al. 2023, arXiv:2310.07177) in what works without training a network. Everything
a target taught is in one directory of the user's cache, readable by the user alone, bounded in size, and ignored when
it is damaged or the model's file is another by now. Nothing is read or written with --no-history or
LCSPEC_NO_HISTORY=1.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from lcspec import disk_cache
from lcspec.config import DraftFiles

FOLDER = "history"
# Targets that are remembered; beyond that the ones not used for longest go.
MAX_TARGETS = 32
# Combinations of draft models and stores that are remembered per target.
MAX_FILES = 16


def allowed(wanted: bool = True) -> bool:
    """Whether a session may keep a history at all."""
    return wanted and os.environ.get("LCSPEC_NO_HISTORY", "") in ("", "0")


def folder_of(target: Path) -> str:
    """The cache kind that holds everything about a target; it stays the same when the file is replaced."""
    return f"{FOLDER}/{disk_cache.key_of('target', target.resolve())}"


def pair_key(draft: DraftFiles) -> str:
    """The file of a target's history that belongs to what drafts for it."""
    named = [*draft.files, *([draft.store] if draft.store is not None else [])]
    return "pair-" + disk_cache.key_of(*(p.resolve() for p in named))


def _identities(target: Path, draft: DraftFiles | None) -> list[str]:
    """What must not have changed for the history to hold."""
    named = [target]
    if draft is not None:
        named += [*draft.files, *([draft.store] if draft.store is not None else [])]
    return [disk_cache.file_identity(p) for p in named]


def load(target: Path, draft: DraftFiles | None, key: str) -> Any:
    """A part of a target's history, or None; `draft` as it was saved with."""
    data = disk_cache.load(folder_of(target), key)
    try:
        same = isinstance(data, dict) and data.get("of") == _identities(target, draft)
    except OSError:  # a file is gone
        return None
    return data.get("what") if same else None


def save(target: Path, draft: DraftFiles | None, key: str, what: Any) -> None:
    """Keep a part of a target's history; whatever cannot be written is not kept."""
    kind = folder_of(target)
    with contextlib.suppress(OSError):
        folder = disk_cache.cache_dir() / kind
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if disk_cache.save(kind, key, {"of": _identities(target, draft), "what": what}):
            os.utime(folder)
        _bound(folder, MAX_FILES)
        _bound(folder.parent, MAX_TARGETS)


def _bound(folder: Path, most: int) -> None:
    """Remove the oldest entries beyond `most`."""
    entries = sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)
    for entry in entries[most:]:
        _remove(entry)


def _remove(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)


def forget(target: Path | None) -> int:
    """Remove what was learned with `target`, or with every model; returns how many models that were.

    Raises:
        OSError: it cannot be removed.
    """
    root = disk_cache.cache_dir()
    folders = [root / folder_of(target)] if target is not None else list((root / FOLDER).glob("*"))
    found = [f for f in folders if f.is_dir()]
    for folder in found:
        shutil.rmtree(folder)
    return len(found)
