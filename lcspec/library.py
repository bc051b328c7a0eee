"""GGUF files on this machine: in folders, and in the caches of Hugging Face, LM Studio, Ollama and llama.cpp.

    for model in models([Path("~/models").expanduser()]):     # lazily: a picker can fill while this runs
        print(model.label, model.size, model.quantization, model.problem)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Iterator, Literal, Mapping, Sequence

Source = Literal["bundled", "folder", "huggingface", "lmstudio", "ollama", "llama.cpp"]


@dataclass(frozen=True)
class Place:
    """A directory to search."""

    source: Source
    path: Path


@dataclass(frozen=True)
class Found:
    """A file that may be a model; nothing of it has been read. `label` is what people call it there."""

    path: Path
    source: Source
    label: str
    size: int


@dataclass(frozen=True)
class LibraryModel:
    """A model file and what its header says. With `problem` (one sentence) it cannot be used and the rest is empty.

    Attributes:
        path: the file (the first part of a split model).
        label: file name, `org/repo/file` (Hugging Face), or `name:tag` (Ollama).
        size: bytes, all parts.
        context: what it was trained for, in tokens.
        n_params: parameters, all parts.
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
        """One short line: "1.1B llama · Q4_K_M · 668 MB · 8k context"."""
        raise NotImplementedError


@dataclass(frozen=True)
class LastModel:
    """The pair used last; the files were there when this was read."""

    model: Path
    draft: Path | None


def places(
    folders: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
    platform: str = sys.platform,
) -> list[Place]:
    """Existing directories to search: the given folders, then the caches as their programs' variables place them."""
    raise NotImplementedError


def scan(where: Iterable[Place]) -> Iterator[Found]:
    """Model files below the places, each once however many links lead to it; mmproj files and later parts of split
    models are skipped. Reads directories only, as it goes; what may not be read is passed over."""
    raise NotImplementedError


def describe(found: Found) -> LibraryModel:
    """Read a file's header, or what was kept of it (until its size or time changes). Never raises."""
    raise NotImplementedError


def bundled() -> list[LibraryModel]:
    """The demonstration pair, target first; shorter if this installation came without it."""
    raise NotImplementedError


def models(folders: Sequence[Path] = ()) -> Iterator[LibraryModel]:
    """The bundled pair, then everything found; lazily, unusable files included (see `problem`)."""
    raise NotImplementedError


def drafts_for(target: LibraryModel, candidates: Iterable[LibraryModel]) -> list[LibraryModel]:
    """Candidates that can draft for `target`: the same vocabulary and at most half its parameters, smallest first."""
    raise NotImplementedError


def same_vocabulary(target: Path, draft: Path) -> bool:
    """Whether two files' vocabularies agree (trailing padding aside), by their headers. False if unreadable."""
    raise NotImplementedError


def remember_model(model: Path, draft: Path | None = None) -> bool:
    """Note the pair for `last_model`; False if the state file cannot be written."""
    raise NotImplementedError


def last_model() -> LastModel | None:
    """The pair used last, if the model is still there (a draft that is gone is None)."""
    raise NotImplementedError
