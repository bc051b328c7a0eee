"""GGUF files on this machine: in folders, and in the caches of Hugging Face, LM Studio, Ollama and llama.cpp.

    for model in models([Path("~/models").expanduser()]):     # lazily: a picker can fill while this runs
        print(model.label, model.summary, model.problem)

Only headers are read, and what they say is kept (lcspec.disk_cache) until the file changes. No llama_cpp.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Sequence

from lcspec import disk_cache
from lcspec.errors import LcspecError
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.modelfiles.gguf_header import Scalar, format_size
from lcspec.modelfiles.modelfile import ModelHeader, Vocabulary, read_header, read_vocabulary
from lcspec.modelfiles.pairing import NO_DRAFTS, distilled_from
from lcspec.modelfiles.places import Found, Place, Source, places, scan
from lcspec.paths import data_dir, printable, write_atomically

__all__ = [
    "Found",
    "LastModel",
    "LibraryModel",
    "Place",
    "Source",
    "bundled",
    "describe",
    "drafts_for",
    "last_model",
    "models",
    "places",
    "remember_model",
    "same_vocabulary",
    "scan",
]

STATE_FILE = "state.json"
# Padding the output matrix to a round size is common, so trailing entries may be missing on one side.
MAX_PADDING = 1024
_SHARE = 0.5  # a draft has at most this share of the target's parameters


@dataclass(frozen=True)
class LibraryModel:
    """A model file and what its header says. With `problem` (one sentence) it cannot be used and the rest is empty.

    Attributes:
        path: the file (the first part of a split model).
        label: file name, `org/repo/file` (Hugging Face), or `name:tag` (Ollama).
        size: bytes, all parts.
        context: what it was trained for, in tokens.
        n_params: parameters, all parts.
        tokenizer: its kind of tokenizer, with the pre-tokenizer.
        has_template: whether it has a chat template of its own.
    """

    path: Path
    source: Source
    label: str
    size: int
    architecture: str = ""
    name: str | None = None
    quantization: str = ""
    context: int | None = None
    n_params: int = 0
    n_vocab: int = 0
    tokenizer: str = ""
    has_template: bool = False
    problem: str | None = None

    @property
    def usable(self) -> bool:
        """Whether it can be loaded, as far as its header tells."""
        return self.problem is None

    @property
    def summary(self) -> str:
        """One short line: "1.1B llama · Q4_K_M · 668.0 MB · 8k context"."""
        if self.problem is not None:
            return self.problem
        parts = [f"{format_count(self.n_params)} {self.architecture}", self.quantization, format_size(self.size)]
        if self.context:
            parts.append(f"{format_count(self.context, 1024).lower()} context")
        return " · ".join(parts)


@dataclass(frozen=True)
class LastModel:
    """The pair used last; the files were there when this was read."""

    model: Path
    draft: Path | None


def format_count(count: int, base: int = 1000) -> str:
    """A count for people: 1.1B, 135M, 8K."""
    for unit, power in (("T", 4), ("B", 3), ("M", 2), ("K", 1)):
        if count >= base**power:
            value = count / base**power
            return f"{value:.1f}".removesuffix(".0") + unit if value < 10 else f"{value:.0f}{unit}"
    return str(count)


# --- listing ----------------------------------------------------------------------------------------------------------


def bundled() -> list[LibraryModel]:
    """The demonstration pair, target first; shorter if this installation came without it."""
    found = []
    for name in (DEMO_TARGET, DEMO_DRAFT):
        try:
            path = demo_path(name)
            found.append(describe(Found(path, "bundled", name, path.stat().st_size)))
        except (LcspecError, OSError):
            continue
    return found


def models(
    folders: Sequence[Path] = (), stop: Callable[[], bool] = lambda: False, near: Sequence[Path] = ()
) -> Iterator[LibraryModel]:
    """The bundled pair, then everything found; lazily, unusable files included (see `problem`). `stop`: see `scan`.
    `near`: folders of which only the files themselves are looked at."""
    pair = bundled()
    yield from pair
    known = {os.path.realpath(model.path) for model in pair}
    for found in scan(places(folders, near=near), stop):
        if os.path.realpath(found.path) not in known:
            yield describe(found)


def describe(found: Found) -> LibraryModel:
    """Read a file's header, or what was kept of it (until its size or time changes). Never raises."""
    model = LibraryModel(found.path, found.source, found.label, found.size)
    key = _identity(found.path)
    kept = disk_cache.load("library", key) if key is not None else None
    if isinstance(kept, dict):
        try:
            return _from_kept(model, kept)
        except (TypeError, ValueError):
            pass
    try:
        described = _from_header(model, read_header(found.path))
    except LcspecError as error:
        return replace(model, problem=printable(str(error)))
    except (OSError, MemoryError, RecursionError, ValueError) as error:
        return replace(model, problem=printable(f"{found.path} cannot be read: {error}"))
    # A problem is not kept: a download may be under way.
    if key is not None and len(described[1]) == 1:
        disk_cache.save("library", key, {k: v for k, v in asdict(described[0]).items() if k in _KEPT})
    return described[0]


