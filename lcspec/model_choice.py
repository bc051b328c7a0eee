"""Which file a name means, and what drafts for it when the user names nothing: as the chat's picker pairs them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

import click

from lcspec.config import DraftFiles, ModelOptions
from lcspec.drafters.medusa.file import ARCHITECTURE, check_heads
from lcspec.errors import LcspecError, UsageError
from lcspec.modelfiles.companions import ASSISTANT, EAGLE, sort_drafts
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.library import Found, LibraryModel, describe, drafts_for, models
from lcspec.modelfiles.memory import check_memory
from lcspec.modelfiles.pairing import can_be_taken_back, distilled_from, why_not
from lcspec.modelfiles.places import here
from lcspec.modelfiles.starter import PACKAGES, STARTER, starter_path
from lcspec.session import ModelPair

TOY_NOTE = (
    f"the bundled pair answers, a toy that shows how lcspec works; `lcspec pull {STARTER}` gets a small real assistant"
)
# A search through slow or huge folders is given up after so long: a draft model is a convenience.
SEARCH_SECONDS = 3.0
COMPANIONS = (ASSISTANT, EAGLE)


@dataclass(frozen=True)
class Pairing:
    """What to load, and the line that says what was paired ("" where the user named it, or nothing was found)."""

    pair: ModelPair
    line: str = ""


# --- names ------------------------------------------------------------------------------------------------------------


def find_model(given: Path) -> Path:
    """The file that `given` means: itself if it is there, else the model of that name on this machine.

    Names are those that `lcspec models` shows, file names without .gguf, `owner/repo[:quantization]`, Ollama's
    `name:tag`, and `smollm2`. What nobody knows is given back as it is.

    Raises:
        UsageError: several models have that name, or it is one that was not pulled yet.
    """
    text = str(given)
    if os.path.lexists(given) or text.lower().endswith(".gguf") or given.is_absolute() or text.startswith((".", "~")):
        return given
    if text.lower() in PACKAGES:
        path = starter_path(text.lower())
        if not path.exists():
            raise UsageError(f"{text} is not on this machine yet: lcspec pull {text.lower()} downloads it")
        return path
    found = {os.path.realpath(m.path): m for m in _found(given) if _means(text, m)}
    if len(found) > 1:
        labels = ", ".join(sorted(m.label for m in found.values()))
        raise UsageError(f"{text} may be one of {labels}: give more of the name, or the file")
    return next((m.path for m in found.values()), given)


def _means(text: str, model: LibraryModel) -> bool:
    wanted, label, stem = text.lower(), model.label.lower(), model.path.name.lower().removesuffix(".gguf")
    if wanted in (label, label.removesuffix(".gguf"), stem) or label == f"{wanted}:latest":
        return True
    repo, _, quantization = wanted.partition(":")
    if "/" not in repo or not label.startswith(repo + "/"):
        return False
    return not quantization or quantization in label[len(repo) :]


# --- drafts -----------------------------------------------------------------------------------------------------------


def paired(o: Mapping[str, Any]) -> Pairing:
    """What to load by a command's options: what the user named, else a draft model and heads that were found.

    Searched for only if the planner may choose (`--speculate auto`) and drafts may be paired (`--no-draft`).
    """
    pair = ModelPair.resolve(o.get("model"), o.get("draft") or (), o.get("store"), o.get("heads"))
    if o.get("no_draft"):
        if o.get("draft"):
            raise UsageError("give --draft or --no-draft, not both")
        return Pairing(replace(pair, draft=replace(pair.draft, models=())))
    if (
        o.get("model") is None
        or pair.draft.models
        or pair.draft.named(pair.target)
        or pair.draft.heads
        or (o.get("speculate") or "auto") != "auto"
    ):
        return Pairing(pair)
    if not pair.target.is_file():  # said when it is loaded
        return Pairing(pair)
    target = describe(Found(pair.target, "folder", pair.target.name, pair.target.stat().st_size))
    if not target.usable:
        return Pairing(pair)
    found = list(_found(pair.target))
    drafts = own_drafts(target, found)
    heads = heads_among(found, pair.target)
    draft = next((d for d in drafts if _fits(pair.target, d.path, o)), None)
    files = companions_among(found, pair.target, replace(pair.draft, heads=heads))
    files = replace(files, models=(draft.path,) if draft is not None else ())
    labels = (draft.label if draft else None, *(p.name for p in files.named(pair.target) if p not in files.models))
    named = [label for label in (*labels, heads.name if heads else None) if label is not None]
    if named:
        return Pairing(replace(pair, draft=files), f"paired with {' and '.join(named)} (--no-draft leaves it out)")
    if drafts:
        return Pairing(pair, f"{drafts[0].label} could draft for it, but there is no memory for both")
    return Pairing(pair)


def say_paired(model: Path | None, pairing: Pairing) -> None:
    """On stderr: what was paired; on a terminal also that the bundled pair is a toy."""
    if pairing.line:
        click.echo(f"lcspec: {pairing.line}", err=True)
    if model is None and sys.stderr.isatty():
        click.echo(f"lcspec: no model named: {TOY_NOTE}", err=True)


def own_drafts(target: LibraryModel, found: Sequence[LibraryModel]) -> list[LibraryModel]:
    """Draft models to pair without being asked: those that match, can draft at all, and that a library that loads the
    target loads as well: they are of the same architecture, or of the one that drafts are distilled to."""
    return [
        d
        for d in drafts_for(target, found)
        if (d.architecture == target.architecture or distilled_from(d.path, target.path)) and _can_draft(d.path)
    ]


def _can_draft(path: Path) -> bool:
    try:
        return why_not(path) is None and can_be_taken_back(read_gguf(path).metadata)
    except LcspecError:
        return False


def _found(target: Path) -> Iterator[LibraryModel]:
    """Models on this machine, those beside `target` first, for as long as a search may take."""
    end = time.monotonic() + SEARCH_SECONDS
    beside = (target.parent,) if target.parent.is_dir() else ()
    for model in models(stop=lambda: time.monotonic() > end, near=(*beside, *here())):
        yield model
        if time.monotonic() > end:
            return


def _fits(target: Path, draft: Path, o: Mapping[str, Any]) -> bool:
    try:
        names = ("ctx", "slots", "kv_type")
        check_memory(ModelOptions(target, **{name: o[name] for name in names if o.get(name)}), draft)
    except LcspecError:
        return False
    return True


def companions_among(found: Sequence[LibraryModel], target: Path, files: DraftFiles) -> DraftFiles:
    """`files` with the first companion for multi-token prediction and EAGLE-3 head among `found` made for `target`."""
    for other in found:
        if other.architecture not in COMPANIONS:
            continue
        with contextlib.suppress(LcspecError, OSError):
            kinds = sort_drafts(target, DraftFiles((other.path,)))
            files = replace(
                files,
                eagle=files.eagle or kinds.eagle,
                mtp=kinds.mtp if files.mtp in (None, target) else files.mtp,
            )
    return files


def heads_among(found: Sequence[LibraryModel], target: Path) -> Path | None:
    """Medusa heads among `found` that were made for `target`: of its own quantization first."""
    fitting = []
    for other in found:
        if other.usable or not other.path.name.lower().endswith(".gguf"):
            continue
        try:
            if read_gguf(other.path).metadata.get("general.architecture") == ARCHITECTURE:
                note = check_heads(other.path, target)
                fitting.append((bool(note), str(other.path)))
        except (LcspecError, OSError, ValueError, MemoryError):
            continue
    return Path(min(fitting)[1]) if fitting else None
