"""What the planner expects of a step's decode and what it takes, by width; and `auto` over plain decoding beside it.

    python scripts/planned_and_taken.py smollm2.gguf prompts.jsonl --limit 13 --repeat 3

Every prompt is answered plainly and by `auto` in turns, greedily, in the model's chat template, with nothing known from
earlier texts. A planner whose expectations are wrong at some widths drafts where that does not pay, or does not where
it would.
"""

from __future__ import annotations

import collections
import statistics
from pathlib import Path

import click

from lcspec.bench.prompts import read_prompts, spread
from lcspec.config import ModelOptions
from lcspec.engine.events import StepStats
from lcspec.engine.request import Request
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session, parse_speculation

STRATEGIES = ("off", "auto")


def steps_of(session: Session, text: str, strategy: str, n: int) -> list[StepStats]:
    """The decode steps of an answer."""
    session.engine.forget_texts()
    ids, stop = session.chat_ids([{"role": "user", "content": text}])
    asked = Request(ids, SamplingParams(temperature=0.0), parse_speculation(strategy, None), n, stop)
    return [event for event in session.engine.run(asked) if isinstance(event, StepStats)]


def rate(steps: list[StepStats]) -> float:
    """Tokens per second of all that a step takes."""
    return sum(len(s.emitted) for s in steps) / sum(s.seconds for s in steps)


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--limit", type=click.IntRange(min=1), default=13, show_default=True)
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("-n", "n_tokens", type=click.IntRange(min=2), default=128, show_default=True)
def main(model: Path, prompts: Path, limit: int, repeat: int, n_tokens: int) -> None:
    """Measure, and print a table."""
    texts = [prompt.text for prompt in spread(read_prompts(prompts), limit)]
    by_width: dict[int, list[StepStats]] = collections.defaultdict(list)
    ratios = []
    with open_session(ModelOptions(model, ctx=4096), history=False) as session:
        for strategy in STRATEGIES:  # drafters, the cost curve, memory
            steps_of(session, texts[0], strategy, 16)
        for i, text in enumerate(texts):
            rates: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
            for turn in range(repeat):
                for strategy in STRATEGIES[:: 1 if (i + turn) % 2 else -1]:
                    steps = steps_of(session, text, strategy, n_tokens)
                    if not steps:  # the model said nothing
                        continue
                    rates[strategy].append(rate(steps))
                    for step in steps if strategy == "auto" else ():
                        by_width[max(step.width, step.plan.width)].append(step)
            if all(rates.values()):
                ratios.append(statistics.median(rates["auto"]) / statistics.median(rates["off"]))
    click.echo(f"auto over plain: {statistics.geometric_mean(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})")
    click.echo("width  steps  planned ms  taken ms  tokens planned  tokens")
    for width, steps in sorted(by_width.items()):
        known = [step for step in steps if step.plan.seconds]
        if known:
            planned = 1000 * statistics.fmean(s.plan.seconds for s in known)
            taken = 1000 * statistics.fmean(s.target_seconds for s in known)
            hoped, emitted = (
                statistics.fmean(s.plan.tokens for s in known),
                statistics.fmean(len(s.emitted) for s in known),
            )
            click.echo(f"{width:5}  {len(known):5}  {planned:10.2f}  {taken:8.2f}  {hoped:14.2f}  {emitted:6.2f}")


if __name__ == "__main__":
    main()
