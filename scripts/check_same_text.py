"""Is the text the same with speculation on and off? Many prompts, several quantizations, chains and trees.

With `--exact`, and by default wherever lcspec says that texts are exact, every strategy must give identical token ids,
also when drafters are switched in mid answer, when the prompt's beginning comes from another request's cache, when
prompts are evaluated in other chunks, and when three other requests run in the same context. Texts are sampled plainly,
with penalties, and under a grammar. Elsewhere, and with `--no-exact`, texts may part where the two best tokens are
nearly tied; every such place is shown with both log-probabilities.
Prompts are JSON lines with `turns` (see `lcspec bench`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from scale_model import quantize

from lcspec.config import DrafterSpec, DraftFiles, ModelOptions, SpeculationParams
from lcspec.engine.events import Failed, TokenInfo, Tokens
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


SWITCHED, SHARED, CHUNKED, CROWDED = "switched", "shared prefix", "other chunks", "beside others"
# What the requests of a crowd draft with, in turn.
CROWD = ("ngram:nodes=10:branch=3", "auto", "", "suffix:nodes=10:branch=3")
# What is sampled besides temperature and seed. The grammar: lines of words.
SAMPLINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"repeat_penalty": 1.1, "frequency_penalty": 0.2, "dry_multiplier": 0.8},
    "grammar": {"grammar": 'root ::= line+\nline ::= word (" " word)* [.!?] "\\n"\nword ::= [A-Za-z]+ ","?'},
}
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


def sampled(kind: str, temperature: float, seed: int) -> SamplingParams:
    """Parameters of a kind of SAMPLINGS."""
    return SamplingParams(temperature=temperature, seed=seed, **SAMPLINGS[kind])


def generate(session: Session, wanted: Request) -> list[TokenInfo]:
    """One text with its two best log-probabilities per token."""
    out: list[TokenInfo] = []
    for event in session.engine.run(wanted):
        if isinstance(event, Tokens):
            out += event.tokens
    return out


@dataclass(frozen=True)
class Wish:
    """What all runs of a prompt ask for, whoever drafts."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    n: int
    exact: bool
    draft: DraftFiles

    def by(self, strategy: str) -> Request:
        """The request, drafted by `strategy`."""
        params = speculation(strategy, self.exact, self.draft)
        return Request(self.prompt, self.sampling, params, max_tokens=self.n, logprobs=2, ignore_end=True)


def switched(session: Session, wish: Wish) -> list[TokenInfo]:
    """One text during which the drafters change again and again."""
    engine, out, turn = session.engine, list[TokenInfo](), 0
    number = engine.submit(wish.by("ngram"))
    while engine.busy:
        out += [info for event in engine.step() if isinstance(event, Tokens) for info in event.tokens]
        if engine.running and len(out) // SWITCH_EVERY > turn:
            turn = len(out) // SWITCH_EVERY
            name = SWITCH_TO[turn % len(SWITCH_TO)]
            name = name if wish.draft.models or name != "model" else "suffix"
            engine.switch(number, speculation(name, wish.exact, wish.draft))
    return out


