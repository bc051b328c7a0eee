"""`lcspec models`: every GGUF on this machine, whether it fits, and what drafts for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import click

from lcspec.commands.pairing import heads_among, own_drafts
from lcspec.config import ModelOptions
from lcspec.errors import LcspecError
from lcspec.modelfiles.gguf_header import format_size
from lcspec.modelfiles.library import LibraryModel, models
from lcspec.modelfiles.memory import Memory, machine_memory, needed
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.places import here
from lcspec.modelfiles.starter import STARTER, starter_path

TOY = "a toy for trying things out"


@dataclass(frozen=True)
class Row:
    """A model with what was found out about it; `fits` is None where nobody tells."""

    model: LibraryModel
    fits: bool | None
    draft: LibraryModel | None
    heads: Path | None


def run(folders: Sequence[Path], as_json: bool) -> None:
    """Search and print."""
    rows = table(list(models(folders, near=here())), machine_memory())
    if as_json:
        click.echo(json.dumps([as_dict(row) for row in rows], ensure_ascii=False))
        return
    for line in lines(rows):
        click.echo(line)


def table(found: Sequence[LibraryModel], memory: Memory | None) -> list[Row]:
    """What goes with what; files that are no models come last."""
    rows = []
    for model in found:
        if not model.usable:
            rows.append(Row(model, None, None, None))
            continue
        drafts = own_drafts(model, found)
        rows.append(Row(model, _fits(model, memory), drafts[0] if drafts else None, heads_among(found, model.path)))
    return sorted(rows, key=lambda row: not row.model.usable)


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
        "draft": str(row.draft.path) if row.draft is not None else None,
        "heads": str(row.heads) if row.heads is not None else None,
        "problem": model.problem,
    }


def lines(rows: Sequence[Row]) -> list[str]:
    """The table for people."""
    usable = [row for row in rows if row.model.usable]
    cells = [("model", "size", "quant.", "fits", "drafted by", "where")]
    for row in usable:
        model = row.model
        by = [helper for helper in (row.heads, row.draft.path if row.draft is not None else None) if helper is not None]
        cells.append(
            (
                model.label,
                format_size(model.size),
                model.quantization,
                {True: "yes", False: "no", None: "?"}[row.fits],
                " and ".join(path.name for path in by) or "-",
                f"bundled, {TOY}" if model.source == "bundled" else model.source,
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
