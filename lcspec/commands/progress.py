"""A progress bar for what takes seconds."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import click

STEPS = 1000


@contextlib.contextmanager
def progress_bar(label: str, quiet: bool = False) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, hidden if `quiet` or where stderr is no terminal; yields a function for the share done."""
    hidden = quiet or not sys.stderr.isatty()
    with click.progressbar(length=STEPS, label=label, file=sys.stderr, hidden=hidden) as bar:
        shown = 0

        def progress(fraction: float) -> None:
            nonlocal shown
            bar.update(int(fraction * STEPS) - shown)
            shown = int(fraction * STEPS)

        yield progress
