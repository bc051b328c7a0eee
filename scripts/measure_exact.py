"""What being exact by default costs a model here: two sessions in turns, one by default and one with `--no-exact`.

    python scripts/measure_exact.py model.gguf --text docs/usage.md --rounds 3

Each round takes another piece of the text: a prompt, its answer without drafts, a short question behind it, the answer
once more with n-grams, and a short prompt's answer with `auto`, anew and asked again. Medians over the rounds; the
drafted texts are compared with those without drafts. Nothing else may run.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from lcspec.config import ModelOptions
from lcspec.engine.events import Tokens
from lcspec.engine.request import Request
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session, parse_speculation

QUESTION, SHORT, ANSWER = 20, 60, 48
COLUMNS = "first token, s | plain, tokens/s | next question, s | `auto` anew | `auto` asked again | texts as plain"


class Answered(NamedTuple):
    """Seconds to the first token, tokens a second behind it, and the tokens."""

    first: float
    rate: float
    ids: list[int]


class Round(NamedTuple):
    """One round of a session: seconds, tokens a second, and whether each drafted text is the plain one."""

    first: float
    plain: float
    question: float
    anew: float
    again: float
    same: list[bool]


def answer(session: Session, prompt: Sequence[int], n: int, strategy: str = "off") -> Answered:
    """A greedy answer of `n` tokens."""
    greedy, how = SamplingParams(temperature=0), parse_speculation(strategy)
    request = Request(tuple(prompt), max_tokens=n, sampling=greedy, speculation=how, ignore_end=True)
    start, first, ids = time.perf_counter(), 0.0, list[int]()
    for event in session.engine.run(request):
        if isinstance(event, Tokens):
            first = first or time.perf_counter() - start
            ids += [token.id for token in event.tokens]
    seconds = time.perf_counter() - start - first
    return Answered(first, (len(ids) - 1) / seconds, ids)


def measured(session: Session, text: str, number: int, long: int) -> Round:
    """Round `number`, with a prompt of `long` tokens."""
    piece = session.prompt_ids(text[number * len(text) // 8 :])
    prompt, question, short = piece[:long], piece[long:][:QUESTION], piece[long + QUESTION :][:SHORT]
    plain = answer(session, prompt, ANSWER)
    following = answer(session, [*prompt, *plain.ids, *question], 2)
    drafted = answer(session, prompt, ANSWER, "ngram")
    alone, anew, again = (answer(session, short, ANSWER, how) for how in ("off", "auto", "auto"))
    same = [drafted.ids == plain.ids, anew.ids == alone.ids, again.ids == alone.ids]
    return Round(plain.first, plain.rate, following.first, anew.rate / alone.rate, again.rate / alone.rate, same)


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--rounds", type=click.IntRange(1, 6), default=3, show_default=True)
@click.option("--prompt", "long", type=click.IntRange(1), default=300, show_default=True, help="Tokens of a prompt.")
def main(models: Sequence[Path], text: Path, rounds: int, long: int) -> None:
    """Measure and print a table."""
    click.echo(f"| | {COLUMNS} |\n" + "|---" * (COLUMNS.count("|") + 2) + "|")
    for model in models:
        with contextlib.ExitStack() as stack:
            sessions = {}
            for name, exact in (("by default", None), ("--no-exact", False)):
                options = ModelOptions(model, ctx=2 * long + 1024, gpu_layers=0, exact=exact)
                sessions[name] = stack.enter_context(open_session(options, history=False))
            found: dict[str, list[Round]] = {name: [] for name in sessions}
            for number in range(rounds):
                for name, session in sessions.items():
                    found[name].append(measured(session, text.read_text(encoding="utf-8"), number, long))
            for name, taken in found.items():
                attention = sessions[name].engine.options.attention
                figures = [statistics.median(values) for values in list(zip(*taken))[:-1]]
                same = [one for each in taken for one in each.same]
                told = " | ".join(f"{figure:.2f}" for figure in figures)
                click.echo(f"| {model.stem}, {name} ({attention}) | {told} | {sum(same)} of {len(same)} |")


if __name__ == "__main__":
    main()
