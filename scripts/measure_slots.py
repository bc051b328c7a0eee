"""What a step of several texts takes if they share one cache, and if each has its own; with each kind of attention, the
exact ways (values in BF16, and row by row) among them.

    python scripts/measure_slots.py smollm2.gguf --slots 4,8 --lengths 64,256,512

Each text decodes one token. Milliseconds, the shortest of some decodes; the ways take turns. Last is the speed of
reading a prompt of the greatest length into the last slot, in pieces of 128, while the other slots hold their texts.
Nothing else may run.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import click

from lcspec.config import ModelOptions
from lcspec.llama import Context, Model, can_go_row_by_row
from lcspec.profiles.step_cost import sample_tokens

REPEAT, PIECE = 9, 128
WAYS = {
    "one cache, fused": ("fused", None, False),
    "one cache, fused, values in BF16": ("fused", "bf16", False),
    "a cache each, fused": ("fused", None, True),
    "one cache, products": ("products", None, False),
    "a cache each, products": ("products", None, True),
    "a cache each, products row by row": ("rows", None, True),
    "a cache each, fused row by row": ("fused_rows", None, True),
}


def read(context: Context, seq: int, length: int) -> float:
    """Seconds of reading a text of `length` tokens into an empty slot."""
    tokens, seconds = sample_tokens(context, length), 0.0
    for start in range(0, length, PIECE):
        context.batch.clear()
        context.batch.add_run(tokens[start : start + PIECE], start, seq)
        seconds += context.decode(many=True)
    return seconds


def fill(context: Context, slots: int, length: int) -> None:
    """Let every slot hold a text of `length` tokens."""
    context.memory.clear()
    read(context, 0, length)
    state = context.memory.state(0)
    for seq in range(1, slots):
        context.memory.set_state(seq, state)


def step(context: Context, slots: int, length: int) -> float:
    """Seconds of a step with a token for every slot."""
    context.batch.clear()
    for seq in range(slots):
        context.batch.add(100 + seq, length, (seq,), logits=True)
    seconds = context.decode()
    for seq in range(slots):
        context.memory.remove(seq, length)
    return seconds


def reading(context: Context, slots: int, length: int) -> float:
    """Tokens a second of reading the last slot's text anew."""
    context.memory.remove(slots - 1, 0)
    return length / read(context, slots - 1, length)


@click.command()
@click.argument("target", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--slots", default="4,8", show_default=True)
@click.option("--lengths", default="64,256,512", show_default=True)
@click.option("--threads", type=int, default=0, help="0: what lcspec chooses.")
def main(target: Path, slots: str, lengths: str, threads: int) -> None:
    """Measure and print a table for every number of slots."""
    texts = [int(n) for n in lengths.split(",")]
    ways = {name: way for name, way in WAYS.items() if way[0] != "rows" or can_go_row_by_row()}
    for count in (int(n) for n in slots.split(",")):
        options = ModelOptions(target, ctx=max(texts) + 2, slots=count, threads=threads)
        rows: dict[str, list[float]] = {name: [] for name in ways}
        with contextlib.ExitStack() as stack:
            model = stack.enter_context(Model.load(options))
            contexts = {
                name: stack.enter_context(
                    Context(model, replace(options, attention=attention, kv_type_v=values, streams=streams))
                )
                for name, (attention, values, streams) in ways.items()
            }
            for length in texts:
                for context in contexts.values():
                    fill(context, count, length)
                taken: dict[str, list[float]] = {name: [] for name in ways}
                for _ in range(REPEAT):
                    for name, context in contexts.items():
                        step(context, count, length)  # builds the graph
                        taken[name].append(step(context, count, length))
                for name, seconds in taken.items():
                    rows[name].append(1e3 * min(seconds))
            for name, context in contexts.items():
                rows[name].append(max(reading(context, count, max(texts)) for _ in range(3)))
        click.echo(f"| {count} slots | " + " | ".join(f"{n} tokens, ms" for n in texts) + " | reading, tokens/s |")
        click.echo("|---" * (len(texts) + 2) + "|")
        for name, values in rows.items():
            click.echo(f"| {name} | " + " | ".join(f"{v:.1f}" for v in values[:-1]) + f" | {values[-1]:.0f} |")


if __name__ == "__main__":
    main()
