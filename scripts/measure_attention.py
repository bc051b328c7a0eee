"""What attention costs with the library's fused kernel (flash attention) and as matrix products, by width and context.

    python scripts/measure_attention.py TARGET.gguf ... --shape 32/8x64x16 --shape 14/2x64x24

A GGUF is measured whole: milliseconds of a decode. A shape (query heads / key heads x numbers in a head x layers, here
those of Llama 3.2 1B and Qwen2.5 0.5B) stands for a model that is not at hand: one layer of it is measured, with next
to nothing else in it, and the times are multiplied by its layers.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from lcspec.config import ModelOptions
from lcspec.errors import LcspecError
from lcspec.llama import Context, Model
from lcspec.modelfiles.attention_layers import Heads, write_layers
from lcspec.profiles.step_cost import Meter

REPEAT = 9
WAYS = ("fused", "products")


def measure(options: ModelOptions, contexts: list[int], widths: list[int]) -> dict[tuple[int, int, str], float]:
    """Median seconds of a decode by context, width and way; the ways take turns.

    Raises:
        LcspecError: the model cannot be used.
    """
    samples: dict[tuple[int, int, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(
            Model.load(replace(options, ctx=max(contexts) + max(widths) + 1, max_width=max(widths)))
        )
        meters = {
            way: Meter(stack.enter_context(Context(model, replace(model.options, attention=way))), 0, max(contexts))
            for way in WAYS
        }
        for context in contexts:
            for meter in meters.values():
                meter.fill(context)
            for i in range(REPEAT):
                for width in widths:
                    for way, meter in meters.items():
                        samples.setdefault((context, width, way), []).append(meter.time(width, offset=7 * i))
    return {key: statistics.median(seconds) for key, seconds in samples.items()}


def table(name: str, found: dict[tuple[int, int, str], float], times: int = 1) -> str:
    """Markdown: a row a context, a cell a width: fused / products, milliseconds."""
    contexts, widths = ([*dict.fromkeys(key[i] for key in found)] for i in (0, 1))
    lines = [f"| {name} | " + " | ".join(f"width {w}" for w in widths) + " |", "|---" * (1 + len(widths)) + "|"]
    for c in contexts:
        cells = []
        for w in widths:
            fused, products = (1e3 * times * found[c, w, way] for way in WAYS)
            cells.append(f"{fused:.1f} / {products:.1f} ({fused / products:.2f})")
        lines.append(f"| {c} tokens | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@click.command()
@click.argument("models", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--shape", "shapes", multiple=True, metavar="QUERIES/KEYSxLENGTHxLAYERS")
@click.option("--contexts", default="128,512,2048", show_default=True)
@click.option("--widths", default="1,4,8,16", show_default=True)
@click.option("-t", "--threads", type=click.IntRange(0), default=0, help="CPU threads (0: physical cores).")
def main(models: tuple[Path, ...], shapes: tuple[str, ...], contexts: str, widths: str, threads: int) -> None:
    """Fused kernel and matrix products side by side."""
    try:
        lengths, rows = ([int(n) for n in text.split(",")] for text in (contexts, widths))
    except ValueError:
        raise click.BadParameter("contexts and widths are numbers separated by commas") from None
    try:
        for path in models:
            options = ModelOptions(path, threads=threads, gpu_layers=0)
            click.echo(table(path.stem, measure(options, lengths, rows)) + "\n")
        for shape in shapes:
            parts = re.fullmatch(r"(\d+)/(\d+)x(\d+)x(\d+)", shape)
            if parts is None:
                raise click.BadParameter(f"{shape!r}: write a shape such as 32/8x64x16")
            queries, keys, length, layers = map(int, parts.groups())
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "layer.gguf"
                write_layers(path, Heads(queries, keys, length, length))
                options = ModelOptions(path, threads=threads, gpu_layers=0)
                click.echo(table(f"{shape}, attention alone", measure(options, lengths, rows), layers) + "\n")
    except LcspecError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
