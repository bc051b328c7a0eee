"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

import click

from lcspec.config import DEFAULT_MAX_WIDTH, MAX_WIDTH
from lcspec.placement import FLASH_ATTN, SPLIT_MODES

MODEL_PATH = click.Path(path_type=Path)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def stacked(*options: Decorator) -> Decorator:
    """Combine options into one decorator, in the order of the help page."""

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
    """A GGUF file, or the name of a model on this machine (see lcspec.model_choice.find_model)."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The file; an existing file is taken as it is, without a search."""
        path = Path(value)
        # While click parses, what was not given is a marker of its own, which counts as true.
        server = ctx.params.get("connect") if ctx is not None else None
        if os.path.lexists(path) or isinstance(server, str):  # a server names its models itself
            return path
        from lcspec.model_choice import find_model

        return find_model(path)


MODEL_NAME = ModelName()

# For commands that pair a model with drafters from this machine.
pairing_options = stacked(
    click.option("--no-draft", is_flag=True, help="Choose no draft model or heads automatically."),
)

# The devices of a model, for every command that loads one.
device_options = stacked(
    click.option(
        "--gpu-layers",
        type=GpuLayers(),
        default="auto",
        show_default=True,
        help="Layers on the GPU; the output counts as one.",
    ),
    click.option("--device", metavar="NAME[,NAME...]|none", help="Devices to use, as `lcspec doctor` lists them."),
    click.option("--main-gpu", type=click.IntRange(min=0), default=0, help="The GPU to use with --split-mode none."),
    click.option(
        "--split-mode",
        type=click.Choice(SPLIT_MODES),
        default="layer",
        show_default=True,
        help="How to use several devices: split by layers, one device only, by rows, or every tensor.",
    ),
    click.option("--tensor-split", metavar="N,N...", help="Share of each device (default: by free memory)."),
    click.option(
        "--override-tensor",
        "-ot",
        multiple=True,
        metavar="PATTERN=DEVICE",
        help="Put weights whose names match the pattern on this device, or CPU (repeatable).",
    ),
    click.option("--cpu-moe", is_flag=True, help="Keep the experts' weights in main memory."),
    click.option("--kv-offload/--no-kv-offload", default=True, help="Keep the KV cache on the devices of its layers."),
    click.option(
        "--swa-full/--no-swa-full",
        default=True,
        help="Keep every position in layers with a sliding window (if it fits), or only the latest (less memory).",
    ),
    click.option(
        "--mmap/--no-mmap", default=None, help="Map the file into memory, or read it (default: the library's choice)."
    ),
    click.option("--mlock", is_flag=True, help="Lock the weights in main memory, so that they are not swapped out."),
    click.option(
        "--flash-attn",
        "-fa",
        type=click.Choice(tuple(FLASH_ATTN)),
        default="auto",
        show_default=True,
        help="Use the fused attention kernel (on), matrix products (off), or whichever is faster (auto).",
    ),
    click.option(
        "--kv-type", default="f16", show_default=True, help="KV cache element type: f16, f32, bf16, q8_0, q4_0."
    ),
    click.option("--kv-type-k", "--cache-type-k", "-ctk", "kv_type_k", help="The same for keys alone."),
    click.option("--kv-type-v", "--cache-type-v", "-ctv", "kv_type_v", help="The same for values alone."),
    click.option("--workers", metavar="HOST:PORT[,...]", help="Spread the model over these machines' `lcspec worker`."),
)

draft_device_options = stacked(
    click.option("--draft-device", metavar="NAME[,NAME...]|none", help="Devices for draft models (default: as above)."),
    click.option("--draft-gpu-layers", type=GpuLayers(), default="auto", help="Layers of draft models on devices."),
    click.option(
        "--draft-threads",
        type=click.IntRange(min=0),
        default=0,
        help="CPU threads for draft models beside the target's: they draft while it decodes (0: none of their own).",
    ),
)

engine_options = stacked(
    click.option(
        "--draft", type=MODEL_NAME, multiple=True, help="Draft model: a smaller GGUF of the same family (repeatable)."
    ),
    click.option("--heads", type=MODEL_PATH, help="Heads for the medusa and blockwise drafters (see: draft heads)."),
    click.option("--store", type=MODEL_PATH, help="Datastore of text to draft from (see `lcspec draft store`)."),
    click.option("--no-history", is_flag=True, help="Neither use nor store what drafters learn from texts."),
    click.option(
        "--ctx", type=click.IntRange(min=0), default=0, help="Context in tokens (0: the model's, at most 8192)."
    ),
    click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores)."),
    device_options,
    draft_device_options,
)


