"""Is the text the same with speculation on and off? Many prompts, several quantizations, chains and trees.

With `--exact` every strategy must give identical token ids, also when drafters are switched in mid answer, when the
prompt's beginning comes from another request's cache, and when prompts are evaluated in other chunks. Without it,
texts may part where the two best tokens are nearly tied; every such place is shown with both logits. Prompts are JSON
lines with `turns` (see `lcspec bench`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from scale_model import quantize

from lcspec.config import DrafterSpec, DraftFiles, ModelOptions, SpeculationParams
from lcspec.engine.events import TokenInfo, Tokens
from lcspec.engine.request import Request
from lcspec.errors import LcspecError
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import ModelPair, Session, open_session

STRATEGIES = {
    "ngram chain": "ngram:nodes=7",
    "ngram tree": "ngram:nodes=10:branch=3",
    "suffix tree": "suffix:nodes=10:branch=3",
    "model chain": "model",
    "model tree": "model:nodes=12:branch=3",
    "ngram,model": "ngram,model:branch=3",
    "auto": "auto",
}


SWITCHED, SHARED, CHUNKED = "switched", "shared prefix", "other chunks"
# Tokens between two switches, and what is switched to in turn.
SWITCH_EVERY = 15
SWITCH_TO = ("auto", "", "model", "ngram:nodes=10:branch=3")
CHUNK = 48
OTHER_ENDING = " And now something else entirely, which nobody had asked for."


@dataclass
class Tally:
    """What was found for one strategy."""

    prompts: int = 0
    same: int = 0
    near_ties: list[tuple[str, int, str, float]] = field(default_factory=list)  # prompt, place, tokens, gap


def speculation(text: str, exact: bool, draft: DraftFiles) -> SpeculationParams:
    """A strategy as parameters; `auto` plans over everything there is."""
    if text == "auto":
        names = ["ngram", "suffix", *draft.drafters]
        return SpeculationParams(tuple(DrafterSpec(n) for n in names), auto=True, exact=exact)
    return SpeculationParams(tuple(DrafterSpec.parse(t) for t in text.split(",")) if text else (), exact=exact)


def generate(
    session: Session, prompt: tuple[int, ...], params: SpeculationParams, n: int, seed: int, temp: float
) -> list[TokenInfo]:
    """One text with its two best log-probabilities per token."""
    out: list[TokenInfo] = []
    for event in session.engine.run(request(prompt, params, n, seed, temp)):
        if isinstance(event, Tokens):
            out += event.tokens
    return out


def request(prompt: tuple[int, ...], params: SpeculationParams, n: int, seed: int, temp: float) -> Request:
    """What every run asks for."""
    sampling = SamplingParams(temperature=temp, seed=seed)
    return Request(prompt, sampling, params, max_tokens=n, logprobs=2, ignore_end=True)


def switched(session: Session, prompt: tuple[int, ...], exact: bool, n: int, seed: int, temp: float) -> list[TokenInfo]:
    """One text during which the drafters change again and again."""
    engine, out, turn = session.engine, list[TokenInfo](), 0
    number = engine.submit(
        request(prompt, speculation("ngram", exact, session.engine.drafting.env.draft), n, seed, temp)
    )
    while engine.busy:
        out += [info for event in engine.step() if isinstance(event, Tokens) for info in event.tokens]
        if engine.running and len(out) // SWITCH_EVERY > turn:
            turn = len(out) // SWITCH_EVERY
            name = SWITCH_TO[turn % len(SWITCH_TO)]
            draft = engine.drafting.env.draft
            engine.switch(number, speculation(name if draft.models or name != "model" else "suffix", exact, draft))
    return out


def shared(session: Session, prompt: tuple[int, ...], exact: bool, n: int, seed: int, temp: float) -> list[TokenInfo]:
    """One text whose prompt begins with what another request has left in the cache."""
    other = prompt[: len(prompt) // 2] + session.prompt_ids(OTHER_ENDING)
    generate(session, other, speculation("", exact, session.engine.drafting.env.draft), 8, seed, temp)
    return generate(session, prompt, speculation("ngram", exact, session.engine.drafting.env.draft), n, seed, temp)


def compare(plain: list[TokenInfo], other: list[TokenInfo], name: str, tally: Tally, session: Session) -> None:
    """Count one prompt."""
    tally.prompts += 1
    place = next((i for i, (a, b) in enumerate(zip(plain, other)) if a.id != b.id), None)
    if place is None:
        tally.same += 1
        return
    a, b = plain[place], other[place]
    logps = dict(a.top)
    gap = abs(logps.get(a.id, 0.0) - logps[b.id]) if b.id in logps else float("inf")
    text = session.model.vocab.text
    tally.near_ties.append((name, place, f"{text([a.id])!r} {a.logprob:.3f} / {text([b.id])!r} {b.logprob:.3f}", gap))


def load_prompts(path: Path, limit: int) -> list[tuple[str, str]]:
    """(id, first turn) of `limit` prompts spread evenly over the file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    chosen = rows[:: max(1, len(rows) // limit)][:limit]
    return [(str(r.get("id", r.get("question_id", i))), r["turns"][0]) for i, r in enumerate(chosen)]


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="Target GGUF (default: the bundled one).")
@click.option("--draft", type=click.Path(path_type=Path), help="Draft GGUF.")
@click.option("--prompts", required=True, type=click.Path(path_type=Path), help="JSON lines with `turns`.")
@click.option("--limit", default=50, show_default=True)
@click.option("-n", "n_tokens", default=128, show_default=True)
@click.option("--prompt-tokens", default=256, show_default=True, help="Longer prompts are cut to this many tokens.")
@click.option("--quants", default="Q8_0,Q4_0,F32", show_default=True, help="Requantized from the model.")
@click.option("--temperatures", default="0,0.8", show_default=True)
@click.option("--exact/--no-exact", default=True, show_default=True)
@click.option("--threads", default=0)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the counts here.")
def main(
    model: Path | None,
    draft: Path | None,
    prompts: Path,
    limit: int,
    n_tokens: int,
    prompt_tokens: int,
    quants: str,
    temperatures: str,
    exact: bool,
    threads: int,
    json_path: Path | None,
) -> None:
    """Compare texts and print a table; exit code 1 if --exact failed anywhere."""
    pair = ModelPair.resolve(model, [draft] if draft is not None else [])
    rows = load_prompts(prompts, limit)
    result: list[dict[str, Any]] = []
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for quant in quants.split(","):
            path = Path(folder) / f"target-{quant}.gguf"
            quantize(pair.target, path, quant)
            ctx = prompt_tokens + n_tokens + 64
            options = ModelOptions(path, ctx=ctx, threads=threads, exact=exact or None)
            with open_session(options, pair.draft) as session, open_session(replace(options, batch=CHUNK)) as chunked:
                for temp in map(float, temperatures.split(",")):
                    tallies = {name: Tally() for name in (*STRATEGIES, SWITCHED, SHARED, CHUNKED)}
                    for seed, (name, text) in enumerate(rows):
                        ids = session.prompt_ids(text)[:prompt_tokens]
                        plain = generate(session, ids, speculation("", exact, pair.draft), n_tokens, seed, temp)
                        for strategy, spec in STRATEGIES.items():
                            params = speculation(spec, exact, pair.draft)
                            other = generate(session, ids, params, n_tokens, seed, temp)
                            compare(plain, other, name, tallies[strategy], session)
                        other = switched(session, ids, exact, n_tokens, seed, temp)
                        compare(plain, other, name, tallies[SWITCHED], session)
                        other = shared(session, ids, exact, n_tokens, seed, temp)
                        compare(plain, other, name, tallies[SHARED], session)
                        ngram = speculation("ngram", exact, session.engine.drafting.env.draft)
                        other = generate(chunked, ids, ngram, n_tokens, seed, temp)
                        compare(plain, other, name, tallies[CHUNKED], session)
                    for strategy, tally in tallies.items():
                        gaps = [gap for *_, gap in tally.near_ties]
                        click.echo(
                            f"{quant:7} temperature {temp:g}  {strategy:13} identical {tally.same}/{tally.prompts}"
                            + (f"  largest gap {max(gaps):.3f}" if gaps else "")
                        )
                        for name, place, what, gap in tally.near_ties[:3]:
                            click.echo(f"          {name} token {place}: {what} (gap {gap:.3f})")
                        failed |= exact and tally.same < tally.prompts
                        result.append(
                            {
                                "quant": quant,
                                "temperature": temp,
                                "strategy": strategy,
                                "exact": exact,
                                "prompts": tally.prompts,
                                "identical": tally.same,
                                "differences": tally.near_ties,
                            }
                        )
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    try:
        main()
    except LcspecError as error:
        click.echo(f"check_same_text: {error}", err=True)
        sys.exit(error.exit_code)
