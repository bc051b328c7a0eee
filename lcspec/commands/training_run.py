"""The frame of the commands that train drafts: their recipe, the work folder, and how a run ends."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from lcspec.errors import LcspecError, UsageError
from lcspec.modelfiles.identity import fingerprint

R = TypeVar("R", bound="Recipe")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What collecting and training follow, from the user's options; a run that is resumed must have the same.

    `invent`: prompts that the model invents beside those of the user; 0: none, unless there are no others.
    """

    invent: int
    minutes: float
    positions: int
    answer: int
    seed: int

    @classmethod
    def of(cls: type[R], o: Mapping[str, Any], **more: Any) -> R:
        """The recipe in the options `o`, with the fields in `more` instead of options."""
        return cls(**{field.name: more[field.name] if field.name in more else o[field.name] for field in fields(cls)})


def require_torch(what: str) -> None:
    """Raises UsageError: there is no PyTorch to train `what` with."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(f"training {what} needs PyTorch: pip install 'lcspec[train]'")


def require_folder(out: Path) -> None:
    """Raises UsageError: `out` cannot be written, because its folder is not there."""
    if not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} does not exist; create it first")


def carry_out(
    out: Path,
    model: Path,
    text: Sequence[Path],
    recipe: Recipe,
    steps: Callable[[Path], None],
    *,
    use: str = "--draft {out}",
    collected: str = "texts.i32",
) -> int:
    """Write `out` for `model` in `steps` that are given the work folder beside it; returns the exit code.

    Args:
        out, model, text, recipe: the file, and what it is made from.
        steps: collect, train and write.
        use: the options with which the file is used, told at the end.
        collected: a file of the work folder that is there once something has been collected.

    Raises:
        UsageError: the work folder belongs to another run.
        LcspecError: what the steps raise. The work folder stays if there is something to go on from.
    """
    work = out.with_name(out.name + ".work")
    claim(work, {"target": fingerprint(model), "text": [str(p) for p in text], **asdict(recipe)})
    try:
        steps(work)
    except KeyboardInterrupt:
        click.echo(f"stopped; the same command goes on from here (its work is in {work})", err=True)
        return 130
    except LcspecError:
        if not (work / collected).exists():
            shutil.rmtree(work)
        raise
    shutil.rmtree(work)
    click.echo(f"written: {out}")
    click.echo(f"use it: lcspec generate {model} {use.format(out=out)}")
    return 0


def claim(work: Path, settings: dict[str, Any]) -> None:
    """Make the work folder, or find that it belongs to a run with these settings.

    Raises:
        UsageError: it is another run's.
    """
    note, wanted = work / "run.json", json.dumps(settings, sort_keys=True)
    if work.exists():
        found = note.read_text(encoding="utf-8", errors="replace") if note.exists() else ""
        if found != wanted:
            raise UsageError(
                f"{work} holds the unfinished work of a run with other settings: remove it, or use another --out"
            )
        return
    work.mkdir()
    note.write_text(wanted, encoding="utf-8")


@contextlib.contextmanager
def bar(label: str) -> Iterator[Any]:
    """A progress bar on stderr that is told of fractions."""
    with click.progressbar(length=1000, label=label, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        shown = 0

        def update(fraction: float) -> None:
            nonlocal shown
            step = int(min(1.0, fraction) * 1000) - shown
            if step > 0:
                bar.update(step)
                shown += step

        yield update
