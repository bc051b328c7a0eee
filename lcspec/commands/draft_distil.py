"""`lcspec draft distil`: have the model answer, train a small draft model on that, measure, write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lcspec.commands.training_run import Recipe, carry_out, require_folder, require_torch
from lcspec.commands.training_steps import collect_texts, tell, train
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


@dataclass(frozen=True, kw_only=True)
class DraftRecipe(Recipe):
    """`further`: the fingerprint of the draft to start from."""

    width: int
    layers: int
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
    recipe = DraftRecipe.of(o, width=shape.width, layers=shape.layers, further=origin)

    def steps(work: Path) -> None:
        store = TextStore(work, 0)
        collect_texts(model, o, recipe, sources, work, store, ChoiceWriter, recurrent=True)
        _train(out, model, o, recipe, shape, store, work)

    return carry_out(out, model, o["text"], recipe, steps)


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

    trained = train(out, model, o, recipe, store, work, lambda task: make_draft(task, shape, o["further"]))
    ratio = step_weights(read_header(model)) / shape.step_weights
    tell(
        trained,
        store,
        f"{shape.layers} layers of width {shape.width}: a step takes {shape.step_weights / 1e6:.1f} M weights, "
        f"1/{ratio:.0f} of the model's",
    )
