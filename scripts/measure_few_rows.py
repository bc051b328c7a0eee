"""What lcspec's kernels for a few rows bring: steps and prompts with them and with the library's, in milliseconds.

    python scripts/measure_few_rows.py MODEL.gguf [--rows 1,2,3,4,6,8,16] [--prompts 64,512] [--rounds 3]

They are timed in turns. `library`: the library's own kernels, row by row, with a second copy of the weights, of which
it repacks what it has kernels for; `fast`: what contexts that are not exact take; `exact`: what steps take by default,
so a row has the bits that it has alone. Nothing else may run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from lcspec.config import ModelOptions
from lcspec.llama import Context, Model, few_rows
from lcspec.llama import row_by_row as switching
from lcspec.llama.lib import C
from lcspec.llama.native import address_of
from lcspec.profiles.step_cost import Meter

SHORT, REPEATED = 32, 3


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rows", default="1,2,3,4,6,8,16", show_default=True)
@click.option("--prompts", default="64,512", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--repack/--no-repack", default=True, help="Let the library repack weights that have no kernel here.")
@click.option("--threads", "-t", type=click.IntRange(0), default=0, help="0: physical cores.")
def main(model: Path, rows: str, prompts: str, rounds: int, repack: bool, threads: int) -> None:
    """Print medians for every number of rows, and for prompts of every length."""
    widths, lengths = ([int(n) for n in text.split(",")] for text in (rows, prompts))
    ctx = SHORT + max(*widths, *lengths) + 1
    options = ModelOptions(model, ctx=ctx, threads=threads, max_width=max(widths), attention="rows", repack=repack)
    with ExitStack() as stack:
        own = meter_of(options, stack)
        states = kernels()
        with only(states["library"]):
            states["library"].set(refuse=True)  # so that it is asked what to repack
            meters = {"library": meter_of(options, stack), "fast": own, "exact": own}
        steps: dict[tuple[str, int], list[float]] = {}
        read: dict[tuple[str, int], list[float]] = {}
        for _ in range(rounds):
            for width in widths:
                for name, state in states.items():
                    with only(state):
                        meters[name].time(width)
                        steps.setdefault((name, width), []).extend(meters[name].time(width) for _ in range(REPEATED))
            for length in lengths:
                for name, state in states.items():
                    with only(state):
                        read.setdefault((name, length), []).append(prompt(meters[name], length))
        named = [f"{n} rows" for n in widths] + [f"prompt of {n}" for n in lengths]
        click.echo(f"| | {' | '.join(named)} |\n|---|{'---|' * len(named)}")
        for name in states:
            taken = [steps[name, n] for n in widths] + [read[name, n] for n in lengths]
            click.echo(f"| {name} | {' | '.join(f'{1e3 * statistics.median(some):.1f}' for some in taken)} |")


def meter_of(options: ModelOptions, stack: ExitStack) -> Meter:
    """What times steps of a model that is loaded for it."""
    loaded = stack.enter_context(Model.load(options))
    meter = Meter(stack.enter_context(Context(loaded, options)), 0, options.ctx)
    meter.fill(SHORT)
    return meter


def kernels() -> dict[str, switching._Switch]:
    """States of the switch for decodes that go row by row."""
    switch = switching._switch()
    if switch is None:
        raise click.ClickException("this library's functions cannot be replaced (Linux only)")
    library, few = C.llama_cpp._lib, few_rows.kernels(C.llama_cpp._lib)
    always = few.always if few is not None else {}
    theirs = {code: address_of(library, name) for name, code in always.items()}
    own = [address_of(library, name) for name in switching.SEVERAL_ROWS]
    own += [theirs.get(code, code) for code in switch.on[len(own) :]]
    return {"library": switch._replace(off=tuple(own)), "fast": switch._replace(off=switch.on), "exact": switch}


@contextmanager
def only(state: switching._Switch) -> Iterator[None]:
    """Decodes take the kernels of `state`."""
    usual = switching._switch
    switching._switch = lambda: state  # type: ignore[assignment]
    try:
        yield
    finally:
        switching._switch = usual


def prompt(meter: Meter, length: int) -> float:
    """Seconds in which so many tokens are read."""
    context = meter.context
    context.batch.clear()
    context.batch.add_run((meter.tokens * (length // len(meter.tokens) + 1))[:length], SHORT, 0)
    seconds = context.decode()
    if not context.memory.remove(0, SHORT):  # a recurrent state
        meter.length = SHORT + length
        meter.fill(SHORT)
    return seconds


if __name__ == "__main__":
    main()
