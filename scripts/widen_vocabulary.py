"""A copy of a model with a larger vocabulary that says the same: what a modern model's 128 000 tokens cost, to measure.

    python scripts/widen_vocabulary.py models/demo-target-q8_0.gguf wide-target.gguf --tokens 151936

The added tokens have rows of their own in the embedding and output matrices, drawn from the old ones, so a decode costs
what it would with such a vocabulary; a bias of -100 keeps them from ever being said. A `llama` has no such bias; a
`qwen2` may have one and computes the same otherwise, but for the order of the rotated dimensions: a llama's pairs are
neighbours, and a qwen2's half a head apart.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import gguf
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lcspec.errors import UsageError
from scripts.gguf_copy import SCORES, TOKENS, TYPES, architecture, open_source, report, write_copy

NEVER = -100.0


def widen(src: Path, dst: Path, n_tokens: int) -> Path:
    """Writes the copy with `n_tokens` tokens to `dst` and returns it.

    Raises:
        ModelFileError: `src` is no sound GGUF.
        UsageError: it is no llama with matrices of its own for embedding and output, has no fewer tokens already, or
            would be written over itself.
    """
    reader = open_source(src, dst)
    n = len(reader.fields[TOKENS].data)
    names = {tensor.name for tensor in reader.tensors}
    if architecture(reader) != "llama" or "output.weight" not in names or "rope_freqs.weight" in names:
        raise UsageError(f"{src} is not a plain llama with an output matrix of its own")
    if n_tokens <= n:
        raise UsageError(f"{src} has {n} tokens already; give a larger number")
    added = n_tokens - n
    like = np.concatenate([np.arange(n), np.random.default_rng(1).integers(0, n, added)])
    heads = {
        "attn_q.weight": int(reader.fields["llama.attention.head_count"].contents()),
        "attn_k.weight": int(reader.fields["llama.attention.head_count_kv"].contents()),
    }

    def value(name: str, given: Any) -> Any:
        new = {
            TOKENS: lambda: [*given, *(f"<added{i}>" for i in range(added))],
            TYPES: lambda: [*given, *[int(gguf.TokenType.UNUSED)] * added],
            SCORES: lambda: [*given, *[0.0] * added],
            "llama.vocab_size": lambda: n_tokens,
        }.get(name)
        return given if new is None else new()

    def data(name: str, given: NDArray[Any]) -> NDArray[Any]:
        if name in ("token_embd.weight", "output.weight"):
            return given[like]
        n_heads = heads.get(name.partition(".")[2].partition(".")[2])
        return given if n_heads is None else given[halves(len(given), n_heads)]

    bias = np.where(np.arange(n_tokens) < n, 0.0, NEVER).astype(np.float32)
    return write_copy(reader, dst, value, data, "qwen2", {"output.bias": bias})


def halves(rows: int, n_heads: int) -> NDArray[np.intp]:
    """The order of `rows` in which each head's even ones come first, then its odd ones."""
    return np.arange(rows).reshape(n_heads, -1, 2).transpose(0, 2, 1).reshape(-1)


@click.command()
@click.argument("src", metavar="IN", type=click.Path(path_type=Path))
@click.argument("dst", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--tokens", type=int, default=151_936, show_default=True, help="Size of the vocabulary (that of Qwen2.5)."
)
def main(src: Path, dst: Path, tokens: int) -> None:
    """Write to OUT a copy of the model IN with more tokens, none of which it ever says."""
    report(lambda: widen(src, dst, tokens))


if __name__ == "__main__":
    main()
