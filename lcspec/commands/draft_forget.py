"""`lcspec draft forget`: remove what was learned from earlier texts."""

from __future__ import annotations

from pathlib import Path

import click

from lcspec.errors import LcspecError, UsageError
from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.profiles.history import forget


def run(model: Path | None, everything: bool) -> None:
    """Remove and say so.

    Raises:
        LcspecError: it cannot be removed.
    """
    if everything and model is not None:
        raise UsageError("give a model or --all, not both")
    target = None if everything else model or demo_path(DEMO_TARGET)
    try:
        n = forget(target)
    except OSError as error:
        raise LcspecError(f"what was learned cannot be removed: {error.strerror}") from error
    whose = "all models" if target is None else target.name
    if n == 0:
        click.echo(f"Nothing had been kept of earlier texts with {whose}.")
    else:
        click.echo(f"Forgotten: earlier texts and acceptance of {f'{n} models' if target is None else whose}.")
