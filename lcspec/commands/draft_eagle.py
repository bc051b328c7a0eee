"""`lcspec draft eagle`: have the model answer, train an EAGLE-3 head on that, measure, write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lcspec.commands.training_run import Recipe, carry_out, require_folder, require_torch
from lcspec.commands.training_steps import collect_texts, tell, train
from lcspec.errors import UnsupportedModel
from lcspec.llama import Context
from lcspec.llama.states import get_layer, require, set_layer
from lcspec.modelfiles.companions import EAGLE, FINGERPRINT, WITH_FEATURES, head_kind, target_layers
from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.identity import fingerprint, identify
from lcspec.modelfiles.modelfile import read_header
from lcspec.training.choices import ChoiceWriter
from lcspec.training.eagle.collect import FeatureWriter
from lcspec.training.layer_sizes import default_layers
from lcspec.training.prompts import Source, read_sources
from lcspec.training.texts import TextStore


@dataclass(frozen=True, kw_only=True)
class HeadRecipe(Recipe):
    """`vocab`: the most tokens of a new head's reduced vocabulary; `further`: the fingerprint of the head to start
    from."""

    vocab: int
    further: str | None


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
    further: Path | None = o["further"]
    layers = default_layers(header.block_count or 1) if further is None else layers_of(model, further)
    recipe = HeadRecipe.of(o, further=None if further is None else fingerprint(further))

    def steps(work: Path) -> None:
        store = _collect(model, o, recipe, sources, work, layers)
        _train(out, model, o, recipe, store, work, layers)

    return carry_out(out, model, o["text"], recipe, steps)


def layers_of(model: Path, head: Path) -> tuple[int, ...]:
    """The layers of `model` that a head reads which is to be trained further, told by headers alone.

    Raises:
        UnsupportedModel, ModelFileError, VocabularyMismatch: the file is no head of this model that `lcspec draft
            eagle` made; says what was expected and found.
    """
    from lcspec.training.eagle.initial import check_head  # PyTorch is optional

    if head_kind(model, head) != EAGLE or FINGERPRINT not in read_gguf(head).metadata:
        raise UnsupportedModel(f"{head.name} cannot be trained further: it is no head that lcspec draft eagle made")
    check_head(head)
    return target_layers(head)


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

    trained = train(
        out, model, o, recipe, store, work, lambda task: make_head(task, layers, recipe.vocab, o["further"])
    )
    tell(trained, store, f"reduced vocabulary: {trained.vocab} tokens, {trained.coverage:.2%} of what the model says")
