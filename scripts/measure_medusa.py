"""How long Medusa heads take for one state at the shape of a model, computed by the library and by numpy.

    OPENBLAS_NUM_THREADS=1 python scripts/measure_medusa.py [--state 4096] [--hidden 512] [--embed 256] [--threads 2]

Weights are random. numpy has one thread then, as its threads would take the cores from the model. Nothing else may run.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from lcspec.drafters.medusa.file import STORAGE, HeadsFile
from lcspec.drafters.medusa.inference import Heads
from lcspec.drafters.medusa.network import Sizes

REPEATED = 30


def milliseconds(compute: Callable[[], Any]) -> float:
    """The median of some calls, after three that are not counted."""
    times = []
    for _ in range(REPEATED + 3):
        began = time.perf_counter()
        compute()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times[3:])


def heads_file(sizes: Sizes, storage: str) -> HeadsFile:
    """Heads with random weights."""
    rng = np.random.default_rng(0)
    shapes = sizes.shapes().items()
    return HeadsFile(
        sizes=sizes,
        params={name: rng.standard_normal(shape, dtype=np.float32) / shape[-1] ** 0.5 for name, shape in shapes},
        tokens=np.arange(sizes.vocab, dtype=np.int32),
        scale=1.0,
        scales=np.ones(sizes.heads),
        table=np.ones((sizes.heads, 1)),
        shape=(),
        fingerprint="",
        vocabulary="",
        n_vocab=sizes.vocab,
        quantization="",
        target="",
        storage=storage,
    )


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--state", default=4096, help="Width of the model.")
@click.option("--hidden", default=512, help="Width of the hidden layer.")
@click.option("--embed", default=256, help="Width of the pending token's embedding.")
@click.option("--vocab", default=8192, help="Tokens that the heads know.")
@click.option("--heads", default=4, help="How many heads.")
@click.option("--threads", default=2, help="Threads of the library.")
def main(state: int, hidden: int, embed: int, vocab: int, heads: int, threads: int) -> None:
    sizes = Sizes(heads, state, hidden, embed, 0, vocab)
    given = np.random.default_rng(1).standard_normal(state, dtype=np.float32)
    for storage in STORAGE:
        file = heads_file(sizes, storage)
        loaded = Heads(file, threads=threads)
        click.echo(f"{storage}, {threads} threads: {milliseconds(functools.partial(loaded.logits, given, 0)):.2f} ms")
    p = file.params
    whole = np.concatenate([given, p["embed"][0]]) if embed else given

    def with_numpy() -> Any:
        before = p["in"] @ whole + p["in_bias"]
        silu = (before / (1.0 + np.exp(-before))).reshape(heads, hidden, 1)
        return (given + np.matmul(p["out"], silu)[..., 0]) @ p["up"].T + p["bias"]

    click.echo(f"numpy: {milliseconds(with_numpy):.2f} ms")


if __name__ == "__main__":
    main()
