"""The options of the commands that measure: calibrate, verify, bench."""

from __future__ import annotations

import sys
from typing import Any

import click

from lcspec.commands.options import MODEL_NAME, MODEL_PATH, device_options, draft_device_options, engine_options
from lcspec.config import DEFAULT_MAX_WIDTH, MAX_WIDTH


@click.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--draft", type=MODEL_NAME, multiple=True, help="Also measure this draft model's step (repeatable).")
@click.option("--ctx", type=click.IntRange(min=0), default=0, help="Context in tokens.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores).")
@device_options
@draft_device_options
@click.option("--max-width", type=click.IntRange(min=1, max=MAX_WIDTH), default=DEFAULT_MAX_WIDTH, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(**options: Any) -> None:
    """Measure the time of a step of each width on this machine, and say which speculation can pay."""
    from lcspec.commands.calibrate import run

    run(**options)


@click.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option("--draft", type=MODEL_NAME, multiple=True, help="Draft model to compare texts with (repeatable).")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads (0: physical cores).")
@device_options
@draft_device_options
@click.option(
    "--positions", type=click.IntRange(min=1), help="Positions to compare (default: 320, fewer if a token takes long)."
)
@click.option("-n", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens per text.")
@click.option(
    "--prompts", type=click.IntRange(min=1), help="Texts to compare (default: 4, fewer if a token takes long)."
)
@click.option("--repack/--no-repack", default=True, help="Let the library repack weights for this CPU.")
@click.option(
    "--slots", type=click.IntRange(1, 64), default=1, show_default=True, help="Check texts that run side by side."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(**options: Any) -> None:
    """Check that speculation does not change the text on this machine: width classes, trees, texts."""
    from lcspec.commands.selfcheck import run

    sys.exit(run(**options))


@click.command()
@click.argument("model", required=False, type=MODEL_NAME)
@click.option(
    "--strategies",
    multiple=True,
    metavar="S[;S...]",
    help="What to compare, each as for --speculate, e.g. 'ngram;model:nodes=5;auto' (repeatable; off always runs).",
)
@click.option("--prompts", type=MODEL_PATH, help="JSON-lines file, ours or Spec-Bench's (default: a built-in set).")
@click.option("--limit", type=click.IntRange(min=1), help="Prompts to run, spread evenly over the categories.")
@click.option("-n", type=click.IntRange(min=2), default=128, show_default=True, help="Tokens in an answer.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each prompt.")
@click.option("--temperature", "--temp", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of every answer.")
@click.option("--chat", is_flag=True, help="Treat prompts as a user's messages in the model's chat template.")
@click.option("--exact/--no-exact", default=None, help="As in `lcspec generate`.")
@click.option("--out", type=MODEL_PATH, help="Directory for results.json and report.html.")
@engine_options
@click.option("--verbose", is_flag=True, help="Show llama.cpp's own log.")
def bench(**options: Any) -> None:
    """Compare strategies on the same prompts: speed, acceptance, whether the text stayed the same."""
    from lcspec.commands.bench import run

    sys.exit(run(**options))