def shared(session: Session, wish: Wish) -> list[TokenInfo]:
    """One text whose prompt begins with what another request has left in the cache."""
    other = wish.prompt[: len(wish.prompt) // 2] + session.prompt_ids(OTHER_ENDING)
    generate(session, replace(wish, prompt=other, n=8).by(""))
    return generate(session, wish.by("ngram"))


def crowd(session: Session, wishes: Sequence[Wish]) -> list[list[TokenInfo]]:
    """The texts of requests that run in the same context at the same time, and draft in different ways."""
    found: dict[int, list[TokenInfo]] = {}
    for i, wish in enumerate(wishes):
        found[session.engine.submit(wish.by(CROWD[i % len(CROWD)]))] = []
    while session.engine.busy:
        for event in session.engine.step():
            if isinstance(event, Tokens):
                found[event.request] += event.tokens
            elif isinstance(event, Failed):
                raise event.error
    return list(found.values())


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


def run_all(
    session: Session, chunked: Session, crowded: Session, wishes: Sequence[tuple[str, Wish]]
) -> dict[str, Tally]:
    """Every strategy on every prompt, against plain decoding alone."""
    tallies = {name: Tally() for name in (*STRATEGIES, SWITCHED, SHARED, CHUNKED, CROWDED)}
    plains = []
    for name, wish in wishes:
        plains.append(plain := generate(session, wish.by("")))
        others = {strategy: generate(session, wish.by(text)) for strategy, text in strategies(wish.draft).items()}
        others |= {SWITCHED: switched(session, wish), SHARED: shared(session, wish)}
        others |= {CHUNKED: generate(chunked, wish.by("ngram"))}
        for strategy, other in others.items():
            compare(plain, other, name, tallies[strategy], session)
    for start in range(0, len(wishes), len(CROWD)):
        names = [name for name, _ in wishes[start : start + len(CROWD)]]
        texts = crowd(crowded, [wish for _, wish in wishes[start : start + len(CROWD)]])
        for name, plain, other in zip(names, plains[start:], texts):
            compare(plain, other, name, tallies[CROWDED], session)
    return {name: tally for name, tally in tallies.items() if tally.prompts}


def strategies(draft: DraftFiles) -> dict[str, str]:
    """Those that this session can run."""
    return {name: text for name, text in STRATEGIES.items() if draft.models or "model" not in text}


def show(title: str, tally: Tally) -> None:
    """Print a line, and the first places where texts part."""
    gaps = [gap for *_, gap in tally.near_ties]
    largest = f"  largest gap {max(gaps):.3f}" if gaps else ""
    click.echo(f"{title} identical {tally.same}/{tally.prompts}{largest}")
    for name, place, what, gap in tally.near_ties[:3]:
        click.echo(f"          {name} token {place}: {what} (gap {gap:.3f})")


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
@click.option("--temperatures", default="0,0.8,1.2", show_default=True)
@click.option("--samplings", default=",".join(SAMPLINGS), show_default=True)
@click.option("--exact/--no-exact", default=None, help="Insist, or take the fastest kernels (default: as lcspec does).")
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
    samplings: str,
    exact: bool | None,
    threads: int,
    json_path: Path | None,
) -> None:
    """Compare texts and print a table; exit code 1 if texts that should be exact part anywhere."""
    pair = ModelPair.resolve(model, [draft] if draft is not None else [])
    rows = load_prompts(prompts, limit)
    result: list[dict[str, Any]] = []
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for quant in quants.split(","):
            path = Path(folder) / f"target-{quant}.gguf"
            quantize(pair.target, path, quant)
            ctx = prompt_tokens + n_tokens + 64
            options = ModelOptions(path, ctx=ctx, threads=threads, exact=exact)
            with contextlib.ExitStack() as opened:
                session = opened.enter_context(open_session(options, pair.draft))
                chunked = opened.enter_context(open_session(replace(options, batch=CHUNK)))
                crowded = opened.enter_context(open_session(replace(options, slots=len(CROWD))))
                promised = {CROWDED: crowded.engine.exact.independent or bool(exact)}
                alone = all(s.engine.exact.independent for s in (session, chunked)) or bool(exact)
                click.echo(f"{quant}: exact alone: {alone}, beside others: {promised[CROWDED]}")
                prompt_ids = [(name, session.prompt_ids(text)[:prompt_tokens]) for name, text in rows]
                for temp, kind in itertools.product(map(float, temperatures.split(",")), samplings.split(",")):
                    wishes = [
                        (name, Wish(ids, sampled(kind, temp, seed), n_tokens, bool(exact), pair.draft))
                        for seed, (name, ids) in enumerate(prompt_ids)
                    ]
                    tallies = run_all(session, chunked, crowded, wishes)
                    for strategy, tally in tallies.items():
                        show(f"{quant:7} temperature {temp:g}, {kind:9} {strategy:13}", tally)
                        failed |= promised.get(strategy, alone) and tally.same < tally.prompts
                        result.append(
                            {
                                "quant": quant,
                                "temperature": temp,
                                "sampling": kind,
                                "strategy": strategy,
                                "exact": promised.get(strategy, alone),
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
