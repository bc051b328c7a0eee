"""Lookahead decoding against llama.cpp's own, and what it compresses where a wide step costs nothing extra.

    python scripts/compare_lookahead.py peers --prompts prompts.jsonl --limit 20
    python scripts/compare_lookahead.py flat --prompts prompts.jsonl --limit 20

`peers` runs llama-lookahead (built by scripts/compare_peers.py) and `lookahead:w=15:n=5:g=15` on the same prompts, one
after the other: mean acceptance length (tokens a target step) and tokens a second. `flat` plans with T(n) = T(1) up to
a width: what is measured is how many steps are saved, which is what such a machine would gain.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import click
from peers.build import BuildError, check_build
from peers.contenders import Contender, Setting
from peers.runners import ExampleRunner, Job, RunError

from lcspec.bench.builtin import builtin_prompts
from lcspec.bench.prompts import Prompt, read_prompts, spread
from lcspec.config import ModelOptions
from lcspec.engine.events import Finished, RequestStats
from lcspec.engine.request import Request
from lcspec.errors import LcspecError
from lcspec.planner.auto import AutoPlanner
from lcspec.profiles.cost_curve import CostCurve
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import ModelPair, Session, open_session, parse_speculation

WORK = Path(__file__).resolve().parents[1] / "work" / "peers"
THEIRS = "w=15:n=5:g=15"
# Rows of the widest step at those settings: the pending token, the window, and the n-grams.
WIDEST = 1 + 15 * 4 - 1 + 15 * 4
SPARE = 512


class FlatCurve(CostCurve):
    """A machine on which every width up to the widest costs the same. It learns nothing from this one."""

    def observe(self, width: int, context: int, seconds: float) -> None:
        """Nothing."""


def common(command: Any) -> Any:
    """Options of both commands."""
    for option in (
        click.option(
            "--model", type=click.Path(exists=True, path_type=Path), help="Target GGUF (default: the bundled)."
        ),
        click.option("--prompts", "prompt_file", type=click.Path(exists=True, path_type=Path), help="JSON lines."),
        click.option("--limit", default=20, show_default=True, type=click.IntRange(1)),
        click.option("-n", "n_tokens", default=128, show_default=True, type=click.IntRange(8)),
        click.option("-t", "--threads", default=1, show_default=True, type=click.IntRange(1)),
        click.option("--chat", is_flag=True, help="Use the model's chat template."),
        click.option("--prompt-tokens", default=512, show_default=True, help="Longer prompts are left out."),
    ):
        command = option(command)
    return command


@click.group()
def main() -> None:
    """Lookahead decoding, measured."""


def load(path: Path | None, limit: int) -> list[Prompt]:
    """The prompts to run."""
    return spread(read_prompts(path) if path is not None else builtin_prompts(), limit)


def texts_of(session: Session, prompts: list[Prompt], chat: bool, most: int) -> list[tuple[Prompt, str]]:
    """Each prompt with the text that every program gets, without those that are too long."""
    from lcspec.llama.template import ChatTemplate

    template = ChatTemplate(session.model) if chat else None
    out = []
    for prompt in prompts:
        text = prompt.text
        if template is not None:
            text = template.render([{"role": "user", "content": text}])
            if template.has_bos(text):
                text = text[len(template.tokens["bos_token"]) :]
        if 1 < len(session.prompt_ids(text)) <= most:
            out.append((prompt, text))
    if not out:
        raise click.ClickException(f"no prompt has from 2 to {most} tokens; use --prompt-tokens")
    return out


def complete(session: Session, text: str, strategy: str, n_tokens: int) -> RequestStats:
    """Statistics of one greedy completion of `n_tokens` tokens from decode steps."""
    request = Request(
        session.prompt_ids(text),
        SamplingParams(temperature=0.0, logit_bias=session.model.vocab.no_end),
        parse_speculation(strategy),
        max_tokens=n_tokens + 1,
        ignore_end=True,
    )
    for event in session.engine.run(request):
        if isinstance(event, Finished):
            return event.stats
    raise LcspecError("the engine stopped without finishing the request")


@main.command("peers")
@common
@click.option("--settings", default=THEIRS, show_default=True, help="Ours; llama-lookahead's are compiled in.")
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), default=WORK, help="Folder of the build.")
@click.option("--plain/--no-plain", default=False, help="Also run plain decoding.")
def peers_command(model: Path | None, prompt_file: Path | None, work: Path, settings: str, **o: Any) -> None:
    """Against llama-lookahead, prompt by prompt in turns."""
    pair = ModelPair.resolve(model)
    try:
        bin_dir = check_build(work)
    except BuildError as error:
        raise click.UsageError(str(error)) from error
    ctx = o["prompt_tokens"] + o["n_tokens"] + SPARE
    job = Job(bin_dir, pair.target, None, o["n_tokens"], o["threads"], ctx)
    runner = ExampleRunner(job, Contender("llama-lookahead", "llama-lookahead", "lookahead"), Setting("default"))
    options = ModelOptions(pair.target, ctx=ctx, threads=o["threads"], max_width=WIDEST)
    rows: list[tuple[float, float, float, float, float]] = []
    steps = [0, 0]
    tokens = [0, 0]
    with open_session(options) as session:
        for prompt, text in texts_of(session, load(prompt_file, o["limit"]), o["chat"], o["prompt_tokens"]):
            try:
                theirs = runner.run(_peer_prompt(prompt, text))
            except RunError as error:
                click.echo(f"{prompt.id}: llama-lookahead: {error}", err=True)
                continue
            ours = complete(session, text, f"lookahead:{settings}", o["n_tokens"])
            plain = complete(session, text, "off", o["n_tokens"]).tokens_per_second if o["plain"] else math.nan
            their_steps = theirs.tokens - (theirs.accepted or 0)
            steps[0], tokens[0] = steps[0] + ours.target_steps, tokens[0] + ours.step_tokens
            steps[1], tokens[1] = steps[1] + their_steps, tokens[1] + theirs.tokens
            rows.append(
                (ours.mean_acceptance_length, theirs.tokens / their_steps, ours.tokens_per_second, theirs.rate, plain)
            )
            line = "{:28.28} length {:5.2f} against {:5.2f}   tokens/s {:7.1f} against {:7.1f}   plain {:7.1f}"
            click.echo(line.format(f"{prompt.category}/{prompt.id}", *rows[-1]))
    if not rows:
        raise click.ClickException("nothing was measured")
    means = [statistics.geometric_mean(column) for column in zip(*(row[:4] for row in rows))]
    click.echo(
        f"{len(rows)} prompts, mean acceptance length {tokens[0] / steps[0]:.3f} against {tokens[1] / steps[1]:.3f} "
        f"(mean over prompts {means[0]:.3f} against {means[1]:.3f}); "
        f"speed {means[2]:.1f} against {means[3]:.1f} tokens/s, {means[2] / means[3]:.2f} times"
    )


def _peer_prompt(prompt: Prompt, text: str) -> Any:
    from peers.prompts import Prompt as PeerPrompt

    return PeerPrompt(prompt.id, prompt.category, text)


@main.command("flat")
@common
@click.option("--width", default=32, show_default=True, type=click.IntRange(2, 120), help="Flat up to this width.")
@click.option(
    "--strategies",
    default="lookahead;jacobi;lookahead,ngram,suffix;auto",
    show_default=True,
    help="Separated by semicolons.",
)
def flat_command(model: Path | None, prompt_file: Path | None, width: int, strategies: str, **o: Any) -> None:
    """Step compression where T(n) = T(1): tokens a step, which is the speed-up such a machine would see."""
    pair = ModelPair.resolve(model)
    ctx = o["prompt_tokens"] + o["n_tokens"] + SPARE
    options = ModelOptions(pair.target, ctx=ctx, threads=o["threads"], max_width=width)
    with open_session(options) as session:
        texts = texts_of(session, load(prompt_file, o["limit"]), o["chat"], o["prompt_tokens"])
        for strategy in strategies.split(";"):
            complete(session, texts[0][1], strategy, 8)  # makes the planner, if this strategy has one
            if session.engine.drafting.auto is not None:
                session.engine.drafting.auto = AutoPlanner(FlatCurve({n: {0: 0.02} for n in range(1, width + 1)}))
            session.engine.forget_texts()
            by_category: dict[str, list[RequestStats]] = {}
            for prompt, text in texts:
                by_category.setdefault(prompt.category, []).append(complete(session, text, strategy, o["n_tokens"]))
            every = [stats for found in by_category.values() for stats in found]
            parts = ", ".join(f"{name} {compression(found):.2f}" for name, found in by_category.items())
            probes = sum(s.probes for s in every) / sum(s.target_steps for s in every)
            drafted = sum(s.drafted for s in every) / sum(s.target_steps for s in every)
            click.echo(
                f"{strategy:28} {compression(every):.3f} tokens a step ({probes:.1f} probes, {drafted:.1f} drafted): "
                f"{parts}"
            )


def compression(found: list[RequestStats]) -> float:
    """Tokens a step over all of `found`."""
    return sum(s.step_tokens for s in found) / sum(s.target_steps for s in found)


if __name__ == "__main__":
    try:
        main()
    except LcspecError as error:
        raise SystemExit(f"compare_lookahead: {error}") from error
