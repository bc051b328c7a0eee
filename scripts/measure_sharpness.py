"""How well a draft model's probabilities, raised to a power, tell its hits from its misses.

    python scripts/measure_sharpness.py TARGET.gguf --draft SMALL.gguf --prompts prompts.jsonl --limit 30 -n 128

The target answers every prompt; then the draft model reads the answers, and at every token of them its favourite either
is the token or not. For each power this prints the mean log loss (nats; less is better) of its probability that it is:
taken as it is, and through the calibration that `auto` learns (calibrator.py), which begins anew for every line.
Order and temperature are as in use: with a temperature the favourite is the one under the target's own noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from lcspec.bench.prompts import read_prompts, spread
from lcspec.config import ModelOptions, SpeculationParams
from lcspec.drafters.top_candidates import top_candidates
from lcspec.engine.events import Tokens
from lcspec.engine.request import Request
from lcspec.errors import LcspecError
from lcspec.llama import Context, Model, check_same_vocabulary
from lcspec.planner.calibrator import Calibrator
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session

POWERS = (1.0, 1.5, 2.0, 3.0, 4.0)
SURE = 1e-3
PIECE = 512
SEED = 1


@dataclass
class Answer:
    """What the target said: the prompt's tokens and then the answer's, and how they were chosen."""

    tokens: list[int]
    n_prompt: int
    params: SamplingParams
    seed: int = SEED


def answered(session: Session, prompt: str, temperature: float, n: int) -> Answer | None:
    """The target's answer; None where the context is too short for it."""
    ids = tuple(session.model.vocab.tokenize(prompt))
    if len(ids) + n >= session.engine.context.n_ctx:
        return None
    params = SamplingParams(temperature=temperature, seed=SEED, logit_bias=session.model.vocab.no_end)
    tokens = list(ids)
    for event in session.engine.run(Request(ids, params, SpeculationParams(), n, ignore_end=True)):
        if isinstance(event, Tokens):
            tokens += [info.id for info in event.tokens]
    return Answer(tokens, len(ids), params)


def rows(context: Context, answer: Answer) -> NDArray[np.float32]:
    """The draft model's logits before every token of the answer, float32 [tokens, n_vocab]."""
    text, out = answer.tokens[:-1], []
    context.memory.remove(0, 0)
    for start in range(0, len(text), PIECE):
        context.batch.clear()
        for at in range(start, min(start + PIECE, len(text))):
            context.batch.add(text[at], at, (0,), logits=at >= answer.n_prompt - 1)
        context.decode()
        out.append(context.logits().copy())
    return np.concatenate(out)


def log_loss(prob: float, hit: bool) -> float:
    """Of one prediction, in nats."""
    prob = min(max(prob, SURE), 1.0 - SURE)
    return -math.log(prob if hit else 1.0 - prob)


def measured(answers: list[Answer], logits: list[NDArray[np.float32]], power: float) -> tuple[float, float, float]:
    """(share of hits, log loss as it is, log loss as calibrated)."""
    calibrator, hits, plain, learned = Calibrator(), list[bool](), 0.0, 0.0
    for answer, table in zip(answers, logits):
        for at, row in enumerate(table, start=answer.n_prompt):
            [(token, prob)] = top_candidates(answer, row, at, 1, sharpness=power)  # type: ignore[arg-type]
            hits.append(token == answer.tokens[at])
            plain += log_loss(prob, hits[-1])
            learned += log_loss(calibrator.value(prob), hits[-1])
            calibrator.learn(prob, hits[-1])
    return sum(hits) / len(hits), plain / len(hits), learned / len(hits)


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--draft", required=True, type=click.Path(path_type=Path))
@click.option("--prompts", required=True, type=click.Path(path_type=Path))
@click.option("--limit", type=int, default=30, show_default=True)
@click.option("-n", "n", type=int, default=128, show_default=True)
@click.option("--temperature", "temperatures", type=float, multiple=True, default=(0.0, 0.8), show_default=True)
@click.option("--ctx", type=int, default=2048, show_default=True)
def main(
    target: Path, draft: Path, prompts: Path, limit: int, n: int, temperatures: tuple[float, ...], ctx: int
) -> None:
    """Print a table."""
    try:
        texts = [p.text for p in spread(read_prompts(prompts), limit)]
        options = ModelOptions(draft, ctx=ctx, max_width=PIECE)
        print("| temperature | power | hits | log loss, as it is | calibrated |\n|---|---|---|---|---|")
        with (
            open_session(ModelOptions(target, ctx=ctx)) as session,
            Model.load(options) as reader,
            Context(reader) as context,
        ):
            check_same_vocabulary(session.model.vocab, reader.vocab)
            for temperature in temperatures:
                found = [answered(session, text, temperature, n) for text in texts]
                answers = [a for a in found if a is not None]
                logits = [rows(context, a) for a in answers]
                for power in POWERS:
                    hits, plain, learned = measured(answers, logits, power)
                    print(f"| {temperature:g} | {power:g} | {hits:.3f} | {plain:.4f} | {learned:.4f} |", flush=True)
    except LcspecError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
