"""`lcspec draft distil`: have the model answer, train a small draft model on that, measure, write."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from lcspec.commands.training_run import (
    acceptance,
    bar,
    carry_out,
    collect_texts,
    require_folder,
    require_torch,
    seconds_collecting,
)
from lcspec.errors import UnsupportedModel, UsageError, VocabularyMismatch
from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.modelfiles.identity import fingerprint
from lcspec.modelfiles.library import same_vocabulary
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.pairing import why_not
from lcspec.training.choices import ChoiceWriter
from lcspec.training.distil.shape import DraftShape, choose, read_shape, step_weights
from lcspec.training.prompts import read_sources
from lcspec.training.texts import TextStore


@dataclass(frozen=True)
class Recipe:
    """What makes one draft different from another; a run that is resumed must have the same. `further` is the
    fingerprint of the draft to start from."""

    minutes: float
    positions: int
    answer: int
    width: int
    layers: int
    seed: int
    further: str | None


def run(**o: Any) -> int:
    """Run the command with the options of `cli.draft_distil`; returns the exit code.

    Raises:
        LcspecError: with a message for the user.
    """
    model: Path = o["model"] or demo_path(DEMO_TARGET)
    further: Path | None = o["further"]
    out: Path = o["out"] or Path(f"{model.stem}.distil.gguf")
    require_torch("a draft")
    require_folder(out)
    shape = draft_shape(model, further, o["width"], o["layers"])
    sources = read_sources(o["text"])
    origin = None if further is None else fingerprint(further)
    recipe = Recipe(o["minutes"], o["positions"], o["answer"], shape.width, shape.layers, o["seed"], origin)
    settings = {"target": fingerprint(model), "text": [str(p) for p in o["text"]], **asdict(recipe)}

    def steps(work: Path) -> None:
        store = TextStore(work, 0)
        collect_texts(model, o, recipe, sources, work, store, ChoiceWriter, recurrent=True)
        _train(out, model, o, recipe, shape, store, work)

    return carry_out(out, model, settings, steps)


def draft_shape(model: Path, further: Path | None, width: int | None, layers: int | None) -> DraftShape:
    """The draft to train for `model`, told by headers alone.

    Raises:
        ModelFileError: a file is none that can be read.
        UnsupportedModel: the model writes no text, or the draft cannot be trained further.
        VocabularyMismatch: the draft is for another vocabulary.
        UsageError: options that contradict each other or cannot be.
    """
    problem = why_not(model)
    if problem is not None:
        raise UnsupportedModel(f"no draft can be distilled from {model.name}: {problem}; name a whole model")
    read_header(model)  # says what is wrong with a file that is no model
    if further is None:
        return choose(model, width, layers)
    if width is not None or layers is not None:
        raise UsageError("a draft that is trained further keeps its shape: leave --width and --layers out")
    shape = read_shape(further)
    if shape.vocab != read_header(model).n_vocab or not same_vocabulary(model, further):
        raise VocabularyMismatch(
            f"{further.name} has another vocabulary than {model.name}, so it cannot become its draft"
        )
    return shape


def _train(
    out: Path, model: Path, o: dict[str, Any], recipe: Recipe, shape: DraftShape, store: TextStore, work: Path
) -> None:
    from lcspec.training.distil.make import make_draft  # PyTorch is optional

    with bar("training") as show:
        made = make_draft(
            out,
            model,
            store,
            shape,
            work,
            further=o["further"],
            seconds=max(1.0, 60.0 * recipe.minutes - seconds_collecting(work)),
            seed=recipe.seed,
            threads=o["threads"],
            storage=o["store"],
            sources=", ".join(p.name for p in o["text"]) or "prompts invented by the model itself",
            show=show,
        )
    found, ratio = made.measured, step_weights(read_header(model)) / shape.step_weights
    click.echo(
        f"{shape.layers} layers of width {shape.width}: a step takes {shape.step_weights / 1e6:.1f} M weights, "
        f"1/{ratio:.0f} of the model's\n"
        f"trained for {made.steps} steps, {made.passes} passes over {len(store)} tokens of {store.answers} answers\n"
        + acceptance(found.depths, found.length, found.rows)
        + f" ({made.before:.2f} before training)"
    )
    if not made.better:
        click.echo(
            "it learned nothing that helps with held-out texts: give it more --minutes, or more --text", err=True
        )
