"""`lcspec models`: every GGUF on this machine, whether it fits, and what drafts for it."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Sequence

import click

from lcspec.config import DraftFiles, ModelOptions
from lcspec.errors import LcspecError
from lcspec.model_choice import companions_among, heads_among, own_drafts
from lcspec.modelfiles.companions import sort_drafts
from lcspec.modelfiles.gguf_header import format_size
from lcspec.modelfiles.library import LibraryModel, models
from lcspec.modelfiles.memory import Memory, machine_memory, needed
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.places import here
from lcspec.modelfiles.starter import STARTER, starter_path
from lcspec.paths import printable

TOY = "a toy for trying things out"


@dataclass(frozen=True)
class Row:
    """A model with what was found out about it; `fits` is None where nobody tells, `files` is what drafts for it."""

    model: LibraryModel
    fits: bool | None
    files: DraftFiles


def run(folders: Sequence[Path], as_json: bool) -> None:
    """Search and print."""
    rows = table(list(models(folders, near=here())), machine_memory())
    if as_json:
        click.echo(json.dumps([as_dict(row) for row in rows], ensure_ascii=False))
        return
    for line in lines(rows):
        click.echo(line)


def table(found: Sequence[LibraryModel], memory: Memory | None) -> list[Row]:
    """What goes with what: models of the user's first, then the bundled ones, then files that are no models."""
    rows = []
    for model in found:
        if model.usable:
            rows.append(Row(model, _fits(model, memory), _drafting(model, found)))
        else:
            rows.append(Row(model, None, DraftFiles()))
    return sorted(rows, key=lambda row: (not row.model.usable, row.model.source == "bundled"))


def _drafting(model: LibraryModel, found: Sequence[LibraryModel]) -> DraftFiles:
    """What commands would pair with the model: a draft model, Medusa heads, an EAGLE-3 head, layers for multi-token
    prediction in a file of their own or in the model's."""
    drafts = tuple(draft.path for draft in own_drafts(model, found)[:1])
    files = DraftFiles(drafts, None, heads_among(found, model.path))
    with contextlib.suppress(LcspecError, OSError):
        own = sort_drafts(model.path, DraftFiles())
        files = replace(files, mtp=own.mtp)
    return companions_among(found, model.path, files)


def _fits(model: LibraryModel, memory: Memory | None) -> bool | None:
    if memory is None:
        return None
    try:
        return needed(read_header(model.path), ModelOptions(model.path)).fits(memory)
    except (LcspecError, OSError):
        return None


def as_dict(row: Row) -> dict[str, Any]:
    """What `models --json` prints of a model."""
    model = row.model
    return {
        "name": model.label,
        "path": str(model.path),
        "source": model.source,
        "size": model.size,
        "architecture": model.architecture or None,
        "parameters": model.n_params or None,
        "quantization": model.quantization or None,
        "context": model.context,
        "fits": row.fits,
        **{name: str(path) if path is not None else None for name, path in _named(row).items()},
        "problem": model.problem,
    }


def _named(row: Row) -> dict[str, Path | None]:
    """What drafts for it, by kind."""
    files = row.files
    return {
        "draft": next(iter(files.models), None),
        "heads": files.heads,
        "eagle": files.eagle,
        "mtp": files.mtp,
    }


def _where(model: LibraryModel) -> str:
    """The folder, for people; the program whose cache it lies in."""
    if model.source == "bundled":
        return f"bundled, {TOY}"
    if model.source != "folder":
        return model.source
    folder, home = str(model.path.parent), os.path.expanduser("~")
    below = folder == home or folder.startswith(home + os.sep)
    return printable("~" + folder[len(home) :] if below and len(home) > 1 else folder)


def lines(rows: Sequence[Row]) -> list[str]:
    """The table for people."""
    usable = [row for row in rows if row.model.usable]
    cells = [("model", "size", "quant.", "fits", "drafted by", "where")]
    for row in usable:
        model = row.model
        by = [
            "its own MTP layers" if path == model.path else path.name
            for path in _named(row).values()
            if path is not None
        ]
        cells.append(
            (
                model.label,
                format_size(model.size),
                model.quantization,
                {True: "yes", False: "no", None: "?"}[row.fits],
                " and ".join(by) or "-",
                _where(model),
            )
        )
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    out = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells]
    others = [row.model for row in rows if not row.model.usable]
    if others:
        out += ["", "Not models that can be loaded:"]
        out += [f"  {model.label}: {model.problem}" for model in others]
    if all(row.model.source == "bundled" for row in usable) and not starter_path().exists():
        out += ["", f"No model of your own yet? lcspec pull {STARTER} downloads a small assistant (98 MB)."]
    return out
