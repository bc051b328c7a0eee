"""What texts that have ended cost the next ones, where several slots share a cache.

    python scripts/idle_texts.py smollm2.gguf

First, one client: prompts in a row that have nothing in common, on one slot, on several, and on several without main
memory for texts (`--cache-ram 0`). Milliseconds a token and seconds to read the prompt, for the first and the last of
them. Then as many clients as slots, each with single requests that nobody continues: tokens a second with main memory
and without. Nothing else may run.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path

import click

from lcspec.config import ModelOptions
from lcspec.engine.events import Finished
from lcspec.engine.request import Request
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session, parse_speculation

WORDS = (
    "history",
    "small",
    "town",
    "people",
    "there",
    "river",
    "mountain",
    "winter",
    "door",
    "letter",
    "music",
    "light",
)


def request_of(session: Session, number: int, words: int, n: int) -> Request:
    """A prompt of its own."""
    text = " ".join(random.Random(number).choices(WORDS, k=words))
    ids, _ = session.chat_ids([{"role": "user", "content": text}])
    return Request(ids, SamplingParams(temperature=0.0), parse_speculation("off"), n, ignore_end=True)


def in_a_row(session: Session, number: int, words: int, n: int) -> tuple[float, float]:
    """Milliseconds a token, and seconds to read the prompt."""
    for event in session.engine.run(request_of(session, number, words, n)):
        if isinstance(event, Finished):
            return 1e3 / event.stats.tokens_per_second, event.stats.prefill_seconds
    raise AssertionError("every request finishes")


def at_once(session: Session, first: int, requests: int, words: int, n: int) -> float:
    """Tokens a second of requests that wait for a slot."""
    start = time.perf_counter()
    for i in range(requests):
        session.engine.submit(request_of(session, first + i, words, n))
    while session.engine.busy:
        session.engine.step()
    return requests * n / (time.perf_counter() - start)


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--slots", type=click.IntRange(2), default=4, show_default=True)
@click.option("--prompts", type=click.IntRange(2), default=12, show_default=True)
@click.option("--words", type=click.IntRange(1), default=330, show_default=True, help="Words of a prompt.")
@click.option("-n", "n", type=click.IntRange(2), default=96, show_default=True, help="Tokens of an answer.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
def main(model: Path, slots: int, prompts: int, words: int, n: int, rounds: int) -> None:
    """Measure, and print two tables."""
    options = ModelOptions(model, ctx=1024)
    ways = {
        "1 slot": options,
        f"{slots} slots": replace(options, slots=slots),
        f"{slots} slots, --cache-ram 0": replace(options, slots=slots, cache_ram=0),
    }
    with contextlib.ExitStack() as opened:
        sessions = {name: opened.enter_context(open_session(o, history=False)) for name, o in ways.items()}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sessions}
        for number in range(prompts):
            for name, session in sessions.items():
                found[name].append(in_a_row(session, number, words, n))
        click.echo("| one client | ms a token, first and last | reading, s, first and last |\n|---|---|---|")
        for name, times in found.items():
            (token, read), (later, reread) = times[0], times[-1]
            click.echo(f"| {name} | {token:.2f}, {later:.2f} | {read:.2f}, {reread:.2f} |")
        rates: dict[str, list[float]] = {name: [] for name in list(sessions)[1:]}
        for i in range(rounds):
            for name in list(rates)[:: 1 if i % 2 else -1]:
                rates[name].append(at_once(sessions[name], 1000 * (i + 1), 4 * slots, words, n))
        click.echo(f"\n| {slots} clients | tokens a second (of {rounds} rounds) |\n|---|---|")
        for name, some in rates.items():
            click.echo(f"| {name} | {statistics.median(some):.1f} ({min(some):.1f} to {max(some):.1f}) |")


if __name__ == "__main__":
    main()