_KEPT: dict[str, tuple[type, ...]] = {
    "size": (int,),
    "architecture": (str,),
    "name": (str, type(None)),
    "quantization": (str,),
    "context": (int, type(None)),
    "n_params": (int,),
    "n_vocab": (int,),
    "tokenizer": (str,),
    "has_template": (bool,),
}


def _from_kept(model: LibraryModel, kept: dict[str, Any]) -> LibraryModel:
    if kept.keys() != _KEPT.keys() or not all(isinstance(kept[key], kinds) for key, kinds in _KEPT.items()):
        raise ValueError("written by another version")
    return replace(model, **kept)


def _from_header(model: LibraryModel, header: ModelHeader) -> tuple[LibraryModel, tuple[Path, ...]]:
    described = replace(
        model,
        size=header.file_size,
        architecture=printable(header.architecture)[:100],
        name=printable(header.name)[:200] if header.name else None,
        quantization=printable(header.quantization),
        context=header.context_length,
        n_params=header.n_params,
        n_vocab=header.n_vocab,
        tokenizer=f"{header.tokenizer_model}/{header.tokenizer_pre or ''}",
        has_template=header.chat_template is not None,
    )
    return described, header.parts


def _identity(path: Path) -> str | None:
    try:
        return disk_cache.key_of(disk_cache.file_identity(path))
    except (OSError, ValueError, RuntimeError):  # gone, a bad name, a ring of links
        return None


# --- drafts -----------------------------------------------------------------------------------------------------------


def drafts_for(target: LibraryModel, candidates: Iterable[LibraryModel]) -> list[LibraryModel]:
    """Candidates that can draft for `target`: the same vocabulary and at most half its parameters. Those that were
    distilled from it come first, then the smallest.

    A candidate of the right shape costs a tenth of a second for a large vocabulary, the first time only.
    """
    if not target.usable:
        return []
    likely = [
        c
        for c in candidates
        if c.usable
        and c.path != target.path
        and 0 < c.n_params <= _SHARE * target.n_params
        and abs(c.n_vocab - target.n_vocab) <= MAX_PADDING
        and c.tokenizer.split("/")[0] == target.tokenizer.split("/")[0]
        and c.architecture not in NO_DRAFTS
    ]
    matching = [c for c in likely if same_vocabulary(target.path, c.path)]
    return sorted(matching, key=lambda c: (not distilled_from(c.path, target.path), c.n_params, c.size))


def same_vocabulary(target: Path, draft: Path) -> bool:
    """Whether two files' vocabularies agree (trailing padding aside), by their headers. False if unreadable."""
    ours, theirs = _identity(target), _identity(draft)
    if ours is None or theirs is None:
        return False
    key = disk_cache.key_of(ours, theirs)
    kept = disk_cache.load("vocabularies", key)
    if isinstance(kept, bool):
        return kept
    try:
        verdict = _starts(target) == _starts(draft) and _agree(read_vocabulary(target), read_vocabulary(draft))
    except (LcspecError, OSError, MemoryError):
        return False
    disk_cache.save("vocabularies", key, verdict)
    return verdict


def _agree(a: Vocabulary, b: Vocabulary) -> bool:
    shorter = min(len(a.tokens), len(b.tokens))
    return abs(len(a.tokens) - len(b.tokens)) <= MAX_PADDING and a.tokens[:shorter] == b.tokens[:shorter]


def _starts(path: Path) -> tuple[Scalar | None, Scalar | None]:
    """Whether the model begins a text with BOS, and which token that is: a draft must do the same."""
    metadata = read_header(path).metadata
    adds = metadata.get("tokenizer.ggml.add_bos_token")
    return adds, None if adds is False else metadata.get("tokenizer.ggml.bos_token_id")


# --- the model used last ----------------------------------------------------------------------------------------------


def remember_model(model: Path, draft: Path | None = None) -> bool:
    """Note the pair for `last_model`; False if the state file cannot be written."""
    state = _state()
    state["model"] = os.path.abspath(model)
    state["draft"] = None if draft is None else os.path.abspath(draft)
    try:
        write_atomically(data_dir() / STATE_FILE, json.dumps(state, indent=1) + "\n")
    except (OSError, ValueError):
        return False
    return True


def last_model() -> LastModel | None:
    """The pair used last, if the model is still there (a draft that is gone is None)."""
    state = _state()
    model, draft = _file(state.get("model")), _file(state.get("draft"))
    return None if model is None else LastModel(model, draft)


def _state() -> dict[str, Any]:
    try:
        state = json.loads((data_dir() / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def _file(value: object) -> Path | None:
    try:
        return Path(value) if isinstance(value, str) and Path(value).is_file() else None
    except (OSError, ValueError):
        return None
