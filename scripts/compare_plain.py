"""Plain decoding beside llama-bench: the same file, threads and number of tokens, in turns.

    python scripts/compare_plain.py smollm2.gguf other.gguf
    python scripts/compare_plain.py smollm2.gguf --gpu

llama-bench is built with the other programs by scripts/compare_peers.py. It decodes behind an empty context and samples
nothing; lcspec's steps do all that an answer needs, and greedy sampling over the vocabulary.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path

import click

from lcspec.config import ModelOptions, SpeculationParams
from lcspec.engine.engine import Engine
from lcspec.engine.events import Finished
from lcspec.engine.request import Request
from lcspec.llama.threads import default_threads
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import open_session

BENCH = Path("work/peers/build/bin/llama-bench")


def theirs(bench: Path, model: Path, n: int, threads: int, gpu: bool) -> float:
    """llama-bench's tokens a second."""
    command = [str(bench), "-m", str(model), "-t", str(threads), "-p", "0", "-n", str(n), "-r", "1", "-o", "json"]
    command += ["-ngl", "99" if gpu else "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


def ours(engine: Engine, n: int, token: int) -> float:
    """Tokens a second of an answer of `n` tokens to a prompt of one."""
    request = Request((token,), SamplingParams(temperature=0.0), SpeculationParams(), max_tokens=n + 1, ignore_end=True)
    (stats,) = [event.stats for event in engine.run(request) if isinstance(event, Finished)]
    return float(stats.tokens_per_second)


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--bench", type=click.Path(exists=True, path_type=Path), default=BENCH, show_default=True)
@click.option("-n", "n", type=click.IntRange(2), default=128, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--threads", type=click.IntRange(0), default=0)
@click.option("--gpu", is_flag=True, help="All layers on the GPU.")
def main(models: tuple[Path, ...], bench: Path, n: int, rounds: int, threads: int, gpu: bool) -> None:
    """Time both in turns and print medians."""
    threads = threads or default_threads()
    for model in models:
        options = ModelOptions(model, ctx=2 * n, threads=threads, gpu_layers=-1 if gpu else 0, rollback=0)
        with open_session(options) as session:
            token = session.model.vocab.tokenize("A")[-1]
            ours(session.engine, n, token)
            both = [(ours(session.engine, n, token), theirs(bench, model, n, threads, gpu)) for _ in range(rounds)]
        mine, other = (statistics.median(side) for side in zip(*both))
        ratio = statistics.median(a / b for a, b in both)
        click.echo(f"{model.name}: lcspec {mine:.1f} tokens/s, llama-bench {other:.1f}: {ratio:.3f}")


if __name__ == "__main__":
    main()
