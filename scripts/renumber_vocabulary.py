"""A copy of a model that says the same under other token numbers: a model "with another vocabulary" to measure with.

    python scripts/renumber_vocabulary.py models/demo-draft-q8_0.gguf other-draft.gguf

Tokens and the rows of the embedding and output matrices trade places, so the copy writes the same text and costs the
same. As a draft model it goes the way of a stranger, through text (see docs/drafters.md): what that costs and loses
shows beside the original.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.gguf_copy import PER_TOKEN, TOKENS, open_source, report, write_copy

MATRICES = ("token_embd.weight", "output.weight", "output.bias")


def renumber(src: Path, dst: Path, seed: int = 1) -> Path:
    """Writes the copy to `dst` and returns it.

    Raises:
        ModelFileError: `src` is no sound GGUF.
        UsageError: it has no vocabulary, or would be written over itself.
    """
    reader = open_source(src, dst)
    n = len(reader.fields[TOKENS].data)
    old: NDArray[np.int64] = np.random.default_rng(seed).permutation(n)  # old number of each new one
    new = np.argsort(old)

    def value(name: str, given: Any) -> Any:
        if name in PER_TOKEN:
            return [given[i] for i in old]
        return int(new[given]) if name.startswith("tokenizer.ggml.") and name.endswith("_token_id") else given

    return write_copy(reader, dst, value, lambda name, data: data[old] if name in MATRICES else data)


@click.command()
@click.argument("src", metavar="IN", type=click.Path(path_type=Path))
@click.argument("dst", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--seed", type=int, default=1, show_default=True, help="Of the new order.")
def main(src: Path, dst: Path, seed: int) -> None:
    """Write to OUT a copy of the model IN with its tokens renumbered."""
    report(lambda: renumber(src, dst, seed))


if __name__ == "__main__":
    main()
