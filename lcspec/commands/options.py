"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Mapping

import click

from lcspec.config import ModelOptions, attention_for

MODEL_PATH = click.Path(path_type=Path)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def stacked(*options: Decorator) -> Decorator:
    """Several options as one decorator, in the order of the help page."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


class GpuLayers(click.ParamType):  # type: ignore[type-arg]
    """auto | all | a number."""

    name = "auto|all|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """To ModelOptions.gpu_layers."""
        if value in (None, "auto"):
            return None
        if value == "all":
            return -1
        try:
            layers = int(value)
        except ValueError:
            layers = -2
        if layers < -1:
            self.fail(f"{value!r} is not auto, all or a number of layers", param, ctx)
        return layers


class ModelName(click.Path):
    """A GGUF file, or the name of a model on this machine (see commands.pairing.find_model)."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """To the file; a file that is there is not searched for."""
        path = Path(value)
        if os.path.lexists(path):
            return path
        from lcspec.commands.pairing import find_model

        return find_model(path)


MODEL_NAME = ModelName()

# For commands that pair a model with what they find on this machine.
pairing_options = stacked(
    click.option("--no-draft", is_flag=True, help="Pair no draft model or heads by itself."),
)

engine_options = stacked(
    click.option(
        "--draft", type=MODEL_NAME, multiple=True, help="Draft model: a smaller GGUF of the same family (repeatable)."
    ),
    click.option("--heads", type=MODEL_PATH, help="Heads for the medusa and blockwise drafters (see: draft heads)."),
    click.option("--store", type=MODEL_PATH, help="Datastore of text to draft from (see `lcspec draft store`)."),
    click.option("--no-history", is_flag=True, help="Neither use nor keep what earlier texts taught the drafters."),
    click.option(
        "--ctx", type=click.IntRange(min=0), default=0, help="Context in tokens (0: the model's, at most 8192)."
    ),
    click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores)."),
    click.option("--gpu-layers", type=GpuLayers(), default="auto", help="Layers on the GPU.", show_default=True),
    click.option(
        "--kv-type", default="f16", show_default=True, help="KV cache element type: f16, f32, bf16, q8_0, q4_0."
    ),
)


def model_options(target: Path, o: Mapping[str, Any], *, exact: bool, **more: Any) -> ModelOptions:
    """How to load `target`: what `engine_options` gave in `o`, and `more` fields of ModelOptions.

    Raises:
        UsageError: a value is out of its range.
    """
    given = {name: o[name] for name in ("ctx", "threads", "gpu_layers", "kv_type")}
    return ModelOptions(target, **given, attention=attention_for(exact), **more)


speculation_options = stacked(
    click.option(
        "--speculate",
        default="auto",
        show_default=True,
        metavar="auto|off|NAME[,NAME...]",
        help="Drafters to use, each NAME[:option=value...], e.g. ngram or model:branch=3.",
    ),
    click.option("--max-draft", type=click.IntRange(min=0), help="Drafted tokens per step at most."),
    click.option(
        "--verifier",
        default="coupled",
        show_default=True,
        help="How drafts are accepted: coupled, rejection, multi_step; lossy, another text: typical, lenient.",
    ),
    click.option(
        "--exact",
        is_flag=True,
        help="The same bits as without speculation, on step widths certified on this machine (see: verify).",
    ),
)

sampling_options = stacked(
    click.option("--temperature", "--temp", type=float, default=0.8, show_default=True, help="0 is greedy."),
    click.option("--top-k", type=int, default=40, show_default=True),
    click.option("--top-p", type=float, default=0.95, show_default=True),
    click.option("--min-p", type=float, default=0.05, show_default=True),
    click.option("--typical-p", type=float, default=1.0, show_default=True),
    click.option("--repeat-penalty", type=float, default=1.0, show_default=True),
    click.option("--repeat-last-n", type=int, default=64, show_default=True),
    click.option("--frequency-penalty", type=float, default=0.0, show_default=True),
    click.option("--presence-penalty", type=float, default=0.0, show_default=True),
    click.option("--dry-multiplier", type=float, default=0.0, show_default=True),
    click.option("--xtc-probability", type=float, default=0.0, show_default=True),
    click.option("--seed", type=int, help="Seed of the sampling noise (default: a new one, which is reported)."),
)
