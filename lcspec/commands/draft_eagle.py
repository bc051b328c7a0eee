"""`lcspec draft eagle`: have the model answer, train an EAGLE-3 head on that, measure, write."""

from __future__ import annotations

import importlib.util
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from lcspec.commands.training_run import bar, claim, collect, seconds_collecting
from lcspec.errors import LcspecError, UnsupportedModel, UsageError
from lcspec.llama import Context
from lcspec.llama.states import get_layer, require, set_layer
from lcspec.modelfiles.companions import WITH_FEATURES
from lcspec.modelfiles.demo import DEMO_TARGET, demo_path
from lcspec.modelfiles.identity import identify
from lcspec.modelfiles.modelfile import read_header
from lcspec.training.collect import Job, Writer
from lcspec.training.eagle.collect import FeatureWriter, default_layers
from lcspec.training.eagle.texts import TextStore
from lcspec.training.prompts import Source, read_sources

# Two greedy answers for each that is sampled: most drafting is for greedy answers, and heads learn them sooner.
TEMPERATURES = (0.0, 0.0, 0.8)


@dataclass(frozen=True)
class Recipe:
    """What makes one head different from another; a run that is resumed must have the same."""

    minutes: float
    positions: int
    answer: int
    vocab: int
    seed: int


def run(**o: Any) -> int:
    """Run the command with the options of `cli.draft_eagle`; returns the exit code.

    Raises:
        LcspecError: with a message for the user.
    """
    model: Path = o["model"] or demo_path(DEMO_TARGET)
    out: Path = o["out"] or Path(f"{model.stem}.eagle3.gguf")
    if importlib.util.find_spec("torch") is None:
        raise UsageError("training an EAGLE-3 head needs PyTorch: pip install 'lcspec[train]'")
    if not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} does not exist; create it first")
    header = read_header(model)
    if header.architecture not in WITH_FEATURES:
        raise UnsupportedModel(
            f"{model.name}: the library hands out no hidden states of {header.architecture} models, which an EAGLE-3 "
            "head reads; train Medusa heads instead (lcspec draft heads)"
        )
    require("an EAGLE-3 head", set_layer, get_layer)
    sources = read_sources(o["text"])
    recipe = Recipe(o["minutes"], o["positions"], o["answer"], o["vocab"], o["seed"])
    layers = default_layers(header.block_count or 1)
    work = out.with_name(out.name + ".work")
    claim(work, {"target": identify(model).fingerprint, "text": [str(p) for p in o["text"]], **asdict(recipe)})
    try:
        store = _collect(model, o, recipe, sources, work, layers)
        _train(out, model, o, recipe, store, work, layers)
    except KeyboardInterrupt:
        click.echo(f"stopped; the same command goes on from here (its work is in {work})", err=True)
        return 130
    except LcspecError:
        if not (work / "texts.i32").exists():  # nothing was collected, so there is nothing to go on from
            shutil.rmtree(work)
        raise
    shutil.rmtree(work)
    click.echo(f"written: {out}")
    click.echo(f"use it: lcspec generate {model} --draft {out}")
    return 0


def _collect(
    model: Path, o: dict[str, Any], recipe: Recipe, sources: list[Source], work: Path, layers: tuple[int, ...]
) -> TextStore:
    store = TextStore(work, len(layers) * identify(model).n_embd)
    began = time.monotonic()

    def keep(writer: Writer, job: Job) -> None:
        assert isinstance(writer, FeatureWriter)
        store.append(writer.text(job), job.group)

    def make_writer(context: Context, seed: int) -> Writer:
        return FeatureWriter(context, seed, layers)

    collect(model, o, recipe, sources, work, store, make_writer, keep, TEMPERATURES)
    if time.monotonic() - began > 1.0:
        click.echo(f"collected {len(store)} tokens of {store.answers} answers and their prompts", err=True)
    return store


def _train(
    out: Path, model: Path, o: dict[str, Any], recipe: Recipe, store: TextStore, work: Path, layers: tuple[int, ...]
) -> None:
    from lcspec.training.eagle.make import make_head  # PyTorch is optional

    with bar("training") as show:
        made = make_head(
            out,
            model,
            store,
            layers,
            work,
            seconds=max(1.0, 60.0 * recipe.minutes - seconds_collecting(work)),
            vocab=recipe.vocab,
            seed=recipe.seed,
            threads=o["threads"],
            storage=o["store"],
            sources=", ".join(p.name for p in o["text"]) or "prompts invented by the model itself",
            show=show,
        )
    found = made.measured
    click.echo(
        f"trained for {made.steps} steps, {made.passes} passes over {len(store)} tokens of {store.answers} answers\n"
        f"reduced vocabulary: {made.vocab} tokens, {made.coverage:.2%} of what the model says\n"
        f"held out ({found.rows} drafts, greedy):\n"
        "  depth       " + "".join(f"{k:>7}" for k in range(1, len(found.depths) + 1)) + "\n"
        "  acceptance  " + "".join(f"{x:>7.3f}" for x in found.depths) + "\n"
        f"  {found.length:.2f} tokens for each step of the model, with chains of {len(found.depths)}"
    )
