"""What `make demo` runs: the bundled pair answers plainly and with speculation, then so does a copy at real cost, and
in the end a real assistant answers.

The bundled models are so small that a decode costs little more than the work around it. So the demonstration also
makes a *scaled-cost* copy of the target (same function, half a billion parameters, see scale_model.py), on which the
speed-up means something.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import click
from scale_model import scale_model

from lcspec.commands.offer import starter_or_reason
from lcspec.config import ModelOptions
from lcspec.engine.events import Finished, Tokens
from lcspec.engine.request import Request
from lcspec.errors import LcspecError
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.modelfiles.starter import PACKAGES, STARTER
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session, parse_speculation

PROMPT = "Hi! I'd like to order a coffee, please."
QUESTION = "Give me three tips for sleeping well."
TOKENS = 128
ANSWER_TOKENS = 120
REPEAT = 3
COLOURS = {"model": "green", "ngram": "cyan", "suffix": "magenta"}


def answer(session: Session, strategy: str, *, exact: bool = False, show: bool = False) -> tuple[list[int], Finished]:
    """One answer to PROMPT, printed as it comes if `show`: token ids and the closing event."""
    session.engine.forget_texts()  # it must not find this answer in an earlier one
    ids, stop = session.chat_ids([{"role": "user", "content": PROMPT}])
    speculation = parse_speculation(strategy, session.engine.drafting.env.draft, exact=exact)
    # The same number of tokens for everyone, so that times compare; the shown answer ends where the model ends it.
    request = Request(ids, SamplingParams(temperature=0.0), speculation, TOKENS, stop, ignore_end=not show)
    tokens: list[int] = []
    finished = None
    for event in session.engine.run(request):
        if isinstance(event, Tokens):
            tokens += [t.id for t in event.tokens]
            for piece in event.pieces if show else ():
                click.secho(piece.text, nl=False, fg=COLOURS.get(piece.drafter or ""))
        elif isinstance(event, Finished):
            finished = event
    if show:
        click.echo()
    assert finished is not None
    return tokens, finished


def compare(target: Path, draft: Path, shown: str, strategies: dict[str, str]) -> None:
    """Plain decoding and `strategies` (name to print: what --speculate takes) side by side; `shown` answers first."""
    with open_session(ModelOptions(target, ctx=512), draft) as session:
        answer(session, "off")  # warm-up; the next one also measures the cost curve
        answer(session, "auto")
        click.echo(f"> {PROMPT}")
        answer(session, shown, show=True)
        results: dict[str, list[Finished]] = {strategy: [] for strategy in strategies.values()}
        texts: dict[str, list[int]] = {}
        for _ in range(REPEAT):
            for strategy, runs in results.items():
                texts[strategy], finished = answer(session, strategy)
                runs.append(finished)
        exact = [answer(session, strategy, exact=True)[0] for strategy in results]
    click.echo(f"\n{'':22}{'tokens/s':>10}{'steps':>8}{'tokens/step':>13}{'drafted':>9}{'accepted':>10}")
    speeds = {}
    for name, strategy in strategies.items():
        runs = results[strategy]
        stats = runs[-1].stats
        speeds[strategy] = statistics.median(r.stats.tokens_per_second for r in runs)
        click.echo(
            f"{name:22}{speeds[strategy]:10.1f}{stats.target_steps:8}{stats.mean_acceptance_length:13.2f}"
            f"{stats.drafted:9}{stats.accepted:10}"
        )
    click.echo(f"speed-up of auto {speeds['auto'] / speeds['off']:.2f} x ({TOKENS} tokens each, median of {REPEAT})")
    for name, strategy in list(strategies.items())[1:]:
        i = list(results).index(strategy)
        click.echo(f"text, {name}: {same(texts['off'], texts[strategy])}; with --exact: {same(exact[0], exact[i])}")


def same(a: list[int], b: list[int]) -> str:
    """Whether two texts have the same tokens, or where they part."""
    place = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)
    return "the same tokens" if place is None else f"they part at token {place}, where two tokens are nearly tied"


def assistant() -> None:
    """SmolLM2 answers in English; where it cannot be downloaded, a line says so."""
    click.echo(f"   {PACKAGES[STARTER].about}")
    found = starter_or_reason()
    if isinstance(found, str):
        click.echo(f"   Left out: {found}\n   Later: .venv/bin/lcspec pull {STARTER}")
        return
    click.echo(f"\n> {QUESTION}")
    with open_session(ModelOptions(found, ctx=1024)) as session:
        ids, stop = session.chat_ids([{"role": "user", "content": QUESTION}])
        sampling = SamplingParams(temperature=0.0)
        request = Request(ids, sampling, parse_speculation("auto", None), ANSWER_TOKENS, stop)
        for event in session.engine.run(request):
            if isinstance(event, Tokens):
                for piece in event.pieces:
                    click.secho(piece.text, nl=False, fg=COLOURS.get(piece.drafter or ""))
    click.echo("\n\n   Talk to it: .venv/bin/lcspec chat " + STARTER)


def main() -> int:
    """Run the demonstration; returns the exit code."""
    target, draft = demo_path(DEMO_TARGET), demo_path(DEMO_DRAFT)
    click.echo(
        "A language model (the target) writes an answer token by token; a token is a word or a piece of one.\n"
        "lcspec guesses (drafts) several tokens ahead, and the model checks them all in one step. Right guesses are\n"
        "accepted, wrong ones thrown away, so the text is the model's own.\n"
    )
    click.secho("1. The bundled pair: toys, very small models that show how it works and talk nonsense", bold=True)
    click.echo("   Coloured words were guessed and right; the others are the target's own.\n")
    drafts = {"plain": "off", "speculative (fixed)": "ngram,model", "speculative (auto)": "auto"}
    compare(target, draft, "ngram,model", drafts)
    click.echo("So small a model is fast without help: fewer steps gain nothing yet.")

    click.secho("\n2. The same target, made as slow as a model of half a billion weights: here it counts", bold=True)
    folder = Path("work")
    folder.mkdir(exist_ok=True)
    scaled = folder / "demo-target-0.5b-q4_0.gguf"
    if not scaled.exists() or scaled.stat().st_mtime < target.stat().st_mtime:
        start = time.perf_counter()
        click.echo("   writing it ...", nl=False)
        scale_model(target, scaled, "0.5b", "Q4_0")
        click.echo(f" {scaled.stat().st_size / 1e6:.0f} MB in {time.perf_counter() - start:.0f} s")
    click.echo("   measuring what a step of each width costs on this machine (once) ...\n")
    compare(scaled, draft, "auto", {"plain": "off", "speculative (auto)": "auto"})

    click.secho("\n3. A real assistant", bold=True)
    assistant()

    click.secho("\n4. Your own model", bold=True)
    click.echo(
        "   .venv/bin/lcspec models                      (what is on this machine)\n"
        "   .venv/bin/lcspec chat your-model.gguf        (F2 shows who drafted what)\n"
        "   .venv/bin/lcspec serve your-model.gguf       (the OpenAI API on 127.0.0.1:8080)\n"
        "   .venv/bin/lcspec generate your-model.gguf --chat -p 'Hello!' --stats --lens\n"
        "   .venv/bin/lcspec calibrate your-model.gguf   (what speculation can gain on this machine)\n"
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LcspecError as error:
        click.echo(f"demo: {error}", err=True)
        sys.exit(error.exit_code)
