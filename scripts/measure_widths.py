"""What a change of width costs: decodes of two widths, each repeated and in turns, in milliseconds.

    python scripts/measure_widths.py MODEL.gguf [--pairs 1/2,1/4,1/8] [--context 200] [--attention products]
    python scripts/measure_widths.py MODEL.gguf --in-a-row 1,4,8,16,32

The library keeps the graph of its last decode only, and builds a new one for another number of rows. A GPU replays a
recorded graph from the third decode of a width on: `--in-a-row` shows the first, the second and the later ones. Nothing
else may run.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import click

from lcspec.config import ModelOptions
from lcspec.llama import Context, Model
from lcspec.profiles.step_cost import Meter

ROUNDS, IN_A_ROW = 6, 6


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--pairs", default="1/2,1/4,1/8,4/8", show_default=True)
@click.option("--in-a-row", "rows", default="", help="Widths whose first, second and later decodes are shown instead.")
@click.option("--context", "length", type=click.IntRange(1), default=200, show_default=True)
@click.option("--attention", type=click.Choice(["library", "fused", "products"]), default="library", show_default=True)
@click.option("--threads", "-t", type=click.IntRange(0), default=0, help="0: physical cores.")
def main(model: Path, pairs: str, rows: str, length: int, attention: str, threads: int) -> None:
    """Print medians and shortest times of both widths of every pair."""
    wanted = [tuple(map(int, pair.split("/"))) for pair in (rows or pairs).split(",")]
    widest = max(w for pair in wanted for w in pair) + 1
    options = ModelOptions(model, ctx=length + widest + 1, threads=threads, max_width=widest, attention=attention)
    with Model.load(options) as loaded, Context(loaded, options) as context:
        meter = Meter(context, 0, length)
        meter.fill(length)
        if rows:
            in_a_row(meter, [width for (width,) in wanted])
            return
        click.echo("| widths | width | repeated, ms (shortest) | in turns, ms (shortest) |\n|---|---|---|---|")
        for pair in wanted:
            repeated: dict[int, list[float]] = {width: [] for width in pair}
            in_turns: dict[int, list[float]] = {width: [] for width in pair}
            for _ in range(ROUNDS):
                for width in pair:
                    meter.time(width)
                    repeated[width] += [meter.time(width) for _ in range(IN_A_ROW)]
                for _ in range(IN_A_ROW):
                    for width in pair:
                        in_turns[width].append(meter.time(width))
            for width in pair:
                cells = [f"{_ms(some)}" for some in (repeated[width], in_turns[width])]
                click.echo(f"| {'/'.join(map(str, pair))} | {width} | {cells[0]} | {cells[1]} |")


def in_a_row(meter: Meter, widths: list[int]) -> None:
    """Print what the first, the second and the later decodes of a width take."""
    click.echo("| rows | first, ms | second | later |\n|---|---|---|---|")
    for width in widths:
        runs = []
        for _ in range(ROUNDS):
            meter.time(width + 1)
            runs.append([meter.time(width) for _ in range(IN_A_ROW)])
        first, second, *later = ([run[i] for run in runs] for i in range(IN_A_ROW))
        cells = [
            f"{1e3 * statistics.median(some):.2f}" for some in (first, second, [s for some in later for s in some])
        ]
        click.echo(f"| {width} | {' | '.join(cells)} |")


def _ms(seconds: list[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.2f} ({1e3 * min(seconds):.2f})"


if __name__ == "__main__":
    main()
