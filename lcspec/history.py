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
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lcspec import cache
from lcspec.config import DraftFiles

if TYPE_CHECKING:
    from lcspec.drafters import Drafter
    from lcspec.engine import Engine

FOLDER = "history"
# Targets that are remembered; beyond that the ones not used for longest go.
MAX_TARGETS = 32
# Combinations of draft models and stores that are remembered per target.
MAX_FILES = 16


@runtime_checkable
class Remembering(Protocol):
    """A drafter that has something to keep between sessions."""

    def dump(self) -> Any:
        """What to keep, as JSON allows; None if there is nothing new."""

    def restore(self, data: Any) -> None:
        """Take up what `dump` gave.

        Raises:
            ValueError: it is not that.
        """


def allowed(wanted: bool = True) -> bool:
    """Whether a session may keep a history at all."""
    return wanted and os.environ.get("LCSPEC_NO_HISTORY", "") in ("", "0")


def folder_of(target: Path) -> str:
    """The cache kind that holds everything about a target; it stays the same when the file is replaced."""
    return f"{FOLDER}/{cache.key_of('target', target.resolve())}"


def pair_key(draft: DraftFiles) -> str:
    """The file of a target's history that belongs to what drafts for it."""
    named = [*draft.files, *([draft.store] if draft.store is not None else [])]
    return "pair-" + cache.key_of(*(p.resolve() for p in named))


def _identities(target: Path, draft: DraftFiles | None) -> list[str]:
    """What must not have changed for the history to hold."""
    named = [target]
    if draft is not None:
        named += [*draft.files, *([draft.store] if draft.store is not None else [])]
    return [cache.file_identity(p) for p in named]


def load(target: Path, draft: DraftFiles | None, key: str) -> Any:
    """A part of a target's history, or None; `draft` as it was saved with."""
    data = cache.load(folder_of(target), key)
    try:
        same = isinstance(data, dict) and data.get("of") == _identities(target, draft)
    except OSError:  # a file is gone
        return None
    return data.get("what") if same else None


def save(target: Path, draft: DraftFiles | None, key: str, what: Any) -> None:
    """Keep a part of a target's history; whatever cannot be written is not kept."""
    kind = folder_of(target)
    with contextlib.suppress(OSError):
        folder = cache.cache_dir() / kind
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if cache.save(kind, key, {"of": _identities(target, draft), "what": what}):
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
    root = cache.cache_dir()
    folders = [root / folder_of(target)] if target is not None else list((root / FOLDER).glob("*"))
    found = [f for f in folders if f.is_dir()]
    for folder in found:
        shutil.rmtree(folder)
    return len(found)


# --- an engine's history ----------------------------------------------------------------------------------------------


def restored(engine: Engine, drafter: Drafter) -> Drafter:
    """The drafter with what it kept from earlier sessions."""
    if engine.env.history and isinstance(drafter, Remembering):
        data = load(engine.options.path, None, drafter.name)
        if data is not None:
            with contextlib.suppress(ValueError):
                drafter.restore(data)
    return drafter


def keep_texts(engine: Engine) -> None:
    """Keep what the engine's drafters remember, unless a measurement made them forget what they had."""
    if not engine.env.history or engine.forgetful:
        return
    for drafter in engine.drafters.values():
        if isinstance(drafter, Remembering) and (data := drafter.dump()) is not None:
            save(engine.options.path, None, drafter.name, data)
