"""Plain decoding, or reading a prompt, beside llama-bench: the same file, threads and number of tokens, in turns.

    python scripts/compare_plain.py smollm2.gguf other.gguf
    python scripts/compare_plain.py smollm2.gguf --prompt 512
    python scripts/compare_plain.py smollm2.gguf --gpu

llama-bench is built with the other programs by scripts/compare_peers.py. It decodes behind an empty context and samples
nothing; lcspec's steps do all that an answer needs, and greedy sampling over the vocabulary. Prompts are read by
llama-bench with and without flash attention, and the faster one counts; lcspec reads them with its defaults.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from pathlib import Path
from random import Random

import click

from lcspec.config import ModelOptions, SpeculationParams
from lcspec.engine.engine import Engine
from lcspec.engine.events import Finished
from lcspec.engine.request import Request
from lcspec.llama.threads import default_threads
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import open_session

BENCH = Path("work/peers/build/bin/llama-bench")


def theirs(bench: Path, model: Path, n: int, prompt: int, threads: int, gpu: bool) -> float:
    """llama-bench's tokens a second: decoded, or those of a prompt."""
    work = ["-p", str(prompt), "-n", "0", "-fa", "0,1"] if prompt else ["-p", "0", "-n", str(n)]
    command = [str(bench), "-m", str(model), "-t", str(threads), *work, "-r", "1", "-o", "json"]
    command += ["-ngl", "99" if gpu else "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return max(float(test["avg_ts"]) for test in json.loads(done.stdout))


def ours(engine: Engine, n: int, token: int) -> float:
    """Tokens a second of an answer of `n` tokens to a prompt of one."""
    request = Request((token,), SamplingParams(temperature=0.0), SpeculationParams(), max_tokens=n + 1, ignore_end=True)
    (stats,) = [event.stats for event in engine.run(request) if isinstance(event, Finished)]
    return float(stats.tokens_per_second)


def ours_of_prompt(engine: Engine, tokens: list[int]) -> float:
    """Tokens of a prompt a second, until the first of the answer."""
    request = Request(
        tuple(tokens), SamplingParams(temperature=0.0), SpeculationParams(), max_tokens=1, ignore_end=True
    )
    start = time.perf_counter()
    for _ in engine.run(request):
        pass
    return len(tokens) / (time.perf_counter() - start)


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--bench", type=click.Path(exists=True, path_type=Path), default=BENCH, show_default=True)
@click.option("-n", "n", type=click.IntRange(2), default=128, show_default=True)
@click.option("--prompt", type=click.IntRange(0), default=0, help="Read a prompt of so many tokens instead.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--threads", type=click.IntRange(0), default=0)
@click.option("--gpu", is_flag=True, help="All layers on the GPU.")
def main(models: tuple[Path, ...], bench: Path, n: int, prompt: int, rounds: int, threads: int, gpu: bool) -> None:
    """Time both in turns and print medians."""
    threads = threads or default_threads()
    for model in models:
        ctx = 2 * n + prompt
        options = ModelOptions(model, ctx=ctx, threads=threads, gpu_layers=-1 if gpu else 0, rollback=0)
        with open_session(options) as session:
            vocab, random = session.model.vocab, Random(0)
            texts = [[random.randrange(vocab.n_tokens) for _ in range(prompt)] for _ in range(rounds + 1)]
            token = vocab.tokenize("A")[-1]
            both = []
            for text in texts:
                mine = ours_of_prompt(session.engine, text) if prompt else ours(session.engine, n, token)
                both.append((mine, theirs(bench, model, n, prompt, threads, gpu)))
            del both[0]  # a warm-up
        own, other = (statistics.median(side) for side in zip(*both))
        ratio = statistics.median(a / b for a, b in both)
        click.echo(f"{model.name}: lcspec {own:.1f} tokens/s, llama-bench {other:.1f}: {ratio:.3f}")


if __name__ == "__main__":
    main()