lora_options = stacked(
    click.option(
        "--lora", multiple=True, metavar="FILE[:SCALE]", help="LoRA adapter (GGUF) to put on MODEL (repeatable)."
    ),
)


think_option = click.option(
    "--think/--no-think", default=True, show_default=True, help="Let models that can think do so before they answer."
)


speculation_options = stacked(
    click.option(
        "--speculate",
        default="auto",
        show_default=True,
        metavar="auto|off|NAME[,NAME...]",
        help="Drafters to use, each NAME[:option=value...], e.g. ngram or model:branch=3.",
    ),
    click.option(
        "--max-width",
        type=click.IntRange(min=1, max=MAX_WIDTH),
        default=None,
        help=f"The most tokens in a step, pending and drafted ones of all slots [default: {DEFAULT_MAX_WIDTH}].",
    ),
    click.option("--max-draft", type=click.IntRange(min=0), help="The most drafted tokens in a step."),
    click.option(
        "--verifier",
        default="coupled",
        show_default=True,
        help="How drafts are accepted: coupled, rejection, multi_step; or typical, lenient, which change the text.",
    ),
    click.option(
        "--exact/--no-exact",
        default=None,
        help="Require the same bits with and without speculation, or use the fastest attention "
        "(default: exact where that costs hardly any time on this machine; see `lcspec verify`).",
    ),
)


def _breakers(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """`none` means no breakers, as in llama.cpp."""
    return () if texts == ("none",) else texts


sampling_options = stacked(
    click.option(
        "--temperature", "--temp", type=float, default=0.8, show_default=True, help="0 takes the most probable token."
    ),
    click.option("--top-k", type=int, default=40, show_default=True, help="0 or less is off."),
    click.option("--top-p", type=float, default=0.95, show_default=True, help="1 is off."),
    click.option("--min-p", type=float, default=0.05, show_default=True, help="0 is off."),
    click.option("--typical-p", type=float, default=1.0, show_default=True, help="1 is off."),
    click.option(
        "--top-n-sigma", "--top-nsigma", type=float, default=-1.0, show_default=True, help="0 or less is off."
    ),
    click.option("--repeat-penalty", type=float, default=1.0, show_default=True, help="1 is off."),
    click.option(
        "--repeat-last-n", type=int, default=64, show_default=True, help="How many tokens back penalties look; -1: all."
    ),
    click.option("--frequency-penalty", type=float, default=0.0, show_default=True),
    click.option("--presence-penalty", type=float, default=0.0, show_default=True),
    click.option(
        "--dry-multiplier", type=float, default=0.0, show_default=True, help="DRY against repetition; 0 is off."
    ),
    click.option("--dry-base", type=float, default=1.75, show_default=True),
    click.option(
        "--dry-allowed-length",
        type=int,
        default=2,
        show_default=True,
        help="Repetitions up to this many tokens are not penalized.",
    ),
    click.option(
        "--dry-penalty-last-n", type=int, default=-1, show_default=True, help="How many tokens back DRY looks; -1: all."
    ),
    click.option(
        "--dry-sequence-breaker",
        "dry_sequence_breakers",
        multiple=True,
        default=("\n", ":", '"', "*"),
        callback=_breakers,
        metavar="TEXT",
        help="Text that ends a repetition, instead of line break, colon, quote and asterisk (repeatable; or none).",
    ),
    click.option("--xtc-probability", type=float, default=0.0, show_default=True, help="0 is off."),
    click.option("--xtc-threshold", type=float, default=0.1, show_default=True, help="Above 0.5 is off."),
    click.option(
        "--dynatemp-range",
        type=float,
        default=0.0,
        show_default=True,
        help="Dynamic temperature: the temperature varies by this much up and down.",
    ),
    click.option("--dynatemp-exp", "dynatemp_exponent", type=float, default=1.0, show_default=True),
    click.option(
        "--mirostat", type=int, default=0, show_default=True, help="1 or 2; replaces top-k, top-p and the like."
    ),
    click.option(
        "--mirostat-ent", "mirostat_tau", type=float, default=5.0, show_default=True, help="Target surprise in bits."
    ),
    click.option("--mirostat-lr", "mirostat_eta", type=float, default=0.1, show_default=True, help="Learning rate."),
    click.option("--adaptive-target", type=float, default=-1.0, show_default=True, help="Adaptive-p; negative is off."),
    click.option("--adaptive-decay", type=float, default=0.9, show_default=True),
    click.option("--seed", type=int, help="Seed of the sampling noise (default or -1: a new one, which is printed)."),
)
