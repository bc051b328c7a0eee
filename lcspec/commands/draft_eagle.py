"""`lcspec draft eagle`: have the model answer, train an EAGLE-3 head on that, measure, write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lcspec.commands.training_run import Recipe, carry_out, require_folder, require_torch
from lcspec.commands.training_steps import collect_texts, report, train
from lcspec.errors import UnsupportedModel
from lcspec.llama import Context
from lcspec.llama.states import get_layer, require, set_layer
from lcspec.modelfiles.companions import WITH_FEATURES
from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.modelfiles.identity import identify
from lcspec.modelfiles.modelfile import read_header
from lcspec.training.choices import ChoiceWriter
from lcspec.training.eagle.collect import FeatureWriter
from lcspec.training.layer_sizes import default_layers
from lcspec.training.prompts import Source, read_sources
from lcspec.training.texts import TextStore


@dataclass(frozen=True, kw_only=True)
class HeadRecipe(Recipe):
    """`vocab`: the most tokens of the head's reduced vocabulary."""

    vocab: int


def run(**o: Any) -> int:
    """Run the command with the options of `cli.draft_eagle`; returns the exit code.

    Raises:
        LcspecError: with a message for the user.
    """
    model: Path = o["model"] or demo_path(DEMO_TARGET)
    out: Path = o["out"] or Path(f"{model.stem}.eagle3.gguf")
    require_torch("an EAGLE-3 head")
    require_folder(out)
    header = read_header(model)
    if header.architecture not in WITH_FEATURES:
        raise UnsupportedModel(
            f"{model.name}: the library hands out no hidden states of {header.architecture} models, which an EAGLE-3 "
            "head reads; train Medusa heads instead (lcspec draft heads)"
        )
    require("an EAGLE-3 head", set_layer, get_layer)
    sources = read_sources(o["text"])
    recipe = HeadRecipe.of(o)
    layers = default_layers(header.block_count or 1)

    def steps(work: Path) -> None:
        store = _collect(model, o, recipe, sources, work, layers)
        _train(out, model, o, recipe, store, work, layers)

    return carry_out(out, model, o["text"], recipe, steps)


def _collect(
    model: Path, o: dict[str, Any], recipe: HeadRecipe, sources: list[Source], work: Path, layers: tuple[int, ...]
) -> TextStore:
    store = TextStore(work, len(layers) * identify(model).n_embd)

    def make_writer(context: Context, seed: int) -> ChoiceWriter:
        return FeatureWriter(context, seed, layers)

    collect_texts(model, o, recipe, sources, work, store, make_writer)
    return store


def _train(
    out: Path, model: Path, o: dict[str, Any], recipe: HeadRecipe, store: TextStore, work: Path, layers: tuple[int, ...]
) -> None:
    from lcspec.training.eagle.make import make_head  # PyTorch is optional

    trained = train(out, model, o, recipe, store, work, lambda task: make_head(task, layers, recipe.vocab))
    vocabulary = f"reduced vocabulary: {trained.vocab} tokens, {trained.coverage:.2%} of what the model says"
    click.echo(report(trained, store, vocabulary))
