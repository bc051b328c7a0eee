"""The options of `lcspec draft`, the commands that make drafters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from lcspec.commands.options import MODEL_NAME, MODEL_PATH, device_options


@click.group()
def draft() -> None:
    """Make drafters from the model itself or from your own texts."""


@draft.command()
@click.argument("files", nargs=-1, required=True, type=MODEL_PATH, metavar="FILES...")
@click.option("--model", type=MODEL_PATH, help="The target model (default: the bundled one).")
@click.option("--out", required=True, type=MODEL_PATH, help="The file to write.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def store(**options: Any) -> None:
    """Make a datastore of text files and directories, for --store: it drafts from your own code and documents."""
    from lcspec.commands.draft_store import run

    run(**options)


@draft.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--keep-layers", type=click.IntRange(min=1), help="Keep this many layers.")
@click.option(
    "--search/--no-search",
    default=None,
    help="Search for the layers whose removal changes the output least, or remove evenly spread ones.",
)
@click.option("--out", type=MODEL_PATH, help="The GGUF to write (default: MODEL-keepN.gguf in this directory).")
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=384,
    show_default=True,
    help="Tokens of the model's own text to compare on.",
)
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores).")
@device_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def prune(**options: Any) -> None:
    """Make a draft model by removing layers from the model: those whose removal changes its choices least."""
    from lcspec.commands.draft_prune import run

    sys.exit(run(**options))


def answer_options(minutes: float, answer: int, slots: int) -> Callable[[Any], Any]:
    """What the model's own answers are made from, and how: options of the commands that train, with these defaults."""
    options = (
        click.argument("model", required=False, type=MODEL_NAME),
        click.option("--text", multiple=True, type=MODEL_PATH, help="Prompts: JSON lines or any text (repeatable)."),
        click.option(
            "--invent",
            type=click.IntRange(min=0),
            default=0,
            help="Prompts the model invents itself, beside --text [default: 400 without --text, else 0].",
        ),
        click.option(
            "--minutes", type=click.FloatRange(min=0.01), default=minutes, show_default=True, help="The whole time."
        ),
        click.option(
            "--positions",
            type=click.IntRange(min=200),
            default=1_000_000,
            show_default=True,
            help="The most tokens to learn from.",
        ),
        click.option(
            "--answer",
            type=click.IntRange(min=8),
            default=answer,
            show_default=True,
            help="The most tokens of an answer.",
        ),
        click.option(
            "--slots",
            type=click.IntRange(1, 256),
            default=slots,
            show_default=True,
            help="How many answers to generate at a time.",
        ),
        click.option("--ctx", type=click.IntRange(min=0), default=0, help="Tokens of prompt and answer (0: 512)."),
        click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores)."),
        device_options,
        click.option("--seed", type=int, default=1, show_default=True),
    )

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


store_option = click.option(
    "--store",
    type=click.Choice(["q8_0", "f16", "f32"]),
    default="q8_0",
    show_default=True,
    help="Element type of the stored weights.",
)
vocab_option = click.option(
    "--vocab", type=click.IntRange(min=16), default=8192, show_default=True, help="Size of the reduced vocabulary."
)


@draft.command("heads")
@answer_options(minutes=30.0, answer=96, slots=16)
@click.option("--out", type=MODEL_PATH, help="File to write [default: MODEL's name .heads.gguf, in this folder].")
@click.option("--heads", type=click.IntRange(1, 8), default=4, show_default=True, help="How many tokens to predict.")
@vocab_option
@click.option(
    "--hidden", type=click.IntRange(min=0), default=0, help="Width of the hidden layer (0: from the model's width)."
)
@click.option(
    "--embed",
    type=click.IntRange(min=0),
    default=128,
    show_default=True,
    help="Width of the pending token's embedding (0: the heads do not get it, as in the paper).",
)
@click.option(
    "--rank", type=click.IntRange(min=0), help="Rank of the output matrix (0: not factored) [default: from its size]."
)
@click.option("--store", default="f16", show_default=True, help="Element type of the stored weights: f16 or q8_0.")
def draft_heads(**options: Any) -> None:
    """Train Medusa heads for MODEL on its own outputs. After an interruption, the same command continues."""
    from lcspec.commands.draft_heads import run

    sys.exit(run(**options))


@draft.command("eagle")
@answer_options(minutes=120.0, answer=224, slots=32)
@store_option
@click.option("--out", type=MODEL_PATH, help="File to write [default: MODEL's name .eagle3.gguf, in this folder].")
@vocab_option
@click.option(
    "--continue",
    "further",
    type=MODEL_PATH,
    help="Train this head further instead of a new one; its vocabulary stays.",
)
def draft_eagle(**options: Any) -> None:
    """Train an EAGLE-3 head for MODEL on its own answers. After an interruption, the same command continues."""
    from lcspec.commands.draft_eagle import run

    sys.exit(run(**options))


@draft.command("distil")
@answer_options(minutes=120.0, answer=224, slots=32)
@store_option
@click.option("--out", type=MODEL_PATH, help="File to write [default: MODEL's name .distil.gguf, in this folder].")
@click.option("--width", type=click.IntRange(min=32), help="Width of the draft [default: for 1/20 of MODEL's step].")
@click.option(
    "--layers", type=click.IntRange(min=1), help="Layers of the draft [default: an eighth of MODEL's, 2 to 4]."
)
@click.option("--continue", "further", type=MODEL_PATH, help="Train this draft further instead of a new one.")
def draft_distil(**options: Any) -> None:
    """Train a small draft model for MODEL on its own answers. After an interruption, the same command continues."""
    from lcspec.commands.draft_distil import run

    sys.exit(run(**options))


@draft.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--all", "everything", is_flag=True, help="Remove it for all models.")
def forget(**options: Any) -> None:
    """Remove what the drafters of MODEL learned from earlier texts (default: the bundled model)."""
    from lcspec.commands.draft_forget import run

    run(**options)
